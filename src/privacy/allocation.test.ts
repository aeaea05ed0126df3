import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Allocation, allocations, noiseDeviations } from './allocation.ts';
import { type Groups, groupsOf, withNorms } from './groups.ts';
import { privacyPlan } from './plan.ts';
import { clippedSum, privatise } from './sum.ts';

const positive = (min: number, max: number) => fc.double({ min, max, noNaN: true });
const anyGroups = fc
  .array(fc.record({ norm: positive(1e-3, 1e3), size: fc.integer({ min: 1, max: 1e6 }) }), { minLength: 1, maxLength: 8 })
  .map((all) => groupsOf(all.map((group, k) => ({ ...group, name: `g${k}`, parameters: [`p${k}`] }))));
const anyScale = fc.record({
  allocation: fc.constantFrom(...allocations),
  gradientMultiplier: positive(0.1, 50),
  rho: positive(0, 0.01),
  rounding: positive(0, 0.01),
});
/** Σ over all coordinates of the variance of their noise. */
const energy = (groups: Groups, deviations: readonly number[]): number =>
  groups.reduce((sum, { size }, k) => sum + size * deviations[k]! ** 2, 0);

describe('allocation of the noise', () => {
  it('is by the published formulas', () => {
    const groups = groupsOf([
      { name: 'x', norm: 3, parameters: ['a'], size: 100 },
      { name: 'y', norm: 4, parameters: ['b'], size: 16 },
    ]);
    const at = (allocation: Allocation) => noiseDeviations(groups, { allocation, gradientMultiplier: 1.5, rho: 0.004, rounding: 0.006 });
    const expectAt = (allocation: Allocation, expected: readonly number[]): void =>
      at(allocation).forEach((x, k) => expect(x).toBeCloseTo(1.5 * 1.01 * expected[k]!, 12));
    expectAt('global', [5, 5]);
    expectAt('equal-budget', [Math.SQRT2 * 3, Math.SQRT2 * 4]);
    expectAt('weighted', [(Math.sqrt(116) * 3) / 10, (Math.sqrt(116) * 4) / 4]);
    // γ² = C/√d is 3/10 and 4/4, hence S² = 9/0.3 + 16/1 = 46.
    expectAt('minimal', [Math.sqrt(46 * 0.3), Math.sqrt(46)]);
    expect(energy(groups, at('minimal'))).toBeCloseTo((1.5 * 1.01 * (3 * 10 + 4 * 4)) ** 2, 9);
  });

  it('spends the same whatever it is: over the noise, the groups have the joint sensitivity 1/σ_g', () => {
    fc.assert(
      fc.property(anyGroups, anyScale, (groups, scale) => {
        const deviations = noiseDeviations(groups, scale);
        const moved = Math.hypot(...groups.map(({ norm }, k) => (norm * (1 + scale.rho + scale.rounding)) / deviations[k]!));
        expect(moved * scale.gradientMultiplier).toBeCloseTo(1, 12);
      }),
    );
  });

  it('minimal has the least noise energy of all that spend the same', () => {
    fc.assert(
      fc.property(
        anyGroups,
        anyScale,
        fc.array(positive(1e-3, 1e3), { minLength: 8, maxLength: 8 }),
        (groups, scale, gammas) => {
          const least = energy(groups, noiseDeviations(groups, { ...scale, allocation: 'minimal' }));
          const s = (1 + scale.rho + scale.rounding) * Math.hypot(...groups.map(({ norm }, k) => norm / gammas[k]!));
          const any = groups.map((_, k) => scale.gradientMultiplier * s * gammas[k]!);
          for (const deviations of [any, noiseDeviations(groups, scale)])
            expect(least).toBeLessThanOrEqual(energy(groups, deviations) * (1 + 1e-12));
        },
      ),
    );
  });

  it('is all one for one group', () => {
    const groups = groupsOf([{ name: 'all', norm: 0.3, parameters: ['w'], size: 77 }]);
    for (const allocation of allocations)
      expect(noiseDeviations(groups, { allocation, gradientMultiplier: 2, rho: 0, rounding: 0 })[0]).toBeCloseTo(0.6, 14);
  });

  it.each(allocations)('%s: the noise added has its variance, from the thresholds of the sum itself', (allocation) => {
    const n = 100_000;
    const first = groupsOf([
      { name: 'x', norm: 1, parameters: ['a'], size: n },
      { name: 'y', norm: 1, parameters: ['b', 'c'], size: 2 * n },
    ]);
    const plan = privacyPlan({
      datasetSize: 1000, batchSize: 20, steps: 1, noiseMultiplier: 1.2, delta: 1e-5, groups: first, allocation, seed: 5,
      adaptive: { quantile: 0.5, learningRate: 0.2, budgetFraction: 0.1, rescaleTo: null },
    });
    const now = withNorms(first, [0.02, 3]);
    const sums = new Map(['a', 'b', 'c'].map((name) => [name, new Float32Array(n)]));
    const { gradients } = privatise(
      clippedSum(sums, now, plan.rho, new Float32Array(0)), plan, plan.startRatchet().advance(),
    );
    const expected = noiseDeviations(now, plan);
    expect(expected).not.toEqual(noiseDeviations(first, plan));
    for (const [name, k] of [['a', 0], ['b', 1], ['c', 1]] as const) {
      const variance = (gradients.get(name)!.reduce((sum, x) => sum + x * x, 0) / n) * plan.normaliser ** 2;
      expect(Math.abs(variance / expected[k]! ** 2 - 1)).toBeLessThan(4 * Math.sqrt(2 / n));
    }
  });
});
