import { describe, expect, it } from 'vitest';
import { type Attributes, type Graph, int, ints, latestOpset } from '../src/graph/ir.ts';
import { type Tensor, int64 } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(2);

type Step = readonly [op: string, inputs: readonly string[], output: string, attributes?: Attributes];

/** input [batch, 6] → product `p` [batch, 3] → the steps, ending in `m` → logits = p + m, with a weight behind it. */
function withMiddle(steps: readonly Step[], literals: Readonly<Record<string, Tensor>> = {}): Graph {
  return {
    name: 'middle', opset: latestOpset, metadata: {},
    initializers: new Map<string, Tensor>([['w', randomTensor(random, [6, 3])], ...Object.entries(literals)]),
    literals: new Set(Object.keys(literals)),
    inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', 6] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
    nodes: [
      { op: 'MatMul', domain: '', name: 'product', inputs: ['input', 'w'], outputs: ['p'], attributes: {} },
      ...steps.map(([op, inputs, output, attributes = {}], i) => ({ op, domain: '', name: `step${i}`, inputs, outputs: [output], attributes })),
      { op: 'Add', domain: '', name: 'end', inputs: ['p', 'm'], outputs: ['logits'], attributes: {} },
    ],
  };
}

const violationsOf = (model: Graph) => analyse({ model, loss: 'cross-entropy' }).violations;

describe('operators that let examples mix are refused by name', () => {
  it.each<[string, Graph]>([
    ['a mean over the batch', withMiddle([['ReduceMean', ['p', 'axes'], 'm']], { axes: int64([0]) })],
    ['the same by a negative axis', withMiddle([['ReduceSum', ['p', 'axes'], 'm']], { axes: int64([-2]) })],
    ['a softmax over the batch', withMiddle([['Softmax', ['p'], 'm', { axis: int(0) }]])],
    ['a cumulative sum over the batch', withMiddle([['CumSum', ['p', 'axis'], 'm']], { axis: int64([0], []) })],
    ['a softmax where a transposition put the batch', withMiddle([
      ['Transpose', ['p'], 't', { perm: ints([1, 0]) }], ['Softmax', ['t'], 's', { axis: int(-1) }], ['Transpose', ['s'], 'm', { perm: ints([1, 0]) }],
    ])],
    ['a reshape across rows', withMiddle([
      ['Reshape', ['p', 'shape'], 'r'], ['Transpose', ['r'], 'm', { perm: ints([1, 0]) }],
    ], { shape: int64([3, -1]) })],
    ['the first row for all', withMiddle([['Gather', ['p', 'first'], 'm', { axis: int(0) }]], { first: int64([0]) })],
    ['rows moved by one', withMiddle([
      ['Slice', ['p', 'one', 'end', 'axis'], 's'], ['Pad', ['s', 'pads'], 'm'],
    ], { one: int64([1]), end: int64([1_000_000]), axis: int64([0]), pads: int64([0, 0, 1, 0]) })],
  ])('%s', (_, model) => {
    const violations = violationsOf(model);
    expect(violations.length).toBeGreaterThan(0);
    expect(() => requireTrainable(analyse({ model, loss: 'cross-entropy' }))).toThrow(/lets examples mix/);
  });

  it('a fixed dimension that is a multiple of a proof\'s batch size is not taken for the batch', () => {
    // [B, 2018] as [2018, B] and back: at B = 1009, and at that size alone, rows seem to stay rows.
    const model: Graph = {
      name: 'coincidence', opset: latestOpset, metadata: {},
      initializers: new Map<string, Tensor>([['w', randomTensor(random, [2018, 3])], ['there', int64([2018, -1])], ['back', int64([-1, 2018])]]),
      literals: new Set(['there', 'back']),
      inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', 2018] }],
      outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
      nodes: [
        { op: 'Reshape', domain: '', name: 'there', inputs: ['input', 'there'], outputs: ['t'], attributes: {} },
        { op: 'Softmax', domain: '', name: 'softmax', inputs: ['t'], outputs: ['s'], attributes: { axis: int(1) } },
        { op: 'Reshape', domain: '', name: 'back', inputs: ['s', 'back'], outputs: ['b'], attributes: {} },
        { op: 'MatMul', domain: '', name: 'product', inputs: ['b', 'w'], outputs: ['logits'], attributes: {} },
      ],
    };
    expect(violationsOf(model).map(({ node }) => node)).toContain('there');
  });

  it('what keeps rows apart is proved', () => {
    expect(violationsOf(withMiddle([['Softmax', ['p'], 'm', { axis: int(-1) }]]))).toEqual([]);
    expect(violationsOf(withMiddle([['Reshape', ['p', 'shape'], 'm']], { shape: int64([-1, 3]) }))).toEqual([]);
  });
});
