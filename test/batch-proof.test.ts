import { describe, expect, it } from 'vitest';
import { type Attributes, type Graph, type Node, int, ints, latestOpset, string } from '../src/graph/ir.ts';
import { type Tensor, int64 } from '../src/tensor/tensor.ts';
import { analyse, compileTask, requireTrainable } from '../src/training/compile.ts';
import { randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(2);

type Step = readonly [op: string, inputs: readonly string[], output: string, attributes?: Attributes];

const nodesOf = (steps: readonly Step[]): Node[] => steps.map(([op, inputs, output, attributes = {}], i) =>
  ({ op, domain: '', name: `step${i}`, inputs, outputs: [output], attributes }));

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
      ...nodesOf(steps),
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

/** The batch size as an int64 scalar `B`. */
const batchSize: readonly Step[] = [['Shape', ['input'], 'shape', { end: int(1) }], ['Squeeze', ['shape'], 'B']];
const options = { mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, rho: 1e-3, rowsPerUnit: 1 } as const;

describe('what a row computes may not depend on how many rows are computed with it', () => {
  it('a loss divided by the batch size is refused', () => {
    const model = withMiddle([...batchSize, ['Cast', ['B'], 'b', { to: int(1) }], ['Div', ['p', 'b'], 'm']]);
    expect(violationsOf(model)).toMatchObject([{ operator: 'Div', reason: expect.stringMatching(/size of the batch/) as string }]);
  });

  it('so is one that differs only at sizes smaller than those of the proof', () => {
    // min(B, 100) is 100 at both.
    const model = withMiddle([
      ...batchSize, ['Min', ['B', 'hundred'], 'least'], ['Cast', ['least'], 'b', { to: int(1) }], ['Div', ['p', 'b'], 'm'],
    ], { hundred: int64([100], []) });
    const analysis = analyse({ model, loss: 'cross-entropy' });
    expect(() => compileTask(analysis, 64, options)).toThrow(/size of the batch/);
    expect(() => compileTask(analysis, 128, options)).not.toThrow();
  });

  it('and features cut off after as many as there are rows', () => {
    const model = withMiddle([
      ...batchSize, ['Unsqueeze', ['B', 'axis0'], 'end'], ['Slice', ['input', 'start', 'end', 'axis'], 's'],
      ['ReduceSum', ['s', 'axis'], 'm'],
    ], { axis0: int64([0]), start: int64([0]), axis: int64([1]) });
    const analysis = analyse({ model, loss: 'cross-entropy' });
    expect(() => compileTask(analysis, 4, options)).toThrow(/size of the batch/);
    expect(() => compileTask(analysis, 8, options)).not.toThrow();
  });

  it('a Squeeze of no named axes, which takes the batch away where it is one row', () => {
    const model = withMiddle([['Unsqueeze', ['p', 'axis1'], 'u'], ['Squeeze', ['u'], 'm']], { axis1: int64([1]) });
    const analysis = analyse({ model, loss: 'cross-entropy' });
    expect(() => compileTask(analysis, 1, options)).toThrow(/size of the batch/);
    expect(() => compileTask(analysis, 2, options)).not.toThrow();
  });

  it('shapes may follow from the batch size, and so may a constant that is alike in every row', () => {
    const model = withMiddle([
      ['Shape', ['p'], 'whole'], ['ConstantOfShape', ['whole'], 'zeros'], ['Add', ['p', 'zeros'], 's'], ['Reshape', ['s', 'whole'], 'm'],
    ]);
    expect(violationsOf(model)).toEqual([]);
    expect(() => compileTask(analyse({ model, loss: 'cross-entropy' }), 4, options)).not.toThrow();
  });

  it('a table may be looked up at positions that are those of every row, as zeros_like and expand_as make them', () => {
    const { initializers, ...rest } = withMiddle([
      ['Shape', ['p'], 'whole'], ['ConstantOfShape', ['whole'], 'zeros', { value: { type: 'tensor', value: int64([0]) } }],
      ['Gather', ['table', 'zeros'], 'rows'], ['ReduceSum', ['rows', 'axis'], 'm', { keepdims: int(0) }],
    ], { axis: int64([2]) });
    const model: Graph = { ...rest, initializers: new Map([...initializers, ['table', randomTensor(random, [2, 4])]]) };
    const analysis = analyse({ model, loss: 'cross-entropy' });
    expect(analysis.violations).toEqual([]);
    expect(analysis.parameters).toContain('table');
    expect(() => compileTask(analysis, 4, options)).not.toThrow();
  });

  it('but not at positions that tell the rows apart', () => {
    const { initializers, ...rest } = withMiddle([
      ...batchSize, ['Range', ['zero', 'B', 'one'], 'places'], ['Gather', ['table', 'places'], 'm'],
    ], { zero: int64([0], []), one: int64([1], []) });
    const model: Graph = { ...rest, initializers: new Map([...initializers, ['table', randomTensor(random, [2000, 3])]]) };
    expect(violationsOf(model).length).toBeGreaterThan(0);
  });

  it('equal rows are equal rows also where they are too many to be folded', () => {
    const model = withMiddle([
      ['Shape', ['p'], 'whole'], ['Concat', ['whole', 'features'], 'large', { axis: int(0) }], ['ConstantOfShape', ['large'], 'zeros'],
      ['ReduceSum', ['zeros', 'axis'], 'sums', { keepdims: int(0) }], ['Add', ['p', 'sums'], 'm'],
    ], { features: int64([1000]), axis: int64([2]) });
    expect(violationsOf(model)).toEqual([]);
    expect(() => compileTask(analyse({ model, loss: 'cross-entropy' }), 4, options)).not.toThrow();
  });

  it('so is a first state of a recurrent layer, which has the same nodes at every batch size', () => {
    const model: Graph = {
      name: 'recurrent', opset: latestOpset, metadata: {},
      initializers: new Map<string, Tensor>([
        ['W', randomTensor(random, [1, 4 * 520, 2])], ['R', randomTensor(random, [1, 4 * 520, 520])], ['w', randomTensor(random, [520, 3])],
        ['one', int64([2])], ['rest', int64([520])], ['axis0', int64([0])], ['end', int64([1])],
      ]),
      literals: new Set(['one', 'rest', 'axis0', 'end']),
      inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', 2, 2] }],
      outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
      nodes: nodesOf([
        ['Transpose', ['input'], 'x', { perm: ints([1, 0, 2]) }], ['Shape', ['input'], 'rows', { end: int(1) }],
        ['Concat', ['one', 'rows', 'rest'], 'size', { axis: int(0) }], ['ConstantOfShape', ['size'], 'zeros'],
        ['Slice', ['zeros', 'axis0', 'end', 'axis0'], 'h0'],
      ]).concat([
        { op: 'LSTM', domain: '', name: 'lstm', inputs: ['x', 'W', 'R', '', '', 'h0', 'h0'], outputs: ['', 'h'], attributes: { hidden_size: int(520) } },
        { op: 'Squeeze', domain: '', name: 'squeeze', inputs: ['h', 'axis0'], outputs: ['last'], attributes: {} },
        { op: 'MatMul', domain: '', name: 'product', inputs: ['last', 'w'], outputs: ['logits'], attributes: {} },
      ]),
    };
    const analysis = analyse({ model, loss: 'cross-entropy' });
    expect(analysis.violations).toEqual([]);
    expect(() => compileTask(analysis, 4, options)).not.toThrow();
  });

  it('sizes that an image is resized to may name the batch', () => {
    const model = withMiddle([
      ['Unsqueeze', ['p', 'axis1'], 'u'], ['Shape', ['p'], 'whole', { end: int(1) }], ['Concat', ['whole', 'size'], 'sizes', { axis: int(0) }],
      ['Resize', ['u', '', '', 'sizes'], 'r', { mode: string('nearest'), coordinate_transformation_mode: string('asymmetric') }],
      ['ReduceMean', ['r', 'axis1'], 'm1', { keepdims: int(0) }], ['Slice', ['m1', 'zero', 'three', 'axis1'], 'm'],
    ], { axis1: int64([1]), size: int64([1, 6]), zero: int64([0]), three: int64([3]) });
    expect(violationsOf(model)).toEqual([]);
    expect(() => compileTask(analyse({ model, loss: 'cross-entropy' }), 4, options)).not.toThrow();
  });

  it('an output that is the same for however many examples has no loss for each', () => {
    const { initializers, ...rest } = withMiddle([['Identity', ['input'], 'm']]);
    const model: Graph = {
      ...rest, initializers: new Map([...initializers, ['guess', randomTensor(random, [1, 3])]]),
      outputs: [{ name: 'guess', dtype: 'float32', shape: [1, 3] }], nodes: [],
    };
    expect(() => analyse({ model, loss: 'mse' })).toThrow(/one value for each example/);
  });
});
