import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { GhostgradError } from '../src/errors.ts';
import { type Graph, int, ints, latestOpset, string } from '../src/graph/ir.ts';
import { float32, int64, isFloat } from '../src/tensor/tensor.ts';
import { type Analysis, type Task, analyse, requireTrainable } from '../src/training/compile.ts';
import { openModel } from '../src/training/model.ts';
import { type Sketcher, mixedAt, mixers, sketcher } from './support/mixers.ts';
import { dependsOnOtherRows } from './support/rows.ts';
import { testRandom } from './support/random-network.ts';

const tokens = (length: number, ...names: string[]) => Object.fromEntries(names.map((name) => [name, [length]]));
const tasks: Readonly<Record<string, Omit<Task, 'model'>>> = {
  'mlp-random': { loss: 'cross-entropy' },
  'vgg11-tiny-random': { loss: 'cross-entropy' },
  'resnet18-gn-tiny-random': { loss: 'cross-entropy' },
  'resnet20-cifar10-bn': { loss: 'cross-entropy' },
  'bert-tiny-random': { loss: 'cross-entropy', exampleShapes: tokens(6, 'input_ids', 'attention_mask', 'token_type_ids') },
  'gpt2-tiny-random-tied': { loss: 'causal-lm', exampleShapes: tokens(5, 'input_ids') },
  'vit-tiny-random': { loss: 'cross-entropy' },
  'lstm-tiny-random': { loss: 'cross-entropy', exampleShapes: tokens(4, 'input_ids') },
};

const taskOf = (name: string): Task => ({
  model: openModel(fileURLToPath(new URL(`fixtures/models/${name}.onnx`, import.meta.url))), ...tasks[name]!,
});

interface Place {
  readonly analysis: Analysis;
  readonly value: string;
}

describe('operators that mix examples are refused wherever they stand', () => {
  /** Every value of the real models that is made by a node, carries the batch and is real. */
  const places: Place[] = [];
  beforeAll(() => {
    for (const name of Object.keys(tasks)) {
      const analysis = analyse(taskOf(name));
      expect(analysis.violations, name).toEqual([]);
      const { model } = analysis.task;
      const used = new Set([...model.nodes.flatMap(({ inputs }) => inputs), ...model.outputs.map((output) => output.name)]);
      for (const value of model.nodes.flatMap(({ outputs }) => outputs)) {
        if (used.has(value) && analysis.batch.has(value) && isFloat(analysis.proof.types.get(value)?.dtype ?? 'bool')) places.push({ analysis, value });
      }
    }
  });

  it.each(Object.keys(mixers))('%s', async (name) => {
    const random = testRandom(Object.keys(mixers).indexOf(name) + 17);
    for (let n = 0; n < 2; n++) {
      const { analysis: { task, batch, proof }, value } = places[Math.floor(random() * places.length)]!;
      const at = batch.get(value)!;
      const shape = proof.types.get(value)!.shape.with(at.axis, at.before * at.after);
      const mutant: Task = { ...task, model: mixedAt(task.model, value, shape, at, mixers[name]!) };
      const refusal = refusalOf(mutant);
      if (refusal.length > 0) expect(refusal.some((told) => told === 'loss' || told.includes('mix.')), `${value}: ${refusal.join()}`).toBe(true);
      // What is not refused must be harmless: a row of the loss depends on its own example alone.
      else expect(await dependsOnOtherRows(mutant), `${name} at ${value} of ${task.model.name} is taken for harmless`).toBe(false);
    }
  });
});

/** The nodes by which a task is refused: for mixing examples, or because their operator is not supported. */
function refusalOf(task: Task): string[] {
  try {
    return analyse(task).violations.map(({ node, operator }) => node || operator);
  } catch (error) {
    if (error instanceof GhostgradError && /unsupported operator ReverseSequence|too long a sequence/.test(error.message)) return [error.message];
    throw error;
  }
}

