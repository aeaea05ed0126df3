import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { modes } from '../src/clipping/plan.ts';
import { type Attributes, type Graph, type Node, int, ints, latestOpset } from '../src/graph/ir.ts';
import { type Tensor, int64, sizeOf } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { type Batch, runStep } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

type Step = readonly [op: string, inputs: readonly string[], output: string, attributes?: Attributes];

interface Sketch {
  readonly weights: Readonly<Record<string, readonly number[]>>;
  readonly literals?: Readonly<Record<string, Tensor>>;
  /** From `x` [B, 5, 4], made of the input, to `y` [B, 5, 4]. */
  readonly nodes: readonly Step[];
}

/** Ways to use parameters other than as they are, once each. */
const sketches: Readonly<Record<string, Sketch>> = {
  'a table tied to the product behind it': {
    weights: { table: [6, 4], up: [6, 4] },
    nodes: [
      ['Gather', ['table', 'ids'], 'e'], ['Mul', ['e', 'x'], 'm'], ['Transpose', ['table'], 'turned', { perm: ints([1, 0]) }],
      ['MatMul', ['m', 'turned'], 's'], ['MatMul', ['s', 'up'], 'y'],
    ],
  },
  'slices of one weight, apart and overlapping': {
    weights: { w: [4, 12] },
    literals: { from: int64([2]), to: int64([6]), axes: int64([1]) },
    nodes: [
      ['Split', ['w'], 'a,b,c', { axis: int(1), num_outputs: int(3) }], ['Slice', ['w', 'from', 'to', 'axes'], 'd'],
      ['MatMul', ['x', 'a'], 'xa'], ['MatMul', ['x', 'c'], 'xc'], ['Mul', ['xa', 'xc'], 'm'], ['MatMul', ['m', 'd'], 'y'],
    ],
  },
  'slices of one weight, apart': {
    weights: { w: [4, 8] },
    nodes: [
      ['Split', ['w'], 'a,b', { axis: int(1), num_outputs: int(2) }], ['MatMul', ['x', 'a'], 'xa'], ['Tanh', ['xa'], 't'],
      ['MatMul', ['t', 'b'], 'tb'], ['Add', ['tb', 'x'], 'y'],
    ],
  },
  'a weight that is computed': {
    weights: { direction: [4, 4], length: [4] },
    literals: { axes: int64([0]) },
    nodes: [
      ['ReduceL2', ['direction', 'axes'], 'norms', { keepdims: int(1) }], ['Div', ['direction', 'norms'], 'unit'],
      ['Mul', ['unit', 'length'], 'w'], ['MatMul', ['x', 'w'], 'y'],
    ],
  },
  'a class token': {
    weights: { token: [1, 1, 4] },
    literals: { rest: int64([1, 4]) },
    nodes: [
      ['Shape', ['ids'], 'rows', { start: int(0), end: int(1) }], ['Concat', ['rows', 'rest'], 'target', { axis: int(0) }],
      ['Expand', ['token', 'target'], 'tokens'], ['Mul', ['tokens', 'x'], 'y'],
    ],
  },
  'a table read by the data, and by constants': {
    weights: { table: [6, 4] },
    literals: { places: int64([5, 4, 3, 2, 1]) },
    nodes: [['Gather', ['table', 'ids'], 'e'], ['Gather', ['table', 'places'], 'p'], ['Add', ['e', 'p'], 'ep'], ['Mul', ['ep', 'x'], 'y']],
  },
};

