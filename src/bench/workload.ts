import type { Mode } from '../clipping/plan.ts';
import { liveBytes } from '../clipping/live.ts';
import { defaultRho } from '../clipping/norm.ts';
import { type StepGraph, type StepOptions } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph, TypedGraph } from '../graph/ir.ts';
import { type ModelName, buildModel } from '../models/index.ts';
import { withLora } from '../models/lora.ts';
import { graphBuilder, matmul } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { noDraws } from '../random/initial.ts';
import type { Outputs } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import type { Shape } from '../tensor/tensor.ts';
import { stepArithmetic } from '../training/arithmetic.ts';
import { type Analysis, type Task, analyse, compileTask, groupsOf, requireTrainable } from '../training/compile.ts';
import { labelsInput } from '../training/loss.ts';
import { contractionsOf } from './contractions.ts';
import { feedsFor } from './feeds.ts';
import { type LayerPrediction, type LayerShape, layerModel, predictLayer } from './layer.ts';
import { logicalStep } from './logical.ts';

/** A model of the bench, at the length of its sequences where that is open. */
export interface BenchModel {
  readonly model: ModelName;
  /** Tokens of an example, for models of text; default 128. */
  readonly sequence?: number | undefined;
  /** Rank of adapters on all weights that can have one, which alone are trained; by default there are none and all is. */
  readonly lora?: number | undefined;
}

/** What one child process measures. `batchSize` is that of physical batches. */
export type BenchJob = { readonly threads: number } & (
  /** A model's step in one mode. */
  | { readonly kind: 'step'; readonly batchSize: number; readonly mode: Mode } & BenchModel
  /** The forward contractions of a model, and nothing else. */
  | { readonly kind: 'contractions'; readonly batchSize: number } & BenchModel
  /** The step of a model of one layer. */
  | { readonly kind: 'layer'; readonly batchSize: number; readonly mode: Mode } & LayerShape
  /** A logical batch of a model, by the step that training runs. */
  | { readonly kind: 'logical'; readonly logical: number; readonly batchSize: number; readonly mode: Mode } & BenchModel
  /** A square matrix product. */
  | { readonly kind: 'gemm'; readonly size: number }
);

/** What is known of a job before it runs. */
export interface JobFacts {
  /** Floating-point operations: of a step, those of forward, input and weight gradients without privacy. */
  readonly flops: number;
  /** Arithmetic that privacy adds, relative to `flops`; 0 for what is no step. */
  readonly extraFlopShare: number;
  /** Of the job `step`: the most bytes that the plan has live at one time, inputs and parameters not counted. */
  readonly plannedLiveBytes?: number;
  /** Of the job `layer`: what the complexity model predicts. */
  readonly prediction?: LayerPrediction;
}

/** A job that is ready to run, any number of times. */
export interface Prepared {
  readonly facts: JobFacts;
  run(): Promise<void>;
}

/** Compiles a job and makes its inputs. */
export async function prepare(job: BenchJob): Promise<Prepared> {
  if (job.kind === 'logical') return prepareLogical(job);
  const { graph, facts, choices = new Map() } = graphOf(job);
  const session = await onnxruntimeEngine({ thread: 'caller' }).compile(graph, { threads: job.threads });
  let outputs: Outputs = {};
  let feeds = feedsFor(Object.fromEntries(graph.inputs.map(({ name }) => [name, graph.types.get(name)!])), choices);
  return {
    facts,
    run: async () => {
      ({ feeds, outputs } = await session.run(feeds, outputs));
    },
  };
}

type Job<K extends BenchJob['kind']> = Extract<BenchJob, { kind: K }>;

async function prepareLogical({ logical, batchSize, mode, threads, ...model }: Job<'logical'>): Promise<Prepared> {
  const analysis = benchAnalysis(model, { seed: 1 });
  const { clipping } = stepOptions(mode, analysis);
  const step = await logicalStep(analysis, logical, choicesOf(analysis.task.model), {
    mode, clipping, microBatch: batchSize, threads, engine: onnxruntimeEngine({ thread: 'caller' }),
  });
  return { facts: stepFacts(step.program, logical, mode), run: step.run };
}

interface Workload {
  readonly graph: TypedGraph;
  readonly facts: JobFacts;
  /** Of inputs of whole numbers, as `feedsFor` takes them. */
  readonly choices?: ReadonlyMap<string, number>;
}