describe('the check of rows itself', () => {
  it.each(['ReduceMean over the batch', 'Softmax where a transposition put the batch', 'the rows moved by one', 'divided by the number of rows', 'each row times its number',
    'all numbers moved by one', 'an Attention among the rows'])('sees %s', async (name) => {
    const task = taskOf('mlp-random');
    const analysis = analyse(task);
    const value = task.model.nodes[1]!.outputs[0]!;
    const shape = analysis.proof.types.get(value)!.shape.with(0, 1);
    expect(await dependsOnOtherRows({ ...task, model: mixedAt(task.model, value, shape, { axis: 0 }, mixers[name]!) })).toBe(true);
    expect(await dependsOnOtherRows(task)).toBe(false);
  });
});

type Build = (b: Sketcher) => string;

/** A model of `input` [batch, ...shape] whose output the function makes. */
function sketch(shape: readonly number[], build: Build): Graph {
  const b = sketcher('net');
  const out = build(b);
  return {
    name: 'sketch', opset: latestOpset, metadata: {}, nodes: [...b.nodes, { op: 'Identity', domain: '', name: 'end', inputs: [out], outputs: ['logits'], attributes: {} }],
    initializers: b.initializers, literals: b.literals, inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', ...shape] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
  };
}

const [T, d, heads] = [5, 8, 2];
const size = (b: Sketcher, x: string, axis: number): string => b.op('Shape', [x], { start: int(axis), end: int(axis + 1) });
const sizes = (b: Sketcher, ...parts: (number | string)[]): string =>
  b.op('Concat', parts.map((n) => (typeof n === 'string' ? n : b.constant(int64([n])))), { axis: int(0) });
const linear = (b: Sketcher, x: string, from: number, to: number): string => b.op('Add', [b.op('MatMul', [x, b.weight([from, to])]), b.weight([to])]);
const turned = (b: Sketcher, x: string, ...perm: number[]): string => b.op('Transpose', [x], { perm: ints(perm) });

/** Self-attention on [T, B, d] with the batch merged with the heads, [B·H, T, D], as torch.nn.MultiheadAttention has it. */
function timeFirstAttention(b: Sketcher, x: string): string {
  const rows = size(b, x, 1);
  const merged = b.op('Mul', [rows, b.constant(int64([heads]))]);
  const shape = sizes(b, T, merged, d / heads);
  const [q, k, v] = [0, 1, 2].map(() => turned(b, b.op('Reshape', [linear(b, x, d, d), shape]), 1, 0, 2));
  const scores = b.op('Softmax', [b.op('MatMul', [b.op('Mul', [q!, b.constant(float32([0.5]))]), turned(b, k!, 0, 2, 1)])], { axis: int(-1) });
  const context = turned(b, b.op('MatMul', [scores, v!]), 1, 0, 2);
  const flat = b.op('Reshape', [context, sizes(b, b.op('Mul', [rows, b.constant(int64([T]))]), d)]);
  return b.op('Reshape', [linear(b, flat, d, d), sizes(b, T, rows, d)]);
}

const normalised = (b: Sketcher, x: string): string => b.op('LayerNormalization', [x, b.weight([d]), b.weight([d])], { axis: int(-1) });

