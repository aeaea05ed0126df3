import { describe, expect, it } from 'vitest';
import { buildModel } from '../src/models/index.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Tensor, tensor } from '../src/tensor/tensor.ts';
import { analyse } from '../src/training/compile.ts';
import { labelsInput } from '../src/training/loss.ts';
import { type BatchSource, compileStep, cut } from '../src/training/step.ts';
import { parametersOf, relativeDifference } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const analysis = analyse({
  model: buildModel({ name: 'cnn-tanh', size: 20, channels: 1, classes: 4 }, { seed: 3 }), loss: 'cross-entropy',
});

function batchOf(size: number): BatchSource {
  const random = testRandom(9);
  const input = randomTensor(random, [size, 1, 20, 20]);
  const labels = randomLabels(random, size, 4);
  const padded = <T extends Tensor>(t: T, start: number, count: number, units: number): Tensor => {
    const each = size === 0 ? 0 : t.data.length / size;
    const data = t.dtype === 'int64' ? new BigInt64Array(units * each) : new Float32Array(units * each);
    data.set(t.data.subarray(start * each, (start + count) * each) as never);
    return tensor(t.dtype, [units, ...t.shape.slice(1)], data as never);
  };
  return {
    size,
    feeds: (start, count, units) => ({ input: padded(input, start, count, units), [labelsInput]: padded(labels, start, count, units) }),
  };
}

async function sumsAt(microBatch: number | undefined, size = 100, threads = 2) {
  const program = await compileStep(analysis, {
    mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, microBatch, engine: onnxruntimeEngine(), threads,
  });
  const found = await program.run(parametersOf(analysis), batchOf(size), [0.3]);
  await program.release();
  return found;
}

describe('a logical batch', () => {
  it('has the same clipped sum however it is cut into physical batches', async () => {
    const copies = () => new Map([...parametersOf(analysis)].map(([name, t]) => [name, t.data.slice()]));
    const before = copies();
    const reference = await sumsAt(undefined);
    // The program hands the parameters back unchanged.
    expect(relativeDifference(new Map([...reference.parameters].map(([name, t]) => [name, t.data])), before)).toBe(0);
    for (const [name, t] of reference.parameters) (analysis.task.model.initializers as Map<string, Tensor>).set(name, t);
    for (const microBatch of [1, 7, 64]) {
      const found = await sumsAt(microBatch);
      expect(relativeDifference(found.sums, reference.sums)).toBeLessThan(1e-5);
      expect(relativeDifference(new Map([['n', found.norms], ['l', found.losses]]), new Map([['n', reference.norms], ['l', reference.losses]]))).toBeLessThan(1e-5);
      for (const [name, t] of found.parameters) (analysis.task.model.initializers as Map<string, Tensor>).set(name, t);
    }
  });

  it('has the very same sum whatever the number of lanes', async () => {
    const one = await sumsAt(16, 90, 1);
    for (const [name, t] of one.parameters) (analysis.task.model.initializers as Map<string, Tensor>).set(name, t);
    const three = await sumsAt(16, 90, 3);
    for (const [name, t] of three.parameters) (analysis.task.model.initializers as Map<string, Tensor>).set(name, t);
    for (const [name, sum] of one.sums) expect(three.sums.get(name)).toEqual(sum);
  });

  it('may be empty: its sums are zero', async () => {
    const found = await sumsAt(16, 0);
    expect(found.losses.length).toBe(0);
    for (const sum of found.sums.values()) expect(sum.every((x) => x === 0)).toBe(true);
    expect([...found.sums.keys()]).toEqual(analysis.parameters);
    for (const [name, t] of found.parameters) (analysis.task.model.initializers as Map<string, Tensor>).set(name, t);
  });

  it('is cut so that every unit is computed once', () => {
    for (const [size, full, small] of [[0, 8, 1], [1, 8, 1], [7, 8, 1], [530, 128, 16], [128, 128, 16], [129, 128, 16], [5, 1, 1]] as const) {
      const parts = cut(size, full, small);
      expect(parts.reduce((sum, { count }) => sum + count, 0)).toBe(size);
      let at = 0;
      for (const { start, count, units } of parts) {
        expect(start).toBe(at);
        expect(count).toBeLessThanOrEqual(units);
        expect([full, small]).toContain(units);
        at += count;
      }
    }
  });
});
