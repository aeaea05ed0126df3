import { type ClippingOptions, defaultRho } from '../clipping/norm.ts';
import type { Mode } from '../clipping/plan.ts';
import { type AnyColumn, type Dataset } from '../data/index.ts';
import { type Graph, type Node, int, latestOpset } from '../graph/ir.ts';
import { type Groups, groupsOf } from '../privacy/index.ts';
import type { Engine } from '../runtime/engine.ts';
import { type FloatTensor, int64, zeros } from '../tensor/tensor.ts';
import { analyse, requireTrainable } from '../training/compile.ts';
import { batchSource } from '../training/examples.ts';
import { type Parameters, type StepProgram, compileStep } from '../training/step.ts';

/**
 * A model whose gradients are its data: the loss of a row is Σ_k ⟨x_k, w_k⟩, one parameter w_k for each clipping group, so
 * the row's gradient in group k is x_k. A row is thus a canary in gradient space, and goes the way of every example: drawn,
 * clipped by the emitted graph, summed, noised.
 */
export interface Probe {
  readonly program: StepProgram;
  /** The groups of the claim, each of `canaries` + {@link quiet} numbers. */
  readonly groups: Groups;
  readonly parameters: Parameters;
  /** The canaries that a step of this probe can tell apart. */
  readonly canaries: number;
  /** Gradient over threshold at which the clip function lets most through. */
  readonly strength: number;
}

/** Numbers of each group that no gradient touches: there the noise is seen by itself. */
export const quiet = 16;

export interface ProbeSettings {
  readonly clipping: Pick<ClippingOptions, 'function' | 'gamma'>;
  readonly mode: Mode;
  readonly canaries: number;
  /** Rows computed at once. */
  readonly microBatch: number;
  readonly engine: Engine;
}

/** The probe for clipping as `claimed` groups are clipped. */
export async function probeOf(claimed: Groups, settings: ProbeSettings): Promise<Probe> {
  const { canaries, clipping } = settings;
  const width = canaries + quiet;
  const groups = groupsOf(claimed.map(({ name, norm }, k) => ({ name, norm, parameters: [weight(k)], size: width })));
  const analysis = analyse({ model: probeModel(groups.length, width), loss: 'output:loss' });
  requireTrainable(analysis);
  const program = await compileStep(analysis, {
    mode: settings.mode, clipping: { ...clipping, groups: groups.map(({ name, parameters }) => ({ name, parameters })) },
    microBatch: settings.microBatch, rho: defaultRho, threads: 1, engine: settings.engine,
  });
  const parameters = new Map(groups.map((_, k): [string, FloatTensor] => [weight(k), zeros('float32', [width, 1])]));
  return { program, groups, canaries, ...(await strongest(program, groups, parameters, width)) };
}

/** A gradient: +1 or −1 of the canary's direction, or nothing. */
export interface Row {
  readonly canary: number;
  readonly sign: 1 | 0 | -1;
}

/**
 * Rows as data. The gradient of canary i is `strength` thresholds long in each group, along the group's i-th number.
 *
 * @param thresholds those of the step that asks, since they may change
 * @param size rows in all; those after the last of `rows` have no gradient
 */
export function probeData(
  rows: readonly Row[], { size, width, thresholds, strength }: {
    readonly size: number; readonly width: number; readonly thresholds: () => readonly number[]; readonly strength: number;
  },
): Dataset {
  const column = (k: number): AnyColumn => ({
    dtype: 'float32', size, shape: [width], firstNonFinite: () => undefined,
    gather: (indices, into) => {
      into.fill(0);
      const length = strength * (thresholds()[k] ?? NaN);
      indices.forEach((row, i) => {
        const { canary = 0, sign = 0 } = rows[row] ?? {};
        into[i * width + canary] = sign * length;
      });
    },
  });
  const groups = thresholds().length;
  const features = new Map(Array.from({ length: groups }, (_, k) => [input(k), column(k)]));
  const labels: AnyColumn = { dtype: 'float32', size, shape: [], firstNonFinite: () => undefined, gather: (_, into) => void into.fill(0) };
  return {
    name: 'canaries', size, features, labels,
    gather: () => { throw new TypeError('canaries are gathered column by column'); },
  };
}

export const weight = (group: number): string => `w.${group}`;
const input = (group: number): string => `x.${group}`;

function probeModel(groups: number, width: number): Graph {
  const each = Array.from({ length: groups }, (_, k) => k);
  const node = (op: string, name: string, inputs: readonly string[], outputs: readonly string[], attributes = {}): Node =>
    ({ op, domain: '', name, inputs, outputs, attributes });
  return {
    name: 'probe',
    opset: latestOpset,
    inputs: each.map((k) => ({ name: input(k), dtype: 'float32', shape: ['batch', width] })),
    outputs: [{ name: 'loss', dtype: 'float32', shape: ['batch'] }],
    initializers: new Map<string, FloatTensor | ReturnType<typeof int64>>([
      ...each.map((k): [string, FloatTensor] => [weight(k), zeros('float32', [width, 1])]),
      ['axes', int64([1])],
    ]),
    literals: new Set(['axes']),
    nodes: [
      ...each.map((k) => node('MatMul', `product.${k}`, [input(k), weight(k)], [`part.${k}`])),
      node('Concat', 'parts', each.map((k) => `part.${k}`), ['parts'], { axis: int(1) }),
      node('ReduceSum', 'sum', ['parts', 'axes'], ['loss'], { keepdims: int(0) }),
    ],
    metadata: {},
  };
}

/**
 * The longest of several gradients, in thresholds, at which the clip function lets most through: most need gradients far above
 * the threshold, a function that drops these needs one just below it.
 */
async function strongest(
  program: StepProgram, groups: Groups, parameters: Parameters, width: number,
): Promise<{ readonly strength: number; readonly parameters: Parameters }> {
  const thresholds = groups.map(({ norm }) => norm);
  let best = { strength: NaN, through: 0 };
  let current = parameters;
  for (const strength of [1000, 10, 1.001, 0.999]) {
    const data = probeData([{ canary: 0, sign: 1 }], { size: 1, width, thresholds: () => thresholds, strength });
    const { sums, parameters: back } = await program.run(current, batchSource(data, Uint32Array.of(0)), thresholds);
    current = back;
    const through = Math.hypot(...groups.map((_, k) => sums.get(weight(k))![0]!));
    if (!(through <= best.through * (1 + 1e-4))) best = { strength, through };
  }
  return { strength: best.strength, parameters: current };
}
