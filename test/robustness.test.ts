import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { type Mode, modes } from '../src/clipping/plan.ts';
import { int, ints, latestOpset, type Graph, type Node } from '../src/graph/ir.ts';
import { type FloatTensor, float32 } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { type Batch, runStep } from './support/oracle.ts';
import { networkChoice, randomLabels, randomNetwork, randomTensor, testRandom } from './support/random-network.ts';

const privateModes = modes.filter((mode) => mode !== 'non-private');
const optionsOf = (mode: Mode) => ({ mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 } as const);

/** The batch with one value of one row replaced, or (undefined) the whole row zeroed. */
function spoil(batch: Batch, row: number, value: number | undefined): Batch {
  const input = batch.inputs['input'] as FloatTensor;
  const data = input.data.slice();
  const each = data.length / batch.rows;
  if (value === undefined) data.fill(0, row * each, (row + 1) * each);
  else data[row * each + Math.floor(each / 2)] = value;
  return { ...batch, inputs: { input: { ...input, data } } };
}

const bits = (sums: ReadonlyMap<string, Float32Array>) => [...sums].map(([name, s]) => [name, Buffer.from(s.buffer, s.byteOffset, s.byteLength).toString('hex')]);

/** A network whose second layer takes a logarithm: finite for every ordinary row, not for a row that is made so. */
function logarithmNetwork(): Graph {
  const random = testRandom(5);
  const nodes: Node[] = [
    { op: 'Conv', domain: '', name: 'conv', inputs: ['input', 'conv.weight', 'conv.bias'], outputs: ['c'], attributes: { kernel_shape: ints([3, 3]), pads: ints([1, 1, 1, 1]) } },
    { op: 'Log', domain: '', name: 'log', inputs: ['c'], outputs: ['l'], attributes: {} },
    { op: 'Conv', domain: '', name: 'conv2', inputs: ['l', 'conv2.weight', 'conv2.bias'], outputs: ['e'], attributes: { kernel_shape: ints([2, 2]) } },
    { op: 'Flatten', domain: '', name: 'flatten', inputs: ['e'], outputs: ['f'], attributes: {} },
    { op: 'Gemm', domain: '', name: 'head', inputs: ['f', 'head.weight', 'head.bias'], outputs: ['logits'], attributes: { transB: int(1) } },
  ];
  const positive = (t: FloatTensor) => float32(t.data.map((x) => Math.abs(x) + 0.1), t.shape);
  return {
    name: 'logarithm', opset: latestOpset, metadata: {}, nodes,
    initializers: new Map([
      ['conv.weight', positive(randomTensor(random, [3, 2, 3, 3]))], ['conv.bias', positive(randomTensor(random, [3]))],
      ['conv2.weight', randomTensor(random, [2, 3, 2, 2])], ['conv2.bias', randomTensor(random, [2])],
      ['head.weight', randomTensor(random, [3, 18], 0.3)], ['head.bias', randomTensor(random, [3])],
    ]),
    inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', 2, 4, 4] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
  };
}

describe('a row that is not finite', () => {
  it.each(privateModes)('is removed from the sum bit for bit, %s', async (mode) => {
    await fc.assert(fc.asyncProperty(
      networkChoice, fc.constantFrom(NaN, Infinity, -Infinity, 3e38), fc.integer({ min: 0, max: 3 }),
      async (choice, value, row) => {
        const network = randomNetwork(choice);
        const analysis = analyse({ model: network.model, loss: 'cross-entropy', trainable: network.trainable });
        requireTrainable(analysis);
        const random = testRandom(choice.seed + 1);
        const batch = { rows: 4, inputs: { input: randomTensor(random, [4, ...network.inputShape]) }, labels: randomLabels(random, 4, network.classes) };
        const without = await runStep(analysis, spoil(batch, row, undefined), optionsOf(mode), 0.5, [0, 1, 2, 3].map((i) => i !== row));
        const spoilt = await runStep(analysis, spoil(batch, row, value), optionsOf(mode), 0.5);
        expect(spoilt.weights[row]).toBe(0);
        expect(bits(spoilt.sums)).toEqual(bits(without.sums));
        expect(without.weights.filter((w) => w > 0).length).toBe(3);
      },
    ), { numRuns: 12 });
  });

  it.each(privateModes)('is removed when the trouble arises in a middle layer, %s', async (mode) => {
    const analysis = analyse({ model: logarithmNetwork(), loss: 'cross-entropy' });
    requireTrainable(analysis);
    const random = testRandom(11);
    const input = float32(randomTensor(random, [4, 2, 4, 4]).data.map((x) => Math.abs(x) + 0.1), [4, 2, 4, 4]);
    const batch = { rows: 4, inputs: { input }, labels: randomLabels(random, 4, 3) };
    const without = await runStep(analysis, spoil(batch, 2, undefined), optionsOf(mode), 0.5, [true, true, false, true]);
    const spoilt = await runStep(analysis, spoil(batch, 2, -50), optionsOf(mode), 0.5);
    expect(spoilt.norms[2]).not.toSatisfy(Number.isFinite);
    expect(bits(spoilt.sums)).toEqual(bits(without.sums));
    for (const sum of spoilt.sums.values()) expect(sum.every(Number.isFinite)).toBe(true);
  });
});
