import { rowsFrom } from '../data/dataset.ts';
import type { Dataset } from '../data/index.ts';
import { prune } from '../graph/prune.ts';
import type { TypedGraph } from '../graph/ir.ts';
import type { Engine, Feeds, Outputs, RunResult } from '../runtime/engine.ts';
import { type Task, atBatchSize } from './compile.ts';
import { bytesPerElement, sizeOf } from '../tensor/tensor.ts';
import { inputsOf } from './examples.ts';

/** Values of some consecutive examples, [batch, ...]; rows after the last example are to be ignored. */
export interface Chunk {
  readonly start: number;
  readonly count: number;
  /** Of no use once the next chunk was asked for: they are written over. */
  readonly outputs: Outputs;
}

export interface ForwardOptions {
  /** Rows computed at once. */
  readonly batch: number;
  /** The first example. */
  readonly start?: number | undefined;
  /** The model where its rows were proved to be apart. */
  readonly like: TypedGraph;
  readonly engine: Engine;
  readonly threads?: number | undefined;
}

/**
 * Values of a model for all examples of `data` (fitted to the task), chunk by chunk: while one is being used, the engine
 * computes the next. Every chunk is computed by the same graph, so that what an example comes to does not depend on where
 * one began.
 */
export async function* forwardChunks(
  task: Task, values: readonly string[], data: Dataset, { batch, start = 0, like, engine, threads }: ForwardOptions,
): AsyncGenerator<Chunk, void, undefined> {
  if (start >= data.size) return;
  const graph = prune(atBatchSize(task, batch, like).typed, values);
  const session = await engine.compile(graph, { threads, frozen: true });
  let running: Promise<RunResult> | undefined;
  try {
    const feedsAt = (row: number, read?: Feeds): Feeds => inputsOf(data, rowsFrom(row, Math.min(batch, data.size - row)), batch, read);
    let spare: Outputs | undefined;
    let read: Feeds | undefined;
    running = session.run(feedsAt(start));
    for (let row = start; running !== undefined; row += batch) {
      const next = row + batch;
      const feeds = next < data.size ? feedsAt(next, read) : undefined;
      const { outputs, feeds: behind }: RunResult = await running;
      read = behind;
      running = feeds && session.run(feeds, spare);
      yield { start: row, count: Math.min(batch, data.size - row), outputs };
      spare = outputs;
    }
  } finally {
    await running?.catch(() => undefined);
    await session.release();
  }
}

/** Rows computed at once unless told otherwise: as many as keep the largest value within some 64 MiB, a power of two. */
export function forwardBatch(proof: TypedGraph): number {
  const rows = proof.types.get(proof.inputs[0]?.name ?? '')?.shape[0] ?? 1;
  const largest = Math.max(...[...proof.types.values()].map(({ dtype, shape }) => (sizeOf(shape) * bytesPerElement(dtype)) / rows));
  return Math.min(mostRows, 2 ** Math.floor(Math.log2(Math.max(1, largestValue / largest))));
}

const mostRows = 64;
const largestValue = 2 ** 26;

/** The bytes of an array. */
export const bytesOf = ({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array => new Uint8Array(buffer, byteOffset, byteLength);
