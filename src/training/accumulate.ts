import { stepNames } from '../clipping/step-graph.ts';
import { type Tensor, sizeOf } from '../tensor/tensor.ts';

/** Sums of a logical batch by parameter, added up from those of its micro-batches. */
export interface Accumulator {
  /**
   * Adds the sums of one micro-batch. The order of the calls is the order of the additions.
   *
   * @returns the names of the outputs that became totals themselves, and must not be written over
   */
  add(outputs: Readonly<Record<string, Tensor>>): readonly string[];
  /** The totals, zeros when nothing was added. The accumulator must not be used any more. */
  result(): Totals;
}

export interface Totals {
  readonly sums: ReadonlyMap<string, Float32Array>;
  /** What rounding to `sums` left over, by the parameters that have some. */
  readonly remainders: ReadonlyMap<string, Float32Array>;
  /** Micro-batches that were added. */
  readonly parts: number;
}

/** By how much of the total an addition is wrong at most: 2^-48 and twice 2^-53, see {@link accumulator}. */
export const additionRounding = 2 ** -47.8;

/**
 * An accumulator of two float32 for each number: the total and, once there is a second micro-batch, what its last rounding
 * left over. That is as large as a float64 and nearly as exact, but the total can be noised where it lies and become the
 * gradient, where a float64 would need a float32 beside it; and one micro-batch needs no remainder.
 *
 * **What rounding does to the sensitivity.** A unit's gradient is clipped before it enters a micro-batch's sum; the
 * additions after that must not undo the bound. One unit more or less shifts all that follow it into other
 * micro-batches, so each addition of two neighbouring data sets rounds differently. An addition is wrong by at most
 * 2^-53 + 2^-53 (two sums in float64) and 2^-48 (the remainder's own rounding) of the total, below 2^-47.8 together; with S_k
 * the sum of the first k of K micro-batches, ‖S_k‖ ≤ n·C(1+ρ), two neighbours' totals are apart by at most 2nK·2^-47.8 of
 * C(1+ρ) more than clipping allows. Discrete noise holds that in its sensitivity (`checkAdditions`). What the engine rounds
 * within a micro-batch is more, and is told in the certificate ({@link summationRounding}).
 *
 * @param shared whether the totals lie in shared memory, where several threads can add noise to them
 */
export function accumulator(
  shapes: ReadonlyMap<string, readonly number[]>, { shared }: { readonly shared: boolean },
): Accumulator {
  const totals = new Map<string, Float32Array>();
  const remainders = new Map<string, Float32Array>();
  let parts = 0;
  const zeros = (length: number): Float32Array => new Float32Array(shared ? new SharedArrayBuffer(4 * length) : new ArrayBuffer(4 * length));
  const first = (part: Float32Array): Float32Array => {
    if (!shared) return part;
    const copy = zeros(part.length);
    copy.set(part);
    return copy;
  };
  const remainderOf = (name: string, length: number): Float32Array => {
    const found = remainders.get(name) ?? zeros(length);
    remainders.set(name, found);
    return found;
  };
  return {
    add: (outputs) => {
      parts += 1;
      return [...shapes.keys()].flatMap((name) => {
        const part = outputs[stepNames.sum(name)]!.data as Float32Array;
        const total = totals.get(name);
        if (total !== undefined) addTo(total, remainderOf(name, total.length), part);
        else totals.set(name, first(part));
        return total === undefined && !shared ? [stepNames.sum(name)] : [];
      });
    },
    result: () => ({
      sums: new Map([...shapes].map(([name, shape]) => [name, totals.get(name) ?? zeros(sizeOf(shape))] as const)),
      remainders, parts,
    }),
  };
}

/** total + remainder ← total + remainder + part. */
function addTo(total: Float32Array, remainder: Float32Array, part: Float32Array): void {
  for (let i = 0; i < total.length; i++) {
    const sum = total[i]! + remainder[i]! + part[i]!;
    const rounded = Math.fround(sum);
    total[i] = rounded;
    remainder[i] = sum - rounded;
  }
}
