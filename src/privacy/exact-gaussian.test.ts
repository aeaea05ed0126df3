import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { composed, gaussian, poissonSampled, selfComposed } from './events.ts';
import { gaussianDelta, gaussianEpsilon, gaussianMu } from './exact-gaussian.ts';

/** δ = ∫ over losses ℓ > ε of (1 − e^{ε − ℓ}) under N(μ, 1), ℓ = μx − μ²/2, by Simpson's rule: no cancellation. */
function byIntegral(mu: number, epsilon: number): number {
  const start = epsilon / mu + mu / 2;
  const n = 40_000;
  const h = (Math.max(mu, start) + 12 - start) / n;
  let sum = 0;
  for (let i = 0; i <= n; i++) {
    const x = start + i * h;
    const value = Math.exp(-((x - mu) ** 2) / 2) * -Math.expm1(epsilon - mu * x + (mu * mu) / 2);
    sum += (i === 0 || i === n ? 1 : i % 2 === 1 ? 4 : 2) * value;
  }
  return (sum * h) / 3 / Math.sqrt(2 * Math.PI);
}

describe('exact Gaussian accountant', () => {
  it('equals the integral of the privacy loss, down to δ of 1e-60', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.01, max: 6, noNaN: true }),
        fc.double({ min: 0, max: 15, noNaN: true }),
        (mu, z) => {
          const epsilon = Math.max(0, mu * (z + mu / 2));
          expect(Math.abs(gaussianDelta(mu, epsilon) / byIntegral(mu, epsilon) - 1)).toBeLessThan(1e-9);
        },
      ),
      { numRuns: 60 },
    );
    expect(gaussianDelta(1, 0)).toBeCloseTo(0.38292492254802624, 14);
    expect(gaussianDelta(100, 0)).toBe(1);
    expect(gaussianDelta(0, 1)).toBe(0);
  });

  it('solves for the least ε, from above', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.02, max: 20, noNaN: true }),
        fc.double({ min: -12, max: -1, noNaN: true }),
        (mu, logDelta) => {
          const delta = 10 ** logDelta;
          const epsilon = gaussianEpsilon(mu, delta);
          expect(gaussianDelta(mu, epsilon)).toBeLessThanOrEqual(delta * (1 + 1e-14));
          if (epsilon > 0) expect(gaussianDelta(mu, epsilon * (1 - 1e-9))).toBeGreaterThan(delta);
        },
      ),
      { numRuns: 200 },
    );
    // Total variation 0.0399 < δ: nothing is spent on ε.
    expect(gaussianEpsilon(0.1, 0.04)).toBe(0);
    expect(gaussianEpsilon(0, 1e-5)).toBe(0);
  });

  it('never takes a failed computation for a small δ', () => {
    for (let mu = 1e-14; mu < 1e7; mu *= 3) {
      for (const delta of [1e-300, 1e-12, 1e-5, 0.3]) {
        const epsilon = gaussianEpsilon(mu, delta);
        expect(Number.isFinite(epsilon)).toBe(true);
        // More noise never costs more.
        expect(gaussianEpsilon(mu * 1.5, delta)).toBeGreaterThanOrEqual(epsilon);
      }
      for (const epsilon of [0, 1e-9, 1, 1e9]) {
        const delta = gaussianDelta(mu, epsilon);
        expect(delta >= 0 && delta <= 1).toBe(true);
      }
    }
    // Continuous where the formula changes.
    for (const z of [0, 1, 5, 30]) {
      const [below, above] = [1e-5 * (1 - 1e-9), 1e-5 * (1 + 1e-9)].map((mu) => gaussianDelta(mu, mu * z));
      expect((below ?? 0) / (above ?? 1)).toBeCloseTo(1, 6);
    }
  });

  it('composes Gaussians into one', () => {
    const event = composed([selfComposed(gaussian(3), 9), poissonSampled(1, gaussian(0.5))]);
    expect(gaussianMu(event)).toBeCloseTo(Math.sqrt(9 / 9 + 4), 14);
    expect(gaussianMu(composed([]))).toBe(0);
  });

  it('refuses sampling, naming the part', () => {
    expect(() => gaussianMu(composed([gaussian(1), selfComposed(poissonSampled(0.5, gaussian(2)), 4)]))).toThrow(
      'poisson-sampled(0.5, gaussian(2))',
    );
  });
});
