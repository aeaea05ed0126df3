import type { TypedGraph } from '../graph/ir.ts';
import type { Tensor } from '../tensor/tensor.ts';

export interface SessionOptions {
  /** Threads inside one operator; default: all cores. */
  readonly threads?: number | undefined;
  /** Writes a node-by-node profile (Chrome trace JSON) with this path prefix. */
  readonly profile?: string | undefined;
}

export type Feeds = Readonly<Record<string, Tensor>>;

/** A compiled graph. */
export interface Session {
  /**
   * Computes every output. Feeds may be moved to another thread for the duration of the call: do not touch them
   * until the promise settles, after which the same tensors in {@link RunResult.feeds} are the ones to keep.
   */
  run(feeds: Feeds): Promise<RunResult>;
  release(): Promise<void>;
}

export interface RunResult {
  readonly outputs: Readonly<Record<string, Tensor>>;
  /** The feeds again, with buffers that are valid on this thread. */
  readonly feeds: Feeds;
}

/** Executes graphs. The only layer that knows ONNX Runtime. */
export interface Engine {
  readonly name: string;
  compile(graph: TypedGraph, options?: SessionOptions): Promise<Session>;
}
