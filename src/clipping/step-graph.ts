import { type GradientPath, type UseSite, reverse } from '../autodiff/reverse.ts';
import type { TypedGraph } from '../graph/ir.ts';
import type { BatchAxis } from '../ops/batch.ts';
import { type GraphBuilder, type Value, concat, graphBuilder, mul, reshape, slice, transpose } from '../ops/builder.ts';
import type { ParameterUse } from '../ops/operator.ts';
import { semantics } from '../ops/table.ts';
import { sizeOf } from '../tensor/tensor.ts';
import type { Contraction } from './contraction.ts';
import { type Partition, flat, groupNumbers } from './groups.ts';
import { type Part, partsOf } from './parts.ts';
import { type ClipWeights, type ClippingOptions, type Measured, clipWeights, safeNorm, unitLosses, unitMask } from './norm.ts';
import { liveBytes } from './live.ts';
import { dataLast, inOrder } from './schedule.ts';
import { type LayerPlan, type LayerRule, type Mode, isTwoPass, planLayer } from './plan.ts';
import { withSharedGrams } from './shared-gram.ts';
import { squaredLength, sum } from './unit.ts';

export interface StepOptions {
  readonly mode: Mode;
  /** What decides between a layer's norms in the modes of one pass; default `time`. */
  readonly layersBy?: LayerRule | undefined;
  readonly clipping: ClippingOptions;
  /** Relative slack of the bound; default {@link defaultRho}. */
  readonly rho: number;
  /** Rows of the batch that belong to one privacy unit, consecutive; default 1. */
  readonly rowsPerUnit: number;
  /** Also output squared norms by parameter and the clip weights. */
  readonly diagnostics?: boolean;
  /** Also output which units are classified right. */
  readonly right?: boolean | undefined;
}

/** The forward graph at its physical batch size, proved to keep rows apart. */
export interface StepSource {
  /** Trainable parameters are inputs of this graph, not initializers. */
  readonly graph: TypedGraph;
  readonly path: GradientPath;
  readonly batch: ReadonlyMap<Value, BatchAxis>;
  /** [rows] float32: one loss a row. */
  readonly loss: Value;
  /** Emits which rows are classified right, [rows] float32; undefined where that cannot be told. */
  readonly right?: ((b: GraphBuilder) => Value | undefined) | undefined;
  /** Inputs that are no data, but what a frozen model made of it. */
  readonly computed?: readonly Value[] | undefined;
}

/** A parameter of the step, or a part of one: how it is used and what was decided. */
export interface StepLayer {
  readonly parameter: string;
  /** The number of the clipping group that it is in. */
  readonly group: number;
  readonly sites: readonly UseSite[];
  readonly contraction: Contraction['size'];
  readonly plan: LayerPlan;
}

/** Names of the step graph's own inputs and outputs. */
export const stepNames = {
  rowMask: 'ghostgrad.row_mask',
  thresholds: 'ghostgrad.thresholds',
  losses: 'ghostgrad.losses',
  right: 'ghostgrad.right',
  norms: 'ghostgrad.norms',
  weights: 'ghostgrad.weights',
  squaredNorms: 'ghostgrad.squared_norms',
  sum: (parameter: string) => `ghostgrad.sum:${parameter}`,
} as const;

export interface StepGraph {
  /**
   * Inputs: the parameters, the batch, `rowMask` [rows] bool and (private modes) `thresholds` float32 [K], one for each
   * clipping group. Outputs: `sum(p)` for each parameter, `losses` [units], `right` [units] where asked for; in private modes `norms` [units, K]; with
   * diagnostics `weights` [units, K] and `squaredNorms` [units, layers].
   */
  readonly graph: TypedGraph;
  /** The K groups, in the order of their thresholds. */
  readonly groups: Partition;
  readonly layers: readonly StepLayer[];
  readonly units: number;
  readonly rows: number;
}

/**
 * Emits one training step as one graph: forward, backward, norms, clip weights, clipped sums.
 *
 * @throws GhostgradError unless `clipping.groups` is a partition of the parameters
 */
