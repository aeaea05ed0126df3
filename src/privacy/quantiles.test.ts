import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { allocations, noiseDeviations } from './allocation.ts';
import { composed, gaussian, selfComposed } from './events.ts';
import { gaussianMu } from './exact-gaussian.ts';
import { type Groups, groupsOf } from './groups.ts';
import { type PrivacyPlan, type PrivacyPlanOptions, privacyPlan } from './plan.ts';
import { countsWithin, fractionWithin, splitBudget } from './quantiles.ts';
import { type Privatised, clippedSum, privatise } from './sum.ts';

const anySigma = fc.double({ min: 0.05, max: 100, noNaN: true });
const anyFraction = fc.double({ min: 1e-4, max: 0.999, noNaN: true });
const anyNorm = fc.oneof(
  fc.double({ min: 0, max: 10, noNaN: true }),
  fc.constantFrom(0, 1, NaN, Infinity, 1e-30, 1e30),
);
/** K groups of one number each. */
const groupsAt = (norms: readonly number[]): Groups =>
  groupsOf(norms.map((norm, k) => ({ name: `g${k}`, norm, parameters: [`p${k}`], size: 1 })));
const planOf = (groups: Groups, options: Partial<PrivacyPlanOptions> = {}): PrivacyPlan =>
  privacyPlan({
    datasetSize: 1e6, batchSize: 1000, steps: 10, noiseMultiplier: 1, delta: 1e-7, groups, seed: 1,
    adaptive: { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.5, rescaleTo: null },
    ...options,
  });
const zerosOf = (groups: Groups) =>
  new Map(groups.flatMap(({ parameters }) => parameters.map((name) => [name, new Float32Array(1)])));
const released = (plan: PrivacyPlan, norms: Float32Array): Privatised =>
  privatise(clippedSum(zerosOf(plan.groups), plan.groups, plan.rho, norms), plan, plan.startRatchet().advance());

describe('the budget of gradients and counts', () => {
  it('adds up: the two mechanisms, each with its own sensitivity, compose to the σ that is charged', () => {
    fc.assert(
      fc.property(anySigma, anyFraction, fc.integer({ min: 1, max: 300 }), (sigma, fraction, K) => {
        const { gradientMultiplier, countDeviation } = splitBudget(sigma, fraction, K);
        // A count moves by ½ when a unit comes or goes.
        const counts = selfComposed(gaussian(countDeviation / 0.5), K);
        expect(gaussianMu(composed([gaussian(gradientMultiplier), counts])) * sigma).toBeCloseTo(1, 10);
        expect(gaussianMu(counts) ** 2 * sigma ** 2).toBeCloseTo(fraction, 10);
      }),
    );
  });

  it('is that of Andrew et al. 2021 for one group', () => {
    fc.assert(
      fc.property(anySigma, anyFraction, (sigma, fraction) => {
        const { gradientMultiplier, countDeviation } = splitBudget(sigma, fraction, 1);
        const published = (sigma ** -2 - (2 * countDeviation) ** -2) ** -0.5;
        expect(gradientMultiplier / published).toBeCloseTo(1, 8);
      }),
    );
  });
});

