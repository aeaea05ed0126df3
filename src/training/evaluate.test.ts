import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { type Dataset, batchOf, datasetFromTensors } from '../data/index.ts';
import { type Graph, latestOpset } from '../graph/ir.ts';
import { buildModel } from '../models/index.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import { evaluate } from './evaluate.ts';

/** logits = x: what the model says is what the data says. */
const identity = (width: number): Graph => ({
  name: 'identity',
  opset: latestOpset,
  metadata: {},
  initializers: new Map(),
  inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', width] }],
  outputs: [{ name: 'y', dtype: 'float32', shape: ['batch', width] }],
  nodes: [{ op: 'Identity', domain: '', name: 'identity', inputs: ['x'], outputs: ['y'], attributes: {} }],
});

const logits = [
  [2, 0, 0],
  [0, 3, 1],
  [1, 1, 4],
  [0, 0, 0.5],
  [5, 0, 0],
];
const classes = (labels: readonly number[]): Dataset =>
  datasetFromTensors(float32(logits.flat(), [5, 3]), int64(labels));
const crossEntropy = (z: readonly number[], label: number): number =>
  Math.log(z.reduce((sum, x) => sum + Math.exp(x), 0)) - (z[label] ?? NaN);

describe('evaluate', () => {
  it('counts right answers and averages losses, whatever the batch size', async () => {
    const labels = [0, 1, 2, 0, 1];
    const loss = logits.reduce((sum, z, i) => sum + crossEntropy(z, labels[i] ?? 0), 0) / 5;
    for (const batchSize of [1, 2, 3, 5, 256]) {
      const result = await evaluate(identity(3), classes(labels), { batchSize, threads: 1 });
      expect(result).toMatchObject({ accuracy: 3 / 5, examples: 5 });
      expect(result.loss).toBeCloseTo(loss, 5);
    }
  });

  it('judges several binary outputs together, and numbers not at all', async () => {
    const features = float32([1, -1, 2, 3], [2, 2]);
    const binary = await evaluate(identity(2), datasetFromTensors(features, float32([1, 0, 1, 0], [2, 2])), {
      loss: 'binary-cross-entropy',
    });
    expect(binary.accuracy).toBe(1 / 2);
    expect(binary.loss).toBeCloseTo(
      (2 * Math.log1p(Math.exp(-1)) + Math.log1p(Math.exp(-2)) + Math.log1p(Math.exp(3))) / 4,
      5,
    );
    const numbers = await evaluate(identity(2), datasetFromTensors(features, float32([0, 0, 0, 0], [2, 2])), {
      loss: 'mse',
    });
    expect(numbers).toEqual({ accuracy: null, loss: (0.5 * (1 + 1) + 0.5 * (4 + 9)) / 2, examples: 2 });
  });

  it('takes the loss that the model was trained with', async () => {
    const recorded = { ...identity(2), metadata: { 'ghostgrad.loss': 'mse' } };
    const data = datasetFromTensors(float32([1, 2], [1, 2]), float32([1, 2], [1, 2]));
    expect(await evaluate(recorded, data)).toEqual({ accuracy: null, loss: 0, examples: 1 });
  });

  it('refuses data that do not fit the model, naming the place and no value', async () => {
    const message = async (data: Dataset, model: Graph = identity(3)): Promise<string> =>
      evaluate(model, data).then(
        () => 'accepted',
        (error: unknown) => String(error),
      );
    expect(await message(classes([0, 1, 2, 3, 0]))).toMatch(/a label is out of range .*row 4/);
    expect(await message(classes([0, 1, -1, 0, 0]))).toMatch(/a label is out of range .*row 3/);
    expect(await message(classes([0, 1, 2, 0, 0]), identity(4))).toMatch(/another shape than the model takes/);
    const holed = datasetFromTensors(float32([1, 2, 3, 4, NaN, 6], [2, 3]), int64([0, 1]));
    expect(await message(holed)).toMatch(/not finite .*row 2 .*element 2/);
    const whole: Graph = {
      ...identity(3),
      inputs: [{ name: 'x', dtype: 'int64', shape: ['batch', 3] }],
      outputs: [{ name: 'y', dtype: 'int64', shape: ['batch', 3] }],
    };
    expect(await message(classes([0, 0, 0, 0, 0]), whole)).toMatch(
      /another element type[^]*found: +float32\n +expected: +int64/,
    );
    const two: Graph = {
      ...identity(3),
      inputs: [...identity(3).inputs, { name: 'z', dtype: 'float32', shape: ['batch', 3] }],
      nodes: [{ op: 'Add', domain: '', name: 'sum', inputs: ['x', 'z'], outputs: ['y'], attributes: {} }],
    };
    expect(await message(classes([0, 0, 0, 0, 0]), two)).toMatch(
      /lacks inputs of the model[^]*expected: features x, z/,
    );
    await expect(evaluate(identity(3), classes([0, 0, 0, 0, 0]), { batchSize: 0 })).rejects.toThrow('not a batch size');
  });

  it('agrees with itself on any part of the data', async () => {
    const model = buildModel(blobModel, { seed: 3 });
    const all = blobs(40);
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 39 }), fc.integer({ min: 1, max: 16 }), async (cut, batchSize) => {
        const part = (from: number, to: number): Dataset => {
          const { features, labels } = batchOf(
            all,
            Uint32Array.from({ length: to - from }, (_, i) => from + i),
          );
          return datasetFromTensors(
            float32([...(features.get('input')?.data as Float32Array)], [to - from, 4]),
            int64([...(labels.data as BigInt64Array)]),
          );
        };
        const [first, second, both] = await Promise.all(
          [part(0, cut), part(cut, 40), all].map((data) => evaluate(model, data, { batchSize, threads: 1 })),
        );
        expect(((first?.loss ?? NaN) * cut + (second?.loss ?? NaN) * (40 - cut)) / 40).toBeCloseTo(both?.loss ?? 0, 5);
        expect(Math.round((first?.accuracy ?? NaN) * cut + (second?.accuracy ?? NaN) * (40 - cut))).toBe(
          Math.round((both?.accuracy ?? 0) * 40),
        );
      }),
      { numRuns: 8 },
    );
  });
});
