import { describe, expect, it } from 'vitest';
import { type PrivacyEvent, epsilonOf, gaussian, poissonSampled, selfComposed } from '../privacy/index.ts';
import { normalCdf } from '../privacy/special.ts';
import { type Rates, epsilonOfCurve as epsilonOfPoint, epsilonOfRates, pointOfAccuracy, pointOfRates, withNoise } from './trade-off.ts';

/** The rates of the best test between N(0, 1) and N(μ, 1) at a threshold. */
const gaussianRates = (mu: number, threshold: number) =>
  ({ truePositive: normalCdf(mu - threshold), falsePositive: normalCdf(-threshold) });

const epsilonOfCurve = (rates: Rates, claimed: PrivacyEvent, delta: number): number =>
  epsilonOfPoint(pointOfRates(rates), claimed, delta);

describe('rates against one point of the curve', () => {
  it('refute an ε below that of randomized response, both ways', () => {
    const rates = { truePositive: 0.9, falsePositive: 0.1 };
    expect(epsilonOfRates(rates, 0)).toBeCloseTo(Math.log(9), 12);
    expect(epsilonOfRates({ truePositive: 0.5, falsePositive: 0.01 }, 0)).toBeCloseTo(Math.log(50), 12);
    expect(epsilonOfRates({ truePositive: 0.99, falsePositive: 0.5 }, 0)).toBeCloseTo(Math.log(50), 12);
    expect(epsilonOfRates(rates, 0.05)).toBeCloseTo(Math.log(0.85 / 0.1), 12);
    expect(epsilonOfRates({ truePositive: 0.4, falsePositive: 0.5 }, 1e-5)).toBe(0);
  });

  it('never refute the ε of the mechanism that has them', () => {
    for (const sigma of [0.5, 1, 4])
      for (const threshold of [-2, 0, 1 / sigma, 3])
        expect(epsilonOfRates(gaussianRates(1 / sigma, threshold), 1e-5)).toBeLessThan(epsilonOf(gaussian(sigma), 1e-5).epsilon);
  });
});

describe('rates against the whole curve', () => {
  it('find the ε of a Gaussian mechanism at any threshold, whatever noise was claimed', () => {
    for (const [sigma, claimed] of [[3.7, 3.7], [3.7, 9], [0.6, 0.9], [1, 0.5]] as const) {
      const truth = epsilonOf(gaussian(sigma), 1e-5).epsilon;
      for (const threshold of [0, 1]) {
        const found = epsilonOfCurve(gaussianRates(1 / sigma, threshold), gaussian(claimed), 1e-5);
        expect(found).toBeLessThanOrEqual(truth);
        expect(found).toBeGreaterThan(0.97 * truth);
      }
    }
  });

  it('is found from the accuracy of the best test too', () => {
    for (const sigma of [0.6, 1, 3.7]) {
      const truth = epsilonOf(gaussian(sigma), 1e-5).epsilon;
      const found = epsilonOfPoint(pointOfAccuracy(normalCdf(0.5 / sigma)), gaussian(1), 1e-5);
      expect(found).toBeLessThanOrEqual(truth);
      expect(found).toBeGreaterThan(0.97 * truth);
    }
    expect(epsilonOfPoint(pointOfAccuracy(0.5), gaussian(1), 1e-5)).toBe(0);
  });

  it('refute nothing where the attacker guessed blindly', () => {
    expect(epsilonOfCurve({ truePositive: 0.5, falsePositive: 0.5 }, gaussian(1), 1e-5)).toBe(0);
    expect(epsilonOfCurve({ truePositive: 0.3, falsePositive: 0.6 }, gaussian(1), 1e-5)).toBe(0);
  });

  it('go by the noise of sampled steps too', () => {
    const event = selfComposed(poissonSampled(0.01, gaussian(1)), 1000);
    const { epsilon } = epsilonOf(event, 1e-5, 'pld');
    // By the central limit of Bu et al. 2020 the composition is as N(0, 1) against N(μ, 1).
    const mu = 0.01 * Math.sqrt(1000 * (Math.exp(1) - 1));
    const found = epsilonOfCurve(gaussianRates(mu, mu / 2), event, 1e-5);
    expect(found).toBeGreaterThan(0.8 * epsilon);
    expect(found).toBeLessThan(1.05 * epsilon);
    const half = withNoise(event, 0.5);
    expect(half).toEqual(selfComposed(poissonSampled(0.01, gaussian(0.5)), 1000));
  });
});
