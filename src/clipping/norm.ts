import { type GraphBuilder, type Value, add, concat, div, mul, reduceSum, reshape, scale } from '../ops/builder.ts';
import type { NormParts, Weights } from './contraction.ts';
import { type ClipFunctionName, type ClipFunctionOptions, clipWeight } from './clip-functions.ts';

/** The relative slack of the clipping bound, folded into the sensitivity (invariant 5). */
export const defaultRho = 1e-3;

export interface SafeNorm {
  /** [U] the norm as computed. */
  readonly computed: Value;
  /**
   * [U] n̂ with n̂·(1+ρ) ≥ the true norm: the computed norm wherever its rounding is within ρ, else the
   * computed norm enlarged by what rounding may have hidden.
   */
  readonly safe: Value;
  /** [U] bool: the norm and everything it was computed from is finite. */
  readonly finite: Value;
}

/** Joins the layers' norms into the norm of the whole gradient. */
export function safeNorm(b: GraphBuilder, layers: readonly NormParts[], units: number, rho: number): SafeNorm {
  const column = (x: Value | undefined) => reshape(b, x ?? b.op('Expand', [b.scalar(0), b.ints([units])]), [units, 1]);
  const stack = (pick: (part: NormParts) => Value | undefined) => concat(b, layers.map((part) => column(pick(part))), 1);
  const squared = stack((part) => part.squared);
  const reach = add(b, b.op('Sqrt', [b.op('Max', [squared, b.scalar(0)])]), stack((part) => part.error));
  const upper = b.op('Sqrt', [reduceSum(b, add(b, mul(b, reach, reach), stack((part) => part.allowance)), [1])]);
  const computed = b.op('Sqrt', [b.op('Max', [reduceSum(b, squared, [1]), b.scalar(0)])]);
  // A tenth of ρ is kept for the few roundings from here to the weighted sum.
  const safe = b.op('Max', [computed, scale(b, upper, 1 / (1 + 0.9 * rho))]);
  return { computed, safe, finite: b.op('Less', [upper, b.scalar(Infinity)]) };
}

export interface ClippingOptions extends ClipFunctionOptions {
  readonly function: ClipFunctionName;
}

/** Clip weights [U]: 0 for padding and for units that are not finite, else the clip function's, capped at R/n̂. */
export function clipWeights(
  b: GraphBuilder, norm: SafeNorm, mask: Value, threshold: Value, options: ClippingOptions,
): Weights {
  const valid = b.op('And', [mask, norm.finite]);
  const weights = b.op('Where', [valid, clipWeight(b, options.function, norm.safe, threshold, options), b.scalar(0)]);
  return { weights, valid };
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
