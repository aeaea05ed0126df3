import { describe, expect, it } from 'vitest';
import { flatGroup } from './groups.ts';
import { digestOf } from './ledger.ts';
import { type PrivacyPlan, privacyPlan } from './plan.ts';
import { type ClippedSum, clippedSum, privatise, withMeasures } from './sum.ts';

const loss = { name: 'loss', low: 0, high: 4 };
const right = { name: 'right', low: 0, high: 1 };
const options = {
  datasetSize: 4000, batchSize: 100, steps: 4000, noiseMultiplier: 1, delta: 1e-5, groups: flatGroup(['w'], 1, 1), seed: 3,
};
const plan = privacyPlan({ ...options, metrics: { measures: [loss, right], budgetFraction: 0.04 } });

const sumOf = (of: PrivacyPlan): ClippedSum => clippedSum(new Map([['w', new Float32Array(1)]]), of.groups, 0);
const both = (losses: readonly number[], rights: readonly number[]) =>
  [{ measure: loss, values: Float32Array.from(losses) }, { measure: right, values: Float32Array.from(rights) }];

describe('measures beside a clipped sum', () => {
  it('are released with noise of σ_m on their sums, over the expected batch, independently of each other and between steps', () => {
    const keys = plan.startRatchet();
    const n = 3000;
    const losses = Array.from({ length: 60 }, (_, i) => i / 20);
    const rights = Array.from({ length: 60 }, (_, i) => i % 2);
    const found = Array.from({ length: n }, () => privatise(withMeasures(sumOf(plan), both(losses, rights)), plan, keys.advance()).metrics!);
    // 60 units where 100 were expected: those that are absent count as the middle of the range.
    const means = { loss: 2 + losses.reduce((sum, x) => sum + x - 2, 0) / 100, right: 0.5 };
    const deviation = plan.metrics!.deviation * (1 + plan.rounding);
    const deviations = { loss: (4 * deviation) / 100, right: deviation / 100 };
    for (const name of ['loss', 'right'] as const) {
      const errors = found.map((one) => (one[name]! - means[name]) / deviations[name]);
      expect(Math.abs(errors.reduce((sum, e) => sum + e, 0))).toBeLessThan(4 * Math.sqrt(n));
      expect(Math.abs(errors.reduce((sum, e) => sum + e * e, 0) / n - 1)).toBeLessThan(4 * Math.sqrt(2 / n));
      const lagged = errors.slice(1).reduce((sum, e, i) => sum + e * errors[i]!, 0);
      expect(Math.abs(lagged)).toBeLessThan(4 * Math.sqrt(n));
    }
    const product = found.reduce((sum, one) => sum + (one['loss']! - means.loss) * (one['right']! - means.right), 0) / deviations.loss / deviations.right;
    expect(Math.abs(product)).toBeLessThan(4 * Math.sqrt(n));
  });

  it('are moved by one unit by less than what the noise was scaled to, whatever it holds', () => {
    // The same noise on both neighbours: what is left is the unit's own influence, in σ of the whole step.
    for (const odd of [1e9, -5, NaN, 2.2]) {
      const [without, beside] = [both([1, 2], [1, 0]), both([1, 2, odd], [1, 0, odd])].map((values) =>
        privatise(withMeasures(sumOf(plan), values), plan, plan.startRatchet().advance()).metrics!);
      const moved = Math.hypot((beside!['loss']! - without!['loss']!) / 4, beside!['right']! - without!['right']!) * 100;
      expect((moved / plan.metrics!.deviation / (1 + plan.rounding)) ** 2 + plan.gradientMultiplier ** -2).toBeLessThanOrEqual(plan.noiseMultiplier ** -2 * (1 + 1e-9));
    }
  });

  it('are those of the plan, once, or nothing is released', () => {
    const keys = plan.startRatchet();
    expect(() => privatise(sumOf(plan), plan, keys.advance())).toThrow(/found: +none\n +expected: loss from 0 to 4, right/);
    const wider = both([1], [1]).map(({ values, measure }) => ({ values, measure: { ...measure, high: 100 } }));
    expect(() => privatise(withMeasures(sumOf(plan), wider), plan, keys.advance())).toThrow('other measures than the privacy plan');
    const unplanned = privacyPlan(options);
    expect(() => privatise(withMeasures(sumOf(unplanned), both([1], [1])), unplanned, unplanned.startRatchet().advance())).toThrow('other measures');
    const sum = withMeasures(sumOf(plan), both([1], [1]));
    expect(() => withMeasures(sum, both([1], [1]))).toThrow('measured twice');
    privatise(sum, plan, keys.advance());
    expect(() => withMeasures(sum, both([1], [1]))).toThrow('after it was noised');
  });

  it('count in the digest of a step', () => {
    const digest = (losses: readonly number[]): string =>
      digestOf(privatise(withMeasures(sumOf(plan), both(losses, [1])), plan, plan.startRatchet().advance()));
    expect(digest([1])).toBe(digest([1]));
    expect(digest([1])).not.toBe(digest([2]));
  });
});
