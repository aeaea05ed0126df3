import { type GradientPath, type UseSite, reverse } from '../autodiff/reverse.ts';
import type { TypedGraph } from '../graph/ir.ts';
import type { BatchAxis } from '../ops/batch.ts';
import { type GraphBuilder, type Value, concat, graphBuilder, reshape, scale } from '../ops/builder.ts';
import type { ParameterUse } from '../ops/operator.ts';
import { semantics } from '../ops/table.ts';
import { sizeOf } from '../tensor/tensor.ts';
import { type Contraction, type NormParts, type Weights, contractionOf, squaredLength } from './contraction.ts';
import { type ClippingOptions, clipWeights, safeNorm, unitLosses, unitMask } from './norm.ts';
import { dataLast } from './schedule.ts';
import { type LayerPlan, type Mode, isTwoPass, planLayer } from './plan.ts';

export interface StepOptions {
  readonly mode: Mode;
  readonly clipping: ClippingOptions;
  /** Relative slack of the bound; default {@link defaultRho}. */
  readonly rho: number;
  /** Rows of the batch that belong to one privacy unit, consecutive; default 1. */
  readonly rowsPerUnit: number;
  /** Also output squared norms by parameter and the clip weights. */
  readonly diagnostics?: boolean;
}

/** The forward graph at its physical batch size, proved to keep rows apart. */
export interface StepSource {
  /** Trainable parameters are inputs of this graph, not initializers. */
  readonly graph: TypedGraph;
  readonly path: GradientPath;
  readonly batch: ReadonlyMap<Value, BatchAxis>;
  /** [rows] float32: one loss a row. */
  readonly loss: Value;
}

/** One parameter of the step: how it is used and what was decided. */
export interface StepLayer {
  readonly parameter: string;
  readonly sites: readonly UseSite[];
  readonly contraction: Contraction['size'];
  readonly plan: LayerPlan;
}

/** Names of the step graph's own inputs and outputs. */
export const stepNames = {
  rowMask: 'ghostgrad.row_mask',
  threshold: 'ghostgrad.threshold',
  losses: 'ghostgrad.losses',
  norms: 'ghostgrad.norms',
  weights: 'ghostgrad.weights',
  squaredNorms: 'ghostgrad.squared_norms',
  sum: (parameter: string) => `ghostgrad.sum:${parameter}`,
} as const;

export interface StepGraph {
  /**
   * Inputs: the parameters, the batch, `rowMask` [rows] bool and (private modes) `threshold` []. Outputs: `sum(p)` for
   * each parameter, `losses` [units]; in private modes `norms` [units]; with diagnostics `weights` [units] and
   * `squaredNorms` [units, parameters].
   */
  readonly graph: TypedGraph;
  readonly layers: readonly StepLayer[];
  readonly units: number;
  readonly rows: number;
}

/** Emits one training step as one graph: forward, backward, norms, clip weights, clipped sums. */
export function stepGraph(source: StepSource, options: StepOptions): StepGraph {
  const b = graphBuilder(semantics, source.graph);
  const rows = b.shape(source.loss)[0]!;
  const units = rows / options.rowsPerUnit;
  const rowMask = b.input(stepNames.rowMask, { dtype: 'bool', shape: [rows] });
  const isPrivate = options.mode !== 'non-private';
  // A unit's loss is the mean over its rows; rows that are padding seed nothing.
  const seed = b.op('Where', [rowMask, b.scalar(1 / options.rowsPerUnit), b.scalar(0)]);
  const pass = (value: Value) => backwardPass(b, source, options, units, rowMask, value);

  const first = pass(seed);
  const losses = [stepNames.losses, unitLosses(b, source.loss, rowMask, units)] as const;
  if (!isPrivate) {
    return finish(b, first, units, rows, [...first.map((layer) => sumOutput(layer, undefined)), losses]);
  }

  const threshold = b.input(stepNames.threshold, { dtype: 'float32', shape: [] });
  const parts = first.map((layer) => normOf(b, layer));
  const norm = safeNorm(b, parts, units, options.rho);
  const present = [unitMask(b, rowMask, units), ...ordinaryData(b, source, rowMask, units)];
  const mask = present.reduce((all, some) => b.op('And', [all, some]));
  const clipped = clipWeights(b, norm, mask, threshold, options.clipping);
  // The second pass forms the first one's gradients again, bit for bit. Weights in its seeds would be cheaper, but every
  // later sum of the pass would round otherwise, and where it cancels the weighted gradient could exceed the bound.
  const summed = isTwoPass(options.mode) ? pass(seedOf(b, seed, clipped.valid)) : first;
  // ONNX Runtime visits the outputs from the last emitted to the first. Once the norms are known, the first layers'
  // sums come first: they are small, and free the largest activations before the last layers' large sums are formed.
  const inOrder = isTwoPass(options.mode) ? summed : [...summed].reverse();
  const outputs = [...inOrder.map((layer) => sumOutput(layer, clipped)), losses, [stepNames.norms, norm.computed] as const];
  if (options.diagnostics === true) {
    outputs.push([stepNames.weights, clipped.weights]);
    outputs.push([stepNames.squaredNorms, concat(b, parts.map((part) => reshape(b, part.squared, [units, 1])), 1)]);
  }
  return finish(b, first, units, rows, outputs);
}

