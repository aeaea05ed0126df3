import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { type Mode, modes } from '../src/clipping/plan.ts';
import { type Attributes, type Graph, type Node, float, int, ints, latestOpset } from '../src/graph/ir.ts';
import { type Tensor, int64, sizeOf } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
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
    nodes: nodes.map(([op, inputs, output, attributes = {}], i): Node => ({ op, domain: '', name: `${op}_${i}`, inputs, outputs: [output], attributes })),
    initializers: new Map<string, Tensor>([...drawn, ...Object.entries(literals)]), literals: new Set(Object.keys(literals)),
    inputs: [{ name: 'input', dtype: input.dtype, shape: ['batch', ...input.shape] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
  };
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
  'convolutions of one and three axes': {
    input: { dtype: 'float32', shape: [2, 3, 4, 4] },
    weights: { w3: [4, 2, 2, 2, 2], b3: [4], w1: [6, 2, 3], b1: [6], 'head.weight': [3, 108], 'head.bias': [3] },
    literals: { shape: int64([0, 4, 18]) },
    nodes: [
      ['Conv', ['input', 'w3', 'b3'], 'c3', { kernel_shape: ints([2, 2, 2]) }], ['Tanh', ['c3'], 't'],
      ['Reshape', ['t', 'shape'], 's'], ['Conv', ['s', 'w1', 'b1'], 'c1', { kernel_shape: ints([3]), pads: ints([1, 1]), group: int(2) }], ...head('c1'),
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
};
describe('every kind of parameter use equals the oracle', () => {
  const cases = Object.keys(sketches).flatMap((name) => modes.filter((mode) => mode !== 'non-private').map((mode): [string, Mode] => [name, mode]));
  it.each(cases)('%s, %s', async (name, mode) => {
    const sketch = sketches[name]!;
    const analysis = analyse({ model: graphOf(sketch), loss: 'cross-entropy' });
    requireTrainable(analysis);
    expect(analysis.parameters.length).toBe(Object.keys(sketch.weights).length - (name.startsWith('batch norm') ? 1 : 0));
    for (const rowsPerUnit of [1, 2]) {
      const rows = 4;
      const shape = [rows, ...sketch.input.shape];
      const input = sketch.input.dtype === 'int64'
        ? int64(Array.from({ length: sizeOf(shape) }, () => Math.floor(random() * 6)), shape)
        : randomTensor(random, shape);
      const batch: Batch = { rows, inputs: { input }, labels: randomLabels(random, rows, 3) };
      const truth = await oracle(analysis, batch, rowsPerUnit);
      const threshold = Math.min(...truth.norms) * 0.8;
      const found = await runStep(analysis, batch, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit }, threshold);
      truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm)).toBeLessThanOrEqual(1e-4 * norm));
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, truth.norms.map((n) => threshold / n)))).toBeLessThan(1e-4);
    }
  });
});
