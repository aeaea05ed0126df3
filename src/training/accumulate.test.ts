import { describe, expect, it } from 'vitest';
import { testRandom } from '../../test/support/random-network.ts';
import { stepNames } from '../clipping/step-graph.ts';
import { float32 } from '../tensor/tensor.ts';
import { accumulator, additionRounding } from './accumulate.ts';

const name = stepNames.sum('w');
function added(parts: readonly Float32Array[], length: number, shared = false): Float32Array {
  const sums = accumulator(new Map([['w', [length]]]), { shared });
  for (const part of parts) sums.add({ [name]: float32(part) });
  return sums.result().sums.get('w')!;
}

describe('accumulator', () => {
  const random = testRandom(5);
  const length = 300;
  const parts = Array.from({ length: 500 }, (_, k) =>
    Float32Array.from({ length }, () => (random() - 0.3) * 10 ** ((k % 7) - 3)));

  it('adds as float64 does, rounded once, where float32 alone does not', () => {
    const exact = new Float64Array(length);
    const naive = new Float32Array(length);
    const bounds = new Float64Array(length);
    for (const part of parts) {
      part.forEach((x, i) => {
        exact[i]! += x;
        naive[i]! += x;
        bounds[i]! += 2 ** -32 * Math.abs(exact[i]!);
      });
    }
    const found = added(parts, length);
    found.forEach((x, i) => expect(Math.abs(x - exact[i]!)).toBeLessThanOrEqual(2 ** -24 * Math.abs(exact[i]!) + bounds[i]!));
    expect(naive.some((x, i) => Math.abs(x - exact[i]!) > 4 * (2 ** -24 * Math.abs(exact[i]!) + bounds[i]!))).toBe(true);
  });

  it('keeps what rounding left over, to 2^-47.8 of the total for each addition', () => {
    const sums = accumulator(new Map([['w', [length]]]), { shared: false });
    const exact = new Float64Array(length);
    const bounds = new Float64Array(length);
    for (const part of parts) {
      sums.add({ [name]: float32(part.slice()) });
      part.forEach((x, i) => {
        exact[i]! += x;
        // Of the total, and of what the float64 that it is compared with was rounded by itself.
        bounds[i]! += (additionRounding + 2 ** -53) * Math.abs(exact[i]!);
      });
    }
    const { sums: totals, remainders, parts: added } = sums.result();
    expect(added).toBe(parts.length);
    const [total, remainder] = [totals.get('w')!, remainders.get('w')!];
    total.forEach((x, i) => expect(Math.abs(x + remainder[i]! - exact[i]!)).toBeLessThanOrEqual(bounds[i]!));
    expect(remainder.filter((x) => x !== 0).length).toBeGreaterThan(length / 2);
    // One micro-batch leaves nothing over, and needs no room for it.
    const one = accumulator(new Map([['w', [3]]]), { shared: false });
    one.add({ [name]: float32(new Float32Array(3)) });
    expect(one.result().remainders.size).toBe(0);
  });

  it('comes to the same in shared memory', () => {
    const found = added(parts, length, true);
    expect(found.buffer).toBeInstanceOf(SharedArrayBuffer);
    expect(found).toEqual(added(parts.map((part) => part.slice()), length));
  });

  it('gives zeros for no parts, and keeps what is not finite', () => {
    for (const shared of [false, true]) expect(added([], 3, shared)).toEqual(new Float32Array(3));
    const odd = [Float32Array.of(1, Infinity, 1), Float32Array.of(NaN, 1, 2), Float32Array.of(1, 1, 3)];
    expect([...added(odd, 3)].map(Number.isFinite)).toEqual([false, false, true]);
  });
});
