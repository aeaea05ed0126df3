import { float, int } from '../graph/ir.ts';
import { type GraphBuilder, type Value, add, matmul, mul, reduceSum, reduceSumSquare, reshape, scale, where } from '../ops/builder.ts';
import { type Shape, sizeOf } from '../tensor/tensor.ts';
import type { Context, NormParts, Weights } from './contraction.ts';
import { gamma, largestFloat, largestSquare, smallestNormal } from './rounding.ts';

/**
 * Squared length of each unit's part of x, [U], summed in two stages: a single sum of millions of squares in float32
 * would be wrong in the fourth digit, and its bound useless.
 */
export function squaredLength(b: GraphBuilder, x: Value, units: number): Value {
  const [outer, inner] = stages(b.shape(x), units);
  if (outer === 1) return reduceSumSquare(b, reshape(b, x, [units, inner]), [1]);
  return reduceSum(b, reduceSumSquare(b, reshape(b, x, [units, outer, inner]), [2]), [1]);
}

export const squares = ({ b, units }: Context, x: Value): Value => squaredLength(b, x, units);

/** How {@link squaredLength} splits a unit's elements: the axes are cut where both parts are most alike. */
function stages(shape: Shape, units: number): [number, number] {
  const total = sizeOf(shape) / units;
  if (total <= 1024) return [1, total];
  const cuts = shape.map((_, i) => sizeOf(shape.slice(i))).filter((inner) => total % inner === 0 && inner <= total);
  const inner = cuts.reduce((best, n) => (Math.max(n, total / n) < Math.max(best, total / best) ? n : best), total);
  return [total / inner, inner];
}

/** Relative error of {@link squaredLength}. */
export const squaresError = (c: Context, x: Value): number => {
  const [outer, inner] = stages(c.b.shape(x), c.units);
  return gamma(outer + inner + 2);
};

/** The norm of gradients formed for each unit, each entry of which is wrong as `error` says. */
export function instantiatedNorm(c: Context, perExample: Value, error: Value | undefined): NormParts {
  const squared = squares(c, perExample);
  // Each square may be flushed to zero; so may a square of the sums that it takes to add several parts.
  const lost = 4 * (sizeOf(c.b.shape(perExample)) / c.units) * smallestNormal;
  return { squared, allowance: scale(c.b, squared, squaresError(c, perExample)), lost, ...(error && { error }) };
}

/** Units whose part of x has an ordinary squared length, [U] bool. */
const isOrdinary = (c: Context, x: Value): Value => c.b.op('Less', [squares(c, x), c.b.scalar(largestSquare)]);

/** x with the units removed whose squared length is not an ordinary number: selected, never multiplied. */
export const finiteOnly = (c: Context, x: Value): Value => (c.guarded ? select(c, isOrdinary(c, x), x) : x);

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
  const replaced = (v: Value) => withoutDropped(c, v, weights);
  const weighed = (v: Value) => mul(b, v, reshape(b, weights.weights, [units, 1]));
  const size = (v: Value) => sizeOf(b.shape(v));
  const [left, right] = size(x) <= size(y) ? [weighed(replaced(x)), replaced(y)] : [replaced(x), weighed(replaced(y))];
  return numberOrZero(b, f(reshape(b, left, b.shape(x)), reshape(b, right, b.shape(y))));
}

/** x as a row for each unit, [U, …], where a kept unit's stands in the place of each that is dropped. */
export const withoutDropped = ({ b, units }: Context, x: Value, { valid }: Weights): Value =>
  b.op('Gather', [reshape(b, x, [units, sizeOf(b.shape(x)) / units]), keptUnits(b, valid)], { axis: int(0) });

/** For each unit its own number where it is kept, else that of the first that is. */
function keptUnits(b: GraphBuilder, valid: Value): Value {
  const units = b.shape(valid)[0]!;
  const first = b.op('ArgMax', [b.op('Cast', [valid], { to: int(1) })], { axis: int(0), keepdims: int(1) });
  return where(b, valid, b.ints(Array.from({ length: units }, (_, i) => i)), first);
}

/**
 * x with 0 in the place of NaN (a comparison with NaN fails), for sums over units where none is kept: what stands in for
 * the dropped is then dropped itself, and 0 · NaN is NaN. Where one is kept no sum is NaN, so that no unit can wipe out the
 * others: the allowance in n̂ bounds w·Σ‖a_t‖‖b_t‖ by some 2e6 thresholds, far inside of float32.
 */
export const numberOrZero = (b: GraphBuilder, x: Value): Value => b.op('ThresholdedRelu', [x], { alpha: float(-largestFloat) });

/**
 * weights · gradients, as one vector–matrix product. `finite` gradients need no selection: their operands were
 * selected, and are so bounded that no sum of products overflows.
 */
export function weightedSum(c: Context, perExample: Value, finite: boolean, weights: Weights | undefined): Value {
  const { b, units, parameterShape } = c;
  if (weights === undefined) return reduceSum(b, perExample, [0]);
  const kept = finite ? perExample : withoutDropped(c, perExample, weights);
  const sums = matmul(b, reshape(b, weights.weights, [1, units]), reshape(b, kept, [units, sizeOf(parameterShape)]));
  return reshape(b, finite ? sums : numberOrZero(b, sums), parameterShape);
}

/** Length of each unit's part of x, from its `squared` length, each square of which may have underflowed. */
const lengthOf = ({ b, units }: Context, squared: Value, x: Value): Value =>
  b.op('Sqrt', [add(b, squared, b.scalar((sizeOf(b.shape(x)) / units) * smallestNormal))]);

/** Bound on the error of the norm of sums over T positions: γ·Σ_t|x_t| ≤ γ·√T·‖x‖. */
export const summationError = (c: Context, T: number, x: Value): Value =>
  scale(c.b, lengthOf(c, squares(c, x), x), gamma(T) * Math.sqrt(T) * 1.01);

/** Bound on the error of the norm of a gradient summed over `terms` products of a and b: γ·‖a‖·‖b‖. */
export function instantiationError(c: Context, terms: number, a: Value, bb: Value): Value {
  const { b } = c;
  const lengths = mul(b, lengthOf(c, markedSquares(c, a), a), lengthOf(c, markedSquares(c, bb), bb));
  return scale(b, lengths, gamma(terms + 8) * 1.01);
}

/** The sum of some values of one shape. */
export const sum = (b: GraphBuilder, xs: readonly Value[]): Value => (xs.length === 1 ? xs[0]! : b.op('Sum', xs));
