import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { type PrivacyEvent, composed, gaussian, laplace, poissonSampled, selfComposed } from './events.ts';
import { deltaFromRdp, epsilonFromRdp, rdp, rdpCurve } from './rdp.ts';
import { gaussianDelta, gaussianEpsilon } from './exact-gaussian.ts';

const dpSgd = (sigma: number, q: number, steps = 1): PrivacyEvent =>
  selfComposed(poissonSampled(q, gaussian(sigma)), steps);

/**
 * The divergence by quadrature: ∫ N(z; 0, σ²)·(1 − q + q·e^{(2z − 1)/2σ²})^α dz − 1 by the trapezoidal rule, which
 * converges exponentially for this analytic integrand. Independent of both series.
 */
function byQuadrature(sigma: number, q: number, alpha: number): number {
  const h = Math.min(sigma, sigma * sigma) / 12;
  const end = alpha + 14 * sigma;
  // Scaled by the largest log, so that large moments do not overflow.
  const log = (z: number): number => alpha * Math.log1p(q * Math.expm1((2 * z - 1) / (2 * sigma * sigma)));
  const weight = (z: number): number => (-z * z) / (2 * sigma * sigma);
  let largest = 0;
  for (let z = -14 * sigma; z < end; z += h) largest = Math.max(largest, log(z) + weight(z));
  let excess = 0;
  for (let z = -14 * sigma; z < end; z += h) {
    const l = log(z);
    excess +=
      l < 1
        ? Math.expm1(l) * Math.exp(weight(z) - largest)
        : Math.exp(l + weight(z) - largest) - Math.exp(weight(z) - largest);
  }
  excess *= h / Math.sqrt(2 * Math.PI) / sigma;
  return (largest < 30 ? Math.log1p(excess * Math.exp(largest)) : largest + Math.log(excess)) / (alpha - 1);
}

describe('Rényi divergence of the Poisson-sampled Gaussian', () => {
  it('equals quadrature at whole and fractional orders', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.4, max: 8, noNaN: true }),
        fc.double({ min: -4, max: 0, noNaN: true }),
        fc.oneof(fc.double({ min: 1.05, max: 30, noNaN: true }), fc.integer({ min: 2, max: 60 })),
        (sigma, logQ, alpha) => {
          const q = Math.min(10 ** logQ, 0.999);
          const value = rdp(poissonSampled(q, gaussian(sigma)), alpha);
          const oracle = byQuadrature(sigma, q, alpha);
          // What truncation and rounding allow for is an absolute 2e-11 in the moment.
          expect(Math.abs(value - oracle)).toBeLessThan(1e-9 * oracle + 3e-11 * (1 + 1 / (alpha - 1)));
        },
      ),
      { numRuns: 60 },
    );
  });

  it('is an upper bound where the series is truncated', () => {
    for (const alpha of [1.001, 1.01, 1.1, 1.5, 2.3, 3.7]) {
      for (const [sigma, q] of [
        [1, 0.01],
        [0.7, 0.3],
        [3, 0.9],
        [5, 0.001],
      ] as const) {
        const value = rdp(poissonSampled(q, gaussian(sigma)), alpha);
        expect(value).toBeGreaterThanOrEqual(byQuadrature(sigma, q, alpha) * (1 - 1e-12));
      }
    }
  });

  it('keeps tiny divergences of tiny sample rates', () => {
    // To first order in q², A_α − 1 = α(α − 1)/2·q²·(e^{1/σ²} − 1).
    const q = 1e-9;
    for (const alpha of [2, 5, 40]) {
      const expected = (alpha / 2) * q * q * Math.expm1(1 / 4);
      expect(rdp(poissonSampled(q, gaussian(2)), alpha) / expected).toBeCloseTo(1, 6);
    }
  });

  it('joins whole and fractional orders and grows with the order', () => {
    for (const [sigma, q] of [
      [0.6, 0.01],
      [2, 0.2],
      [1, 0.999],
    ] as const) {
      const at = (alpha: number): number => rdp(poissonSampled(q, gaussian(sigma)), alpha);
      for (const k of [2, 3, 10, 33]) expect(at(k + 1e-7) / at(k)).toBeCloseTo(1, 5);
      const values = [1.01, 1.3, 2, 2.5, 4, 7.7, 20, 21.5, 63.9, 64, 500].map(at);
      values.forEach((value, i) => {
        if (i > 0) expect(value).toBeGreaterThanOrEqual(values[i - 1] ?? 0);
      });
    }
  });

  it('is that of the Gaussian at q = 1 and close to it just below', () => {
    for (const alpha of [1.5, 2, 17.3]) {
      expect(rdp(poissonSampled(1, gaussian(3)), alpha)).toBe(alpha / 18);
      expect(rdp(poissonSampled(1 - 1e-9, gaussian(3)), alpha)).toBeCloseTo(alpha / 18, 7);
    }
    expect(rdp(dpSgd(1, 0.1), Infinity)).toBe(Infinity);
  });

  it('adds up under composition', () => {
    const [a, b] = [poissonSampled(0.1, gaussian(1)), gaussian(4)];
    expect(rdp(composed([selfComposed(a, 3), b, composed([])]), 3.5)).toBeCloseTo(3 * rdp(a, 3.5) + rdp(b, 3.5), 14);
    expect(rdp(selfComposed(a, 0), Infinity)).toBe(0);
  });

  it('refuses what it does not know, naming it', () => {
    const nested = poissonSampled(0.1, composed([gaussian(1), laplace(2)]));
    expect(() => rdp(composed([gaussian(1), nested]), 2)).toThrow(
      'poisson-sampled(0.1, composed(gaussian(1), laplace(2)))',
    );
    expect(() => rdp(gaussian(1), 1)).toThrow(GhostgradError);
    expect(() => rdp(gaussian(1), NaN)).toThrow(GhostgradError);
  });
});