export function stepGraph(source: StepSource, options: StepOptions): StepGraph {
  const b = graphBuilder(semantics, source.graph);
  const rows = b.shape(source.loss)[0]!;
  const units = rows / options.rowsPerUnit;
  const rowMask = b.input(stepNames.rowMask, { dtype: 'bool', shape: [rows] });
  const isPrivate = options.mode !== 'non-private';
  // A unit's loss is the mean over its rows; rows that are padding seed nothing.
  const seed = b.op('Where', [rowMask, b.scalar(1 / options.rowsPerUnit), b.scalar(0)]);
  const groups = options.clipping.groups ?? flat([...source.path.parameters]);
  const group = groupNumbers(groups, [...source.path.parameters]);
  const pass = (value: Value): Layer[] => backwardPass(b, source, options, units, rowMask, value)
    .map((layer) => ({ ...layer, group: group.get(layer.parameter)! }));

  const first = pass(seed);
  const right = options.right === true ? source.right?.(b) : undefined;
  const seen = [
    [stepNames.losses, unitLosses(b, source.loss, rowMask, units)] as const,
    ...(right === undefined ? [] : [[stepNames.right, unitLosses(b, right, rowMask, units)] as const]),
  ];
  if (!isPrivate) {
    return finish(b, source, first, { groups, units, rows }, [...sumOutputs(b, first, undefined), ...seen]);
  }

  const thresholds = b.input(stepNames.thresholds, { dtype: 'float32', shape: [groups.length] });
  const parts = first.map((layer) => normOf(b, layer));
  const present = [unitMask(b, rowMask, units), ...ordinaryData(b, source, rowMask, units)];
  const mask = present.reduce((all, some) => b.op('And', [all, some]));
  const clip = options.mode === 'per-layer' ? clippedApart : clippedTogether;
  const byGroup = groups.map((_, k) => parts.filter((_part, i) => first[i]!.group === k));
  const { norms, clipped } = clip(b, byGroup, mask, thresholds, units, options);
  // The second pass forms the first one's gradients again, bit for bit. Weights in its seeds would be cheaper, but every
  // later sum of the pass would round otherwise, and where it cancels the weighted gradient could exceed the bound.
  const summed = isTwoPass(options.mode) ? pass(seedOf(b, seed, clipped.valid)) : first;
  const byUnit = (x: Value) => transpose(b, x, [1, 0]);
  const outputs = [...sumOutputs(b, summed, clipped), ...seen, [stepNames.norms, byUnit(norms)] as const];
  if (options.diagnostics === true) {
    outputs.push([stepNames.weights, byUnit(clipped.all)]);
    outputs.push([stepNames.squaredNorms, concat(b, parts.map((part) => reshape(b, part.squared, [units, 1])), 1)]);
  }
  return finish(b, source, first, { groups, units, rows }, outputs);
}

interface Clipped {
  /** [K, U], as computed. */
  readonly norms: Value;
  readonly clipped: ClipWeights;
}

/** Clip weights once the norms of all groups are known: a unit that is not finite in one is dropped from all. */
function clippedTogether(
  b: GraphBuilder, groups: readonly (readonly Measured[])[], mask: Value, thresholds: Value, units: number, options: StepOptions,
): Clipped {
  const norm = safeNorm(b, groups, units, options.rho);
  return { norms: norm.computed, clipped: clipWeights(b, norm, mask, thresholds, options.clipping) };
}

/**
 * Clip weights of each group as soon as its own norms are known, so that its sums can be formed and its activations freed
 * while the backward pass goes on (He et al. 2022, "Exploring the Limits of Differentially Private Deep Learning with
 * Group-wise Clipping"). A unit whose gradient turns out not to be finite in another group is dropped from that group
 * alone: every group's sum is bounded by the group's own threshold whatever the others hold, which is all that the
 * sensitivity rests on.
 */
