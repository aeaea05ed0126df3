import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type PrivacyEvent, composed, gaussian, gaussianWithCounts, laplace, poissonSampled, repeatAndSelect,
  sampledWithoutReplacement, selfComposed, truncatedPoissonSampled,
} from './events.ts';
import { gaussianEpsilon } from './exact-gaussian.ts';
import { losses, nodesOf } from './loss-grid.ts';
import { mergedLosses } from './loss-merged.ts';
import { gaussianPair } from './loss-pair.ts';
import { lossSum } from './loss-sum.ts';
import { lossAccount } from './pld.ts';
import { prepareAccountant } from './accountant.ts';
import { epsilonFromRdp, rdpCurve } from './rdp.ts';
import { normalCdf } from './special.ts';

const dpSgd = (sigma: number, rate: number): PrivacyEvent => poissonSampled(rate, gaussian(sigma));
const bounds = (event: PrivacyEvent, times: number, delta: number) => lossAccount(event).epsilonBounds(times, delta);

/** δ of one step in closed form: in either direction the region where one density exceeds e^ε times the other is a ray. */
function oneStepDelta(sigma: number, q: number, epsilon: number): number {
  const tail = (x: number, mean: number): number => normalCdf((mean - x) / sigma);
  const place = (odds: number): number => sigma ** 2 * Math.log(odds) + 0.5;
  const at = place((Math.exp(epsilon) - 1 + q) / q);
  const removed = (1 - q) * tail(at, 0) + q * tail(at, 1) - Math.exp(epsilon) * tail(at, 0);
  const odds = (Math.exp(-epsilon) - 1 + q) / q;
  if (!(odds > 0)) return removed;
  const below = place(odds);
  const added = 1 - tail(below, 0) - Math.exp(epsilon) * (1 - (1 - q) * tail(below, 0) - q * tail(below, 1));
  return Math.max(removed, added);
}

