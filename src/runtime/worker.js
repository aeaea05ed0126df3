// A thread that ONNX Runtime computes in.
import { parentPort } from 'node:worker_threads';
import { createSession } from './ort.js';

/** @import { WorkerReply, WorkerRequest } from './protocol.ts' */

/** @type {Awaited<ReturnType<typeof createSession>> | undefined} */
let session;

/**
 * @param {WorkerRequest} request
 * @returns {Promise<WorkerReply>}
 */
async function answer(request) {
  if (request.kind === 'create') {
    session = await createSession(request);
    return {};
  }
  if (session === undefined) throw new Error('no session');
  return request.kind === 'run' ? session.run(request) : session.release();
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
