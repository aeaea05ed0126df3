import { describe, expect, it } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { datasetOf } from '../data/index.ts';
import { type AnyColumn } from '../data/column.ts';
import { epsilonOf, eventOf, flatGroup, privacyPlan } from '../privacy/index.ts';
import { leastMicroBatch } from '../privacy/lattice.ts';
import type { TrainingInput } from './materials.ts';
import { resolveRecipe } from './recipe.ts';
import { prepare, train } from './train.ts';

const recipe = (changes: object = {}, training: object = {}): TrainingInput => ({
  model: blobModel,
  data: { train: blobs(), test: blobs(100) },
  privacy: { epsilon: 4, delta: 1e-4 },
  clipping: { norm: 1 },
  training: { fullBatch: true, steps: 1, seed: 5, optimizer: { name: 'sgd', learningRate: 0.5 }, ...training },
  performance: { threads: 1 },
  ...changes,
});
const resolved = (changes: object = {}, training: object = {}) =>
  resolveRecipe({ ...recipe(changes, training), model: blobModel, data: { train: 'mnist:train' } });

describe('one full-batch step', () => {
  it.each([[0.25, 15.41], [1, 4.225], [8, 0.653]])('asks at δ = 1e-6 and ε = %d for σ = %d', (epsilon, sigma) => {
    const plan = privacyPlan({ datasetSize: 1000, batchSize: 1000, sampling: 'full-batch', steps: 1, epsilon, delta: 1e-6, groups: flatGroup(['w'], 1, 9) });
    expect(plan.noiseMultiplier).toBeCloseTo(sigma, 3);
    expect(plan.accountant).toBe('exact-gaussian');
  });

  it('takes σ·√T for each of T: they are one Gaussian mechanism', () => {
    const plan = (steps: number) => privacyPlan({
      datasetSize: 1000, batchSize: 1000, sampling: 'full-batch', steps, epsilon: 1, delta: 1e-6, groups: flatGroup(['w'], 1, 9),
    });
    for (const T of [2, 5, 100]) {
      expect(plan(T).noiseMultiplier / Math.sqrt(T) / plan(1).noiseMultiplier).toBeCloseTo(1, 6);
      expect(plan(T).accountant).toBe('exact-gaussian');
      expect(plan(T).spent(1)).toBeLessThan(plan(T).epsilon);
    }
  });
});

describe('fullBatch in a recipe', () => {
  it('says the sampling and the batch, and is said by the sampling', () => {
    const said = resolved();
    expect(said.privacy).toMatchObject({ sampling: 'full-batch', neighbors: 'add-remove' });
    expect(resolveRecipe(structuredClone(said))).toEqual(said);
    const bySampling = resolved({ privacy: { epsilon: 4, delta: 1e-4, sampling: 'full-batch' } }, { fullBatch: undefined });
    expect(bySampling).toEqual(said);
    expect(resolved({ privacy: { epsilon: 4, delta: 1e-4 } }, { fullBatch: false, batchSize: 10 }).privacy).toMatchObject({ sampling: 'poisson' });
  });

  it('is refused where the recipe says otherwise elsewhere', async () => {
    const privacy = { epsilon: 4, delta: 1e-4 };
    expect(() => resolved({ privacy: { ...privacy, sampling: 'poisson' } })).toThrow(/training.fullBatch and privacy.sampling contradict[^]*sampling poisson/);
    expect(() => resolved({ privacy: { ...privacy, sampling: 'full-batch' } }, { fullBatch: false })).toThrow('contradict');
    expect(() => resolved({}, { fullBatch: false })).toThrow('training.batchSize');
    for (const none of [privacy, 'none'])
      await expect(prepare(recipe({ privacy: none }, { batchSize: 150 }))).rejects.toThrow(/a full batch is all of the data[^]*all 200 examples/);
    await (await prepare(recipe({}, { batchSize: 200 }))).release();
  });

  it.each(['none', { epsilon: 4, delta: 1e-4 }] as const)('takes every example at every step, in micro-batches: privacy %j', async (privacy) => {
    const set = blobs(300);
    let [largest, taken] = [0, 0];
    const watched = (column: AnyColumn): AnyColumn => ({
      ...column,
      gather: (rows: Uint32Array, into: never) => {
        largest = Math.max(largest, rows.length);
        taken += rows.length;
        (column.gather as (rows: Uint32Array, into: never) => void)(rows, into);
      },
    }) as AnyColumn;
    const data = datasetOf({ ...set, features: new Map([...set.features].map(([name, column]) => [name, watched(column)])) });
    const run = await prepare(recipe({ privacy, data: { train: data }, performance: { threads: 1, microBatch: 16 } }, { steps: 3 }));
    [largest, taken] = [0, 0];
    for await (const { uncovered } of run.steps()) expect(uncovered.drawn).toBe(300);
    expect([largest, taken]).toEqual([16, 900]);
    await run.release();
    expect(run.plannedSteps).toBe(3);
  });

  it('learns in a few steps, at an ε that composes exactly', async () => {
    const { epsilon, accountant, sampleRate, batchSize, test } = await train(recipe({}, { steps: 5 }));
    expect({ accountant, sampleRate, batchSize }).toEqual({ accountant: 'exact-gaussian', sampleRate: 1, batchSize: 200 });
    expect(epsilon).toBeLessThanOrEqual(4);
    expect(epsilon).toBeGreaterThan(4 * (1 - 1e-4));
    expect(test?.accuracy).toBeGreaterThan(0.9);
    const run = await prepare(recipe({}, { steps: 5 }));
    expect(epsilonOf(eventOf(run.plan!, 5), run.plan!.accountedDelta).epsilon).toBe(epsilon);
    await run.release();
  });

  it('takes micro-batches large enough for what adding them up may round', () => {
    expect(leastMicroBatch(60_000, true)).toBe(1);
    // 1,281,167 examples in n/256 micro-batches are within 2^33, in n/128 they are not.
    expect(leastMicroBatch(1_281_167, true)).toBe(256);
    expect(leastMicroBatch(1_281_167, false)).toBe(1024);
    expect(leastMicroBatch(512, false)).toBe(1);
  });
});
