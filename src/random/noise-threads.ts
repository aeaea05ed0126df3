import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { GhostgradError } from '../errors.ts';
import { type NoiseTarget, chunksOf } from './noise.ts';
import type { NoiseReply, NoiseRequest } from './noise-worker.ts';
import { keyBytes } from './stream.ts';

/** Threads that add noise to arrays in shared memory. */
export interface NoiseThreads {
  /**
   * values ← noised values·scale for every target: what `addNoise` does on one thread, value for value.
   * Settles when all is done.
   *
   * @param keyOf makes the key of a stream; called before the promise is returned. Each key is erased by the thread
   * that used it, and all are when the promise settles
   * @throws GhostgradError when an array is not in shared memory, a value is not finite, or a thread fails; the
   * targets are then in no defined state and must not be used, nor the threads
   */
  addNoise(targets: readonly NoiseTarget[], scale: number, keyOf: (label: string, index: number) => Uint8Array): Promise<void>;
  /** Starts the threads, which takes a while, if they are not there yet. */
  start(): void;
  close(): Promise<void>;
}

/**
 * `count` threads, started at the first use or ahead of it. They do not keep the process alive when idle.
 *
 * @param program what they run; by default the noise worker beside this file
 */
export function noiseThreads(
  count: number,
  // Beside the sources stands a source, beside the built package a built file.
  program = new URL(`./noise-worker${extname(fileURLToPath(import.meta.url))}`, import.meta.url),
): NoiseThreads {
  let workers: readonly Worker[] | undefined;
  let failed: GhostgradError | undefined;
  const close = async (): Promise<void> => {
    await Promise.all((workers ?? []).map((worker) => worker.terminate()));
    workers = undefined;
  };
  const start = (): readonly Worker[] => (workers ??= Array.from({ length: Math.max(1, count) }, () => started(program)));
  const addNoise: NoiseThreads['addNoise'] = async (targets, scale, keyOf) => {
    if (failed !== undefined) throw failed;
    // A thread would add noise to a copy of any other array, and leave the array as it was.
    if (!targets.every(({ values, remainder = values }) => isShared(values) && isShared(remainder)))
      throw new GhostgradError({ what: 'noise threads were given an array of their own', expected: 'float32 arrays in shared memory' });
    const chunks = chunksOf(targets);
    const keys = new Uint8Array(new SharedArrayBuffer(keyBytes * chunks.length));
    try {
      chunks.forEach(({ label, index }, at) => {
        const key = keyOf(label, index);
        keys.set(key, keyBytes * at);
        key.fill(0);
      });
      const request: NoiseRequest = {
        chunks, targets, scale, keys, next: new Int32Array(new SharedArrayBuffer(4)),
      };
      const done = await Promise.all(start().map((worker) => answer(worker, request)));
      const total = done.reduce((sum, chunksDone) => sum + chunksDone, 0);
      if (total !== chunks.length) throw new Error(`${total} of ${chunks.length} parts were done`);
    } catch (cause) {
      failed = new GhostgradError({
        what: 'the noise could not be added', where: 'noise threads',
        found: cause instanceof Error ? cause.message : String(cause),
        fix: 'start the run again: the step was discarded',
      }, { cause });
      await close();
      throw failed;
    } finally {
      keys.fill(0);
    }
  };
  return { addNoise, start: () => void start(), close };
}

const isShared = (values: Float32Array | Float64Array): boolean =>
  values instanceof Float32Array && values.buffer instanceof SharedArrayBuffer;

function started(program: URL): Worker {
  const worker = new Worker(program);
  // An error that nobody waits for ends with the thread, and shows at its next use.
  worker.on('error', () => undefined);
  worker.unref();
  return worker;
}

/** What one thread answers to one request: how many chunks it took. */
function answer(worker: Worker, request: NoiseRequest): Promise<number> {
  return new Promise((resolve, reject) => {
    const settle = (act: () => void): void => {
      worker.off('message', onMessage).off('error', onError).off('exit', onExit);
      worker.unref();
      act();
    };
    const onMessage = (reply: NoiseReply): void =>
      settle(() => (typeof reply === 'number' ? resolve(reply) : reject(new Error(reply.error))));
    const onError = (error: Error): void => settle(() => reject(error));
    const onExit = (code: number): void => settle(() => reject(new Error(`a thread ended with code ${code}`)));
    worker.on('message', onMessage).on('error', onError).on('exit', onExit);
    worker.ref();
    worker.postMessage(request);
  });
}
