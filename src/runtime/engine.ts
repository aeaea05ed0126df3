import type { TypedGraph } from '../graph/ir.ts';
import type { Tensor } from '../tensor/tensor.ts';

export interface SessionOptions {
  /** Threads inside one operator; default: all cores. */
  readonly threads?: number | undefined;
  /** Writes a node-by-node profile (Chrome trace JSON) with this path prefix. */
  readonly profile?: string | undefined;
  /** Whether sessions compute at the same time as this one. Default false. */
  readonly concurrent?: boolean | undefined;
  /** Whether no weight is an input: constant weights may be laid out once, for as much memory again. Default false. */
  readonly frozen?: boolean | undefined;
}

export type Feeds = Readonly<Record<string, Tensor>>;
export type Outputs = Readonly<Record<string, Tensor>>;

/** A compiled graph. */
export interface Session {
  /**
   * Computes every output. Runs of one session are computed in the order of the calls, which need not wait for one another.
   * Feeds may be moved to another thread for the duration of the call: do not touch them
   * until the promise settles, after which the same tensors in {@link RunResult.feeds} are the ones to keep.
   *
   * @param spare outputs of an earlier run of this session that nobody reads any more: results are written over them, so
   * that a step after the first asks the system for no memory (on a virtual machine, first touching the memory of an
   * output may take longer than computing it). Default: new memory for every output
   */
  run(feeds: Feeds, spare?: Outputs): Promise<RunResult>;
  release(): Promise<void>;
}

export interface RunResult {
  readonly outputs: Outputs;
  /** The feeds again, with buffers that are valid on this thread. */
  readonly feeds: Feeds;
}

/** Executes graphs. The only layer that knows ONNX Runtime. */
export interface Engine {
  readonly name: string;
  compile(graph: TypedGraph, options?: SessionOptions): Promise<Session>;
}