describe('conversion to (ε, δ)', () => {
  it('finds the best order between its ends to 1e-4 of ε, or 2e-5', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.5, max: 5, noNaN: true }),
        fc.double({ min: -4, max: -0.1, noNaN: true }),
        fc.integer({ min: 1, max: 20_000 }),
        fc.double({ min: -10, max: -2, noNaN: true }),
        (sigma, logQ, steps, logDelta) => {
          const delta = 10 ** logDelta;
          const curve = rdpCurve(dpSgd(sigma, 10 ** logQ, steps));
          const { epsilon, order } = epsilonFromRdp(curve, delta);
          // A fine scan about the order found, whole orders only where the lattice has them.
          const around = Array.from({ length: 121 }, (_, i) => 1 + (order - 1) * 1.0003 ** (i - 60)).map((a) =>
            a < 1024 ? a : Math.round(a),
          );
          const best = Math.max(
            0,
            Math.min(...around.map((a) => curve(a) + Math.log1p(-1 / a) - Math.log(delta * a) / (a - 1))),
          );
          expect(epsilon).toBeLessThanOrEqual(best * (1 + 1e-4) + 2e-5);
          expect(epsilon).toBeGreaterThanOrEqual(best * (1 - 1e-12));
          // δ at that ε is what we asked for.
          if (epsilon > 0) expect(deltaFromRdp(curve, epsilon).delta / delta).toBeCloseTo(1, 2);
        },
      ),
      { numRuns: 25 },
    );
  });

  it('bounds the exact Gaussian from above', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.3, max: 50, noNaN: true }),
        fc.double({ min: -12, max: -1, noNaN: true }),
        fc.integer({ min: 1, max: 1000 }),
        (sigma, logDelta, steps) => {
          const delta = 10 ** logDelta;
          const mu = Math.sqrt(steps) / sigma;
          const curve = rdpCurve(dpSgd(sigma, 1, steps));
          expect(epsilonFromRdp(curve, delta).epsilon).toBeGreaterThanOrEqual(gaussianEpsilon(mu, delta));
          expect(deltaFromRdp(curve, 1).delta).toBeGreaterThanOrEqual(gaussianDelta(mu, 1));
        },
      ),
      { numRuns: 100 },
    );
  });

  it('never returns NaN or a negative ε', () => {
    for (const [sigma, q, steps] of [
      [1e-3, 0.5, 10],
      [1e4, 1e-9, 1],
      [0.05, 1e-6, 1_000_000],
      [20, 0.999999, 100_000],
      [1, 1e-300, 5],
    ] as const) {
      for (const delta of [1e-12, 1e-5, 0.5, 0.999]) {
        expect(epsilonFromRdp(rdpCurve(dpSgd(sigma, q, steps)), delta).epsilon).toBeGreaterThanOrEqual(0);
      }
    }
  });
});