describe('counts within the thresholds', () => {
  it('are ±½ for each unit and group, −½ for what is not finite, and 0 without units', () => {
    const groups = groupsAt([1, 2]);
    expect(countsWithin(Float32Array.of(0.5, 3, 1, 2, 4, 0, NaN, Infinity), groups)).toEqual(Float64Array.of(0, 0));
    expect(countsWithin(Float32Array.of(0, 0, 1, 2, 1, 1), groups)).toEqual(Float64Array.of(1.5, 1.5));
    expect(countsWithin(Float32Array.of(NaN, NaN), groups)).toEqual(Float64Array.of(-0.5, -0.5));
    expect(countsWithin(new Float32Array(0), groups)).toEqual(new Float64Array(2));
    expect(() => countsWithin(new Float32Array(3), groups)).toThrow('do not match');
  });

  it('move by exactly ½ in each group when any unit comes or goes, and by at most 1 when one is replaced', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 5 }).chain((K) => {
          const unit = fc.array(anyNorm, { minLength: K, maxLength: K });
          const threshold = fc.double({ min: 1e-3, max: 10, noNaN: true });
          return fc.record({
            thresholds: fc.array(threshold, { minLength: K, maxLength: K }),
            units: fc.array(unit, { maxLength: 6 }),
            unit, other: unit, at: fc.nat(),
          });
        }),
        ({ thresholds, units, unit, other, at }) => {
          const groups = groupsAt(thresholds);
          const position = at % (units.length + 1);
          const counts = (...added: number[][]): Float64Array =>
            countsWithin(Float32Array.from(units.toSpliced(position, 0, ...added).flat()), groups);
          const [without, one, two] = [counts(), counts(unit), counts(other)];
          const moved = Math.hypot(...one.map((x, k) => x - without[k]!));
          one.forEach((x, k) => expect(Math.abs(x - without[k]!)).toBe(0.5));
          expect(moved).toBeCloseTo(Math.sqrt(groups.length) / 2, 12);
          one.forEach((x, k) => expect(Math.abs(x - two[k]!)).toBeLessThanOrEqual(1));
        },
      ),
    );
  });

  it('become fractions of the expected batch, whatever was drawn', () => {
    expect(fractionWithin(0, 100)).toBe(0.5);
    expect(fractionWithin(5, 100)).toBeCloseTo(0.55, 15);
    expect([fractionWithin(80, 100), fractionWithin(-80, 100)]).toEqual([1, 0]);
    // With next to no noise: 10 units within, of 100 expected; nobody drawn; 300 drawn, all above.
    const plan = planOf(groupsAt([1, 1]), {
      batchSize: 100, datasetSize: 100, noiseMultiplier: 1e-9, sampling: 'full-batch', noise: 'float',
    });
    const fractions = (norms: Float32Array) => released(plan, norms).fractions!;
    fractions(new Float32Array(20).fill(0.5)).forEach((f) => expect(f).toBeCloseTo(0.55, 6));
    fractions(new Float32Array(0)).forEach((f) => expect(f).toBeCloseTo(0.5, 6));
    expect(fractions(new Float32Array(600).fill(2))).toEqual([0, 0]);
  });
});

describe('a whole step of adaptive thresholds', () => {
  it('moves by at most 1/σ in units of its noise when a unit comes or goes, gradients and counts together', () => {
    const number = fc.double({ min: -10, max: 10, noNaN: true });
    const instance = fc.integer({ min: 1, max: 4 }).chain((K) => {
      // Two numbers a group; the last of the units is the one that comes.
      const unit = fc.array(fc.tuple(number, number), { minLength: K, maxLength: K });
      return fc.record({
        units: fc.array(unit, { minLength: 1, maxLength: 4 }),
        norms: fc.array(fc.double({ min: 0.01, max: 20, noNaN: true }), { minLength: K, maxLength: K }),
        allocation: fc.constantFrom(...allocations),
        sigma: fc.double({ min: 0.5, max: 10, noNaN: true }),
        fraction: fc.double({ min: 0.001, max: 0.9, noNaN: true }),
      });
    });
    let largest = 0;
    fc.assert(
      fc.property(instance, ({ units, norms, allocation, sigma, fraction }) => {
        const groups = groupsOf(norms.map((norm, k) => ({ name: `g${k}`, norm, parameters: [`p${k}`], size: 2 })));
        const { gradientMultiplier, countDeviation } = splitBudget(sigma, fraction, groups.length);
        const deviations = noiseDeviations(groups, { allocation, gradientMultiplier, rho: 0, rounding: 0 });
        const inNoise = (batch: typeof units): number[] => [
          ...groups.flatMap(({ norm }, k) =>
            [0, 1].map((i) =>
              batch.reduce((sum, unit) => {
                const length = Math.hypot(...unit[k]!);
                return sum + (unit[k]![i]! * Math.min(1, norm / (length || 1))) / deviations[k]!;
              }, 0),
            ),
          ),
          ...Array.from(
            countsWithin(Float32Array.from(batch.flatMap((unit) => unit.map((g) => Math.hypot(...g)))), groups),
            (count) => count / countDeviation,
          ),
        ];
        const [all, fewer] = [inNoise(units), inNoise(units.slice(0, -1))];
        const moved = Math.hypot(...all.map((x, i) => x - fewer[i]!)) * sigma;
        expect(moved).toBeLessThanOrEqual(1 + 1e-9);
        largest = Math.max(largest, moved);
      }),
      { numRuns: 300 },
    );
    // The bound is met by units that are clipped in every group.
    expect(largest).toBeGreaterThan(0.999);
  });
});

