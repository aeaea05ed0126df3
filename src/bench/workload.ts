import type { Mode } from '../clipping/plan.ts';
import { defaultRho } from '../clipping/norm.ts';
import type { TypedGraph } from '../graph/ir.ts';
import { type ModelName, buildModel } from '../models/index.ts';
import { graphBuilder, matmul } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { analyse, compileTask, requireTrainable } from '../training/compile.ts';
import { stepArithmetic } from '../training/arithmetic.ts';

/** What one child process measures: a model's step in one mode, or a plain matrix product. */
export type BenchJob =
  | { readonly kind: 'step'; readonly model: ModelName; readonly batchSize: number; readonly mode: Mode; readonly threads: number }
  | { readonly kind: 'gemm'; readonly size: number; readonly threads: number };

/** The graph and its arithmetic in floating-point operations (the same for every mode of a model). */
export function benchGraph(job: BenchJob): { graph: TypedGraph; flops: number } {
  if (job.kind === 'gemm') {
    const b = graphBuilder(semantics);
    const type = { dtype: 'float32' as const, shape: [job.size, job.size] };
    const product = matmul(b, b.input('x', type), b.input('y', type));
    return { graph: b.build([['z', product]], 'gemm'), flops: 2 * job.size ** 3 };
  }
  const analysis = analyse({ model: buildModel(job.model, { seed: 1 }), loss: 'cross-entropy' });
  requireTrainable(analysis);
  const step = compileTask(analysis, job.batchSize, {
    mode: job.mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1,
  });
  return { graph: step.graph, flops: stepArithmetic(step.layers, job.batchSize, 'non-private').nonPrivate };
}