describe('privacy loss distributions', () => {
  it('bound one step in closed form from both sides', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.4, max: 4, noNaN: true }),
        fc.double({ min: 0.01, max: 0.9, noNaN: true }),
        fc.double({ min: 0.05, max: 1.5, noNaN: true }),
        (sigma, q, epsilon) => {
          const exact = oneStepDelta(sigma, q, epsilon);
          fc.pre(exact > 1e-8);
          const { low, high } = lossAccount(dpSgd(sigma, q)).deltaBounds(1, epsilon);
          expect(high).toBeGreaterThanOrEqual(exact * (1 - 1e-6));
          expect(low).toBeLessThanOrEqual(exact * (1 + 1e-6));
          expect(high / low - 1).toBeLessThan(0.02);
        },
      ),
      { numRuns: 8 },
    );
  });

  it('of a sum of Gaussians enclose the closed form, to 1e-6 on a fine lattice', () => {
    for (const [sigma, n, delta, step, resolution, close] of [
      [1, 1, 1e-5, 1 / 700, 700, 1e-6], [3, 9, 1e-9, 1 / 60, 128, 1e-3], [20, 400, 1e-5, 1 / 800, 128, 5e-3],
    ] as const) {
      const pair = gaussianPair(sigma, 1, (1e-7 * delta) / n);
      const grid = { step, resolution };
      const exact = gaussianEpsilon(Math.sqrt(n) / sigma, delta);
      const high = lossSum([losses(pair, nodesOf(pair, grid, 0)).remove], delta).epsilon([n], delta, 'high');
      const low = lossSum([mergedLosses(pair, grid, false).remove], delta).epsilon([n], delta, 'low');
      expect(high).toBeGreaterThanOrEqual(exact);
      expect(low).toBeLessThanOrEqual(exact);
      expect(high / low - 1).toBeLessThan(close);
    }
  });

  it('is a little below RDP, and its bounds are close', () => {
    for (const [sigma, q, times, delta] of [
      [1.1, 0.01, 1000, 1e-5], [0.6, 0.02, 200, 1e-6], [4, 0.3, 3000, 1e-12], [1, 1e-3, 100_000, 1e-8], [50, 0.5, 10_000, 0.01],
    ] as const) {
      const { low, high } = bounds(dpSgd(sigma, q), times, delta);
      const rdp = epsilonFromRdp(rdpCurve(selfComposed(dpSgd(sigma, q), times)), delta).epsilon;
      expect(high).toBeLessThan(rdp);
      expect(low).toBeLessThanOrEqual(high);
      expect(high / low - 1).toBeLessThan(5e-3);
    }
  });

  it.each([
    [0.5, 1e-6, 1_000_000, 1e-12], [0.8, 1e-5, 1_000_000, 1e-12], [0.7, 1e-4, 100_000, 1e-12], [1, 1e-6, 1_000_000, 1e-5],
    [0.3, 0.01, 100, 1e-5], [2, 0.01, 1_000_000, 1e-12], [10, 0.9, 1_000_000, 1e-12], [0.9, 1, 1, 1e-12],
  ] as const)('bound ε closely: σ = %d, q = %d, %d steps, δ = %d', (sigma, q, times, delta) => {
    const { low, high } = bounds(dpSgd(sigma, q), times, delta);
    expect(low).toBeGreaterThan(0);
    expect(low).toBeLessThanOrEqual(high);
    expect(high / low - 1).toBeLessThan(5e-3);
  });

  it('do not depend on the order of composition, nor on how steps are told', () => {
    const [a, b] = [selfComposed(dpSgd(1.5, 0.02), 300), selfComposed(dpSgd(2, 0.05), 100)];
    const once = bounds(composed([a, b]), 1, 1e-6).high;
    expect(bounds(composed([b, a]), 1, 1e-6).high / once).toBeCloseTo(1, 9);
    expect(bounds(composed([a, b, a, b]), 1, 1e-6).high).toBe(bounds(composed([a, b]), 2, 1e-6).high);
    expect(bounds(composed([a, b]), 1, 1e-6).high).toBeGreaterThan(bounds(b, 1, 1e-6).high);
  });

  it('grow with steps and sample rate, and fall with noise and δ', () => {
    const at = (sigma: number, q: number, times: number, delta: number): number => bounds(dpSgd(sigma, q), times, delta).high;
    const here = at(0.9, 0.01, 500, 1e-6);
    expect(at(0.9, 0.01, 550, 1e-6)).toBeGreaterThan(here);
    expect(at(0.9, 0.011, 500, 1e-6)).toBeGreaterThan(here);
    expect(at(0.95, 0.01, 500, 1e-6)).toBeLessThan(here);
    expect(at(0.9, 0.01, 500, 2e-6)).toBeLessThan(here);
  });

  it('composes what differs, and counts on the same draw', () => {
    const [a, b] = [dpSgd(1.5, 0.02), dpSgd(2, 0.05)];
    const event = composed([selfComposed(a, 300), selfComposed(b, 100), gaussian(20)]);
    const all = bounds(event, 1, 1e-5);
    expect(all.high).toBeGreaterThan(bounds(selfComposed(a, 300), 1, 1e-5).high);
    expect(all.high).toBeLessThan(epsilonFromRdp(rdpCurve(event), 1e-5).epsilon);
    // σ⁻² = 1/4 = σ_g⁻² + K/(4σ_b²).
    const joint = poissonSampled(0.02, gaussianWithCounts(Math.sqrt(5), 3, Math.sqrt(15)));
    expect(bounds(joint, 100, 1e-5).high / bounds(dpSgd(2, 0.02), 100, 1e-5).high).toBeCloseTo(1, 3);
  });

  it('knows samples of fixed size, Laplace noise and truncated samples', () => {
    const fixed = sampledWithoutReplacement({ sampleSize: 20, datasetSize: 1000 }, gaussian(1));
    const replaced = bounds(fixed, 500, 1e-5);
    expect(replaced.high).toBeLessThan(epsilonFromRdp(rdpCurve(selfComposed(fixed, 500)), 1e-5).epsilon);
    expect(replaced.high).toBeGreaterThanOrEqual(bounds(dpSgd(1, 0.02), 500, 1e-5).high * (1 - 1e-3));
    // Pure privacy of 1/b: δ(ε) = 1 − e^{(ε − 1/b)/2} for one release.
    const { low, high } = lossAccount(laplace(2)).deltaBounds(1, 0.25);
    const exact = -Math.expm1((0.25 - 0.5) / 2);
    expect(low).toBeLessThanOrEqual(exact * (1 + 1e-9));
    expect(high).toBeGreaterThanOrEqual(exact * (1 - 1e-9));
    expect(high / exact - 1).toBeLessThan(1e-2);
    const cut = (most: number) => truncatedPoissonSampled({ rate: 0.01, most, datasetSize: 10_000 }, gaussian(1));
    const plain = prepareAccountant(dpSgd(1, 0.01), 'pld').epsilon(100, 1e-5);
    expect(prepareAccountant(cut(250), 'pld').epsilon(100, 1e-5) / plain).toBeCloseTo(1, 6);
    expect(prepareAccountant(cut(160), 'pld').epsilon(100, 1e-5)).toBeGreaterThan(plain);
    expect(prepareAccountant(cut(105), 'pld').epsilon(100, 1e-5)).toBe(Infinity);
  });

  it('refuses, by name, what it does not know', () => {
    const fixed = sampledWithoutReplacement({ sampleSize: 2, datasetSize: 10 }, gaussian(1));
    expect(() => lossAccount(repeatAndSelect(gaussian(1), { distribution: 'poisson', mean: 5 }))).toThrow(
      'the pld accountant cannot account for this event',
    );
    expect(() => lossAccount(composed([fixed, dpSgd(1, 0.1)]))).toThrow('samples of one kind');
    expect(() => lossAccount(poissonSampled(0.1, composed([gaussian(1), laplace(1)])))).toThrow('poisson-sampled(0.1');
  });

  it('stays finite and in order at the edges of its range', () => {
    for (const [sigma, q, times] of [[0.1, 1e-6, 1000], [0.1, 0.9, 10], [1000, 1e-6, 1000], [1000, 1, 1_000_000], [0.5, 0.1, 1000]] as const) {
      const found = [1e-12, 1e-5, 0.5].map((delta) => bounds(dpSgd(sigma, q), times, delta).high);
      expect(found.every((epsilon) => epsilon >= 0 && Number.isFinite(epsilon))).toBe(true);
      expect(found[0]).toBeGreaterThanOrEqual(found[1]!);
      expect(found[1]).toBeGreaterThanOrEqual(found[2]!);
    }
  });
});
