import { describe, expect, it } from 'vitest';
import { type Groups, groupsOf, withNorms } from './groups.ts';
import { digestOf } from './ledger.ts';
import { type PrivacyPlan, type PrivacyPlanOptions, privacyPlan } from './plan.ts';
import { type AdaptiveThresholds, largestThreshold, leastThreshold } from './quantiles.ts';
import { type Privatised, clippedSum, privatise } from './sum.ts';
import { nextGroups } from './thresholds.ts';

const groupsAt = (...norms: number[]): Groups =>
  groupsOf(norms.map((norm, k) => ({ name: `g${k}`, norm, parameters: [`p${k}`], size: 1 })));
const adaptive: AdaptiveThresholds = { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: null };
const planOf = (groups: Groups, options: Partial<PrivacyPlanOptions> = {}): PrivacyPlan =>
  privacyPlan({
    datasetSize: 1e6, batchSize: 1000, steps: 500, noiseMultiplier: 1, delta: 1e-7, groups, seed: 1, adaptive, ...options,
  });
/** Full batches, of which there is an ε even for next to no noise. */
const quiet = { noise: 'float', noiseMultiplier: 1e-8, sampling: 'full-batch', datasetSize: 1000 } as const;
const released = (
  plan: PrivacyPlan, norms: Float32Array | undefined, groups = plan.groups, keys = plan.startRatchet().advance(),
): Privatised =>
  privatise(
    clippedSum(new Map(groups.map(({ parameters: [name] }) => [name!, new Float32Array(1)])), groups, plan.rho, norms),
    plan,
    keys,
  );
const normsOf = (groups: Groups): number[] => groups.map(({ norm }) => norm);