describe('the noise on counts', () => {
  it('has the deviation σ_b = (σ/2)·√(K/r), in float64', () => {
    const K = 2000;
    const plan = planOf(groupsAt(new Array<number>(K).fill(1)));
    const { fractions } = released(plan, new Float32Array(0));
    const noise = fractions!.map((f) => (f - 0.5) * 1000);
    const variance = noise.reduce((sum, x) => sum + x * x, 0) / K;
    expect(Math.abs(variance / (0.25 * (K / 0.5)) - 1)).toBeLessThan(4 * Math.sqrt(2 / K));
    expect(noise.every((x) => x !== Math.fround(x))).toBe(true);
  });

  it('is independent of that of every parameter, whatever its name', () => {
    const K = 2000;
    const all = ['counts', 'noise:counts', ...Array.from({ length: K - 2 }, (_, k) => `p${k}`)];
    // One group holds a parameter named as the counts' stream, with a number for each count.
    const groups = groupsOf([
      ...all.slice(1).map((name) => ({ name, norm: 1, parameters: [name], size: 1 })),
      { name: 'counts', norm: 1, parameters: ['counts'], size: K },
    ]);
    const plan = planOf(groups);
    const sums = new Map(groups.flatMap(({ parameters, size }) => parameters.map((name) => [name, new Float32Array(size)])));
    const { fractions, gradients } = privatise(
      clippedSum(sums, groups, plan.rho, new Float32Array(0)), plan, plan.startRatchet().advance(),
    );
    const counts = fractions!.map((f) => f - 0.5);
    const length = (x: readonly number[]): number => Math.hypot(...x);
    for (const other of [Array.from(gradients.get('counts')!), all.slice(1).map((name) => gradients.get(name)![0]!)]) {
      const product = other.reduce((sum, x, k) => sum + x * (counts[k] ?? 0), 0);
      expect(Math.abs(product) / (length(counts) * length(other))).toBeLessThan(5 / Math.sqrt(K));
    }
  });

  it('comes from the step key, which counts and gradients use up together', () => {
    const plan = planOf(groupsAt([1]));
    const keys = plan.startRatchet().advance();
    const sum = (): Parameters<typeof privatise>[0] =>
      clippedSum(zerosOf(plan.groups), plan.groups, plan.rho, Float32Array.of(0.5));
    const first = privatise(sum(), plan, keys);
    expect(() => privatise(sum(), plan, keys)).toThrow('used twice');
    const again = privatise(sum(), plan, plan.startRatchet().advance());
    expect(again.fractions).toEqual(first.fractions);
    expect(released(planOf(groupsAt([1]), { seed: 2 }), Float32Array.of(0.5)).fractions).not.toEqual(first.fractions);
  });

  it('is refused to counts that nobody pays for, and counts are asked for where they are paid for', () => {
    const adaptive = planOf(groupsAt([1, 2]));
    const fixed = planOf(groupsAt([1, 2]), { adaptive: undefined });
    const norms = new Float32Array(4);
    const seal = (given?: Float32Array) => clippedSum(zerosOf(fixed.groups), fixed.groups, fixed.rho, given);
    const keys = fixed.startRatchet().advance();
    expect(() => privatise(seal(norms), fixed, keys)).toThrow('counts of gradient norms under a plan of fixed');
    expect(() => privatise(seal(), adaptive, keys)).toThrow('without counts under a plan of adaptive');
    expect(() => seal(new Float32Array(3))).toThrow('do not match');
    expect(keys.noise.used).toBe(false);
    expect(privatise(seal(), fixed, keys).fractions).toBeNull();
  });
});
