import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { type Mode, modes } from '../src/clipping/plan.ts';
import { type Attributes, type Graph, type Node, float, int, ints, latestOpset } from '../src/graph/ir.ts';
import { type Tensor, int64, sizeOf } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { type Batch, lossAlong, oracle, parametersOf, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(21);

interface Sketch {
  readonly nodes: readonly (readonly [op: string, inputs: readonly string[], output: string, attributes?: Attributes])[];
  readonly weights: Readonly<Record<string, readonly number[]>>;
  readonly literals?: Readonly<Record<string, Tensor>>;
  readonly input: { readonly dtype: 'float32' | 'int64'; readonly shape: readonly number[] };
}

function graphOf({ nodes, weights, literals = {}, input }: Sketch): Graph {
  const drawn = Object.entries(weights).map(([name, shape]) => [name, randomTensor(random, shape, 1 / Math.sqrt(Math.max(1, sizeOf(shape.slice(1)))))] as const);
  return {
    name: 'sketch', opset: latestOpset, metadata: {},
    nodes: nodes.map(([op, inputs, output, attributes = {}], i): Node => ({ op, domain: '', name: `${op}_${i}`, inputs, outputs: output.split(','), attributes })),
    initializers: new Map<string, Tensor>([...drawn, ...Object.entries(literals)]), literals: new Set(Object.keys(literals)),
    inputs: [{ name: 'input', dtype: input.dtype, shape: ['batch', ...input.shape] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
  };
}

function batchOf(sketch: Sketch, rows: number): Batch {
  const shape = [rows, ...sketch.input.shape];
  const input = sketch.input.dtype === 'int64'
    ? int64(Array.from({ length: sizeOf(shape) }, () => Math.floor(random() * 6)), shape)
    : randomTensor(random, shape);
  return { rows, inputs: { input }, labels: randomLabels(random, rows, 3) };
}

const head = (from: string) => [
  ['Flatten', [from], 'flat'], ['Gemm', ['flat', 'head.weight', 'head.bias'], 'logits', { transB: int(1) }],
] as const;

const sketches: Readonly<Record<string, Sketch>> = {
  'embedding, positions, layer norm and a tied weight': {
    input: { dtype: 'int64', shape: [6] },
    weights: { table: [7, 5], position: [6, 5], scale: [5], shift: [5], shared: [5, 5], bias: [5], 'head.weight': [3, 5], 'head.bias': [3] },
    literals: { axes: int64([1]) },
    nodes: [
      ['Gather', ['table', 'input'], 'e'], ['Add', ['e', 'position'], 'p'],
      ['LayerNormalization', ['p', 'scale', 'shift'], 'n', { epsilon: float(1e-3) }],
      ['MatMul', ['n', 'shared'], 'm1'], ['Tanh', ['m1'], 't1'], ['MatMul', ['t1', 'shared'], 'm2'], ['Add', ['m2', 'bias'], 'a'],
      ['ReduceMean', ['a', 'axes'], 'r', { keepdims: int(0) }], ...head('r'),
    ],
  },
  'a table that is read twice': {
    input: { dtype: 'int64', shape: [5] },
    weights: { table: [6, 4], 'head.weight': [3, 20], 'head.bias': [3] },
    nodes: [['Gather', ['table', 'input'], 'e1'], ['Gather', ['table', 'input'], 'e2'], ['Mul', ['e1', 'e2'], 'm'], ...head('m')],
  },
  'a table that is read at the same places for every example': {
    input: { dtype: 'int64', shape: [5] },
    weights: { table: [6, 4], types: [2, 4], 'head.weight': [3, 4], 'head.bias': [3] },
    literals: { axes: int64([1]), position: int64([0, 1, 1, 0, 1]) },
    nodes: [
      ['Gather', ['table', 'input'], 'e'], ['Shape', ['input'], 'shape'], ['Expand', ['position', 'shape'], 'positions'],
      ['Gather', ['types', 'positions'], 't'], ['Add', ['e', 't'], 'a'], ['Mul', ['a', 't'], 'm'],
      ['ReduceMean', ['m', 'axes'], 'r', { keepdims: int(0) }], ...head('r'),
    ],
  },
  'convolutions of one and three axes': {
    input: { dtype: 'float32', shape: [2, 3, 4, 4] },
    weights: { w3: [4, 2, 2, 2, 2], b3: [4], w1: [6, 2, 3], b1: [6], 'head.weight': [3, 108], 'head.bias': [3] },
    literals: { shape: int64([0, 4, 18]) },
    nodes: [
      ['Conv', ['input', 'w3', 'b3'], 'c3', { kernel_shape: ints([2, 2, 2]) }], ['Tanh', ['c3'], 't'],
      ['Reshape', ['t', 'shape'], 's'], ['Conv', ['s', 'w1', 'b1'], 'c1', { kernel_shape: ints([3]), pads: ints([1, 1]), group: int(2) }], ...head('c1'),
    ],
  },
  'convolutions with more filters than positions': {
    input: { dtype: 'float32', shape: [3, 2, 2] },
    weights: { w: [64, 3, 3, 3], b: [64], v: [48, 64, 2, 1], 'head.weight': [3, 96], 'head.bias': [3] },
    nodes: [
      ['Conv', ['input', 'w', 'b'], 'c', { kernel_shape: ints([3, 3]), pads: ints([1, 1, 1, 1]) }], ['Tanh', ['c'], 't'],
      ['Conv', ['t', 'v'], 'd', { kernel_shape: ints([2, 1]), strides: ints([2, 2]), pads: ints([1, 0, 0, 1]) }], ...head('d'),
    ],
  },
  'a transposed convolution': {
    input: { dtype: 'float32', shape: [2, 3, 3] },
    weights: { w: [2, 3, 2, 2], b: [3], 'head.weight': [3, 108], 'head.bias': [3] },
    nodes: [['ConvTranspose', ['input', 'w', 'b'], 'c', { kernel_shape: ints([2, 2]), strides: ints([2, 2]) }], ['Tanh', ['c'], 't'], ...head('t')],
  },
  'time before batch, weight on the left, scaled product': {
    input: { dtype: 'float32', shape: [4, 3] },
    weights: { w: [3, 5], b: [5], g: [6, 4], head2: [30, 3], 'head.bias': [3] },
    nodes: [
      ['Transpose', ['input'], 'tb', { perm: ints([1, 0, 2]) }], ['MatMul', ['tb', 'w'], 'm'], ['Add', ['m', 'b'], 'a'],
      ['Tanh', ['a'], 't'], ['Transpose', ['t'], 'bt', { perm: ints([1, 0, 2]) }], ['MatMul', ['g', 'bt'], 'l'],
      ['Flatten', ['l'], 'f'], ['Gemm', ['f', 'head2', 'head.bias'], 'logits', { alpha: float(0.5), beta: float(2) }],
    ],
  },
  'batch norm, frozen statistics': {
    input: { dtype: 'float32', shape: [2, 4, 4] },
    weights: { w: [3, 2, 3, 3], scale: [3], shift: [3], mean: [3], 'head.weight': [3, 12], 'head.bias': [3] },
    literals: { variance: { dtype: 'float32', shape: [3], data: Float32Array.of(0.5, 1, 2) } },
    nodes: [['Conv', ['input', 'w'], 'c', { kernel_shape: ints([3, 3]) }], ['BatchNormalization', ['c', 'scale', 'shift', 'mean', 'variance'], 'n'], ['Relu', ['n'], 'r'], ...head('r')],
  },
  'a table tied to the output head through its transpose': {
    input: { dtype: 'int64', shape: [7] },
    weights: { table: [6, 4], w: [4, 4], 'head.weight': [3, 6], 'head.bias': [3] },
    literals: { axes: int64([1]) },
    nodes: [
      ['Gather', ['table', 'input'], 'e'], ['MatMul', ['e', 'w'], 'm'], ['Tanh', ['m'], 't'],
      ['Transpose', ['table'], 'turned', { perm: ints([1, 0]) }], ['MatMul', ['t', 'turned'], 'scores'],
      ['ReduceMean', ['scores', 'axes'], 'r', { keepdims: int(0) }], ...head('r'),
    ],
  },
  'a table that multiplies from its other side': {
    input: { dtype: 'int64', shape: [5] },
    weights: { table: [6, 6], 'head.weight': [3, 30], 'head.bias': [3] },
    nodes: [['Gather', ['table', 'input'], 'e'], ['Tanh', ['e'], 't'], ['MatMul', ['t', 'table'], 'm'], ...head('m')],
  },
  'a fused weight and bias in slices, and positions from the front of a table': {
    input: { dtype: 'float32', shape: [3, 4] },
    weights: { qkv: [4, 12], bias: [12], positions: [8, 4], 'head.weight': [3, 12], 'head.bias': [3] },
    literals: { first: int64([0, 1, 2]), starts: int64([4]), ends: int64([8]), axes: int64([0]) },
    nodes: [
      ['Gather', ['positions', 'first'], 'at'], ['Add', ['input', 'at'], 'x'],
      ['Split', ['qkv'], 'q,k,v', { axis: int(1), num_outputs: int(3) }], ['Slice', ['bias', 'starts', 'ends', 'axes'], 'kb'],
      ['MatMul', ['x', 'q'], 'qx'], ['MatMul', ['x', 'k'], 'kx'], ['MatMul', ['x', 'v'], 'vx'], ['Add', ['kx', 'kb'], 'kk'],
      ['Transpose', ['kk'], 'kt', { perm: ints([0, 2, 1]) }], ['MatMul', ['qx', 'kt'], 's'], ['Softmax', ['s'], 'p', { axis: int(-1) }],
      ['MatMul', ['p', 'vx'], 'o'], ...head('o'),
    ],
  },
  'overlapping slices, and a weight used whole besides': {
    input: { dtype: 'float32', shape: [2, 4] },
    weights: { w: [4, 6], 'head.weight': [3, 10], 'head.bias': [3] },
    literals: { s0: int64([0]), e0: int64([3]), s1: int64([1]), e1: int64([3]), axes: int64([1]) },
    nodes: [
      ['Slice', ['w', 's0', 'e0', 'axes'], 'left'], ['Slice', ['w', 's1', 'e1', 'axes'], 'inner'],
      ['MatMul', ['input', 'left'], 'a'], ['MatMul', ['input', 'inner'], 'b'], ['Concat', ['a', 'b'], 'c', { axis: int(-1) }],
      ['Tanh', ['c'], 't'], ...head('t'),
    ],
  },
  'weights computed before they meet the data': {
    input: { dtype: 'float32', shape: [2, 4] },
    weights: { direction: [4, 5], length: [5], down: [5, 2], up: [2, 5], 'head.weight': [3, 10], 'head.bias': [3] },
    literals: { axes: int64([0]) },
    nodes: [
      ['ReduceL2', ['direction', 'axes'], 'norms', { keepdims: int(1) }], ['Div', ['direction', 'norms'], 'unit'], ['Mul', ['unit', 'length'], 'w'],
      ['MatMul', ['input', 'w'], 'a'], ['Tanh', ['a'], 't'], ['MatMul', ['down', 'up'], 'low'], ['MatMul', ['t', 'low'], 'm'],
      ['Tanh', ['m'], 'y'], ...head('y'),
    ],
  },
  'a parameter beside a step function of it': {
    input: { dtype: 'float32', shape: [2, 4] },
    weights: { w: [4], v: [4, 5], 'head.weight': [3, 10], 'head.bias': [3] },
    nodes: [
      ['Floor', ['w'], 'floored'], ['Mul', ['input', 'floored'], 'm'], ['Add', ['m', 'w'], 'a'], ['Tanh', ['a'], 't'],
      ['Cast', ['v'], 'whole', { to: int(7) }], ['Cast', ['whole'], 'back', { to: int(1) }], ['Add', ['v', 'back'], 'through'],
      ['MatMul', ['t', 'through'], 'b'], ['MatMul', ['t', 'back'], 'c'], ['Add', ['b', 'c'], 'd'], ['Tanh', ['d'], 'y'], ...head('y'),
    ],
  },
  'a class token repeated for every row, and one kernel for two inputs': {
    input: { dtype: 'float32', shape: [2, 6] },
    weights: { token: [1, 1, 6], kernel: [2, 2, 3], 'head.weight': [3, 20], 'head.bias': [3] },
    literals: { ones: int64([1, 1]) },
    nodes: [
      ['Shape', ['input'], 'size', { start: int(0), end: int(1) }], ['Concat', ['size', 'ones'], 'target', { axis: int(0) }],
      ['Expand', ['token', 'target'], 'tokens'], ['Mul', ['tokens', 'input'], 'scaled'],
      ['Conv', ['input', 'kernel'], 'c1', { kernel_shape: ints([3]), pads: ints([1, 0]) }],
      ['Conv', ['scaled', 'kernel'], 'c2', { kernel_shape: ints([3]), pads: ints([0, 1]) }], ['Tanh', ['c1'], 't1'],
      ['Concat', ['t1', 'c2'], 'both', { axis: int(1) }], ...head('both'),
    ],
  },
};

describe('the gradients of each sketch', () => {
  // A step function jumps, and differences with it.
  it.each(Object.keys(sketches).filter((name) => !name.includes('step function')))('%s: equal differences of the loss', async (name) => {
    const sketch = sketches[name]!;
    const analysis = analyse({ model: graphOf(sketch), loss: 'cross-entropy' });
    const batch = batchOf(sketch, 1);
    const { gradients: [gradient] } = await oracle(analysis, batch);
    const direction = new Map([...parametersOf(analysis)].map(([key, t]) => [key, Float32Array.from(t.data, () => random() * 2 - 1)]));
    const slope = async (h: number) => (await lossAlong(analysis, batch, direction, h) - await lossAlong(analysis, batch, direction, -h)) / (2 * h);
    const differences = (4 * await slope(1 / 64) - await slope(1 / 32)) / 3;
    const expected = [...gradient!].reduce((sum, [key, g]) => sum + g.reduce((s, x, i) => s + x * direction.get(key)![i]!, 0), 0);
    expect(Math.abs(differences - expected)).toBeLessThan(2e-3 * Math.max(1, Math.abs(expected)));
  });
});

describe('every kind of parameter use equals the oracle', () => {
  const cases = Object.keys(sketches).flatMap((name) => modes.filter((mode) => mode !== 'non-private').map((mode): [string, Mode] => [name, mode]));
  it.each(cases)('%s, %s', async (name, mode) => {
    const sketch = sketches[name]!;
    const analysis = analyse({ model: graphOf(sketch), loss: 'cross-entropy' });
    requireTrainable(analysis);
    expect(analysis.violations.length + analysis.obstacles.length).toBe(0);
    expect(analysis.parameters.length).toBe(Object.keys(sketch.weights).length - (name.startsWith('batch norm') ? 1 : 0));
    for (const rowsPerUnit of [1, 2]) {
      const batch = batchOf(sketch, 4);
      const truth = await oracle(analysis, batch, rowsPerUnit);
      const threshold = Math.min(...truth.norms) * 0.8;
      const found = await runStep(analysis, batch, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit }, threshold);
      truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm)).toBeLessThanOrEqual(1e-4 * norm));
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, truth.norms.map((n) => threshold / n)))).toBeLessThan(1e-4);
    }
  });
});