describe('the next thresholds', () => {
  it('follow the quantile geometrically: C·exp(−η·(fraction − q))', () => {
    const plan = planOf(groupsAt(0.5, 2), quiet);
    // Of 1000 units, 900 are within the first threshold and 200 within the second.
    const norms = Float32Array.from({ length: 2000 }, (_, i) => (i % 2 === 0 ? (i < 1800 ? 0.4 : 1) : i < 400 ? 1 : 3));
    const next = normsOf(nextGroups(released(plan, norms), plan));
    expect(next[0]).toBeCloseTo(0.5 * Math.exp(-0.2 * (0.9 - 0.6)), 6);
    expect(next[1]).toBeCloseTo(2 * Math.exp(-0.2 * (0.2 - 0.6)), 6);
  });

  it('use the noised fractions and nothing else', () => {
    const plan = planOf(groupsAt(0.5, 2, 7));
    const step = released(plan, Float32Array.of(0.4, 3, 1, 1, 1, 1));
    normsOf(nextGroups(step, plan)).forEach((norm, k) =>
      expect(norm).toBe(plan.groups[k]!.norm * Math.exp(-0.2 * (step.fractions![k]! - 0.6))),
    );
  });

  it('start from those of the sum, not of the plan', () => {
    const plan = planOf(groupsAt(1, 1), quiet);
    const now = withNorms(plan.groups, [3, 5]);
    const factor = Math.exp(-0.2 * (0.5 - 0.6));
    normsOf(nextGroups(released(plan, new Float32Array(0), now), plan)).forEach((norm, k) =>
      expect(norm).toBeCloseTo([3, 5][k]! * factor, 6),
    );
  });

  it('are rescaled to a joint norm where the plan says so', () => {
    const plan = planOf(groupsAt(3, 4), { ...quiet, adaptive: { ...adaptive, rescaleTo: 0.7 } });
    const [a, b] = normsOf(nextGroups(released(plan, new Float32Array(0)), plan));
    expect(Math.hypot(a!, b!)).toBeCloseTo(0.7, 12);
    expect(a! / b!).toBeCloseTo(3 / 4, 6);
  });

  it('follow the norms whatever the joint norm: their ratios are those of the quantiles', () => {
    // Far below and far above all norms: nothing or all would be within thresholds of that size.
    for (const rescaleTo of [1e-3, 1e3]) {
      const plan = planOf(groupsAt(1, 1), { ...quiet, adaptive: { ...adaptive, rescaleTo } });
      const norms = Float32Array.from({ length: 2000 }, (_, i) => ((Math.floor(i / 2) + 0.5) / 1000) * [2, 50][i % 2]!);
      let groups = plan.groups;
      for (let t = 0; t < 250; t++) groups = nextGroups(released(plan, norms, groups), plan);
      const [a, b] = normsOf(groups);
      expect(Math.hypot(a!, b!)).toBeCloseTo(rescaleTo, 9);
      expect(Math.abs(b! / a! / 25 - 1)).toBeLessThan(0.01);
      expect(groups.map(({ estimate }) => Math.round(estimate! * 10) / 10)).toEqual([1.2, 30]);
    }
  });

  it('stay finite and above 0, however far the norms are', () => {
    for (const rescaleTo of [null, 1]) {
      const plan = planOf(groupsAt(1e-5, 1e5), { ...quiet, adaptive: { ...adaptive, learningRate: 1e3, rescaleTo } });
      // All of the first group's norms are below its threshold, all of the second's above: both are far off.
      const norms = Float32Array.from({ length: 2000 }, (_, i) => (i % 2 === 0 ? 0 : 1e30));
      let groups = plan.groups;
      for (let t = 0; t < 3; t++) groups = nextGroups(released(plan, norms, groups), plan);
      const [low, high] = normsOf(groups);
      expect(low).toBe(leastThreshold);
      expect(high).toBeCloseTo(rescaleTo ?? largestThreshold, 5);
    }
  });

  it('converge to the quantile of the norms, group by group, without noise', () => {
    // Uniform norms on (0, top): the quantile q is q·top.
    const tops = [0.01, 3, 400];
    for (const quantile of [0.3, 0.85]) {
      const plan = planOf(groupsAt(1, 1, 1), { ...quiet, adaptive: { ...adaptive, quantile } });
      const norms = Float32Array.from({ length: 3000 }, (_, i) => ((Math.floor(i / 3) + 0.5) / 1000) * tops[i % 3]!);
      let groups = plan.groups;
      for (let t = 0; t < 250; t++) groups = nextGroups(released(plan, norms, groups), plan);
      groups.forEach(({ norm }, k) => expect(Math.abs(norm / (quantile * tops[k]!) - 1)).toBeLessThan(0.01));
    }
  });

  it('come near it under noise, and are the same again for a seed alone', () => {
    const norms = Float32Array.from({ length: 2000 }, (_, i) => ((Math.floor(i / 2) + 0.5) / 1000) * [1, 50][i % 2]!);
    const run = (seed: number): number[] => {
      const plan = planOf(groupsAt(0.1, 0.1), { seed });
      const ratchet = plan.startRatchet();
      let groups = plan.groups;
      for (let t = 0; t < 400; t++) groups = nextGroups(released(plan, norms, groups, ratchet.advance()), plan);
      return normsOf(groups);
    };
    const first = run(1);
    expect(first[0]).toBeGreaterThan(0.55);
    expect(first[0]).toBeLessThan(0.65);
    expect(first[1]! / 50).toBeGreaterThan(0.55);
    expect(first[1]! / 50).toBeLessThan(0.65);
    expect(run(1)).toEqual(first);
    expect(run(2)).not.toEqual(first);
  });

  it('are the same ones under a plan that fixes them', () => {
    const plan = planOf(groupsAt(1, 2), { adaptive: undefined });
    expect(nextGroups(released(plan, undefined), plan)).toEqual(plan.groups);
  });

  it('are refused to sums of another plan, and to forged ones', () => {
    const [fixed, following] = [planOf(groupsAt(1), { adaptive: undefined }), planOf(groupsAt(1))];
    expect(() => nextGroups(released(fixed, undefined), following)).toThrow('of another plan');
    expect(() => nextGroups(released(following, new Float32Array(1)), fixed)).toThrow('of another plan');
    const step = released(following, new Float32Array(1));
    expect(() => nextGroups({ ...step, fractions: [0.5] }, following)).toThrow('not privatised');
    expect(() => nextGroups(step, { ...following })).toThrow('privacyPlan() did not make');
    expect(Object.isFrozen(step.fractions)).toBe(true);
  });
});

describe('a step of adaptive thresholds', () => {
  it('refuses sums of another partition, and takes any thresholds of its own', () => {
    const plan = planOf(groupsAt(1, 2));
    const other = groupsOf([{ ...plan.groups[0]!, name: 'x' }, plan.groups[1]!]);
    expect(() => released(plan, new Float32Array(2), other)).toThrow('not clipped as the privacy plan says');
    expect(released(plan, new Float32Array(2), withNorms(plan.groups, [4, 5])).groups.map(({ norm }) => norm)).toEqual([4, 5]);
  });

  it('has a digest of both its releases', () => {
    const plan = planOf(groupsAt(1));
    const [within, above] = [0.5, 2].map((norm) => released(plan, Float32Array.of(norm)));
    expect(within!.gradients).toEqual(above!.gradients);
    expect(digestOf(within!)).not.toBe(digestOf(above!));
    expect(digestOf(released(plan, Float32Array.of(0.5)))).toBe(digestOf(within!));
  });
});
