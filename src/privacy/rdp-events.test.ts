import { describe, expect, it } from 'vitest';
import {
  composed, gaussian, laplace, parseEvent, poissonSampled, repeatAndSelect, sampledWithoutReplacement, selfComposed,
  truncatedPoissonSampled, gaussianWithCounts,
} from './events.ts';
import { epsilonFromRdp, rdp, rdpCurve } from './rdp.ts';
import { binomialTail } from './truncation.ts';

describe('Rényi divergences of further events', () => {
  it('of Laplace noise go from KL to the pure ε', () => {
    for (const scale of [0.1, 1, 50]) {
      expect(rdp(laplace(scale), Infinity)).toBe(1 / scale);
      expect(rdp(laplace(scale), 1e9)).toBeCloseTo(1 / scale, 6);
      // KL: 1/b − 1 + e^{−1/b}.
      expect(rdp(laplace(scale), 1 + 1e-7)).toBeCloseTo(1 / scale + Math.expm1(-1 / scale), 5);
    }
  });

  it('without replacement are those of the theorem at order 2, grow, and reach the Gaussian', () => {
    const at = (sampleSize: number, sigma: number) => sampledWithoutReplacement({ sampleSize, datasetSize: 100 }, gaussian(sigma));
    const tight = Math.min(4 * Math.expm1(1 / 4), 2 * Math.exp(1 / 4));
    expect(rdp(at(10, 2), 2)).toBeCloseTo(Math.log1p(0.01 * tight), 12);
    expect(rdp(at(100, 2), 7)).toBe(7 / 8);
    let before = 0;
    for (const order of [1.2, 1.9, 2, 2.5, 3, 4.5, 10, 33.3, 100]) {
      const here = rdp(at(10, 2), order);
      expect(here).toBeGreaterThanOrEqual(before);
      expect(here).toBeGreaterThan(rdp(poissonSampled(0.1, gaussian(2)), order) * (1 - 1e-9));
      before = here;
    }
  });

  it('of the best of several runs cost more than one, and less than all', () => {
    const run = selfComposed(poissonSampled(0.01, gaussian(1.5)), 500);
    const once = epsilonFromRdp(rdpCurve(run), 1e-5).epsilon;
    for (const runs of [
      { distribution: 'truncated-negative-binomial', shape: 1, gamma: 0.1 },
      { distribution: 'truncated-negative-binomial', shape: 0, gamma: 0.05 },
      { distribution: 'poisson', mean: 10 },
    ] as const) {
      const event = repeatAndSelect(run, runs);
      const { epsilon } = epsilonFromRdp(rdpCurve(event), 1e-5);
      expect(epsilon).toBeGreaterThan(once);
      expect(epsilon).toBeLessThan(epsilonFromRdp(rdpCurve(selfComposed(run, 40)), 1e-5).epsilon);
      expect(parseEvent(JSON.parse(JSON.stringify(event)))).toEqual(event);
    }
    // Geometric: ε'(λ) = ε(λ) + 2·min(…) + log(1/γ)/(λ − 1); the least is at most its value at one order.
    const geometric = repeatAndSelect(run, { distribution: 'truncated-negative-binomial', shape: 1, gamma: 0.1 });
    const bound = rdp(run, 8) + 2 * ((1 - 1 / 20) * rdp(run, 20) + Math.log(10) / 20) + Math.log(10) / 7;
    expect(rdp(geometric, 8)).toBeLessThanOrEqual(bound);
    expect(() => repeatAndSelect(run, { distribution: 'poisson', mean: 0.5 })).toThrow('at least 1');
  });

  it('refuse neighbours of two kinds', () => {
    const fixed = sampledWithoutReplacement({ sampleSize: 1, datasetSize: 2 }, gaussian(1));
    expect(() => rdp(composed([fixed, poissonSampled(0.5, gaussian(1))]), 2)).toThrow('samples of one kind');
  });
});

describe('events of every kind', () => {
  it('survive JSON', () => {
    const event = composed([
      gaussianWithCounts(1, 3, 20), laplace(2),
      truncatedPoissonSampled({ rate: 0.1, most: 30, datasetSize: 200 }, gaussian(1)),
      sampledWithoutReplacement({ sampleSize: 5, datasetSize: 50 }, gaussian(2)),
    ]);
    expect(parseEvent(JSON.parse(JSON.stringify(event)))).toEqual(event);
  });
});

describe('the tail of the binomial distribution', () => {
  it('is bounded from above', () => {
    let exact = 0;
    for (let k = 30, term = 0; k <= 100; k++) {
      term = 1;
      for (let i = 1; i <= k; i++) term *= ((100 - k + i) / i) * 0.2;
      exact += term * 0.8 ** (100 - k);
    }
    expect(binomialTail(100, 0.2, 29)).toBeGreaterThanOrEqual(exact);
    expect(binomialTail(100, 0.2, 29)).toBeLessThan(20 * exact);
    expect(binomialTail(100, 0.2, 100)).toBe(0);
    expect(binomialTail(100, 0.2, 10)).toBe(1);
  });
});
