import { describe, expect, it } from 'vitest';
import { partitionOf } from '../clipping/groups.ts';
import { defaultRho } from '../clipping/norm.ts';
import type { Mode } from '../clipping/plan.ts';
import type { StepOptions } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import { buildModel } from '../models/index.ts';
import { analyse } from './compile.ts';
import { explain } from './explain.ts';
import { type OptimizeFor, choosePlan, fitsBudget } from './planner.ts';

const analysis = analyse({ model: buildModel('cnn-tanh', { seed: 1 }), loss: 'cross-entropy' });
const layers = partitionOf({ style: 'per-layer' }, analysis.task.model, analysis.parameters);
const options = (mode: Mode, byLayer = false): StepOptions => ({
  mode, clipping: { function: 'abadi', gamma: 0.01, groups: byLayer ? layers : undefined }, rho: defaultRho, rowsPerUnit: 1,
});
const choose = (optimizeFor: OptimizeFor | undefined, mode: Mode = 'book-keeping', byLayer = false, lanes = 1) =>
  choosePlan(analysis, 16, options(mode, byLayer), { optimizeFor, lanes });

describe('the plan of a step', () => {
  const all = choose('time', 'book-keeping', true).candidates;
  const least = (by: 'cost' | 'liveBytes') => Math.min(...all.map((plan) => plan[by]));

  it('takes the least time, or the least memory', () => {
    expect(all.length).toBeGreaterThan(2);
    expect(new Set(all.map(({ mode }) => mode))).toEqual(new Set(['book-keeping', 'mixed-ghost', 'per-layer']));
    expect(choose('time', 'book-keeping', true).plan.cost).toBe(least('cost'));
    expect(choose('memory', 'book-keeping', true).plan.liveBytes).toBe(least('liveBytes'));
  });

  it('is the one that a mode alone stands for, where time counts', () => {
    expect(choose('time').plan).toEqual(choose(undefined).plan);
    expect(choose(undefined).candidates).toHaveLength(1);
  });

  it('is the cheapest within a budget, and the same every time', () => {
    const budget = least('liveBytes');
    const within = choose({ budget }, 'book-keeping', true);
    expect(within.plan.liveBytes).toBe(budget);
    expect(choose({ budget }, 'book-keeping', true).plan).toEqual(within.plan);
    expect(choose({ budget: 2 ** 40 }, 'book-keeping', true).plan.cost).toBe(least('cost'));
  });

  it('is refused where none fits, with the bytes of the smallest', () => {
    const smallest = choose('memory').plan.liveBytes;
    const refused = (budget: number, lanes: number): string => {
      try {
        choose({ budget }, 'book-keeping', false, lanes);
      } catch (error) {
        if (error instanceof GhostgradError) return `${error.parts.found}; ${error.parts.fix}`;
      }
      return 'nothing';
    };
    expect(refused(smallest - 1, 1)).toMatch(new RegExp(`^${smallest} bytes .*smaller microBatch`));
    expect(refused(smallest, 2)).toMatch(new RegExp(`^${2 * smallest} bytes .*in each of 2 lanes`));
    const fits = (budget: number) => fitsBudget(analysis, 16, options('book-keeping'), { optimizeFor: { budget } });
    expect([fits(smallest - 1), fits(smallest)]).toEqual([false, true]);
  });

  it('keeps a mode other than book-keeping', () => {
    for (const mode of ['non-private', 'instantiate', 'ghost', 'mixed-ghost', 'per-layer'] as const) {
      expect(choose('memory', mode, mode === 'per-layer').candidates.every((plan) => plan.mode === mode)).toBe(true);
    }
  });

  it('clips the same way whatever it is', () => {
    const { step } = choose('memory', 'book-keeping', true);
    expect(step.groups).toEqual(layers);
  });

  it('is explained', () => {
    const { plan } = explain({ model: buildModel('cnn-tanh'), batchSize: 16, optimizeFor: 'memory' });
    expect(plan.optimizeFor).toBe('memory');
    expect(plan.liveBytes).toBe(Math.min(...plan.candidates.map(({ liveBytes }) => liveBytes)));
    expect(plan.reason).toMatch(/least memory of \d plans/);
  });
});