/**
 * Units whose inputs and loss are ordinary numbers, [U] each: an operator such as MaxPool may swallow a NaN of the
 * input, and the gradient would not show it.
 */
function ordinaryData(b: GraphBuilder, source: StepSource, rowMask: Value, units: number): Value[] {
  const data = source.graph.inputs.filter(({ name, dtype }) => dtype === 'float32' && source.batch.has(name));
  return [...data.map(({ name }) => name), unitLosses(b, source.loss, rowMask, units)].map((value) =>
    b.op('Less', [squaredLength(b, value, units), b.scalar(Infinity)]));
}

interface Layer extends StepLayer {
  readonly does: Contraction;
}

function backwardPass(
  b: GraphBuilder, source: StepSource, options: StepOptions, units: number, rowMask: Value, seed: Value,
): Layer[] {
  const { uses } = reverse(b, source.graph, new Map([[source.loss, seed]]), source.path, source.batch);
  const guarded = options.mode !== 'non-private';
  return [...source.path.parameters].flatMap((parameter) => {
    const sites = uses.get(parameter);
    if (sites === undefined) return [];
    const present = sites.map(({ use }) => (guarded && options.rowsPerUnit > 1 ? maskRows(b, use, rowMask) : use));
    const does = contractionOf(b, present, b.shape(parameter), units, guarded);
    const offers = { size: does.size, ghost: does.ghost !== undefined, product: does.product !== undefined };
    return [{ parameter, sites, does, contraction: does.size, plan: planLayer(options.mode, offers) }];
  });
}

/** Seeds of the second pass: those of the units that are kept. */
function seedOf(b: GraphBuilder, seed: Value, valid: Value): Value {
  const units = b.shape(valid)[0]!;
  const rows = b.shape(seed)[0]!;
  const byUnit = reshape(b, seed, [units, rows / units]);
  return reshape(b, b.op('Where', [reshape(b, valid, [units, 1]), byUnit, b.scalar(0)]), [rows]);
}

/** Where a unit has several rows, absent rows are removed one by one, by selection on every operand. */
function maskRows(b: GraphBuilder, use: ParameterUse, rowMask: Value): ParameterUse {
  const rows = b.shape(rowMask)[0]!;
  const keep = (x: Value): Value => {
    const shape = b.shape(x);
    const flat = reshape(b, x, [rows, sizeOf(shape) / rows]);
    const zero = b.scalar(0, b.type(x).dtype);
    return reshape(b, b.op('Where', [reshape(b, rowMask, [rows, 1]), flat, zero]), shape);
  };
  switch (use.kind) {
    case 'outer':
    case 'convolution': return { ...use, input: keep(use.input), outputGradient: keep(use.outputGradient) };
    case 'gather': return { ...use, outputGradient: keep(use.outputGradient) };
    case 'broadcast': return { ...use, gradient: keep(use.gradient) };
    case 'opaque': return { ...use, perExample: keep(use.perExample) };
  }
}

function normOf(b: GraphBuilder, { does, plan }: Layer): NormParts {
  if (plan.norm === 'ghost' && does.ghost !== undefined) return does.ghost();
  const { error, ...parts } = does.instantiated();
  if (error === undefined) return parts;
  // A product rounds apart from the gradient that was measured, by as much again.
  return { ...parts, error: plan.sum === 'product' && does.product !== undefined ? scale(b, error, 2) : error };
}

function sumOutput({ parameter, does, plan }: Layer, weights: Weights | undefined): readonly [string, Value] {
  const value = plan.sum === 'product' && does.product !== undefined ? does.product(weights) : does.weightedSum(weights);
  return [stepNames.sum(parameter), value];
}

function finish(
  b: GraphBuilder, layers: readonly Layer[], units: number, rows: number, outputs: readonly (readonly [string, Value])[],
): StepGraph {
  const graph = b.build(outputs, 'step');
  const data = graph.inputs.map(({ name }) => name).filter((name) => !layers.some(({ parameter }) => parameter === name));
  return {
    graph: dataLast(graph, new Set(data)),
    layers: layers.map(({ parameter, sites, contraction, plan }) => ({ parameter, sites, contraction, plan })),
    units, rows,
  };
}
