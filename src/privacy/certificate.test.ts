import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { certificate } from './certificate.ts';
import { certificateSchema } from './certificate-schema.ts';
import { flatGroup, groupsOf, withNorms } from './groups.ts';
import { eventOf, privacyPlan } from './plan.ts';

const options = {
  datasetSize: 60_000,
  batchSize: 512,
  steps: 100,
  noiseMultiplier: 1.1,
  delta: 1e-5,
  groups: flatGroup(['w', 'b'], 0.1, 12),
};
const software = { ghostgrad: '0.1.0', node: 'v20.20.2', onnxruntime: '1.30.0' };

describe('certificate', () => {
  it('states what was spent and survives JSON under its published schema', () => {
    const plan = privacyPlan(options);
    const found = certificate({
      plan,
      steps: 100,
      clipFunction: 'abadi',
      software,
      ledger: { lines: 100, head: 'a'.repeat(64) },
    });
    expect(certificateSchema.parse(JSON.parse(JSON.stringify(found)))).toEqual(found);
    expect(found).toMatchObject({
      valid: true,
      unit: 'example',
      neighbors: 'add-remove',
      steps: 100,
      plannedSteps: 100,
      epsilon: plan.epsilon,
      plannedEpsilon: plan.epsilon,
      delta: 1e-5,
      accountant: 'pld',
      software,
      normaliser: 512,
      noise: { kind: 'discrete', multiplier: 1.1, gradientMultiplier: 1.1, countDeviation: null, countGrid: null, rounding: 2 ** -10 },
      sampling: { name: 'poisson', sampleRate: 512 / 60_000, expectedBatchSize: 512, datasetSize: 60_000 },
      clipping: {
        function: 'abadi',
        norm: 0.1,
        rho: 1e-3,
        style: 'flat',
        threshold: 'fixed',
        allocation: 'global',
        groups: [
          {
            name: 'all',
            parameters: ['w', 'b'],
            size: 12,
            norm: 0.1,
            deviation: 1.1 * 0.1 * (1 + 1e-3 + 2 ** -10),
            finalNorm: 0.1,
            finalDeviation: 1.1 * 0.1 * (1 + 1e-3 + 2 ** -10),
          },
        ],
      },
    });
    expect(found.guarantee).toContain('differential privacy');
    for (const omission of ['hyperparameter', 'losses']) expect(found.notCovered.join('\n')).toContain(omission);
    expect(found.assumptions.join('\n')).toContain('60000, is public');
  });

  it('tells noise on a grid from float noise, of which rounding and attacks are not covered', () => {
    const about = (noise: 'float' | 'discrete') => certificate({
      plan: privacyPlan({ ...options, noise, adaptive: { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: null } }),
      steps: 100, clipFunction: 'abadi', software, finalGroups: withNorms(options.groups, [0.05]),
    });
    const [discrete, float] = [about('discrete'), about('float')];
    for (const found of [discrete, float]) expect(certificateSchema.parse(JSON.parse(JSON.stringify(found)))).toEqual(found);
    const [{ grid, finalGrid, deviation, finalDeviation }] = discrete.clipping.groups as [typeof discrete.clipping.groups[number]];
    // √d points are within the allowance, and the noise has many of them.
    expect(Math.sqrt(12) * grid!).toBeLessThan(2 ** -10 * 0.1);
    expect(finalDeviation / finalGrid!).toBe(deviation / grid!);
    expect(deviation / grid!).toBeGreaterThan(1000);
    expect(discrete.noise.countGrid).toBeGreaterThan(0);
    expect(discrete.noise.countGrid).toBeLessThan(2 ** -11);
    expect(discrete.noise.accountedDelta).toBeLessThan(1e-5);
    expect(discrete.noise.accountedDelta).toBeGreaterThan(1e-5 * (1 - 1e-6));
    expect((1 + Math.exp(discrete.plannedEpsilon)) * discrete.noise.statisticalDistance!).toBeLessThan(1e-5 - discrete.noise.accountedDelta);
    expect(discrete.notCovered.join()).not.toContain('floating-point');
    expect(discrete.mechanism).toContain('rounded to a grid');

    expect(float.noise).toMatchObject({ kind: 'float', countGrid: null, rounding: 0, statisticalDistance: null, accountedDelta: 1e-5 });
    expect(float.clipping.groups[0]).toMatchObject({ grid: null, finalGrid: null });
    expect(float.notCovered.join()).toContain('floating-point');
    expect(float.mechanism).not.toContain('grid');
  });

  it('says what adaptive thresholds were, became and cost, and that ε covers the counts', () => {
    const adaptive = { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: null };
    const groups = groupsOf([
      { name: 'x', norm: 3, parameters: ['w'], size: 10 },
      { name: 'y', norm: 4, parameters: ['b'], size: 2 },
    ]);
    const plan = privacyPlan({ ...options, groups, adaptive, allocation: 'equal-budget' });
    const given = { plan, steps: 100, clipFunction: 'abadi', style: 'per-layer', software };
    const found = certificate({ ...given, finalGroups: withNorms(groups, [1, 6]) });
    expect(certificateSchema.parse(JSON.parse(JSON.stringify(found)))).toEqual(found);
    expect(found.epsilon).toBe(privacyPlan(options).epsilon);
    expect(found.clipping).toMatchObject({ style: 'per-layer', norm: 5, threshold: { adaptive }, allocation: 'equal-budget' });
    const each = plan.gradientMultiplier * Math.SQRT2 * (1 + 1e-3 + 2 ** -10);
    for (const [k, first, final] of [[0, 3, 1], [1, 4, 6]] as const) {
      const { norm, finalNorm, deviation, finalDeviation } = found.clipping.groups[k]!;
      expect([norm, finalNorm]).toEqual([first, final]);
      expect(deviation).toBeCloseTo(each * first, 12);
      expect(finalDeviation).toBeCloseTo(each * final, 12);
    }
    const { multiplier, gradientMultiplier, countDeviation } = found.noise;
    expect(gradientMultiplier ** -2 + 2 / (4 * (countDeviation ?? 0) ** 2)).toBeCloseTo(multiplier ** -2, 12);
    expect(found.mechanism).toMatch(/2 counts of gradients within the clipping thresholds[^]*ε covers all of it: gradients and counts of a step/);
    expect(found.notCovered.join()).toContain('rounding of gradient norms');
    expect(certificate(given).clipping.groups.map(({ finalNorm }) => finalNorm)).toEqual([3, 4]);
    expect(() => certificate({ ...given, finalGroups: flatGroup(['w', 'b'], 5, 12) })).toThrow('other clipping groups');
    const zeroed = certificate({ ...given, plan: privacyPlan({ ...options, groups, adaptive, neighbors: 'zero-out' }) });
    expect(zeroed.neighborsMeaning).toContain('not counted');
  });

  it('tells the ε of the steps taken from the planned one', () => {
    const plan = privacyPlan(options);
    const found = certificate({ plan, steps: 40, clipFunction: 'abadi', software });
    expect(found.epsilon / plan.spent(40)).toBeCloseTo(1, 3);
    expect(found.epsilon).toBeLessThan(found.plannedEpsilon);
    expect(found.assumptions.join('\n')).toContain('40 of 100 planned steps');
  });

  it('names what float32 sums over records are taken for, with a bound where the caller knows one', () => {
    const given = { plan: privacyPlan(options), steps: 100, clipFunction: 'abadi', software, unit: 'patient' };
    const named = (rounding?: number) =>
      certificate({ ...given, summationRounding: rounding }).assumptions.filter((text) => text.startsWith('sums over patients are exact'));
    expect(named()).toHaveLength(1);
    expect(named()[0]).not.toMatch(/at most/);
    expect(named(0.01234)).toEqual([expect.stringContaining('at most 0.012 of the sensitivity')]);
  });

  it('is void under a seed', () => {
    const found = certificate({
      plan: privacyPlan({ ...options, seed: 7 }),
      steps: 100,
      clipFunction: 'abadi',
      software,
    });
    expect(found.valid).toBe(false);
    expect(found.guarantee).toMatch(/^void: seeded randomness/);
  });

  it('charges steps that were drawn again', () => {
    const plan = privacyPlan(options);
    const all = { plan, clipFunction: 'abadi', software };
    const found = certificate({ ...all, steps: 90, recharged: 8 });
    expect(found.event).toEqual(eventOf(plan, 98));
    expect(found.epsilon / plan.spent(98)).toBeCloseTo(1, 3);
    expect(found.assumptions.join()).toContain('the run ended after 90 of 100 planned steps');
    // What was charged again took the place of steps: the run could not go on, and nobody chose its end.
    const spent = certificate({ ...all, steps: 90, recharged: 10 });
    expect(spent.epsilon).toBe(plan.epsilon);
    expect(spent.assumptions.join()).not.toContain('the run ended');
    expect(() => certificate({ ...all, steps: 90, recharged: 11 })).toThrow(GhostgradError);
  });

  it('has a schema that refuses unknown keys and events', () => {
    const found = certificate({ plan: privacyPlan(options), steps: 100, clipFunction: 'abadi', software });
    expect(certificateSchema.safeParse({ ...found, extra: 1 }).success).toBe(false);
    expect(certificateSchema.safeParse({ ...found, event: { kind: 'laplace' } }).success).toBe(false);
    expect(certificateSchema.safeParse({ ...found, epsilon: -1 }).success).toBe(false);
  });
});
