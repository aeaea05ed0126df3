import { describe, expect, it } from 'vitest';
import { graphOf, node, runGraph, value } from '../../test/graph/onnxruntime.ts';
import { randomTensor, rowsOf, testRandom } from '../../test/support/random-network.ts';
import { type Graph, type Node, type ValueInfo, int, ints, string } from '../graph/ir.ts';
import { verify } from '../graph/verify.ts';
import { type Tensor, int64, zeros } from '../tensor/tensor.ts';
import { analyse } from '../training/compile.ts';
import { withFreeBatch } from './rebatch.ts';

const random = testRandom(3);
const weights = (...shape: number[]): Tensor => randomTensor(random, shape, 0.5);
const sizes = (...values: number[]): Tensor => int64(values);

/** A model for one example; integers are literals, the others parameters. */
const single = (
  inputs: readonly ValueInfo[], output: ValueInfo, nodes: readonly Node[], tensors: Readonly<Record<string, Tensor>>,
): Graph => graphOf({
  inputs, outputs: [output], nodes, initializers: new Map(Object.entries(tensors)),
  literals: new Set(Object.keys(tensors).filter((name) => tensors[name]!.dtype === 'int64')),
});

/** For one example the same as before, to the bit; for several, the same for each; and proved. */
async function expectFree(model: Graph, rows: Readonly<Record<string, Tensor>>, count = 3): Promise<Graph> {
  const free = withFreeBatch(model);
  verify(free);
  expect(withFreeBatch(free)).toBe(free);
  const name = model.outputs[0]!.name;
  expect(free.inputs.every(({ shape }) => shape?.[0] === 'batch')).toBe(true);
  const all = await runGraph(free, rows);
  const width = all[name]!.values.length / count;
  for (let i = 0; i < count; i++) {
    const one = Object.fromEntries(Object.entries(rows).map(([input, t]) => [input, rowsOf(t, i, 1)]));
    const before = (await runGraph(model, one))[name]!;
    expect((await runGraph(free, one))[name]).toEqual(before);
    all[name]!.values.slice(i * width, (i + 1) * width).forEach((x, k) => expect(x).toBeCloseTo(before.values[k]!, 5));
  }
  const analysis = analyse({
    model: free, loss: 'mse',
    exampleShapes: Object.fromEntries(Object.entries(rows).map(([input, t]) => [input, t.shape.slice(1)])),
  });
  expect(analysis.violations).toEqual([]);
  return free;
}