function graphOf({ weights, literals = {}, nodes }: Sketch): Graph {
  const random = testRandom(31);
  const all: readonly Step[] = [
    // Far from 0 the exponential makes of an ordinary input something whose square no float32 holds.
    ['Exp', ['input'], 'x'], ...nodes, ['Tanh', ['y'], 'bounded'], ['Flatten', ['bounded'], 'flat'],
    ['Gemm', ['flat', 'head.weight', 'head.bias'], 'logits', { transB: int(1) }],
  ];
  const shapes = { ...weights, 'head.weight': [3, 20], 'head.bias': [3] };
  return {
    name: 'sketch', opset: latestOpset, metadata: {},
    nodes: all.map(([op, inputs, output, attributes = {}], i): Node => ({ op, domain: '', name: `${op}_${i}`, inputs, outputs: output.split(','), attributes })),
    initializers: new Map<string, Tensor>([
      ...Object.entries(shapes).map(([name, shape]) => [name, randomTensor(random, shape, 0.5)] as const), ...Object.entries(literals),
    ]),
    literals: new Set(Object.keys(literals)),
    inputs: [{ name: 'ids', dtype: 'int64', shape: ['batch', 5] }, { name: 'input', dtype: 'float32', shape: ['batch', 5, 4] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
  };
}

const rows = 6;

function batchOf(spoilt: ReadonlySet<number>, value: number): Batch {
  const random = testRandom(8);
  const input = randomTensor(random, [rows, 5, 4]);
  spoilt.forEach((row) => { input.data[row * 20 + 7] = value; });
  const ids = int64(Array.from({ length: sizeOf([rows, 5]) }, () => Math.floor(random() * 6)), [rows, 5]);
  return { rows, inputs: { ids, input }, labels: randomLabels(random, rows, 3) };
}

const bits = (sums: ReadonlyMap<string, Float32Array>) => [...sums].map(([name, s]) => [name, Buffer.from(s.buffer, s.byteOffset, s.byteLength).toString('hex')]);

describe('a row that is not ordinary gives nothing to parameters in any guise', () => {
  const cases = Object.keys(sketches).flatMap((name) => modes.filter((mode) => mode !== 'non-private').map((mode) => [name, mode] as const));
  it.each(cases)('%s, %s', async (name, mode) => {
    const analysis = analyse({ model: graphOf(sketches[name]!), loss: 'cross-entropy' });
    requireTrainable(analysis);
    for (const rowsPerUnit of [1, 2]) {
      const options = { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit } as const;
      const row = 2;
      const unit = Math.floor(row / rowsPerUnit);
      const absent = Array.from({ length: rows }, (_, i) => Math.floor(i / rowsPerUnit) !== unit);
      const without = await runStep(analysis, batchOf(new Set(), 0), options, 0.05, absent);
      expect(without.weights[unit]).toBe(0);
      expect(without.weights.filter((w) => w > 0).length).toBe(rows / rowsPerUnit - 1);
      // The last is ordinary, and its loss too: only what a matrix product takes of it on the way is not.
      const multiplies = sketches[name]!.nodes.some(([op]) => op === 'MatMul');
      for (const value of [NaN, Infinity, 1e30, ...(multiplies ? [85] : [])]) {
        const found = await runStep(analysis, batchOf(new Set([row]), value), options, 0.05);
        expect(found.weights[unit]).toBe(0);
        expect(bits(found.sums)).toEqual(bits(without.sums));
      }
    }
  });

  it.each(cases.filter(([, mode]) => mode === 'ghost' || mode === 'book-keeping'))('an absent row of a unit that has another gives nothing, whatever stands in its place: %s, %s', async (name, mode) => {
    const analysis = analyse({ model: graphOf(sketches[name]!), loss: 'cross-entropy' });
    const options = { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 2 } as const;
    const present = Array.from({ length: rows }, (_, i) => i !== 2);
    const found = await Promise.all([0, NaN, 1e30, 85].map((value) => runStep(analysis, batchOf(new Set([2]), value), options, 0.05, present)));
    for (const { sums, weights, norms } of found) {
      expect(weights[1]).toBeGreaterThan(0);
      expect([...norms]).toEqual([...found[0]!.norms]);
      expect(bits(sums)).toEqual(bits(found[0]!.sums));
    }
  });
});