function clippedApart(
  b: GraphBuilder, groups: readonly (readonly Measured[])[], mask: Value, thresholds: Value, units: number, options: StepOptions,
): Clipped {
  const each = groups.map((parts, k) =>
    clippedTogether(b, [parts], mask, slice(b, thresholds, [0], [k], [k + 1]), units, options));
  const stacked = (pick: (group: Clipped) => Value) => concat(b, each.map(pick), 0);
  return {
    norms: stacked(({ norms }) => norms),
    clipped: {
      all: stacked(({ clipped }) => clipped.all), groups: each.flatMap(({ clipped }) => clipped.groups),
      valid: each.map(({ clipped }) => clipped.valid).reduce((all, some) => b.op('And', [all, some])),
    },
  };
}

/**
 * Units whose inputs and loss are ordinary numbers, [U] each: an operator such as MaxPool may swallow a NaN of the
 * input, and the gradient would not show it.
 */
function ordinaryData(b: GraphBuilder, source: StepSource, rowMask: Value, units: number): Value[] {
  const data = source.graph.inputs.filter(({ name, dtype }) => dtype === 'float32' && source.batch.has(name));
  // Only rows that are there count: what stands in the place of an absent one must not drop the unit's others.
  const present = (value: Value): Value => (b.shape(rowMask)[0] === units ? value : keepRows(b, rowMask, value));
  // What a model computed may be as large as a float can be; times 0, it is 0 unless it is not finite.
  const seen = (name: Value): Value => (source.computed?.includes(name) === true ? mul(b, name, b.scalar(0)) : name);
  return [...data.map(({ name }) => present(seen(name))), unitLosses(b, source.loss, rowMask, units)].map((value) =>
    b.op('Less', [squaredLength(b, value, units), b.scalar(Infinity)]));
}

interface Layer extends StepLayer, Part {}

function backwardPass(
  b: GraphBuilder, source: StepSource, options: StepOptions, units: number, rowMask: Value, seed: Value,
): readonly Omit<Layer, 'group'>[] {
  const { uses } = reverse(b, source.graph, new Map([[source.loss, seed]]), source.path, source.batch);
  const guarded = options.mode !== 'non-private';
  const present = new Map([...uses].map(([value, sites]) => [value, sites.map((site) => (
    guarded && options.rowsPerUnit > 1 ? { ...site, use: maskRows(b, site.use, rowMask) } : site
  ))]));
  const parts = partsOf({ b, graph: source.graph, path: source.path, uses: present, units, guarded });
  return withSharedGrams([...parts].flatMap(([parameter, all]) => all.map((part) => {
    const { size, ghost, product } = part.does;
    const offers = { size, ghost: ghost !== undefined, product: product !== undefined };
    return { ...part, parameter, contraction: size, plan: planLayer(options.mode, offers, options.layersBy) };
  })));
}

/** Seeds of the second pass: those of the units that are kept. */
function seedOf(b: GraphBuilder, seed: Value, valid: Value): Value {
  const units = sizeOf(b.shape(valid));
  const rows = b.shape(seed)[0]!;
  const byUnit = reshape(b, seed, [units, rows / units]);
  return reshape(b, b.op('Where', [reshape(b, valid, [units, 1]), byUnit, b.scalar(0)]), [rows]);
}

/** x, which has the rows in front, with zeros in those that are absent. */
function keepRows(b: GraphBuilder, rowMask: Value, x: Value): Value {
  const rows = b.shape(rowMask)[0]!;
  const shape = b.shape(x);
  const flat = reshape(b, x, [rows, sizeOf(shape) / rows]);
  const zero = b.scalar(0, b.type(x).dtype);
  return reshape(b, b.op('Where', [reshape(b, rowMask, [rows, 1]), flat, zero]), shape);
}

