import { describe, expect, it } from 'vitest';
import { deltaCurve, gaussian } from '../privacy/index.ts';
import { mostFound, mostRight, posterior } from './attacker.ts';

/** Φ by numerical integration. */
function normalCdf(x: number): number {
  const steps = 20_000;
  let sum = 0;
  for (let i = 0; i < steps; i++) sum += Math.exp(-0.5 * (-10 + ((x + 10) * (i + 0.5)) / steps) ** 2);
  return (sum * (x + 10)) / steps / Math.sqrt(2 * Math.PI);
}

describe('what an attacker can learn', () => {
  it('is what the best test of a Gaussian mechanism learns, from its whole curve', () => {
    // The best test between N(0, 1) and N(μ, 1) is a threshold t: FPR = 1 − Φ(t), TPR = 1 − Φ(t − μ); its accuracy is Φ(μ/2).
    const mu = 1.5;
    const curve = deltaCurve(gaussian(1 / mu), Array.from({ length: 400 }, (_, i) => i / 50), 'exact-gaussian');
    expect(mostRight(curve)).toBeCloseTo(normalCdf(mu / 2), 6);
    for (const t of [0.3, 1, 2.2]) expect(mostFound(curve, 1 - normalCdf(t))).toBeCloseTo(1 - normalCdf(t - mu), 3);
  });

  it('is nothing where nothing was released, and everything where no bound is', () => {
    expect(mostRight([{ epsilon: 0, delta: 0 }])).toBe(0.5);
    expect(mostFound([{ epsilon: 0, delta: 0 }], 0.01)).toBe(0.01);
    expect(mostRight([{ epsilon: 0, delta: 1 }])).toBe(1);
    expect(mostFound([], 0.01)).toBe(1);
  });

  it('multiplies odds by e^ε at most', () => {
    expect(posterior(0.5, 0)).toBe(0.5);
    expect(posterior(0.5, 1)).toBeCloseTo(Math.E / (1 + Math.E), 15);
    expect(posterior(0.01, Math.log(3))).toBeCloseTo(3 / 102, 15);
  });
});
