// What is asked of ONNX Runtime itself, in whatever thread. Plain JavaScript, since the worker is: Node starts one from a
// file as it is, and so the same file serves the sources and the built package.
import { InferenceSession, Tensor } from 'onnxruntime-node';

/** @import { WireTensor, WorkerReply, WorkerRequest } from './protocol.ts' */

/** What onnxruntime-node says of an output that is no tensor, once the run is done. */
const cannotBeRead = 'Non tensor type is temporarily not supported.';

/**
 * A session, and how it answers requests.
 *
 * @param {Extract<WorkerRequest, { kind: 'create' }>} request
 */
export async function createSession({ model, threads, profile, unread, frozen, fusesPads }) {
  const session = await InferenceSession.create(model, {
    intraOpNumThreads: threads,
    // The arena and the memory pattern cost a quarter to two fifths more peak memory here, and save no time.
    enableCpuMemArena: false,
    enableMemPattern: false,
    // One level higher convolutions with constant kernels are laid out anew, which costs more memory than it saves time
    // but where nothing else is computed.
    graphOptimizationLevel: frozen ? 'all' : 'extended',
    // It gives the zeros of a Pad to the MaxPool that follows, which takes its own padding for -∞: another result.
    ...(!fusesPads && { extra: { optimization: { disable_specified_optimizers: 'Pad_Fusion' } } }),
    logSeverityLevel: 3,
    ...(profile !== undefined && { enableProfiling: true, profileFilePrefix: profile }),
  });
  return {
    /** @param {Extract<WorkerRequest, { kind: 'run' }>} request @returns {Promise<WorkerReply>} */
    async run({ feeds, outputs }) {
      const given = Object.fromEntries(feeds.map(([name, t]) => [name, unwired(t)]));
      const wanted = Object.fromEntries(outputs.map(([name, t]) => [name, t && unwired(t)]));
      if (outputs.every(([, t]) => t !== null)) {
        // Nothing is left to be read: the results are where they were wanted.
        await session.run(given, { [unread]: null, ...wanted }).catch((/** @type {unknown} */ error) => {
          if (!(error instanceof Error && error.message === cannotBeRead)) throw error;
        });
        return { feeds, outputs: /** @type {[string, WireTensor][]} */ (outputs) };
      }
      const found = await session.run(given, wanted);
      return { feeds, outputs: outputs.map(([name, t]) => [name, t ?? wired(/** @type {Tensor} */ (found[name]))]) };
    },
    /** @returns {Promise<WorkerReply>} */
    async release() {
      if (profile !== undefined) session.endProfiling();
      await session.release();
      return {};
    },
  };
}

/** @param {WireTensor} t */
const unwired = ({ dtype, shape, data }) => new Tensor(/** @type {'float32'} */ (dtype), /** @type {Float32Array} */ (data), shape);

/** @param {Tensor} t @returns {WireTensor} */
const wired = (t) => ({ dtype: t.type, shape: [...t.dims], data: /** @type {Float32Array} */ (t.data) });