/** Where a unit has several rows, absent rows are removed one by one, by selection on every operand. */
function maskRows(b: GraphBuilder, use: ParameterUse, rowMask: Value): ParameterUse {
  const keep = (x: Value): Value => keepRows(b, rowMask, x);
  switch (use.kind) {
    case 'outer':
    case 'convolution': return { ...use, input: keep(use.input), outputGradient: keep(use.outputGradient) };
    case 'gather': return { ...use, outputGradient: keep(use.outputGradient) };
    case 'broadcast': return {
      ...use, gradient: keep(use.gradient), ...(use.summed && { summed: { ...use.summed, of: keep(use.summed.of) } }),
    };
    case 'opaque': return { ...use, perExample: keep(use.perExample) };
  }
}

/**
 * What a layer's norm is measured to be, with all that the true gradient, and its part of the released sum as float32
 * computes it, may differ from that.
 */
export function normOf(b: GraphBuilder, { does, plan }: Pick<Layer, 'does' | 'plan'>): Measured {
  const ghost = plan.norm === 'ghost' ? does.ghost : undefined;
  const { error, sumError, ...parts } = ghost === undefined ? does.instantiated() : ghost();
  const ofMeasured = ghost === undefined && !(plan.sum === 'product' && does.product !== undefined);
  const errors = [error, ofMeasured ? undefined : sumError].filter((x) => x !== undefined);
  return errors.length === 0 ? parts : { ...parts, error: sum(b, errors) };
}

/** The summed gradient of each parameter, its parts added up. */
function sumOutputs(
  b: GraphBuilder, layers: readonly Layer[], clipped: ClipWeights | undefined,
): (readonly [string, Value])[] {
  const parts = new Map<string, Value[]>();
  for (const { parameter, group, does, plan, place } of layers) {
    const weights = clipped && clipped.groups[group]!;
    const value = plan.sum === 'product' && does.product !== undefined ? does.product(weights) : does.weightedSum(weights);
    parts.set(parameter, [...(parts.get(parameter) ?? []), place(value)]);
  }
  return [...parts].map(([parameter, values]) => [stepNames.sum(parameter), sum(b, values)]);
}

function finish(
  b: GraphBuilder, source: StepSource, layers: readonly Layer[], rest: Pick<StepGraph, 'groups' | 'units' | 'rows'>,
  outputs: readonly (readonly [string, Value])[],
): StepGraph {
  const graph = b.build(outputs, 'step');
  const data = graph.inputs.map(({ name }) => name).filter((name) => !layers.some(({ parameter }) => parameter === name));
  return {
    graph: scheduled(graph, new Set(data), sumsBackward(source, layers)),
    layers: layers.map(({ parameter, group, sites, contraction, plan }) => ({ parameter, group, sites, contraction, plan })),
    ...rest,
  };
}

/** The sums in the order in which the backward pass meets their layers. */
function sumsBackward({ graph }: StepSource, layers: readonly Layer[]): readonly string[] {
  const places = new Map(graph.nodes.map(({ name }, i) => [name, i]));
  const place = ({ sites }: Layer): number => Math.min(...sites.map(({ node }) => places.get(node.name) ?? 0));
  return [...new Set([...layers].sort((one, other) => place(other) - place(one)).map(({ parameter }) => stepNames.sum(parameter)))];
}

/**
 * The schedule that takes the least memory. The sums are formed along the backward pass, or the first layers' before the
 * last layers': theirs are small, and free the largest activations. What the backward pass makes of activations alone (masks,
 * patches) is made when its turn comes, or as soon as the gradient that it meets is there.
 */
function scheduled(graph: TypedGraph, data: ReadonlySet<Value>, backward: readonly string[]): TypedGraph {
  const rest = graph.outputs.map(({ name }) => name).filter((name) => !backward.includes(name));
  const late = dataLast(graph, data);
  const later = dataLast(dataLast(graph, new Set([stepNames.rowMask])), data);
  const candidates = [late, later].flatMap((placed) =>
    [backward, backward.toReversed()].map((sums) => inOrder(placed, [...sums, ...rest])));
  const bytes = candidates.map(liveBytes);
  return candidates[bytes.indexOf(Math.min(...bytes))]!;
}
