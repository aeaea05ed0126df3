import { describe, expect, it } from 'vitest';
import { liveBytes } from '../src/clipping/live.ts';
import { defaultRho } from '../src/clipping/norm.ts';
import type { Mode } from '../src/clipping/plan.ts';
import { executionOrder } from '../src/clipping/schedule.ts';
import { stepNames } from '../src/clipping/step-graph.ts';
import { buildModel } from '../src/models/index.ts';
import { int64 } from '../src/tensor/tensor.ts';
import { analyse, compileTask, groupsOf } from '../src/training/compile.ts';
import { type Batch, oracle, relativeDifference, runStep } from './support/oracle.ts';
import { randomTensor, testRandom } from './support/random-network.ts';

const analysis = analyse({ model: buildModel({ name: 'mlp', input: 6, hidden: [8, 8], classes: 3 }, { seed: 1 }), loss: 'cross-entropy' });
const groups = groupsOf('per-layer', analysis)!;
const options = (mode: Mode) => ({ mode, clipping: { function: 'abadi', gamma: 0.01, groups }, rho: defaultRho, rowsPerUnit: 1 }) as const;
const rows = 4;
const batch = (): Batch => ({
  rows, inputs: { input: randomTensor(testRandom(3), [rows, 6]) }, labels: int64([0, 1, 2, 0]),
});

describe('mode per-layer', () => {
  it('has a group for each layer', () => {
    expect(groups.map(({ parameters }) => parameters.length)).toEqual([2, 2, 2]);
  });

  it('clips every layer to its own threshold, as the oracle does', async () => {
    const truth = await oracle(analysis, batch());
    const normsOf = (unit: number) => groups.map(({ parameters }) =>
      Math.sqrt(parameters.reduce((sum, name) => sum + truth.gradients[unit]!.get(name)!.reduce((s, x) => s + x * x, 0), 0)));
    const thresholds = normsOf(1);
    const found = await runStep(analysis, batch(), options('per-layer'), thresholds);
    const expected = new Map(groups.flatMap(({ parameters }, k) => parameters.map((name) => {
      const sum = new Float64Array(truth.gradients[0]!.get(name)!.length);
      truth.gradients.forEach((gradient, unit) => {
        const weight = Math.min(1, thresholds[k]! / normsOf(unit)[k]!);
        gradient.get(name)!.forEach((x, i) => { sum[i]! += weight * x; });
      });
      return [name, sum] as const;
    })));
    expect(relativeDifference(found.sums, expected)).toBeLessThan(2 * defaultRho);
    truth.gradients.forEach((_, unit) => normsOf(unit).forEach((norm, k) =>
      expect(Math.abs(found.norms[unit * groups.length + k]! - norm)).toBeLessThanOrEqual(1e-4 * norm)));
  });

  it('bounds every layer where a unit is not finite in another', async () => {
    const wild = batch();
    // The first layer's gradient overflows; those behind it saw only the largest input of their own.
    wild.inputs['input']!.data[0] = 3e38;
    const found = await runStep(analysis, wild, options('per-layer'), groups.map(() => 0.5));
    groups.forEach(({ parameters }) => {
      const squares = parameters.reduce((sum, name) => sum + found.sums.get(name)!.reduce((s, x) => s + x * x, 0), 0);
      expect(Math.sqrt(squares)).toBeLessThanOrEqual(rows * 0.5 * (1 + defaultRho));
    });
  });

  it('forms a layer\'s sum before the backward pass goes on, where activations are large', () => {
    const cnn = analyse({ model: buildModel('cnn-tanh', { seed: 1 }), loss: 'cross-entropy' });
    const layers = groupsOf('per-layer', cnn)!;
    const clipping = { function: 'abadi', gamma: 0.01, groups: layers } as const;
    const order = executionOrder(compileTask(cnn, 64, { mode: 'per-layer', clipping, rho: defaultRho, rowsPerUnit: 1 }).graph);
    const made = (name: string) => order.findIndex(({ outputs }) => outputs.includes(stepNames.sum(name)));
    const sums = layers.map(({ parameters }) => Math.max(...parameters.map(made)));
    expect(sums.length).toBeGreaterThan(2);
    expect(sums.every((at, k) => k === 0 || at < sums[k - 1]!)).toBe(true);
  });

  it('plans no more memory than training without privacy', () => {
    const vgg = analyse({ model: buildModel('vgg11', { seed: 1 }), loss: 'cross-entropy' });
    const clipping = { function: 'abadi', gamma: 0.01, groups: groupsOf('per-layer', vgg)! } as const;
    const bytes = (mode: Mode) => liveBytes(compileTask(vgg, 32, { mode, clipping, rho: defaultRho, rowsPerUnit: 1 }).graph);
    expect(bytes('per-layer') / bytes('non-private')).toBeLessThanOrEqual(1.02);
  });
});
