import { describe, expect, it } from 'vitest';
import { testRandom } from '../../test/support/random-network.ts';
import { planLayer } from '../clipping/plan.ts';
import { stepNames } from '../clipping/step-graph.ts';
import { float32 } from '../tensor/tensor.ts';
import { accumulator } from './accumulate.ts';
import { summationRounding } from './summation.ts';

const size = (T: number) => ({ T, d: 64, p: 64, groups: 1, gramDepth: 64, gramTerms: 1, unfolded: false });
const layer = (T: number, mode: 'book-keeping' | 'instantiate') =>
  ({ contraction: size(T), plan: planLayer(mode, { size: size(T), ghost: true, product: true }) });

describe('rounding of sums over units', () => {
  it('is γ of the numbers that an element adds up, for every unit of both neighbours', () => {
    const u = 2 ** -24;
    const one = summationRounding([layer(100, 'instantiate')], { batchSize: 32, microBatch: 32 });
    expect(one).toBeCloseTo(2 * 32 * 36 * u, 8);
    const product = summationRounding([layer(1, 'book-keeping'), layer(2, 'book-keeping')], { batchSize: 32, microBatch: 32 });
    expect(product).toBeCloseTo(2 * 32 * (2 * 32 + 4) * u, 8);
    const cut = summationRounding([layer(1, 'instantiate')], { batchSize: 4096, microBatch: 64 });
    expect(cut).toBeCloseTo(2 * 4096 * 68 * u, 6);
    // No share of the bound that the noise could be scaled by: it is named, and not part of the sensitivity.
    expect(cut).toBeGreaterThan(1e-3);
  });

  it('bounds how far the float32 sums of neighbouring draws are apart', () => {
    const [batchSize, microBatch] = [256, 64];
    const bound = summationRounding([layer(1, 'instantiate')], { batchSize, microBatch });
    /** Sums of units of one number as micro-batches of the step form them, one after the other. */
    const summed = (units: Float32Array): number => {
      const sums = accumulator(new Map([['w', [1]]]), { shared: false });
      for (let from = 0; from < units.length; from += microBatch) {
        const part = units.subarray(from, from + microBatch).reduce((sum, x) => Math.fround(sum + x), 0);
        sums.add({ [stepNames.sum('w')]: float32([part]) });
      }
      return sums.result().sums.get('w')![0]!;
    };
    const random = testRandom(11);
    let largest = 0;
    for (let trial = 0; trial < 500; trial++) {
      // Equal units round alike, and otherwise with one more in front.
      const [each, first] = [Math.fround(0.95 + 0.05 * random()), Math.fround(random())];
      const without = new Float32Array(batchSize - 1).fill(each);
      const moved = Math.abs(summed(Float32Array.of(first, ...without)) - summed(without) - first);
      expect(moved).toBeLessThanOrEqual(bound);
      largest = Math.max(largest, moved);
    }
    expect(largest).toBeGreaterThan(bound / 500);
  });
});
