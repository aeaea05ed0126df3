import { describe, expect, it } from 'vitest';
import { blobs } from '../../test/support/blobs.ts';
import { buildModel } from '../models/index.ts';
import { flatGroup, privacyPlan } from '../privacy/index.ts';
import type { Ledger } from '../privacy/ledger.ts';
import { privateGradients } from './gradients.ts';
import type { StepProgram } from './step.ts';
import { prepare } from './train.ts';

describe('a model large enough for noise threads', () => {
  it('is trained by them, the same for the same seed', async () => {
    const weights = async (): Promise<readonly number[]> => {
      const run = await prepare({
        model: buildModel({ name: 'mlp', input: 4, hidden: [730, 730], classes: 2, activation: 'tanh' }, { seed: 1 }),
        data: { train: blobs() }, privacy: { noiseMultiplier: 1, delta: 1e-4 },
        training: { batchSize: 50, steps: 2, seed: 5, optimizer: { name: 'sgd', learningRate: 0.1 } },
        performance: { threads: 1, microBatch: 16 },
      });
      for await (const _ of run.steps());
      const { initializers } = run.model();
      await run.release();
      return [...initializers.values()].flatMap(({ data }) => Array.from(data as Float32Array));
    };
    const first = await weights();
    expect(first.length).toBeGreaterThan(1 << 19);
    const second = await weights();
    expect(second.every((x, i) => x === first[i])).toBe(true);
    expect(first.every(Number.isFinite)).toBe(true);
  });
});

const plan = privacyPlan({
  datasetSize: 200, batchSize: 20, steps: 3, noiseMultiplier: 1, delta: 1e-5, groups: flatGroup(['w'], 1, 4),
});
const program: StepProgram = {
  parameters: ['w'], microBatch: 8, lanes: 1, sharesSums: true, rho: plan.rho, layers: [], groups: plan.groups,
  plan: { mode: 'book-keeping', layersBy: 'time', liveBytes: 0, cost: 0, extraFlopShare: 0, reason: 'a test' },
  run: (parameters, { size }) => Promise.resolve({
    sums: new Map([['w', new Float32Array(new SharedArrayBuffer(16))]]), remainders: new Map(), parts: 1, parameters,
    losses: new Float32Array(size), norms: new Float32Array(size), groups: 1,
  }),
  release: () => Promise.resolve(),
};

describe('privateGradients', () => {
  it('refuses a step that does not clip as the plan says', async () => {
    const other: StepProgram = { ...program, groups: [{ name: 'all', parameters: ['w', 'v'] }] };
    expect(() => privateGradients({ plan, program: other, data: blobs() })).toThrow('does not clip as the privacy plan says');
    const plain: StepProgram = {
      ...program, run: async (...given) => ({ ...await program.run(...given), norms: new Float32Array(0) }),
    };
    const source = privateGradients({ plan, program: plain, data: blobs() });
    await expect(source.next(new Map())).rejects.toThrow('does not clip as the privacy plan says');
    await source.close();
  });

  it('refuses batches whose additions the noise does not cover, before anything is drawn', () => {
    const large = { datasetSize: 2e6, batchSize: 1e6, steps: 3, noiseMultiplier: 1, delta: 1e-8, groups: plan.groups };
    expect(() => privateGradients({ plan: privacyPlan(large), program, data: blobs() })).toThrow('larger micro-batches');
    for (const [noise, microBatch] of [['float', 8], ['discrete', 4096]] as const)
      expect(() => privateGradients({ plan: privacyPlan({ ...large, noise }), program: { ...program, microBatch }, data: blobs() })).not.toThrow();
  });

  it('charges nothing and hands out nothing when the noise cannot be added', async () => {
    const charged: number[] = [];
    const ledger: Ledger = {
      length: 0, head: '', charge: (step) => Promise.resolve(void charged.push(step)), close: () => Promise.resolve(),
    };
    const threads = { addNoise: () => Promise.reject(new Error('a thread died')), start: () => undefined, close: () => Promise.resolve() };
    const source = privateGradients({ plan, program, data: blobs(), ledger, threads });
    await expect(source.next(new Map())).rejects.toThrow('a thread died');
    expect(charged).toEqual([]);
    await source.close();
  });
});
