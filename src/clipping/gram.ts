import { type GraphBuilder, type Value, mul, reduceSum, reduceSumSquare, reshape, scale, slice } from '../ops/builder.ts';
import { sizeOf } from '../tensor/tensor.ts';
import type { Context, ContractionSize, NormParts } from './contraction.ts';
import { type Cut, cutBoth } from './cut.ts';
import { gamma, smallestNormal, unitRoundoff } from './rounding.ts';

/** T as a product of two factors as alike as can be; [T] where it has none. */
function split(T: number): number[] {
  for (let factor = Math.floor(Math.sqrt(T)); factor > 1; factor--) if (T % factor === 0) return [T / factor, factor];
  return [T];
}

/** Sums a unit's elements, laid out as `factors`, one factor at a time: as many roundings as the factors' sum. */
function stagedSum(b: GraphBuilder, x: Value, units: number, factors: readonly number[]): Value {
  const summed = factors.filter((factor) => factor > 1).reduceRight((value, factor) => {
    const rest = sizeOf(b.shape(value)) / (units * factor);
    return reduceSum(b, reshape(b, value, [units, rest, factor]), [2]);
  }, x);
  return reshape(b, summed, [units]);
}

/** Roundings of a ghost norm beside those of the Gram matrices' entries. */
const summing = ({ T, groups }: Pick<ContractionSize, 'T' | 'groups'>): number =>
  2 * split(T).reduce((sum, factor) => sum + factor, 0) + groups + 16;

/** γ of a ghost norm whose Gram entries took `roundings` roundings, those of both matrices together. */
export const gramBound = (size: Pick<ContractionSize, 'T' | 'groups'>, roundings: number): number =>
  gamma(roundings + summing(size));

/** γ of a sum over T positions, each term of which is a product that was weighed and scaled. */
export const sumBound = (T: number): number => gamma(T + 4);

/**
 * Largest share of the squared norm that the allowance may take of positions whose gradients do not align (there it is
 * about γ·T) before the Gram matrices are added up in pieces.
 */
const allowedShare = 0.0125;

/** How the Gram matrices of T vectors, of one group, are added up. */
export const cutsFor = (T: number, depths: readonly [number, number]): readonly [Cut, Cut] =>
  cutBoth(depths, Math.floor(allowedShare / (T * unitRoundoff)) - summing({ T, groups: 1 }));

export interface Grams {
  /** [U·groups, T, T] */
  readonly gramA: Value;
  readonly gramB: Value;
  readonly groups: number;
  /** Roundings that went into an entry, those of both together. */
  readonly roundings: number;
  /** Products and sums that went into an entry, each of which may have lost something by underflow; by default `roundings`. */
  readonly operations?: number;
}

/**
 * Σ_{s,t} A_{st}·B_{st} and a rigorous allowance for its rounding. An entry of a Gram matrix is wrong by at most
 * γ·‖a_s‖‖a_t‖, so the sum is wrong by at most γ·(Σ_s ‖a_s‖‖b_s‖)², and those lengths stand on the diagonals.
 *
 * The gradient Σ_s a_s·b_sᵀ itself rounds where it is summed: each of its elements by at most γ_T of its terms' magnitudes, in
 * any order of summation, and so all of it by at most γ_T·Σ_s ‖a_s‖‖b_s‖ in norm. Groups are summed apart, and their errors
 * are orthogonal.
 */
export function gramNorm(c: Context, { gramA, gramB, groups, roundings, operations = roundings }: Grams): NormParts {
  const { b, units } = c;
  const T = b.shape(gramA)[1]!;
  const bound = gramBound({ T, groups }, roundings);
  const squared = stagedSum(b, mul(b, gramA, gramB), units, [groups, ...split(T), ...split(T)]);
  // What products may have lost by underflow counts as if the diagonal were this much larger.
  const floor = (operations * smallestNormal) / bound;
  const diagonal = (gram: Value) => b.op('Add', [
    slice(b, reshape(b, gram, [units * groups, T * T]), [1], [0], [T * T], [T + 1]), b.scalar(floor),
  ]);
  const lengths = b.op('Sqrt', [mul(b, diagonal(gramA), diagonal(gramB))]);
  const totals = reduceSum(b, reshape(b, lengths, [units, groups, T]), [2]);
  const total = reshape(b, groups === 1 ? totals : b.op('Sqrt', [reduceSumSquare(b, totals, [1])]), [units]);
  const allowance = scale(b, mul(b, total, total), bound * 1.01);
  // Products of two entries, and of two diagonals, may have underflowed.
  const lost = 4 * (groups * T) ** 2 * smallestNormal;
  // An operand that is not ordinary shows on the diagonal, and the allowance with it.
  return { squared, allowance, lost, sumError: scale(b, total, sumBound(T) * 1.01) };
}

