import { describe, expect, it } from 'vitest';
import { ratchet } from '../random/ratchet.ts';
import { epsilonOf } from './accountant.ts';
import { gaussian, poissonSampled, selfComposed } from './events.ts';
import { flatGroup } from './groups.ts';
import { type PrivacyPlanOptions, eventOf, privacyPlan } from './plan.ts';
import { checkRows, drawn, leastMaxBatchSize } from './sampling.ts';

const base: PrivacyPlanOptions = {
  datasetSize: 1000, batchSize: 50, steps: 40, noiseMultiplier: 1.1, delta: 1e-5, groups: flatGroup(['w'], 1, 4), seed: 1,
};

const draws = (options: Partial<PrivacyPlanOptions>, count: number, rows?: number): readonly Uint32Array[] => {
  const plan = privacyPlan({ ...base, ...options });
  const keys = ratchet(1);
  return Array.from({ length: count }, () => plan.draw(keys.advance(), rows));
};

describe('truncated Poisson sampling', () => {
  it('cuts draws to the most, keeping each of their examples equally often', () => {
    const keys = ratchet(1);
    const draw = { batchSize: 50, datasetSize: 1000, maxBatchSize: 50 };
    const all = Array.from({ length: 4000 }, () =>
      keys.advance().sampling.use((streamOf) => drawn('truncated-poisson', draw, 1000, streamOf)));
    const cut = all.filter((d) => d.length === 50);
    expect(Math.max(...all.map((d) => d.length))).toBe(50);
    // Poisson draws exceed their expectation nearly half of the time.
    expect(cut.length).toBeGreaterThan(1600);
    expect(all.every((d) => d.every((index, i) => i === 0 || index > d[i - 1]!))).toBe(true);
    const hits = new Float64Array(1000);
    for (const d of cut) for (const index of d) hits[index]! += 1;
    const expected = (cut.length * 50) / 1000;
    const chi2 = hits.reduce((sum, h) => sum + (h - expected) ** 2 / (expected * (1 - 0.05)), 0);
    expect(Math.abs(chi2 - 1000)).toBeLessThan(4.5 * Math.sqrt(2000));
  });

  it('is the same draw as Poisson sampling where nothing is cut', () => {
    expect(draws({ sampling: 'truncated-poisson' }, 5)).toEqual(draws({}, 5));
  });

  it('costs next to nothing at the default size, and more the sooner it cuts', () => {
    const plain = privacyPlan({ ...base, accountant: 'rdp' });
    const truncated = privacyPlan({ ...base, accountant: 'rdp', sampling: 'truncated-poisson' });
    expect(truncated.maxBatchSize).toBeGreaterThan(75);
    expect(truncated.maxBatchSize).toBeLessThan(130);
    expect(truncated.epsilon).toBeGreaterThan(plain.epsilon);
    expect(truncated.epsilon / plain.epsilon).toBeLessThan(1.001);
    const sooner = privacyPlan({ ...base, accountant: 'rdp', sampling: 'truncated-poisson', maxBatchSize: truncated.maxBatchSize! - 7 });
    expect(sooner.epsilon).toBeGreaterThan(truncated.epsilon);
    const calibrated = privacyPlan({ ...base, accountant: 'rdp', noiseMultiplier: undefined, epsilon: 2, sampling: 'truncated-poisson' });
    expect(calibrated.epsilon).toBeLessThanOrEqual(2);
    expect(calibrated.epsilon).toBeGreaterThan(1.99);
  });

  it('refuses cuts that alone spend δ', () => {
    expect(() => privacyPlan({ ...base, sampling: 'truncated-poisson', maxBatchSize: 50 })).toThrow('draws are cut so often');
  });

  it('takes the least size that a thousandth of δ pays for', () => {
    const sizes = [1e-5, 1e-7].map((delta) => leastMaxBatchSize({ batchSize: 50, datasetSize: 1000 }, { steps: 40, epsilon: 3, delta }));
    expect(sizes[1]).toBeGreaterThan(sizes[0]!);
    expect(leastMaxBatchSize({ batchSize: 10, datasetSize: 10 }, { steps: 1, epsilon: 1, delta: 1e-5 })).toBe(10);
  });

  it('needs the true size', () => {
    expect(() => { checkRows('truncated-poisson', 1000, 1002); }).toThrow(/1002 examples/);
    expect(() => { checkRows('poisson', 1000, 1002); }).not.toThrow();
    expect(() => draws({ sampling: 'truncated-poisson' }, 1, 2000)).toThrow(/cannot be sampled/);
  });
});

describe('sampling without replacement', () => {
  const options = { sampling: 'without-replacement' } as const;

  it('draws exactly the batch size, each example equally often', () => {
    const all = draws(options, 2000);
    expect(all.every((d) => d.length === 50)).toBe(true);
    const hits = new Float64Array(1000);
    for (const d of all) for (const index of d) hits[index]! += 1;
    const chi2 = hits.reduce((sum, h) => sum + (h - 100) ** 2 / (100 * 0.95), 0);
    expect(Math.abs(chi2 - 1000)).toBeLessThan(4.5 * Math.sqrt(2000));
  });

  it('replaces one by default, at twice the sensitivity, and is accounted for as it is drawn', () => {
    const plan = privacyPlan({ ...base, ...options });
    expect(plan).toMatchObject({ neighbors: 'replace-one', accountant: 'pld', sensitivity: 2 * (1 + plan.rho + plan.rounding) });
    expect(plan.event).toEqual({ kind: 'sampled-without-replacement', sampleSize: 50, datasetSize: 1000, event: gaussian(0.55) });
    expect(plan.epsilon).toBe(epsilonOf(eventOf(plan, 40), plan.accountedDelta).epsilon);
    // A replacement is a removal and an addition: more is spent than for either under Poisson sampling at that noise.
    expect(plan.epsilon).toBeGreaterThan(epsilonOf(selfComposed(poissonSampled(0.05, gaussian(0.55)), 40), 1e-5).epsilon);
  });

  it('is calibrated', () => {
    const plan = privacyPlan({ ...base, ...options, noiseMultiplier: undefined, epsilon: 4 });
    expect(plan.epsilon).toBeLessThanOrEqual(4);
    expect(plan.epsilon).toBeGreaterThan(3.999);
  });

  it('needs exactly the true size', () => {
    for (const rows of [999, 1001]) expect(() => { checkRows('without-replacement', 1000, rows); }).toThrow(/exactly the public 1000/);
  });
});
