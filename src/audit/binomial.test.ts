import { describe, expect, it } from 'vitest';
import { binomialMass, binomialTail, clopperPearson, logFactorial } from './binomial.ts';

/** P[from ≤ X ≤ to] by exact whole numbers: p is a/b. */
function exact(n: number, [from, to]: readonly [number, number], a: bigint, b: bigint): number {
  let sum = 0n;
  let choose = 1n;
  for (let i = 0; i <= n; i++) {
    if (i >= from && i <= to) sum += choose * a ** BigInt(i) * (b - a) ** BigInt(n - i);
    choose = (choose * BigInt(n - i)) / BigInt(i + 1);
  }
  const scale = 10n ** 60n;
  return Number((sum * scale) / b ** BigInt(n)) / 1e60;
}

describe('the binomial distribution', () => {
  it('has the masses and tails of exact arithmetic, far out too', () => {
    for (const [n, k] of [[1, 1], [5, 2], [40, 38], [40, 3], [300, 180], [300, 120], [300, 299]] as const) {
      for (const [a, b] of [[1n, 2n], [1n, 10n], [73n, 100n]] as const) {
        const p = Number(a) / Number(b);
        const tail = exact(n, [k, n], a, b);
        if (tail < 1e-30) continue;
        expect(Math.abs(binomialTail(n, k, p) / tail - 1)).toBeLessThan(1e-10);
        expect(binomialMass(n, k, p) / exact(n, [k, k], a, b)).toBeCloseTo(1, 8);
      }
    }
    expect(logFactorial(20)).toBeCloseTo(Math.log(2432902008176640000), 12);
    // 100! = 9.33262154439441e157
    expect(logFactorial(100)).toBeCloseTo(Math.log(9.332621544394415e157), 10);
    expect([binomialTail(9, 0, 0.3), binomialTail(9, 10, 0.3), binomialTail(9, 9, 1), binomialTail(9, 1, 0)]).toEqual([1, 0, 1, 0]);
  });

  it('has Clopper–Pearson bounds that are missed exactly as often as said', () => {
    for (const [k, n] of [[3, 10], [50, 100], [999, 1000], [12, 40_000]] as const) {
      const { low, high } = clopperPearson(k, n, 0.001);
      expect(binomialTail(n, k, low)).toBeCloseTo(0.001, 9);
      expect(1 - binomialTail(n, k + 1, high)).toBeCloseTo(0.001, 9);
    }
    // Without a success p is at most 1 − miss^(1/n).
    expect(clopperPearson(0, 50, 0.01)).toEqual({ low: 0, high: expect.closeTo(1 - 0.01 ** (1 / 50), 10) });
    expect(clopperPearson(50, 50, 0.01)).toEqual({ low: expect.closeTo(0.01 ** (1 / 50), 10), high: 1 });
  });
});
