import { describe, expect, it } from 'vitest';
import { blobs } from '../../test/support/blobs.ts';
import { flatGroup, privacyPlan } from '../privacy/index.ts';
import type { Ledger } from '../privacy/ledger.ts';
import { privateGradients } from './gradients.ts';
import type { StepProgram } from './step.ts';

describe('privateGradients', () => {
  it('charges nothing and hands out nothing when the noise cannot be added', async () => {
    const plan = privacyPlan({
      datasetSize: 200, batchSize: 20, steps: 3, noiseMultiplier: 1, delta: 1e-5, groups: flatGroup(['w'], 1, 4),
    });
    const program: StepProgram = {
      parameters: ['w'], microBatch: 8, lanes: 1, sharesSums: true, rho: plan.rho, layers: [],
      run: (parameters, { size }) => Promise.resolve({
        sums: new Map([['w', new Float32Array(new SharedArrayBuffer(16))]]), parameters,
        losses: new Float32Array(size), norms: new Float32Array(size),
      }),
      release: () => Promise.resolve(),
    };
    const charged: number[] = [];
    const ledger: Ledger = {
      length: 0, head: '', charge: (step) => Promise.resolve(void charged.push(step)), close: () => Promise.resolve(),
    };
    const threads = { addNoise: () => Promise.reject(new Error('a thread died')), close: () => Promise.resolve() };
    const source = privateGradients({ plan, program, data: blobs(), ledger, threads });
    await expect(source.next(new Map())).rejects.toThrow('a thread died');
    expect(charged).toEqual([]);
    await source.close();
  });
});
