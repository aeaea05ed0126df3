import { onnxruntimeEngine } from '../runtime/node.ts';
import type { Feeds, Session } from '../runtime/engine.ts';
import type { TypedGraph } from '../graph/ir.ts';
import { type Tensor, zeros } from '../tensor/tensor.ts';
import { residentMemory, resetPeak } from './memory.ts';
import { type BenchJob, benchGraph } from './workload.ts';

/** What the parent says to a child, and what it answers. */
export type ChildRequest = { readonly kind: 'start'; readonly job: BenchJob } | { readonly kind: 'run' } | { readonly kind: 'stop' };
export type ChildReply =
  | { readonly kind: 'ready'; readonly flops: number }
  | { readonly kind: 'ran'; readonly ms: number; readonly peakMiB: number };

/** Measures one workload in a process of its own, one run for each request. */
function main(): void {
  let session: Session | undefined;
  let feeds: Feeds = {};
  const answer = async (request: ChildRequest): Promise<ChildReply | undefined> => {
    if (request.kind === 'start') {
      const { graph, flops } = benchGraph(request.job);
      session = await onnxruntimeEngine().compile(graph, { threads: request.job.threads });
      feeds = feedsFor(graph);
      return { kind: 'ready', flops };
    }
    if (request.kind === 'stop' || session === undefined) {
      process.exit(0);
    }
    resetPeak();
    const before = residentMemory().current;
    const start = performance.now();
    const result = await session.run(feeds);
    const ms = performance.now() - start;
    feeds = result.feeds;
    return { kind: 'ran', ms, peakMiB: residentMemory().peak - before };
  };
  process.on('message', (request: ChildRequest) => {
    void answer(request).then((reply) => {
      if (reply !== undefined) process.send?.(reply);
    });
  });
}

/** Deterministic inputs: what is computed does not matter, that it is ordinary numbers does. */
function feedsFor(graph: TypedGraph): Feeds {
  let state = 1;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
  return Object.fromEntries(graph.inputs.map(({ name }) => {
    const type = graph.types.get(name)!;
    const t: Tensor = zeros(type.dtype, type.shape);
    if (t.dtype === 'bool') t.data.fill(1 as never);
    if (t.dtype === 'float32') {
      const fan = type.shape.length > 1 ? type.shape.slice(1).reduce((a, n) => a * n, 1) : 1;
      const scale = type.shape.length === 0 ? 0 : Math.sqrt(2 / Math.max(1, Math.min(fan, 4608)));
      const data = t.data as Float32Array;
      for (let i = 0; i < data.length; i++) data[i] = type.shape.length === 0 ? 1 : uniform() * scale * 1.7;
    }
    return [name, t];
  }));
}

main();
