import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { erfc, erfcx, log1mExp, logExpm1, logNormalCdf, millsRatio, normalCdf } from './special.ts';

/** erfcx(x) = 2/√π ∫_0^∞ exp(−t² − 2xt) dt by Simpson's rule: slow, and with nothing in common with the code. */
function erfcxByIntegral(x: number): number {
  const end = x > 3 ? 25 / x : 8;
  const n = 40_000;
  const h = end / n;
  let sum = 0;
  for (let i = 0; i <= n; i++) {
    const t = i * h;
    sum += (i === 0 || i === n ? 1 : i % 2 === 1 ? 4 : 2) * Math.exp(-t * t - 2 * x * t);
  }
  return ((2 / Math.sqrt(Math.PI)) * sum * h) / 3;
}

describe('special functions', () => {
  it('agree with published values of erfc', () => {
    const table = [
      [0, 1],
      [0.1, 0.887537083981715],
      [0.5, 0.4795001221869535],
      [1, 0.15729920705028513],
      [2, 0.004677734981047266],
      [3, 2.209049699858544e-5],
      [5, 1.5374597944280349e-12],
      [-1, 1.8427007929497148],
    ] as const;
    for (const [x, value] of table) expect(Math.abs(erfc(x) / value - 1)).toBeLessThan(4e-15);
  });

  it('agree with the integral of erfcx everywhere', () => {
    for (let x = 0; x < 60; x += 0.137) expect(Math.abs(erfcx(x) / erfcxByIntegral(x) - 1)).toBeLessThan(2e-13);
    for (const x of [0.4999999, 0.5, 0.5000001, 6.283185, 6.283186])
      expect(Math.abs(erfcx(x) / erfcxByIntegral(x) - 1)).toBeLessThan(2e-13);
    expect(erfcx(1e9) * 1e9 * Math.sqrt(Math.PI)).toBeCloseTo(1, 14);
    expect(erfcx(1e200)).toBeGreaterThan(0);
    expect(erfcx(-40)).toBe(Infinity);
  });

  it('keep relative precision of log Φ in both tails', () => {
    expect(logNormalCdf(-10)).toBeCloseTo(-53.23128515051247, 12);
    expect(logNormalCdf(-38)).toBeCloseTo(-726.5572162, 6);
    expect(logNormalCdf(-1e6)).toBeCloseTo(-5e11 - Math.log(1e6 * Math.sqrt(2 * Math.PI)), 3);
    expect(logNormalCdf(8) / -6.220960574271786e-16).toBeCloseTo(1, 8);
    expect(logNormalCdf(0)).toBeCloseTo(-Math.LN2, 15);
  });

  it('satisfy their identities', () => {
    fc.assert(
      fc.property(fc.double({ min: -30, max: 30, noNaN: true }), (x) => {
        expect(normalCdf(x) + normalCdf(-x)).toBeCloseTo(1, 14);
        expect(Math.exp(logNormalCdf(x))).toBeCloseTo(normalCdf(x), 14);
        if (x > 0) expect(Math.abs(Math.exp(logExpm1(x)) / Math.expm1(x) - 1)).toBeLessThan(1e-13);
        if (x < 0) expect(Math.exp(log1mExp(x))).toBeCloseTo(1 - Math.exp(x), 14);
        if (x > 1) expect(millsRatio(x)).toBeLessThan(1 / x);
      }),
    );
    expect(logExpm1(1e300)).toBe(1e300);
    expect(log1mExp(-1e-300)).toBeCloseTo(Math.log(1e-300), 10);
  });
});
