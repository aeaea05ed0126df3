import { float, int } from '../graph/ir.ts';
import { type GraphBuilder, type Value, add, matmul, mul, reduceSum, reshape, scale, where } from '../ops/builder.ts';
import { sizeOf } from '../tensor/tensor.ts';
import type { Context, NormParts, Weights } from './contraction.ts';
import { gamma, largestFloat, largestSquare, smallestNormal } from './rounding.ts';

/**
 * Squared length of each unit's part of x, [U], summed in two stages: a single sum of millions of squares in float32
 * would be wrong in the fourth digit, and its bound useless. Products of rows with themselves take a third of the time of
 * ONNX Runtime's ReduceSumSquare (BENCHMARKS.md).
 */
export function squaredLength(b: GraphBuilder, x: Value, units: number): Value {
  if (sizeOf(b.shape(x)) === units) return reshape(b, mul(b, x, x), [units]);
  const [outer, inner] = stages(sizeOf(b.shape(x)) / units);
  const rows = reshape(b, x, [units, outer, 1, inner]);
  return reduceSum(b, matmul(b, rows, rows, { transposeY: true }), [1, 2, 3]);
}

export const squares = ({ b, units }: Context, x: Value): Value => squaredLength(b, x, units);

/** Shorter products of rows cost more to start than to compute. */
const leastRow = 1024;

/** How {@link squaredLength} splits a unit's `total` elements: rows not too short, and few roundings in both stages together. */
function stages(total: number): [number, number] {
  const rows = Array.from({ length: Math.floor(Math.sqrt(total)) }, (_, i) => i + 1).filter((n) => total % n === 0)
    .flatMap((n) => [n, total / n]).filter((n) => n >= leastRow);
  const inner = rows.reduce((best, n) => (n + total / n < best + total / best ? n : best), total);
  return [total / inner, inner];
}

/** Relative error of {@link squaredLength}. */
export const squaresError = (c: Context, x: Value): number => {
  const [outer, inner] = stages(sizeOf(c.b.shape(x)) / c.units);
  return gamma(outer + inner + 2);
};

/** The norm of gradients formed for each unit, in one piece or in several, which differ from the true ones by `error`, as sums of others do. */
export function instantiatedNorm(c: Context, perExample: Value | readonly Value[], error: Value | undefined): NormParts {
  const pieces = typeof perExample === 'string' ? [perExample] : perExample;
  const squared = sum(c.b, pieces.map((piece) => squares(c, piece)));
  const relative = Math.max(...pieces.map((piece) => squaresError(c, piece))) + gamma(pieces.length - 1);
  const size = pieces.reduce((total, piece) => total + sizeOf(c.b.shape(piece)) / c.units, 0);
  // Each square may be flushed to zero; so may a square of the sums that it takes to add several parts.
  const lost = 4 * size * smallestNormal;
  return { squared, allowance: scale(c.b, squared, 1.01 * relative), lost, ...(error && { error, sumError: error }) };
}

/** Units whose part of x has an ordinary squared length, [U] bool. */
const isOrdinary = (c: Context, x: Value): Value => c.b.op('Less', [squares(c, x), c.b.scalar(largestSquare)]);

/**
 * x where the units whose squared length is not an ordinary number have the part of one that is ({@link withoutDropped}):
 * nothing of them enters a product. Where none is, x as it is.
 */
export function finiteOnly(c: Context, x: Value): Value {
  if (!c.guarded) return x;
  return reshape(c.b, withoutDropped(c, x, isOrdinary(c, x)), c.b.shape(x));
}

/** Squared lengths, infinite where {@link finiteOnly} removes the unit: what a norm is made of must show it. */
export const markedSquares = (c: Context, x: Value): Value =>
  where(c.b, isOrdinary(c, x), squares(c, x), c.b.scalar(Infinity));

/** x with the units for which `keep` [U] is false set to zero. Units are the outer factor of axis 0. */
export function select({ b, units }: Context, keep: Value, x: Value): Value {
  const shape = b.shape(x);
  const flat = reshape(b, x, [units, sizeOf(shape) / units]);
  return reshape(b, where(b, reshape(b, keep, [units, 1]), flat, b.scalar(0)), shape);
}

/** weight·x, dropped units selected away. */
export function weigh(c: Context, x: Value, weights: Weights | undefined): Value {
  if (weights === undefined) return x;
  const { b, units } = c;
  const kept = select(c, weights.valid, x);
  const flat = reshape(b, kept, [units, sizeOf(b.shape(x)) / units]);
  return reshape(b, mul(b, flat, reshape(b, weights.weights, [units, 1])), b.shape(x));
}

