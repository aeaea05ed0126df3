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
  result(): ReadonlyMap<string, Float32Array>;
}

/**
 * An accumulator of 6 bytes a number: a float32 total and, once there is a second micro-batch, the upper half of the
 * float32 that the total's last rounding left over.
 *
 * **What rounding does to the sensitivity.** A unit's gradient is clipped before it enters a micro-batch's sum; the
 * additions after that must not undo the bound. One unit more or less shifts all that follow it into other
 * micro-batches, so each addition of two neighbouring data sets rounds differently, and the totals may differ by twice
 * the rounding of a total beyond what clipping allows. With S_k the sum of the first k of K micro-batches, ‖S_k‖ ≤ n·C:
 *
 * - float32 alone rounds by 2^-24·Σ‖S_k‖ ≤ 2^-25·K·n·C: 8e-3·C for n = 4096 units in K = 64 micro-batches, were all
 *   gradients aligned. That is more than ρ, and not taken.
 * - with the remainder kept to 8 bits an addition rounds by 2^-8 of that: 3e-5·C for the same batch;
 * - the total is handed on as a float32: 2^-24·n·C, no more than each micro-batch's sum, a float32 itself, was rounded by.
 *
 * So however a batch is cut, its micro-batches' sums are added as if exactly and rounded to float32 once. What the engine
 * rounds in each of them is more than that, and is told in the certificate ({@link summationRounding}).
 *
 * @param shared whether the totals lie in shared memory, where several threads can add noise to them
 */
export function accumulator(
  shapes: ReadonlyMap<string, readonly number[]>, { shared }: { readonly shared: boolean },
): Accumulator {
  const totals = new Map<string, Float32Array>();
  const remainders = new Map<string, Uint16Array>();
  const zeros = (length: number): Float32Array => new Float32Array(shared ? new SharedArrayBuffer(4 * length) : new ArrayBuffer(4 * length));
  const first = (part: Float32Array): Float32Array => {
    if (!shared) return part;
    const copy = zeros(part.length);
    copy.set(part);
    return copy;
  };
  const remainderOf = (name: string, length: number): Uint16Array => {
    const found = remainders.get(name) ?? new Uint16Array(length);
    remainders.set(name, found);
    return found;
  };
  return {
    add: (outputs) => [...shapes.keys()].flatMap((name) => {
      const part = outputs[stepNames.sum(name)]!.data as Float32Array;
      const total = totals.get(name);
      if (total !== undefined) addTo(total, remainderOf(name, total.length), part);
      else totals.set(name, first(part));
      return total === undefined && !shared ? [stepNames.sum(name)] : [];
    }),
    result: () => new Map([...shapes].map(([name, shape]) => [name, totals.get(name) ?? zeros(sizeOf(shape))] as const)),
  };
}

const scratch = new Float32Array(1);
const bits = new Int32Array(scratch.buffer);

/** total + remainder ← total + remainder + part, where the remainder has the upper 16 bits of a float32. */
function addTo(total: Float32Array, remainder: Uint16Array, part: Float32Array): void {
  for (let i = 0; i < total.length; i++) {
    bits[0] = remainder[i]! << 16;
    const sum = total[i]! + scratch[0]! + part[i]!;
    const rounded = Math.fround(sum);
    total[i] = rounded;
    scratch[0] = sum - rounded;
    remainder[i] = (bits[0] + 0x8000) >>> 16;
  }
}