describe('withFreeBatch', () => {
  it('frees a convolutional network that flattens to [1, -1]', async () => {
    const model = single([value('x', [1, 2, 4, 4])], value('y', [1, 3]), [
      node('Conv', ['x', 'k'], ['c'], { pads: ints([1, 1, 1, 1]) }), node('Reshape', ['c', 'groups'], ['g']),
      node('Relu', ['g'], ['r']), node('Reshape', ['r', 'flat'], ['f']), node('MatMul', ['f', 'w'], ['y']),
    ], { k: weights(4, 2, 3, 3), groups: sizes(1, 2, 2, 16), flat: sizes(1, -1), w: weights(64, 3) });
    const free = await expectFree(model, { x: weights(3, 2, 4, 4) });
    expect(free.outputs[0]!.shape).toEqual(['batch', 3]);
    expect(free.initializers.get('k')).toBe(model.initializers.get('k'));
  });

  it('frees a transformer with heads, a class token and positions', async () => {
    const heads = (from: string, to: string): Node[] => [
      node('Reshape', [from, 'heads'], [`${to}/h`]), node('Transpose', [`${to}/h`], [to], { perm: ints([0, 2, 1, 3]) }),
    ];
    const model = single([value('ids', [1, 4], 'int64')], value('y', [1, 2]), [
      node('Gather', ['table', 'ids'], ['e']), node('Expand', ['token', 'one'], ['t']),
      node('Concat', ['t', 'e'], ['s'], { axis: int(1) }), node('Add', ['s', 'positions'], ['p']),
      node('MatMul', ['p', 'wq'], ['q0']), node('MatMul', ['p', 'wv'], ['v0']), ...heads('q0', 'q'), ...heads('v0', 'v'),
      node('Transpose', ['q'], ['qt'], { perm: ints([0, 1, 3, 2]) }), node('MatMul', ['q', 'qt'], ['a']),
      node('Softmax', ['a'], ['b'], { axis: int(-1) }), node('MatMul', ['b', 'v'], ['c']),
      node('Transpose', ['c'], ['d'], { perm: ints([0, 2, 1, 3]) }), node('Reshape', ['d', 'joined'], ['j']),
      node('Reshape', ['j', 'merged'], ['m']), node('MatMul', ['m', 'wo'], ['o']), node('Reshape', ['o', 'joined'], ['n']),
      node('Slice', ['n', 'zero', 'first', 'axis1'], ['f']), node('Reshape', ['f', 'features'], ['g']), node('MatMul', ['g', 'head'], ['y']),
    ], {
      table: weights(9, 6), token: weights(1, 1, 6), one: sizes(1, 1, 6), positions: weights(1, 5, 6), wq: weights(6, 6), wv: weights(6, 6),
      heads: sizes(1, 5, 2, 3), joined: sizes(1, 5, 6), merged: sizes(5, 6), wo: weights(6, 6), zero: sizes(0), first: sizes(1),
      axis1: sizes(1), features: sizes(-1, 6), head: weights(6, 2),
    });
    await expectFree(model, { ids: int64([1, 2, 3, 4, 8, 0, 0, 5, 6, 6, 2, 1], [3, 4]) });
  });

  it('frees time-first layers, first states and the last step', async () => {
    const model = single([value('x', [1, 3, 2])], value('y', [1, 4]), [
      node('Transpose', ['x'], ['t'], { perm: ints([1, 0, 2]) }), node('LSTM', ['t', 'w', 'r', 'b', '', 'h', 'c'], ['all'], { hidden_size: int(4) }),
      node('Reshape', ['all', 'steps'], ['s']), node('Gather', ['s', 'last'], ['y'], { axis: int(0) }),
    ], {
      w: weights(1, 16, 2), r: weights(1, 16, 4), b: weights(1, 32), h: weights(1, 1, 4), c: zeros('float32', [1, 1, 4]), steps: sizes(3, 1, 4),
      last: int64([2], []),
    });
    await expectFree(model, { x: weights(3, 3, 2) });
  });

  it('frees sizes of a Resize, slices of the whole batch, and shapes that the model computes', async () => {
    const model = single([value('x', [1, 2, 2, 2])], value('y', [1, 16]), [
      node('Resize', ['x', '', '', 'large'], ['r'], { mode: string('nearest') }), node('Slice', ['r', 'zero', 'one'], ['s']),
      node('Conv', ['s', 'k'], ['c']), node('Shape', ['c'], ['shape']), node('Slice', ['shape', 'one', 'four'], ['tail']),
      node('ReduceProd', ['tail'], ['count'], { keepdims: int(1) }), node('Concat', ['one', 'count'], ['flat'], { axis: int(0) }),
      node('Reshape', ['c', 'flat'], ['y']),
    ], { large: sizes(1, 2, 4, 4), zero: sizes(0), one: sizes(1), four: sizes(4), k: weights(1, 2, 1, 1) });
    await expectFree(model, { x: weights(3, 2, 2, 2) });
  });

  it('keeps open dimensions open', async () => {
    const model = single([value('x', [1, 'time', 4])], value('y', [1, 'time', 4]), [
      node('Reshape', ['x', 'heads'], ['h']), node('Transpose', ['h'], ['t'], { perm: ints([0, 2, 1, 3]) }),
      node('Transpose', ['t'], ['u'], { perm: ints([0, 2, 1, 3]) }), node('Reshape', ['u', 'joined'], ['j']), node('MatMul', ['j', 'w'], ['y']),
    ], { heads: sizes(1, -1, 2, 2), joined: sizes(1, -1, 4), w: weights(4, 4) });
    for (const time of [2, 7]) await expectFree(model, { x: weights(3, time, 4) });
    expect(withFreeBatch(model).outputs[0]!.shape).toEqual(['batch', 'time', 4]);
  });

  it('leaves examples that mix to the proof', () => {
    const model = single([value('x', [1, 3, 4])], value('y', [1, 3, 4]), [
      node('Softmax', ['x'], ['s'], { axis: int(0) }), node('MatMul', ['s', 'w'], ['y']),
    ], { w: weights(4, 4) });
    expect(analyse({ model: withFreeBatch(model), loss: 'mse' }).violations).toMatchObject([{ operator: 'Softmax' }]);
  });

  it('names the node that takes the batch axis away', () => {
    const model = (nodes: Node[], tensors: Record<string, Tensor> = {}): Graph =>
      single([value('x', [1, 4])], value('y', null), [...nodes, node('MatMul', ['m', 'w'], ['y'])], { ...tensors, w: weights(4, 2) });
    for (const squeezing of [
      model([node('Squeeze', ['x', 'axes'], ['m'])], { axes: sizes(0) }), model([node('Squeeze', ['x'], ['m'])]),
      model([node('Gather', ['x', 'first'], ['m'])], { first: int64([0], []) }),
    ]) {
      expect(() => withFreeBatch(squeezing)).toThrow(/batch of one example[^]*(Squeeze|Gather) node[^]*dynamic batch axis/);
    }
  });

  it('leaves other models as they are', () => {
    const free = single([value('x', ['n', 4])], value('y', null), [node('Relu', ['x'], ['y'])], {});
    expect(withFreeBatch(free)).toBe(free);
    const unknown = single([value('x', [1, 4])], value('y', null), [node('NoSuchOperator', ['x'], ['y'])], {});
    expect(withFreeBatch(unknown)).toBe(unknown);
  });
});
