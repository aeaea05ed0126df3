import type { Mode } from '../clipping/plan.ts';
import { defaultRho } from '../clipping/norm.ts';
import { type StepGraph, type StepOptions } from '../clipping/step-graph.ts';
import type { TypedGraph } from '../graph/ir.ts';
import { type ModelName, buildModel } from '../models/index.ts';
import { graphBuilder, matmul } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { stepArithmetic } from '../training/arithmetic.ts';
import { type Analysis, analyse, compileTask, requireTrainable } from '../training/compile.ts';
import { bindShapes } from '../training/shapes.ts';
import { feedsFor } from './feeds.ts';

/** A model of the bench, at the length of its sequences where that is open. */
export interface BenchModel {
  readonly model: ModelName;
  /** Tokens of an example. */
  readonly sequence?: number | undefined;
}

/** What one child process measures: a model's step in one mode, or a plain matrix product. */
export type BenchJob =
  | { readonly kind: 'step'; readonly batchSize: number; readonly mode: Mode; readonly threads: number } & BenchModel
  | { readonly kind: 'gemm'; readonly size: number; readonly threads: number };

/** What is known of a job before it runs. */
export interface JobFacts {
  /** Floating-point operations: of a step, those of forward, input and weight gradients without privacy. */
  readonly flops: number;
  /** Arithmetic that privacy adds, relative to `flops`; 0 for what is no step. */
  readonly extraFlopShare: number;
}

/** A job that is ready to run, any number of times. */
export interface Prepared {
  readonly facts: JobFacts;
  run(): Promise<void>;
}

/** Compiles a job and makes its inputs. */
export async function prepare(job: BenchJob): Promise<Prepared> {
  const { graph, facts } = benchGraph(job);
  const session = await onnxruntimeEngine().compile(graph, { threads: job.threads });
  let feeds = feedsFor(Object.fromEntries(graph.inputs.map(({ name }) => [name, graph.types.get(name)!])));
  return {
    facts,
    run: async () => {
      ({ feeds } = await session.run(feeds));
    },
  };
}

function benchGraph(job: BenchJob): { readonly graph: TypedGraph; readonly facts: JobFacts } {
  if (job.kind === 'gemm') {
    const b = graphBuilder(semantics);
    const type = { dtype: 'float32' as const, shape: [job.size, job.size] };
    const product = matmul(b, b.input('x', type), b.input('y', type));
    return { graph: b.build([['z', product]], 'gemm'), facts: { flops: 2 * job.size ** 3, extraFlopShare: 0 } };
  }
  const step = compileTask(benchAnalysis(job), job.batchSize, stepOptions(job.mode));
  return { graph: step.graph, facts: stepFacts(step, job.batchSize, job.mode) };
}

/** A bench model with its loss, proved trainable. */
export function benchAnalysis({ model: name, sequence }: BenchModel): Analysis {
  const model = buildModel(name, { seed: 1 });
  const { exampleShapes } = bindShapes(model, sequence === undefined ? {} : { sequence: [sequence] }, '--sequence');
  const analysis = analyse({ model, loss: 'cross-entropy', exampleShapes });
  requireTrainable(analysis);
  return analysis;
}

/** Clipping as it is measured: flat, by the usual function. */
export const stepOptions = (mode: Mode): StepOptions => ({
  mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1,
});

/** The arithmetic of a step: the same `flops` for every mode of a model. */
export function stepFacts({ layers }: Pick<StepGraph, 'layers'>, batchSize: number, mode: Mode): JobFacts {
  const { nonPrivate, extra } = stepArithmetic(layers, batchSize, mode);
  return { flops: nonPrivate, extraFlopShare: nonPrivate === 0 ? 0 : extra / nonPrivate };
}
