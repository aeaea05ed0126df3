import { int } from '../graph/ir.ts';
import {
  type GraphBuilder, type Value, add, concat, div, filled, matmul, mul, reduceSum, reshape, scale, where,
} from '../ops/builder.ts';
import { float32 } from '../tensor/tensor.ts';
import { type ClipFunctionOptions, type ClipFunctionSpec, clipFactor } from './clip-functions.ts';
import type { NormParts, Weights } from './contraction.ts';
import type { Partition } from './groups.ts';
import { gamma, smallestNormal } from './rounding.ts';

/** The relative slack of the clipping bound, folded into the sensitivity (invariant 5). */
export const defaultRho = 1e-3;

export interface SafeNorm {
  /** [K, U] the norm of each unit's gradient in each group, as computed. */
  readonly computed: Value;
  /**
   * [K, U] n̂ with n̂·(1+ρ) ≥ the true norm, and the norm of what float32 sums instead: the computed norm wherever rounding
   * is within ρ, else the computed norm enlarged by what rounding may have hidden. Never 0.
   */
  readonly safe: Value;
  /** [1, U] bool: the norms of all groups and everything they were computed from are finite. */
  readonly finite: Value;
}

/** A layer's norm with all that may differ from it, in `error`. */
export type Measured = Omit<NormParts, 'sumError'>;

/** Joins the norms of the layers of each of K groups into the group's. All groups are joined at once. */
export function safeNorm(b: GraphBuilder, groups: readonly (readonly Measured[])[], units: number, rho: number): SafeNorm {
  const layers = groups.flat();
  const none = filled(b, 0, [1, units]);
  const row = (value: Value | undefined) => (value === undefined ? none : reshape(b, value, [1, units]));
  // One node has all that a layer's norm is made of, so that its operands are free before the next layer's are made.
  const each = layers.map(({ squared: s, error, allowance }) => concat(b, [row(s), row(error), row(allowance)], 0));
  const all = reshape(b, concat(b, each, 0), [layers.length, 3, units]);
  const [squared, errors, allowances] = b.ops('Split', [all], 3, { axis: int(1), num_outputs: int(3) })
    .map((x) => reshape(b, x, [layers.length, units])) as [Value, Value, Value];
  const joined = (x: Value) => sumByGroup(b, x, groups.map((group) => group.length));
  const measured = b.op('Sqrt', [add(b, b.op('Max', [squared, b.scalar(0)]), allowances)]);
  const reach = add(b, measured, errors);
  const upper = b.op('Sqrt', [joined(mul(b, reach, reach))]);
  const computed = b.op('Sqrt', [b.op('Max', [joined(squared), b.scalar(0)])]);
  // The true norm is at most upper + √lost (Minkowski), and √lost at most ρ/20 of n̂, where n̂ is never less than this.
  const least = (20 / rho) * Math.sqrt(layers.reduce((sum, { lost = 0 }) => sum + lost, smallestNormal));
  // The joining over the layers rounds, and so does what leads from here to the weight and the weighed gradient.
  const rounded = 1 + gamma(layers.length + 16);
  const safe = b.op('Max', [computed, scale(b, upper, rounded / (1 + 0.9 * rho)), b.scalar(least)]);
  const whole = groups.length === 1 ? upper : reduceSum(b, upper, [0], true);
  return { computed, safe, finite: b.op('Less', [whole, b.scalar(Infinity)]) };
}

/** Sums the rows of [L, U], of which each group has the next `sizes[k]`: [K, U]. */
function sumByGroup(b: GraphBuilder, x: Value, sizes: readonly number[]): Value {
  if (sizes.length === 1) return reduceSum(b, x, [0], true);
  const owners = sizes.flatMap((size, k) => Array.from({ length: size }, () => k));
  // A unit that is not finite in one group becomes NaN in all: it is dropped from all of them.
  return matmul(b, b.constant(float32(sizes.flatMap((_, k) => owners.map((owner) => Number(owner === k))), [sizes.length, owners.length])), x);
}

/** Thresholds that a step takes: squares of norms far below underflow, and weights far above could overflow. */
export const thresholdRange = { least: 1e-12, most: 1e9 } as const;

export interface ClippingOptions extends ClipFunctionOptions {
  readonly function: ClipFunctionSpec;
  /** A partition of the trainable parameters, each group clipped by itself; by default all are one group. */
  readonly groups?: Partition | undefined;
}

export interface ClipWeights {
  /** [K, U] */
  readonly all: Value;
  /** [U] bool: the units that are kept. */
  readonly valid: Value;
  /** Those of each group. */
  readonly groups: readonly Weights[];
}

/**
 * Clip weights of K groups: 0 for padding, for units that are not finite in any group, and where the clip function
 * gives no number or a negative one; else the clip function's, capped at R/n̂. So they are within [0, R/n̂] whatever
 * the function.
 *
 * @param mask bool [U], the units that are there
 * @param thresholds float32 [K]
 */
export function clipWeights(
  b: GraphBuilder, norm: SafeNorm, mask: Value, thresholds: Value, options: Omit<ClippingOptions, 'groups'>,
): ClipWeights {
  const [K, U] = b.shape(norm.safe) as [number, number];
  const threshold = reshape(b, thresholds, [K, 1]);
  const valid = reshape(b, b.op('And', [mask, norm.finite]), [U]);
  const wished = clipFactor(b, options.function, norm.safe, threshold, options);
  const sound = b.op('And', [b.op('GreaterOrEqual', [wished, b.scalar(0)]), b.op('Less', [wished, b.scalar(Infinity)])]);
  const capped = b.op('Min', [wished, div(b, threshold, norm.safe)]);
  const all = where(b, b.op('And', [valid, sound]), capped, b.scalar(0));
  const each = K === 1 ? [all] : b.ops('Split', [all], K, { axis: int(0), num_outputs: int(K) });
  return { all, valid, groups: each.map((weights) => ({ weights, valid })) };
}

/** Units of which any row is present: rows are the inner factor of `rowMask` [U·R]. */
export function unitMask(b: GraphBuilder, rowMask: Value, units: number): Value {
  const rows = b.shape(rowMask)[0]! / units;
  if (rows === 1) return rowMask;
  const counts = reduceSum(b, reshape(b, b.op('Cast', [rowMask], { to: { type: 'int', value: 1 } }), [units, rows]), [1]);
  return b.op('Greater', [counts, b.scalar(0)]);
}

/** Σ over a unit's rows divided by R: the loss of a unit is the mean of its rows' losses. */
export function unitLosses(b: GraphBuilder, losses: Value, rowMask: Value, units: number): Value {
  const rows = b.shape(losses)[0]! / units;
  const present = b.op('Where', [rowMask, losses, b.scalar(0)]);
  return rows === 1 ? present : div(b, reduceSum(b, reshape(b, present, [units, rows]), [1]), b.scalar(rows));
}