/**
 * f(x, weight·y) where f is a sum of products over the units: the units that are dropped are selected away in both, and
 * the smaller of the two is weighed.
 *
 * ONNX Runtime's Where makes three passes over its operand, and its Gather copies at the speed of memory: a dropped unit
 * is replaced by one that is kept, and weighs nothing. When none is kept, what comes out is 0·NaN or 0, and made 0.
 */
export function weighedProduct(
  c: Context, x: Value, y: Value, weights: Weights | undefined, f: (x: Value, y: Value) => Value,
): Value {
  if (weights === undefined) return f(x, y);
  const { b, units } = c;
  const replaced = (v: Value) => withoutDropped(c, v, weights.valid);
  const weighed = (v: Value) => mul(b, v, reshape(b, weights.weights, [units, 1]));
  const size = (v: Value) => sizeOf(b.shape(v));
  const [left, right] = size(x) <= size(y) ? [weighed(replaced(x)), replaced(y)] : [replaced(x), weighed(replaced(y))];
  return numberOrZero(b, f(reshape(b, left, b.shape(x)), reshape(b, right, b.shape(y))));
}

/** x as a row for each unit, [U, …], where a kept unit's stands in the place of each that is dropped; `kept` is bool [U]. */
export const withoutDropped = ({ b, units }: Context, x: Value, kept: Value): Value =>
  b.op('Gather', [reshape(b, x, [units, sizeOf(b.shape(x)) / units]), keptUnits(b, kept)], { axis: int(0) });

/** For each unit its own number where it is kept, else that of the first that is. */
function keptUnits(b: GraphBuilder, kept: Value): Value {
  const units = b.shape(kept)[0]!;
  const first = b.op('ArgMax', [b.op('Cast', [kept], { to: int(1) })], { axis: int(0), keepdims: int(1) });
  return where(b, kept, b.ints(Array.from({ length: units }, (_, i) => i)), first);
}

/**
 * x with 0 in the place of NaN (a comparison with NaN fails), for sums over units where none is kept: what stands in for
 * the dropped is then dropped itself, and 0 · NaN is NaN. Where one is kept no sum is NaN, so that no unit can wipe out the
 * others: the allowance in n̂ bounds w·Σ‖a_t‖‖b_t‖ by some 2e6 thresholds, far inside of float32.
 */
export const numberOrZero = (b: GraphBuilder, x: Value): Value => b.op('ThresholdedRelu', [x], { alpha: float(-largestFloat) });

/**
 * weights · gradients [U, …], as one vector–matrix product. Gradients made of `finite` operands need no selection: no sum
 * of their products overflows. When no unit has such, none is kept, and what comes out is made 0.
 */
export function weightedSum(c: Context, perExample: Value, finite: boolean, weights: Weights | undefined): Value {
  const { b, units } = c;
  if (weights === undefined) return reduceSum(b, perExample, [0]);
  const [, ...shape] = b.shape(perExample);
  const kept = finite ? perExample : withoutDropped(c, perExample, weights.valid);
  const sums = matmul(b, reshape(b, weights.weights, [1, units]), reshape(b, kept, [units, sizeOf(shape)]));
  return reshape(b, numberOrZero(b, sums), shape);
}

/** Length of each unit's part of x, from its `squared` length, each square of which may have underflowed. */
const lengthOf = ({ b, units }: Context, squared: Value, x: Value): Value =>
  b.op('Sqrt', [add(b, squared, b.scalar((sizeOf(b.shape(x)) / units) * smallestNormal))]);

/** Bound on the error of the norm of sums of `terms` numbers of x: γ·Σ|x| ≤ γ·√terms·‖x‖. */
export const summationError = (c: Context, terms: number, x: Value): Value =>
  scale(c.b, lengthOf(c, squares(c, x), x), gamma(terms) * Math.sqrt(terms) * 1.01);

/** Bound on the error of the norm of a gradient summed over `terms` products of a and b: γ·‖a‖·‖b‖. */
export function instantiationError(c: Context, terms: number, a: Value, bb: Value): Value {
  const { b } = c;
  const lengths = mul(b, lengthOf(c, markedSquares(c, a), a), lengthOf(c, markedSquares(c, bb), bb));
  return scale(b, lengths, gamma(terms + 8) * 1.01);
}

/** The sum of some values of one shape. */
export const sum = (b: GraphBuilder, xs: readonly Value[]): Value => (xs.length === 1 ? xs[0]! : b.op('Sum', xs));
