import type { Partition } from '../../src/clipping/groups.ts';
import { stepNames } from '../../src/clipping/step-graph.ts';
import { type Analysis, compileTask } from '../../src/training/compile.ts';
import { labelsInput } from '../../src/training/loss.ts';
import { defaultRho } from '../../src/clipping/norm.ts';
import type { StepOptions } from '../../src/clipping/step-graph.ts';
import { onnxruntimeEngine } from '../../src/runtime/node.ts';
import { type FloatTensor, type Tensor, tensor } from '../../src/tensor/tensor.ts';
import { rowsOf } from './random-network.ts';

/** Per-example gradients computed one privacy unit at a time, in a graph that knows nothing of clipping. */
export interface Oracle {
  /** For each unit, each parameter's gradient. */
  readonly gradients: readonly ReadonlyMap<string, Float32Array>[];
  readonly norms: readonly number[];
  readonly losses: readonly number[];
}

export interface Batch {
  readonly inputs: Readonly<Record<string, Tensor>>;
  readonly labels: Tensor;
  readonly rows: number;
}

export const parametersOf = (analysis: Analysis): Map<string, FloatTensor> =>
  new Map(analysis.parameters.map((name) => [name, analysis.task.model.initializers.get(name) as FloatTensor]));

/** The runtime moves buffers away: give it copies. */
const copy = <T extends Tensor>(t: T): T => ({ ...t, data: t.data.slice() });

const mask = (present: readonly boolean[]): Tensor => tensor('bool', [present.length], Uint8Array.from(present, Number));

export async function oracle(analysis: Analysis, batch: Batch, rowsPerUnit = 1): Promise<Oracle> {
  const options = { mode: 'non-private', clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit } as const;
  const session = await onnxruntimeEngine().compile(compileTask(analysis, rowsPerUnit, options).graph, { threads: 1 });
  const gradients: Map<string, Float32Array>[] = [];
  const losses: number[] = [];
  for (let unit = 0; unit < batch.rows / rowsPerUnit; unit++) {
    const part = Object.entries(batch.inputs).map(([name, t]) => [name, rowsOf(t, unit * rowsPerUnit, rowsPerUnit)] as const);
    const { outputs } = await session.run({
      ...Object.fromEntries(part), [labelsInput]: rowsOf(batch.labels, unit * rowsPerUnit, rowsPerUnit),
      [stepNames.rowMask]: mask(Array.from({ length: rowsPerUnit }, () => true)),
      ...Object.fromEntries([...parametersOf(analysis)].map(([name, t]) => [name, copy(t)])),
    });
    gradients.push(new Map(analysis.parameters.map((name) => [name, outputs[stepNames.sum(name)]!.data as Float32Array])));
    losses.push((outputs[stepNames.losses]!.data as Float32Array)[0]!);
  }
  await session.release();
  return { gradients, losses, norms: gradients.map(normOf) };
}

/** The loss of the only example of a batch, with the parameters moved by h·direction. */
export async function lossAlong(
  analysis: Analysis, batch: Batch, direction: ReadonlyMap<string, Float32Array>, h: number,
): Promise<number> {
  const moved = new Map([...analysis.task.model.initializers].map(([name, t]) => {
    const along = direction.get(name);
    return [name, along === undefined ? t : tensor('float32', t.shape, Float32Array.from(along, (x, i) => Number(t.data[i]) + h * x))] as const;
  }));
  const model = { ...analysis.task.model, initializers: moved };
  const { losses: [loss] } = await oracle({ ...analysis, task: { ...analysis.task, model } }, batch);
  return loss!;
}

type Gradient = ReadonlyMap<string, Float32Array | Float64Array>;

export const normOf = (gradient: Gradient): number => Math.hypot(...[...gradient.values()].map(lengthOf));

const lengthOf = (g: Float32Array | Float64Array): number => {
  let total = 0;
  for (const x of g) total += x * x;
  return Math.sqrt(total);
};

/** The norm of a gradient's part in each group. */
export const groupNorms = (gradient: Gradient, groups: Partition): number[] =>
  groups.map(({ parameters }) => normOf(new Map(parameters.map((name) => [name, gradient.get(name)!]))));

export interface StepOutput {
  readonly sums: ReadonlyMap<string, Float32Array>;
  /** [units, groups] */
  readonly norms: Float32Array;
  readonly losses: Float32Array;
  /** [units, groups] */
  readonly weights: Float32Array;
}

/** Runs the step graph on one physical batch. `present` marks the rows that are not padding. */
export async function runStep(
  analysis: Analysis, batch: Batch, options: StepOptions, thresholds: number | readonly number[], present?: readonly boolean[],
): Promise<StepOutput> {
  const step = compileTask(analysis, batch.rows, { diagnostics: true, ...options });
  const session = await onnxruntimeEngine().compile(step.graph, { threads: 1 });
  const { outputs } = await session.run({
    ...Object.fromEntries(Object.entries(batch.inputs).map(([name, t]) => [name, copy(t)])),
    [labelsInput]: copy(batch.labels),
    [stepNames.rowMask]: mask(present ?? Array.from({ length: batch.rows }, () => true)),
    [stepNames.thresholds]: tensor('float32', [step.groups.length], Float32Array.from([thresholds].flat())),
    ...Object.fromEntries([...parametersOf(analysis)].map(([name, t]) => [name, copy(t)])),
  });
  await session.release();
  const floats = (name: string) => outputs[name]?.data as Float32Array;
  return {
    sums: new Map(analysis.parameters.map((name) => [name, floats(stepNames.sum(name))])),
    norms: floats(stepNames.norms), losses: floats(stepNames.losses), weights: floats(stepNames.weights),
  };
}

/** Σ_i weight_i · gradient_i in float64. */
export function weightedSum(gradients: readonly ReadonlyMap<string, Float32Array>[], weights: readonly number[]): Map<string, Float64Array> {
  const sums = new Map([...gradients[0]!].map(([name, g]) => [name, new Float64Array(g.length)] as const));
  gradients.forEach((gradient, i) => gradient.forEach((g, name) => {
    const total = sums.get(name)!;
    for (let k = 0; k < g.length; k++) total[k]! += weights[i]! * g[k]!;
  }));
  return sums;
}

/**
 * Largest difference of two sets of arrays, relative to the largest value of the expected set and at least `least`
 * (sums may cancel).
 */
export function relativeDifference(
  found: ReadonlyMap<string, ArrayLike<number>>, expected: ReadonlyMap<string, ArrayLike<number>>, least = 0,
): number {
  let worst = 0;
  let largest = least;
  for (const [name, e] of expected) {
    const f = found.get(name);
    if (f === undefined || f.length !== e.length) return Infinity;
    for (let i = 0; i < e.length; i++) {
      const difference = Math.abs(f[i]! - e[i]!);
      worst = Number.isNaN(difference) ? Infinity : Math.max(worst, difference);
      largest = Math.max(largest, Math.abs(e[i]!));
    }
  }
  return largest === 0 ? worst : worst / largest;
}