const layouts: Readonly<Record<string, readonly [readonly number[], Build]>> = {
  'a time-first transformer': [[T, d], (b) => {
    let x = b.op('Add', [turned(b, 'input', 1, 0, 2), b.weight([T, 1, d])]);
    for (let layer = 0; layer < 2; layer++) {
      x = normalised(b, b.op('Add', [x, timeFirstAttention(b, x)]));
      x = normalised(b, b.op('Add', [x, linear(b, b.op('Relu', [linear(b, x, d, 2 * d)]), 2 * d, d)]));
    }
    return linear(b, b.op('ReduceMean', [x, b.constant(int64([0]))], { keepdims: int(0) }), d, 3);
  }],
  'the first step of a time-first sequence': [[T, d], (b) =>
    linear(b, b.op('Gather', [linear(b, turned(b, 'input', 1, 0, 2), d, d), b.constant(int64([0], []))], { axis: int(0) }), d, 3)],
  'batch merged with time': [[T, d], (b) => {
    const flat = b.op('Reshape', ['input', b.constant(int64([-1, d]))]);
    const h = b.op('Tanh', [linear(b, flat, d, d)]);
    return linear(b, b.op('ReduceSum', [b.op('Reshape', [h, b.constant(int64([-1, T, d]))]), b.constant(int64([1]))], { keepdims: int(0) }), d, 3);
  }],
  'time merged with batch, time first': [[T, d], (b) => {
    const x = turned(b, 'input', 1, 0, 2);
    const h = b.op('Tanh', [linear(b, b.op('Reshape', [x, b.constant(int64([-1, d]))]), d, d)]);
    const back = b.op('Reshape', [h, b.constant(int64([T, -1, d]))]);
    return linear(b, b.op('ReduceMax', [back, b.constant(int64([0]))], { keepdims: int(0) }), d, 3);
  }],
  'heads before the batch in one axis': [[T, d], (b) => {
    const x = turned(b, b.op('Reshape', [linear(b, 'input', d, d), b.constant(int64([0, T, heads, -1]))]), 2, 0, 1, 3);
    const merged = b.op('Reshape', [x, b.constant(int64([-1, T, d / heads]))]);
    const scores = b.op('Softmax', [b.op('MatMul', [merged, turned(b, merged, 0, 2, 1)])]);
    const back = b.op('Reshape', [b.op('MatMul', [scores, merged]), b.constant(int64([heads, -1, T, d / heads]))]);
    return linear(b, b.op('Flatten', [turned(b, back, 1, 2, 0, 3)]), T * d, 3);
  }],
  'an LSTM in layout 0': [[T, d], (b) => {
    const y = b.op('LSTM', [turned(b, 'input', 1, 0, 2), b.weight([1, 16, d]), b.weight([1, 16, 4]), b.weight([1, 32])], { hidden_size: int(4) });
    return linear(b, b.op('Gather', [b.op('Squeeze', [y, b.constant(int64([1]))]), b.constant(int64([-1], []))], { axis: int(0) }), 4, 3);
  }],
  'a bidirectional GRU in layout 0': [[T, d], (b) => {
    const y = b.op('GRU', [turned(b, 'input', 1, 0, 2), b.weight([2, 12, d]), b.weight([2, 12, 4]), b.weight([2, 24])], { hidden_size: int(4), direction: string('bidirectional') });
    const joined = b.op('Reshape', [turned(b, y, 0, 2, 1, 3), b.constant(int64([0, 0, -1]))]);
    return linear(b, b.op('ReduceMean', [joined, b.constant(int64([0]))], { keepdims: int(0) }), 8, 3);
  }],
  'channels last, and the batch last': [[4, 4, 2], (b) => {
    const c = b.op('Relu', [b.op('Conv', [turned(b, 'input', 0, 3, 1, 2), b.weight([3, 2, 2, 2])], { kernel_shape: ints([2, 2]) })]);
    const last = turned(b, c, 1, 2, 3, 0);
    return linear(b, turned(b, b.op('ReduceMean', [last, b.constant(int64([1, 2]))], { keepdims: int(0) }), 1, 0), 3, 3);
  }],
  'scores of all pairs of places': [[T, d], (b) => {
    const q = linear(b, 'input', d, d);
    return linear(b, b.op('Flatten', [b.op('Einsum', [q, 'input'], { equation: string('bid,bjd->bij') })]), T * T, 3);
  }],
  'a class token': [[T, d], (b) => {
    const token = b.op('Expand', [b.weight([1, 1, d]), sizes(b, size(b, 'input', 0), 1, d)]);
    const x = normalised(b, b.op('Concat', [token, 'input'], { axis: int(1) }));
    return linear(b, b.op('Gather', [b.op('Add', [x, b.weight([1, T + 1, d])]), b.constant(int64([0], []))], { axis: int(1) }), d, 3);
  }],
};

describe('what keeps examples apart is proved', () => {
  it.each(Object.keys(layouts))('%s', async (name) => {
    const [shape, build] = layouts[name]!;
    const task: Task = { model: sketch(shape, build), loss: 'cross-entropy' };
    const analysis = analyse(task);
    expect(analysis.violations).toEqual([]);
    requireTrainable(analysis);
    expect(await dependsOnOtherRows(task)).toBe(false);
  });
});
