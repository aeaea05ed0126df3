import { describe, expect, it } from 'vitest';
import { type Graph, int } from '../src/graph/ir.ts';
import { dataTypeOf } from '../src/graph/onnx.ts';
import { decodeModel } from '../src/graph/decode.ts';
import { encodeModel } from '../src/graph/encode.ts';
import { type Tensor, float32, int64, tensor } from '../src/tensor/tensor.ts';
import { analyse } from '../src/training/compile.ts';
import { evaluate } from '../src/training/evaluate.ts';
import { explain } from '../src/training/explain.ts';
import type { TrainingInput } from '../src/training/materials.ts';
import { prepareModel } from '../src/training/model.ts';
import { prepare } from '../src/training/train.ts';
import { graphOf, node, run, value } from './graph/onnxruntime.ts';
import { blobs } from './support/blobs.ts';
import { randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(11);

/** A linear classifier of blobs with a second output that nothing here supports, and an input for that alone. */
const branched = (): Graph => graphOf({
  inputs: [value('input', ['batch', 4]), value('other', ['batch', 'n'])],
  outputs: [value('logits', ['batch', 2]), value('strange', null)],
  initializers: new Map<string, Tensor>([['w', randomTensor(random, [4, 2])], ['b', float32([0, 0])], ['unused', float32([1, 2])]]),
  nodes: [
    node('MatMul', ['input', 'w'], ['hidden']), node('Add', ['hidden', 'b'], ['logits']),
    node('NoSuchOperator', ['other'], ['strange']),
  ],
});

/** Trains for a few steps and gives back the model as it would be written. */
async function trained(model: Graph, options: Partial<TrainingInput> = {}): Promise<Graph> {
  const run = await prepare({
    model, data: { train: blobs() }, privacy: { epsilon: 8, delta: 1e-3 },
    training: { batchSize: 100, steps: 3, optimizer: { name: 'sgd', learningRate: 0.5 } }, performance: { threads: 1 }, ...options,
  });
  for await (const _ of run.steps());
  const written = run.model();
  await run.release();
  return decodeModel(encodeModel(written));
}

const changed = (before: Graph, after: Graph, name: string): boolean => {
  const [a, b] = [before.initializers.get(name)!, after.initializers.get(name)!];
  return a.data.some((x: number | bigint, i: number) => x !== b.data[i]);
};

describe('the part of a model that is trained', () => {
  it('is what the chosen output needs: other branches, their inputs and operators are left alone', () => {
    const analysis = analyse({ model: branched(), loss: 'cross-entropy', output: 'logits' });
    expect(analysis).toMatchObject({ parameters: ['w', 'b'], violations: [], obstacles: [] });
    expect(analysis.task.model.inputs.map(({ name }) => name)).toEqual(['input']);
    expect(explain({ model: branched(), loss: 'cross-entropy', output: 'logits' })).toMatchObject({ unsupported: [], batchIndependent: true });
  });

  it('may end at any value of the model', () => {
    expect(analyse({ model: branched(), loss: 'mse', output: 'hidden' }).parameters).toEqual(['w']);
    expect(() => analyse({ model: branched(), loss: 'mse', output: 'hiden' })).toThrow(/no such output[^]*hiden/);
    expect(() => analyse({ model: branched(), loss: 'mse' })).toThrow();
  });

  it('is fed by data for its inputs alone', async () => {
    const one = { ...branched(), nodes: branched().nodes.slice(0, 2), outputs: branched().outputs.slice(0, 1) };
    expect((await evaluate(one, blobs())).examples).toBe(blobs().size);
    expect((await evaluate(branched(), blobs(), { output: 'logits' })).examples).toBe(blobs().size);
  });

  it('takes initializers that are also listed as inputs for initializers', () => {
    const bytes = encodeModel(branched());
    expect(decodeModel(bytes).inputs).toHaveLength(2);
    const listed = { ...branched(), inputs: [...branched().inputs, value('w', [4, 2]), value('b', [2])] };
    expect(analyse({ model: decodeModel(encodeModel(listed)), loss: 'cross-entropy', output: 'logits' }).parameters).toEqual(['w', 'b']);
  });
});

describe('a model in float16', () => {
  const half = (bits: readonly number[], shape: readonly number[]): Tensor => tensor('float16', shape, Uint16Array.from(bits));
  const model = graphOf({
    inputs: [value('input', ['batch', 4])], outputs: [value('logits', ['batch', 2])],
    initializers: new Map<string, Tensor>([['w', half([0x3c00, 0xbc00, 0, 0x3800, 0x3800, 0, 0xbc00, 0x3c00], [4, 2])], ['b', half([0, 0], [2])]]),
    nodes: [
      node('Cast', ['input'], ['h'], { to: int(dataTypeOf.float16) }), node('MatMul', ['h', 'w'], ['p']),
      node('Add', ['p', 'b'], ['a']), node('Cast', ['a'], ['logits'], { to: int(dataTypeOf.float32) }),
    ],
  });

  it('is trained and written in float32', async () => {
    const before = prepareModel(model);
    const after = await trained(model);
    expect(after.initializers.get('w')!.dtype).toBe('float32');
    expect(changed(before, after, 'w') && changed(before, after, 'b')).toBe(true);
    const { logits } = await run(encodeModel(after), { input: float32([1, 2, 3, 4], [1, 4]) });
    expect(logits!.shape).toEqual([1, 2]);
  });
});

describe('a model whose weights are Constant nodes', () => {
  const model = graphOf({
    inputs: [value('input', ['batch', 4])], outputs: [value('logits', ['batch', 2])], literals: new Set(['w', 'b', 'temperature']),
    initializers: new Map<string, Tensor>([['w', randomTensor(random, [4, 2])], ['b', float32([0, 0])], ['temperature', float32([0.5], [])]]),
    nodes: [node('MatMul', ['input', 'w'], ['p']), node('Add', ['p', 'b'], ['a']), node('Mul', ['a', 'temperature'], ['logits'])],
  });

  it('is trained, and its values stand under their names afterwards', async () => {
    const after = await trained(model);
    expect(['w', 'b', 'temperature'].map((name) => changed(model, after, name))).toEqual([true, true, false]);
    expect(after.literals).toEqual(new Set(['temperature']));
  });

  it('trains a constant that is named outright, and keeps it a Constant', async () => {
    const after = await trained(model, { trainable: ['temperature'] });
    expect(['w', 'b', 'temperature'].map((name) => changed(model, after, name))).toEqual([false, false, true]);
    expect(after.literals).toContain('temperature');
  });
});

describe('a model for a batch of one example', () => {
  it('is trained in batches, and written for any batch size', async () => {
    const model = graphOf({
      inputs: [value('input', [1, 4])], outputs: [value('logits', [1, 2])],
      initializers: new Map<string, Tensor>([['w', randomTensor(random, [4, 2])], ['shape', int64([1, -1])]]),
      nodes: [node('Reshape', ['input', 'shape'], ['flat']), node('MatMul', ['flat', 'w'], ['logits'])],
    });
    const after = await trained(model);
    expect(changed(model, after, 'w')).toBe(true);
    expect([after.inputs[0]!.shape, after.outputs[0]!.shape]).toEqual([['batch', 4], ['batch', 2]]);
    for (const rows of [1, 3]) {
      const { logits } = await run(encodeModel(after), { input: randomTensor(random, [rows, 4]) });
      expect(logits!.shape).toEqual([rows, 2]);
    }
  });
});
