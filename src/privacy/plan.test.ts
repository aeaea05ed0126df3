import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Accountant, epsilonOf } from './accountant.ts';
import { type Allocation, noiseDeviations } from './allocation.ts';
import { calibrate } from './calibrate.ts';
import { type EventOf, gaussian, gaussianWithCounts, poissonSampled, showEvent } from './events.ts';
import { gaussianMu } from './exact-gaussian.ts';
import { flatGroup, groupsOf } from './groups.ts';
import type { Noise } from './lattice.ts';
import { type PrivacyPlanOptions, eventOf, privacyPlan } from './plan.ts';
import type { Neighbors, Sampling } from './sampling.ts';

const base: PrivacyPlanOptions = {
  datasetSize: 60_000,
  batchSize: 512,
  steps: 100,
  noiseMultiplier: 1.1,
  delta: 1e-5,
  groups: flatGroup(['w'], 0.1, 5),
};

describe('privacy plan', () => {
  it('derives sampler, noise, normaliser and event from the same numbers', () => {
    const plan = privacyPlan(base);
    expect(plan.sampleRate).toBe(512 / 60_000);
    expect(plan.normaliser).toBe(512);
    expect(plan.sensitivity).toBeCloseTo(0.1 * (1.001 + 2 ** -10), 15);
    expect(noiseDeviations(plan.groups, plan)[0]! / plan.sensitivity).toBeCloseTo(1.1, 14);
    expect(plan.event).toEqual(poissonSampled(512 / 60_000, gaussian(1.1)));
    expect(plan.epsilon).toBe(epsilonOf(eventOf(plan, 100), plan.accountedDelta).epsilon);
    expect(plan).toMatchObject({
      sampling: 'poisson',
      neighbors: 'add-remove',
      noise: 'discrete',
      rounding: 2 ** -10,
      allocation: 'global',
      adaptive: null,
      gradientMultiplier: 1.1,
      accountant: 'pld',
      seeded: false,
      warnings: [],
    });
    expect(Object.isFrozen(plan)).toBe(true);
  });

  it('meets a target ε without exceeding it', () => {
    const { noiseMultiplier: _, ...rest } = base;
    fc.assert(
      fc.property(
        fc.double({ min: 0.5, max: 8, noNaN: true }),
        fc.double({ min: 300, max: 3000, noNaN: true }),
        fc.integer({ min: 100, max: 3000 }),
        (epsilon, batchSize, steps) => {
          const plan = privacyPlan({ ...rest, epsilon, batchSize, steps });
          expect(plan.epsilon).toBeLessThanOrEqual(epsilon);
          expect(plan.epsilon).toBeGreaterThan(epsilon * (1 - 1e-3));
          expect(plan.noiseMultiplier).toBe(
            calibrate({ epsilon, delta: plan.accountedDelta, sampleRate: plan.sampleRate, steps }).noiseMultiplier,
          );
        },
      ),
      { numRuns: 2 },
    );
  });

  it('keeps a batch size that is not whole, in rate and normaliser alike', () => {
    const plan = privacyPlan({ ...base, datasetSize: 333, batchSize: 10.7 });
    expect(plan.normaliser).toBe(10.7);
    expect(plan.sampleRate * 333).toBeCloseTo(10.7, 12);
  });

  it('spends ε step by step, from 0 to the planned', () => {
    const plan = privacyPlan(base);
    expect(plan.spent(0)).toBe(0);
    const spent = Array.from({ length: 101 }, (_, t) => plan.spent(t));
    expect(spent.every((e, t) => t === 0 || e > (spent[t - 1] ?? Infinity))).toBe(true);
    expect(spent[100]).toBe(plan.epsilon);
    expect(spent[37]! / epsilonOf(eventOf(plan, 37), plan.accountedDelta).epsilon).toBeCloseTo(1, 3);
    for (const t of [-1, 101, 0.5]) expect(() => plan.spent(t)).toThrow('stepsDone');
  });

  it('keeps a part of δ for discrete noise, and grows the noise by what rounding to its grid adds', () => {
    const [discrete, float] = [privacyPlan(base), privacyPlan({ ...base, noise: 'float' })];
    expect(float).toMatchObject({ rounding: 0, accountedDelta: 1e-5, noiseDistance: 0 });
    expect(float.sensitivity).toBeCloseTo(0.1 * 1.001, 15);
    expect(discrete.accountedDelta).toBe(1e-5 * (1 - 2 ** -20));
    expect(discrete.epsilon).toBeGreaterThan(float.epsilon);
    expect(discrete.epsilon).toBeLessThan(float.epsilon * (1 + 1e-6));
    expect(discrete.event).toEqual(float.event);
    // Five numbers and a count, 100 times.
    expect(Math.log2(discrete.noiseDistance / 600)).toBeLessThan(-250);
    const loud = { ...base, sampling: 'full-batch', batchSize: 60_000, noiseMultiplier: 0.1 } as const;
    expect(privacyPlan({ ...loud, noise: 'float' }).epsilon).toBeGreaterThan(1000);
    expect(() => privacyPlan(loud)).toThrow(/delta does not hold what discrete noise takes of it[^]*noise: float/);
    expect(() => privacyPlan({ ...base, noiseMultiplier: 1e12 })).toThrow('too large for discrete noise');
  });

  it('is exact for full batches, and charges replaced examples twice the norm', () => {
    const full = { ...base, sampling: 'full-batch', batchSize: 60_000, steps: 4 } as const;
    const once = privacyPlan(full);
    const replaced = privacyPlan({ ...full, neighbors: 'replace-one' });
    expect(once.accountant).toBe('exact-gaussian');
    expect(replaced.sensitivity).toBeCloseTo(2 * once.sensitivity, 15);
    expect(noiseDeviations(replaced.groups, replaced)).toEqual(noiseDeviations(once.groups, once));
    expect(replaced.epsilon).toBe(privacyPlan({ ...full, noiseMultiplier: 0.55 }).epsilon);
    expect(privacyPlan({ ...full, neighbors: 'zero-out' }).epsilon).toBe(once.epsilon);
    const { noiseMultiplier: _, ...rest } = full;
    const [a, b] = (['add-remove', 'replace-one'] as const).map((neighbors) =>
      privacyPlan({ ...rest, neighbors, epsilon: 2 }),
    );
    expect((b?.noiseMultiplier ?? 0) / (a?.noiseMultiplier ?? 1)).toBeCloseTo(2, 12);
    expect(b?.epsilon).toBe(a?.epsilon);
  });

  it('draws as it says, with keys of its own ratchet, once for each step', () => {
    const plan = privacyPlan({ ...base, datasetSize: 1000, batchSize: 50, seed: 3 });
    const draw = (): Uint32Array => plan.draw(plan.startRatchet().advance());
    expect(draw()).toEqual(draw());
    const ratchet = plan.startRatchet();
    const sizes = Array.from({ length: 400 }, () => plan.draw(ratchet.advance()).length);
    const mean = sizes.reduce((a, b) => a + b) / 400;
    expect(Math.abs(mean - 50)).toBeLessThan(4 * Math.sqrt(47.5 / 400));
    expect(new Set(sizes).size).toBeGreaterThan(10);
    // The rate is public; the number of rows there are may differ from the public size.
    expect(Math.max(...plan.draw(ratchet.advance(), 500))).toBeLessThan(500);
    const keys = ratchet.advance();
    plan.draw(keys);
    expect(() => plan.draw(keys)).toThrow(`the sampling key of step ${keys.step} was used twice`);
    expect(() => privacyPlan(base).draw(ratchet.advance())).toThrow('another ratchet');
    const all = privacyPlan({ ...base, datasetSize: 20, batchSize: 20, sampling: 'full-batch' });
    expect(all.draw(all.startRatchet().advance())).toEqual(Uint32Array.from({ length: 20 }, (_, i) => i));
  });

  it('gives the same event whatever the allocation, and pays for counts out of the gradients', () => {
    const groups = groupsOf([
      { name: 'x', norm: 3, parameters: ['a'], size: 100 },
      { name: 'y', norm: 4, parameters: ['b'], size: 4 },
    ]);
    const adaptive = { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.19, rescaleTo: null };
    for (const neighbors of ['add-remove', 'zero-out'] as const) {
      const plan = privacyPlan({ ...base, groups, neighbors, allocation: 'weighted', adaptive });
      // Told as it is, for other tools to recompute; together σ⁻² = σ_g⁻² + K/(4σ_b²) is that of gradients alone.
      const counts = gaussianWithCounts(1.1 / 0.9, 2, 0.55 * Math.sqrt(2 / 0.19));
      expect(showEvent(plan.event)).toBe(showEvent(poissonSampled(512 / 60_000, counts)));
      expect(plan.epsilon / privacyPlan(base).epsilon).toBeCloseTo(1, 9);
      expect(plan.noiseMultiplier).toBe(1.1);
      expect(plan.gradientMultiplier).toBeCloseTo(1.1 / 0.9, 14);
      expect(plan.adaptive?.countDeviation).toBeCloseTo(0.55 * Math.sqrt(2 / 0.19), 14);
      expect(plan).toMatchObject({ groups, allocation: 'weighted', adaptive, clippingNorm: 5 });
    }
    // Replaced, a unit moves gradients and counts twice as far: the same noise, half of σ in the event.
    const full = { ...base, groups, adaptive, sampling: 'full-batch', batchSize: 60_000, steps: 10 } as const;
    const [once, replaced] = [privacyPlan(full), privacyPlan({ ...full, neighbors: 'replace-one' })];
    const inner = (replaced.event as EventOf<'poisson-sampled'>).event as EventOf<'gaussian-with-counts'>;
    expect(inner).toEqual(gaussianWithCounts(replaced.gradientMultiplier / 2, 2, replaced.adaptive!.countDeviation / 2));
    expect(gaussianMu(inner)).toBeCloseTo(1 / 0.55, 12);
    expect(replaced.gradientMultiplier).toBe(once.gradientMultiplier);
    expect(replaced.adaptive).toEqual(once.adaptive);
  });

  it('warns of counts that drown in their noise', () => {
    const adaptive = { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: null };
    expect(privacyPlan({ ...base, adaptive }).warnings).toEqual([]);
    expect(privacyPlan({ ...base, adaptive, batchSize: 8 }).warnings).toEqual([expect.stringContaining('drowns')]);
  });

  it('warns of a δ that protects nobody, of large ε and of seeds', () => {
    expect(privacyPlan({ ...base, delta: 1 / 60_000 }).warnings).toEqual([
      expect.stringContaining('not below 1/60000'),
    ]);
    expect(privacyPlan({ ...base, noiseMultiplier: 0.3 }).warnings).toEqual([
      expect.stringContaining('weak guarantee'),
    ]);
    expect(privacyPlan({ ...base, seed: 0 })).toMatchObject({
      seeded: true,
      warnings: [expect.stringContaining('void')],
    });
  });

  it('refuses, by name, what is at odds, out of range or cannot be accounted for', () => {
    const adaptive = { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: null };
    const refused: readonly [Partial<PrivacyPlanOptions>, string | RegExp][] = [
      [{ epsilon: 3 }, 'epsilon and noiseMultiplier are both given'],
      [{ noiseMultiplier: undefined }, 'neither epsilon nor noiseMultiplier is given'],
      [{ noiseMultiplier: 0 }, 'noiseMultiplier is out of range'],
      [{ noiseMultiplier: undefined, epsilon: 0 }, 'epsilon is out of range'],
      [{ delta: 0 }, 'delta is out of range'],
      [{ delta: 1 }, 'delta is out of range'],
      [{ steps: 0 }, 'steps is out of range'],
      [{ batchSize: 0 }, 'batchSize is out of range'],
      [{ batchSize: 60_001 }, 'batchSize is out of range'],
      [{ datasetSize: 10.5 }, 'datasetSize is out of range'],
      [{ rho: -1 }, 'rho is out of range'],
      [{ accountant: 'exact-gaussian' }, 'exact-gaussian accountant cannot account'],
      [{ accountant: 'rdpp' as Accountant }, /did you mean "rdp"/],
      [{ sampling: 'shuffle' as Sampling }, 'sampling "shuffle" cannot be used'],
      [{ sampling: 'balls-in-bins' as Sampling }, 'no accountant here covers it'],
      [{ sampling: 'without-replacement', neighbors: 'add-remove' }, 'neighbors "add-remove" cannot be used'],
      [{ sampling: 'without-replacement', neighbors: 'zero-out' }, 'neighbors "zero-out" cannot be used'],
      [{ sampling: 'without-replacement', batchSize: 511.5 }, 'a batch of fixed size is a whole number'],
      [{ sampling: 'truncated-poisson', maxBatchSize: 511 }, 'maxBatchSize is below the batch size'],
      [{ sampling: 'truncated-poisson', maxBatchSize: 600.5 }, 'maxBatchSize is out of range'],
      [{ maxBatchSize: 600 }, 'maxBatchSize without truncated sampling'],
      [{ sampling: 'poison' as Sampling }, /did you mean "poisson"/],
      [{ sampling: 'full-batch' }, 'full-batch sampling with a smaller batch'],
      [{ neighbors: 'replace-one' }, 'neighbors "replace-one" cannot be used with sampling "poisson"'],
      [{ neighbors: 'remove' as Neighbors }, 'unknown neighbouring relation'],
      [{ noise: 'none' as Noise }, 'unknown noise'],
      [{ allocation: 'equal' as Allocation }, 'unknown allocation'],
      ...[0, 1, -0.1, NaN].flatMap((fraction): [Partial<PrivacyPlanOptions>, string][] => [
        [{ adaptive: { ...adaptive, quantile: fraction } }, 'quantile is out of range'],
        [{ adaptive: { ...adaptive, budgetFraction: fraction } }, 'budgetFraction is out of range'],
      ]),
      ...[0, -1, NaN, Infinity].map((rate): [Partial<PrivacyPlanOptions>, string] => [
        { adaptive: { ...adaptive, learningRate: rate } }, 'learningRate of the thresholds is out of range',
      ]),
      ...[0, -1, NaN, Infinity, 1e7].map((norm): [Partial<PrivacyPlanOptions>, string] => [
        { adaptive: { ...adaptive, rescaleTo: norm } }, 'rescaleTo is out of range',
      ]),
      [{ adaptive, groups: flatGroup(['w'], 1e-7, 5) }, 'first threshold of clipping group "all" is out of range'],
    ];
    for (const [change, message] of refused)
      expect(() => privacyPlan({ ...base, ...change }), JSON.stringify(change)).toThrow(message);
  });

  it('shares σ⁻² out between gradients, counts and measures, and accounts for them as one', () => {
    const adaptive = { quantile: 0.5, learningRate: 0.2, budgetFraction: 0.05, rescaleTo: null };
    const measures = [{ name: 'a', low: 0, high: 1 }, { name: 'b', low: -3, high: 9 }];
    const plain = privacyPlan(base);
    for (const given of [undefined, adaptive]) {
      const plan = privacyPlan({ ...base, adaptive: given, metrics: { measures, budgetFraction: 0.02 } });
      const counts = plan.adaptive === null ? 0 : 1 / (4 * plan.adaptive.countDeviation ** 2);
      const spent = plan.gradientMultiplier ** -2 + counts + measures.length / (4 * plan.metrics!.deviation ** 2);
      expect(spent).toBeCloseTo(1.1 ** -2, 12);
      expect(plan.event).toEqual(plain.event);
      expect(plan.epsilon).toBe(plain.epsilon);
    }
    expect(privacyPlan(base).metrics).toBeNull();
    expect(() => privacyPlan({ ...base, adaptive: { ...adaptive, budgetFraction: 0.6 }, metrics: { measures, budgetFraction: 0.4 } }))
      .toThrow(/budgetFraction of metrics and thresholds together/);
  });
});
