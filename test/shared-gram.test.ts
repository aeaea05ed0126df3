import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import type { Mode } from '../src/clipping/plan.ts';
import { type Graph, type Node, int, latestOpset } from '../src/graph/ir.ts';
import type { Tensor } from '../src/tensor/tensor.ts';
import { analyse, compileTask, requireTrainable } from '../src/training/compile.ts';
import { stepArithmetic } from '../src/training/arithmetic.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(5);
const [T, wide, hidden] = [3, 24, 32];
const parameters: Readonly<Record<string, readonly number[]>> = {
  'up.weight': [wide, hidden], 'up.bias': [hidden], 'beside.weight': [wide, hidden], 'down.weight': [hidden, wide], 'down.bias': [wide],
  'head.weight': [3, T * wide], 'head.bias': [3],
};

/** Two linear maps of one input at each of three positions, their sum through a third. */
const node = (op: string, inputs: readonly string[], output: string, attributes: Node['attributes'] = {}): Node =>
  ({ op, domain: '', name: output, inputs, outputs: [output], attributes });
const model: Graph = {
  name: 'biased', opset: latestOpset, metadata: {},
  nodes: [
    node('MatMul', ['input', 'up.weight'], 'up'), node('Add', ['up', 'up.bias'], 'upBiased'), node('Tanh', ['upBiased'], 'active'),
    node('MatMul', ['input', 'beside.weight'], 'beside'), node('Mul', ['active', 'beside'], 'gated'),
    node('MatMul', ['gated', 'down.weight'], 'down'), node('Add', ['down', 'down.bias'], 'downBiased'),
    node('Flatten', ['downBiased'], 'flat'), node('Gemm', ['flat', 'head.weight', 'head.bias'], 'logits', { transB: int(1) }),
  ],
  initializers: new Map<string, Tensor>(Object.entries(parameters).map(([name, shape]) => [name, randomTensor(random, shape, 0.3)])),
  literals: new Set(),
  inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', T, wide] }],
  outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
};
const analysis = analyse({ model, loss: 'cross-entropy' });
requireTrainable(analysis);
const optionsOf = (mode: Mode) => ({ mode, clipping: { function: 'abadi', gamma: 0.01 } as const, rho: defaultRho, rowsPerUnit: 1 });
const batchOf = (rows: number): Batch =>
  ({ rows, inputs: { input: randomTensor(random, [rows, T, wide]) }, labels: randomLabels(random, rows, 3) });

describe('a bias beside a weight with a ghost norm', () => {
  it.each(['ghost', 'book-keeping'] as const)('%s: has its norm from the same Gram matrices, equal to the oracle', async (mode) => {
    const { layers } = compileTask(analysis, 4, optionsOf(mode));
    const plans = layers.filter(({ parameter }) => /^(up|down)\.bias$/.test(parameter)).map(({ plan }) => [plan.norm, plan.sum]);
    expect(plans).toEqual([['ghost', 'product'], ['ghost', 'product']]);
    const batch = batchOf(4);
    const truth = await oracle(analysis, batch);
    const threshold = Math.min(...truth.norms) * 0.8;
    const found = await runStep(analysis, batch, optionsOf(mode), threshold);
    truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm)).toBeLessThanOrEqual(1e-4 * norm));
    expect(relativeDifference(found.sums, weightedSum(truth.gradients, truth.norms.map((n) => threshold / n)))).toBeLessThan(1e-4);
  });

  it.each(['ghost', 'book-keeping'] as const)('%s: gets nothing of an example that is not finite', async (mode) => {
    const batch = batchOf(4);
    const truth = await oracle(analysis, batch);
    const input = { ...batch.inputs['input']!, data: Float32Array.from(batch.inputs['input']!.data as Float32Array) };
    input.data[T * wide + 5] = NaN;
    const threshold = Math.min(...truth.norms) * 0.8;
    const found = await runStep(analysis, { ...batch, inputs: { input } }, optionsOf(mode), threshold);
    const weights = truth.norms.map((n, i) => (i === 1 ? 0 : threshold / n));
    expect(relativeDifference(found.sums, weightedSum(truth.gradients, weights))).toBeLessThan(1e-4);
  });

  it('instantiates where the weight does', () => {
    const { layers } = compileTask(analysis, 4, optionsOf('instantiate'));
    expect(new Set(layers.map(({ plan }) => plan.norm))).toEqual(new Set(['instantiate']));
  });

  it('is counted with the Gram matrix of an input that two weights share once', () => {
    const { layers } = compileTask(analysis, 4, optionsOf('ghost'));
    const apart = layers.map((layer) => stepArithmetic([layer], 4, 'ghost').extra).reduce((a, b) => a + b);
    expect(apart - stepArithmetic(layers, 4, 'ghost').extra).toBe(4 * 2 * T * T * wide);
  });
});