function graphOf(job: Exclude<BenchJob, { kind: 'logical' }>): Workload {
  switch (job.kind) {
    case 'gemm': return gemm(job.size);
    case 'contractions': {
      const analysis = benchAnalysis(job);
      const { graph, flops } = contractionsOf(compileTask(analysis, job.batchSize, stepOptions('non-private', analysis)));
      return { graph, facts: { flops, extraFlopShare: 0 } };
    }
    case 'layer': {
      const analysis = trainable({ model: layerModel(job), loss: 'output:loss' });
      const step = compileTask(analysis, job.batchSize, stepOptions(job.mode, analysis));
      const prediction = predictLayer(step.layers[0]!, job.batchSize, job.mode);
      return { graph: step.graph, facts: { ...stepFacts(step, job.batchSize, job.mode), prediction } };
    }
    case 'step': {
      const analysis = benchAnalysis(job);
      const step = compileTask(analysis, job.batchSize, stepOptions(job.mode, analysis));
      const facts = { ...stepFacts(step, job.batchSize, job.mode), plannedLiveBytes: liveBytes(step.graph) };
      return { graph: step.graph, facts, choices: choicesOf(analysis.task.model) };
    }
  }
}

function gemm(size: number): Workload {
  const b = graphBuilder(semantics);
  const type = { dtype: 'float32' as const, shape: [size, size] };
  const product = matmul(b, b.input('x', type), b.input('y', type));
  return { graph: b.build([['z', product]], 'gemm'), facts: { flops: 2 * size ** 3, extraFlopShare: 0 } };
}

/**
 * A bench model with its loss, proved trainable.
 *
 * @param weights where they are to be those of training; a step takes its parameters as inputs, whatever the model has
 */
export function benchAnalysis({ model: name, sequence, lora }: BenchModel, weights: Parameters<typeof buildModel>[1] = { draws: noDraws }): Analysis {
  const built = buildModel(name, weights);
  const task = { loss: name === 'gpt2-small' ? 'causal-lm' : 'cross-entropy', exampleShapes: exampleShapesOf(built, sequence) } as const;
  if (lora === undefined) return trainable({ ...task, model: built });
  const { model, adapters } = withLora(built, { rank: lora }, 1);
  return trainable({ ...task, model, trainable: adapters.flatMap(({ a, b }) => [a, b]) });
}

const defaultSequence = 128;

/** Every open dimension of a model is its number of tokens. */
function exampleShapesOf({ name, inputs }: Graph, sequence: number | undefined): Record<string, Shape> {
  const isOpen = inputs.some(({ shape }) => shape?.slice(1).some((d) => typeof d !== 'number'));
  if (sequence !== undefined && !isOpen) {
    throw new GhostgradError({
      what: 'the model reads no sequence', where: '--sequence', found: `${sequence} for ${name}`, expected: 'a model of text',
      fix: 'leave it out',
    });
  }
  return Object.fromEntries(inputs.map((input) =>
    [input.name, (input.shape ?? []).slice(1).map((d) => (typeof d === 'number' ? d : sequence ?? defaultSequence))]));
}

/** Ids of tokens are rows of the table that they are looked up in; classes are those of the logits; a mask is all 1. */
function choicesOf({ nodes, initializers, outputs }: Graph): ReadonlyMap<string, number> {
  const looked = nodes.filter(({ op }) => op === 'Gather').map(({ inputs: [table = '', ids = ''] }) => [ids, initializers.get(table)?.shape[0] ?? 1] as const);
  return new Map([...looked, [labelsInput, Number(outputs[0]?.shape?.at(-1) ?? 1)]]);
}

function trainable(task: Task): Analysis {
  const analysis = analyse(task);
  requireTrainable(analysis);
  return analysis;
}

/** Clipping as it is measured: by the usual function, flat, unless the mode clips each layer by itself. */
export const stepOptions = (mode: Mode, analysis: Pick<Analysis, 'parameters' | 'task'>): StepOptions => ({
  mode, clipping: { function: 'abadi', gamma: 0.01, groups: groupsOf(mode, analysis) }, rho: defaultRho, rowsPerUnit: 1,
});

/** The arithmetic of a step: the same `flops` for every mode of a model. */
export function stepFacts({ layers }: Pick<StepGraph, 'layers'>, batchSize: number, mode: Mode): JobFacts {
  const { nonPrivate, extra } = stepArithmetic(layers, batchSize, mode);
  return { flops: nonPrivate, extraFlopShare: nonPrivate === 0 ? 0 : extra / nonPrivate };
}
