import { describe, expect, it } from 'vitest';
import { auditGradients } from '../src/audit/gradient-audit.ts';
import { type Groups, type PrivacyPlanOptions, allocations, flatGroup, groupsOf, privacyPlan } from '../src/privacy/index.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type PlantedBug, plantedBugs } from './support/planted-bugs.ts';

const engine = onnxruntimeEngine({ thread: 'caller' });
const clipping = { function: 'abadi', gamma: 0.01 } as const;
const flat = flatGroup(['w'], 0.1, 100);
const layers: Groups = groupsOf([
  { name: 'first', norm: 1, parameters: ['a'], size: 10 },
  { name: 'second', norm: 0.25, parameters: ['b'], size: 20 },
]);
const adaptive = { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.05, rescaleTo: null };

const planOf = (options: Partial<PrivacyPlanOptions> = {}) =>
  privacyPlan({ datasetSize: 1000, batchSize: 100, steps: 40, epsilon: 4, delta: 1e-5, groups: flat, ...options });
/** Accounted for in closed form, so quickly. */
const fullBatch = { batchSize: 1000, sampling: 'full-batch', steps: 1 } as const;

describe('an audit in gradient space', () => {
  it.each([1, 4, 8])('finds most of the ε of one full-batch step, and not more than is claimed (ε = %d)', async (epsilon) => {
    const plan = planOf({ ...fullBatch, epsilon });
    const found = await auditGradients({ plan, clipping, engine, trials: epsilon === 1 ? 120_000 : 20_000, seed: 1 });
    expect(found.alarms).toEqual([]);
    expect(found.epsilonLowerBound / epsilon).toBeGreaterThan(0.8);
    expect(found.epsilonLowerBound / epsilon).toBeLessThan(1);
    // What needs no assumption of the mechanism says less, but something.
    expect(found.anyMechanism.rates).toBeGreaterThan(0.1 * epsilon);
    expect(found.anyMechanism.rates).toBeLessThan(found.epsilonLowerBound);
    if (epsilon > 1) expect(found.anyMechanism.oneRun).toBeGreaterThan(0.05 * epsilon);
  });

  it('is the same again for a seed, and another for another', async () => {
    const at = (seed: number) => auditGradients({ plan: planOf(fullBatch), clipping, engine, trials: 2000, seed });
    expect(await at(3)).toEqual(await at(3));
    expect(await at(4)).not.toEqual(await at(3));
  });

  it.each([
    ['groups, by each allocation', allocations.map((allocation) => ({ groups: layers, allocation }))],
    ['every clip function', [{}]],
    ['adaptive thresholds', [{ groups: layers, adaptive }]],
    ['neighbours', [{ neighbors: 'zero-out' }, { neighbors: 'replace-one' }]],
    ['samplings', [
      { sampling: 'truncated-poisson' }, { sampling: 'without-replacement', datasetSize: 100, batchSize: 10, steps: 20 },
    ]],
  ] as const)('goes through %s without an alarm', async (what, plans) => {
    const functions = what === 'every clip function'
      ? (['automatic', 'normalize', 'global', 'psac', { expression: 'min(1, R / (n + 0.1))' }] as const) : (['abadi'] as const);
    for (const options of plans) {
      for (const clip of functions) {
        const plan = planOf({ ...(what === 'samplings' ? {} : { ...fullBatch, steps: 3 }), ...options });
        const found = await auditGradients({ plan, clipping: { function: clip, gamma: 0.01 }, engine, trials: 2000, seed: 5 });
        expect(found.alarms, JSON.stringify(options)).toEqual([]);
        // RDP claims much more than is spent without replacement.
        expect(found.epsilonLowerBound).toBeGreaterThan((what === 'samplings' ? 0.05 : 0.3) * plan.epsilon);
        expect(found.epsilonLowerBound).toBeLessThan(plan.epsilon);
      }
    }
  });

  it('takes a run for each canary where it is told to', async () => {
    const found = await auditGradients({ plan: planOf({ ...fullBatch, epsilon: 8 }), clipping, engine, trials: 300, canariesPerRun: 1, seed: 2 });
    expect(found).toMatchObject({ runs: 300, trials: 300, alarms: [] });
    expect(found.epsilonLowerBound).toBeGreaterThan(3);
  });

  const caught: readonly PlantedBug[] = [
    'noise halved', 'clipping skipped on one layer', 'normaliser by true batch size', 'noise reused on resume',
    'sampling at another rate', 'adaptive counts without noise',
  ];
  it.each(caught)('catches: %s', async (bug) => {
    const plan = planOf({
      groups: layers, ...(bug.startsWith('sampling') ? {} : { ...fullBatch, steps: 4 }), ...(bug.startsWith('adaptive') && { adaptive, steps: 100 }),
    });
    for (const seed of [11, 12]) {
      const found = await auditGradients({
        plan, clipping, engine, trials: bug.startsWith('adaptive') ? 100 : 3000, seed, sourceOf: plantedBugs[bug],
      });
      expect(found.alarms).not.toEqual([]);
      // What shows in how well canaries are found, not in the noise by itself alone.
      if (['noise halved', 'clipping skipped on one layer', 'sampling at another rate'].includes(bug))
        expect(found.epsilonLowerBound).toBeGreaterThan(plan.epsilon);
    }
  });
});
