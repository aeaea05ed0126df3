// The thread that ONNX Runtime computes in. Plain JavaScript, so that the same file serves the sources and the
// built package: Node starts a worker from a file as it is.
import { parentPort } from 'node:worker_threads';
import { InferenceSession, Tensor } from 'onnxruntime-node';

/** @import { WireTensor, WorkerReply, WorkerRequest } from './protocol.ts' */

/** @type {InferenceSession | undefined} */
let session;
let profiling = false;

/** @param {Extract<WorkerRequest, { kind: 'create' }>} request */
async function create({ model, threads, profile }) {
  profiling = profile !== undefined;
  session = await InferenceSession.create(model, {
    intraOpNumThreads: threads,
    // The arena and the memory pattern cost a quarter to two fifths more peak memory here, and save no time.
    enableCpuMemArena: false,
    enableMemPattern: false,
    // One level higher convolutions with constant kernels are laid out anew, which costs more memory than it saves time.
    graphOptimizationLevel: 'extended',
    logSeverityLevel: 3,
    ...(profile !== undefined && { enableProfiling: true, profileFilePrefix: profile }),
  });
}

/**
 * @param {InferenceSession} compiled
 * @param {Extract<WorkerRequest, { kind: 'run' }>} request
 * @returns {Promise<WorkerReply>}
 */
async function run(compiled, { feeds, outputs }) {
  const wanted = Object.fromEntries(outputs.map(([name, t]) => [name, t && unwired(t)]));
  const found = await compiled.run(Object.fromEntries(feeds.map(([name, t]) => [name, unwired(t)])), wanted);
  return { feeds, outputs: outputs.map(([name, t]) => [name, t ?? wired(/** @type {Tensor} */ (found[name]))]) };
}

/** @param {WireTensor} t */
const unwired = ({ dtype, shape, data }) => new Tensor(/** @type {'float32'} */ (dtype), /** @type {Float32Array} */ (data), shape);

/** @param {Tensor} t @returns {WireTensor} */
const wired = (t) => ({ dtype: t.type, shape: [...t.dims], data: /** @type {Float32Array} */ (t.data) });

/**
 * @param {WorkerRequest} request
 * @returns {Promise<WorkerReply>}
 */
async function answer(request) {
  if (request.kind === 'create') {
    await create(request);
    return {};
  }
  if (session === undefined) throw new Error('no session');
  if (request.kind === 'run') return run(session, request);
  if (profiling) session.endProfiling();
  await session.release();
  return {};
}

/** @param {WorkerReply} reply */
function send(reply) {
  const buffers = [...(reply.outputs ?? []), ...(reply.feeds ?? [])].map(([, t]) => /** @type {ArrayBuffer} */ (t.data.buffer));
  parentPort?.postMessage(reply, [...new Set(buffers)]);
}

parentPort?.on('message', (/** @type {WorkerRequest} */ request) => {
  answer(request).then(send, (/** @type {unknown} */ error) => {
    send({ error: error instanceof Error ? error.message : String(error) });
  });
});
