import { describe, expect, it } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { buildModel } from '../models/index.ts';
import { readBudget } from '../privacy/budget.ts';
import { evaluate } from './evaluate.ts';
import { evaluatePrivately } from './private-evaluation.ts';

const model = buildModel(blobModel, { seed: 1 });

describe('private evaluation', () => {
  it('tells accuracy and loss give or take its noise, and what that cost', async () => {
    const truth = await evaluate(model, blobs());
    const found = await evaluatePrivately(model, blobs(), { epsilon: 4, delta: 1e-5, lossBound: 4 });
    expect(found).toMatchObject({ examples: 200, delta: 1e-5, event: { kind: 'gaussian' } });
    expect(found.epsilon).toBeLessThanOrEqual(4);
    expect(found.accuracy).not.toBe(truth.accuracy);
    expect(Math.abs(found.accuracy! - truth.accuracy!)).toBeLessThan(6 * found.deviations.accuracy!);
    expect(Math.abs(found.loss! - truth.loss)).toBeLessThan(6 * found.deviations.loss!);
    expect(found.deviations.accuracy!).toBeLessThan(0.01);
    const again = await evaluatePrivately(model, blobs(), { epsilon: 4, delta: 1e-5 });
    expect(again.loss).toBeNull();
    expect(again.accuracy).not.toBe(found.accuracy);
  });

  it('is charged to a budget, which refuses what would overrun it and then shows nothing', async () => {
    const budget = temporaryFolder().write('budget.json', JSON.stringify({ epsilon: 3, delta: 1e-5 }));
    const target = { epsilon: 2, delta: 5e-6, budget };
    const { event } = await evaluatePrivately(model, blobs(), target);
    expect(readBudget(budget).runs).toEqual([{ id: expect.any(String) as string, name: expect.stringContaining('evaluation') as string, event, neighbors: 'add-remove' }]);
    await expect(evaluatePrivately(model, blobs(), target)).rejects.toThrow('would overrun the budget');
    expect(readBudget(budget).runs).toHaveLength(1);
  });

  it('refuses a bound that is none, and has nothing to say without one where nothing is right or wrong', async () => {
    const target = { epsilon: 4, delta: 1e-5 };
    await expect(evaluatePrivately(model, blobs(), { ...target, lossBound: 0 })).rejects.toThrow('bound of the loss');
    await expect(evaluatePrivately(model, blobs(), { ...target, epsilon: 0 })).rejects.toThrow('epsilon is out of range');
  });
});
