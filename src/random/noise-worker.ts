// A thread that adds noise: it takes one chunk after another until none is left.
import { parentPort } from 'node:worker_threads';
import { type NoiseChunk, type NoiseTarget, addToChunk } from './noise.ts';
import { keyBytes, keystream } from './stream.ts';

/** All arrays lie in shared memory: this describes them. */
export interface NoiseRequest {
  readonly chunks: readonly NoiseChunk[];
  readonly targets: readonly NoiseTarget[];
  readonly scale: number;
  /** One for each chunk, end to end; erased as they are used. */
  readonly keys: Uint8Array;
  /** The next chunk that nobody has taken. */
  readonly next: Int32Array;
}

/** Chunks done, or why not. */
export type NoiseReply = number | { readonly error: string };

function work({ chunks, targets, scale, keys, next }: NoiseRequest): NoiseReply {
  let done = 0;
  for (let at = Atomics.add(next, 0, 1); at < chunks.length; at = Atomics.add(next, 0, 1)) {
    const key = keys.subarray(keyBytes * at, keyBytes * (at + 1));
    const source = keystream(key);
    key.fill(0);
    addToChunk(targets, chunks[at]!, scale, source);
    done += 1;
  }
  return done;
}

parentPort?.on('message', (request: NoiseRequest) => {
  let reply: NoiseReply;
  try {
    reply = work(request);
  } catch (error) {
    reply = { error: error instanceof Error ? error.message : String(error) };
  }
  parentPort?.postMessage(reply);
});
