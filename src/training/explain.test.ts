import { describe, expect, it } from 'vitest';
import { modes } from '../clipping/plan.ts';
import { type Attributes, type Graph, type Node, int, latestOpset } from '../graph/ir.ts';
import { buildModel } from '../models/index.ts';
import { type Tensor, float32, int64 } from '../tensor/tensor.ts';
import { explain } from './explain.ts';

const node = (name: string, op: string, inputs: readonly string[], attributes: Attributes = {}, domain = ''): Node =>
  ({ op, domain, name, inputs, outputs: [`${name}.out`], attributes });

/** A model of x [batch, 4] whose initializers are w, v [4, 4] and what is given. */
function model(nodes: readonly Node[], output: string, more: Readonly<Record<string, Tensor>> = {}): Graph {
  const square = float32(Array.from({ length: 16 }, (_, i) => Math.sin(i)), [4, 4]);
  return {
    name: 'model', opset: latestOpset, metadata: {}, nodes,
    inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 4] }],
    outputs: [{ name: output, dtype: 'float32', shape: null }],
    initializers: new Map(Object.entries({ w: square, v: square, ...more })),
    literals: new Set(Object.keys(more)),
  };
}

const layer = (name: string, from: string, weight: string): Node => node(name, 'MatMul', [from, weight]);

describe('what is not supported', () => {
  it('is told all at once, in the order of the model, with reasons that teach', () => {
    const { unsupported, batchIndependent, layers } = explain({ model: model([
      layer('first', 'x', 'w'),
      node('norm', 'BatchNormalization', ['first.out', 'ones', 'ones', 'ones', 'ones'], { training_mode: int(1) }),
      node('draw', 'RandomNormalLike', ['norm.out']),
      node('own', 'Whiten', ['draw.out'], {}, 'acme'),
      node('twice', 'Whiten', ['own.out'], {}, 'acme'),
      layer('last', 'twice.out', 'v'),
    ], 'last.out', { ones: float32([1, 1, 1, 1]) }) });
    expect(unsupported.map(({ node: name, operator }) => [name, operator])).toEqual([
      ['norm', 'BatchNormalization'], ['draw', 'RandomNormalLike'], ['own', 'Whiten'], ['twice', 'Whiten'],
    ]);
    const [norm, draw, own] = unsupported;
    expect(draw?.reason).toMatch(/random numbers/);
    expect(own?.reason).toMatch(/"acme" are known to its makers/);
    expect(norm?.reason).toMatch(/statistics of its batch/);
    for (const { fix } of unsupported) expect(fix).not.toBe('');
    expect({ batchIndependent, layers }).toEqual({ batchIndependent: false, layers: [] });
  });

  it('counts only where the loss depends on it', () => {
    const branch = [layer('main', 'x', 'w'), node('side', 'Whiten', ['main.out'], {}, 'acme')];
    expect(explain({ model: model(branch, 'main.out') })).toMatchObject({ unsupported: [], batchIndependent: true });
    expect(explain({ model: { ...model(branch, 'side.out'), outputs: ['main.out', 'side.out'].map((name) =>
      ({ name, dtype: 'float32', shape: null })) }, output: 'main.out' })).toMatchObject({ unsupported: [] });
  });

  it('says where no gradient has to flow through it', () => {
    const prefix = model([node('own', 'Whiten', ['x'], {}, 'acme'), layer('head', 'own.out', 'w')], 'head.out');
    expect(explain({ model: prefix }).unsupported).toMatchObject([
      { node: 'own', reason: expect.stringMatching(/nothing that is trained lies before/) as string,
        fix: expect.stringMatching(/compute "own.out" outside the model/) as string },
    ]);
    const trained = model([layer('first', 'x', 'v'), ...prefix.nodes.map((n) => (n.name === 'own' ? { ...n, inputs: ['first.out'] } : n))], 'head.out');
    expect(explain({ model: trained }).unsupported[0]?.reason).not.toMatch(/nothing that is trained/);
    expect(explain({ model: trained, trainable: ['w'] }).unsupported[0]?.reason).toMatch(/nothing that is trained/);
  });

  it('depends on attributes, too', () => {
    const ones = float32([1, 1, 1, 1]);
    const normalised = (training: number) => explain({
      model: model([
        layer('first', 'x', 'w'), node('norm', 'BatchNormalization', ['first.out', 'ones', 'ones', 'ones', 'ones'], { training_mode: int(training) }),
      ], 'norm.out', { ones }),
    });
    expect(normalised(0)).toMatchObject({ unsupported: [], batchIndependent: true });
    expect(normalised(1)).toMatchObject({
      unsupported: [{ node: 'norm', reason: expect.stringMatching(/statistics of its batch/) as string }],
      violations: [{ node: 'norm', axis: 0 }],
    });
  });

  it('includes every node whose operands do not fit', () => {
    const { unsupported } = explain({ model: model([
      layer('first', 'x', 'narrow'), layer('second', 'x', 'narrow'), node('sum', 'Add', ['first.out', 'second.out']),
    ], 'sum.out', { narrow: float32([1, 2, 3], [3, 1]) }) });
    expect(unsupported).toMatchObject([
      { node: 'first', operator: 'MatMul', reason: expect.stringMatching(/cannot take these operands/) as string }, { node: 'second' },
    ]);
  });

  it('does not hide where examples mix in the part that is understood', () => {
    const { unsupported, violations } = explain({ model: model([
      layer('first', 'x', 'w'), node('mixer', 'Softmax', ['first.out'], { axis: int(0) }), node('own', 'Whiten', ['mixer.out'], {}, 'acme'),
    ], 'own.out') });
    expect(unsupported).toMatchObject([{ node: 'own' }]);
    expect(violations).toMatchObject([{ node: 'mixer', axis: 0 }]);
  });
});

describe('the loss', () => {
  const loss = (output: string, nodes: readonly Node[], more = {}) => explain({ model: model(nodes, output, more) }).loss;

  it('fits the output where none is given', () => {
    expect(loss('a.out', [layer('a', 'x', 'w')])).toEqual({ name: 'cross-entropy', output: 'a.out' });
    expect(loss('one.out', [node('one', 'Unsqueeze', ['x', 'axes'])], { axes: int64([2]) }).name).toBe('mse');
  });

  it('is taken of real numbers, where a model puts out others as well', () => {
    const several = { ...model([layer('a', 'x', 'w'), node('class', 'ArgMax', ['a.out'])], 'a.out'), outputs: [
      { name: 'class.out', dtype: 'int64' as const, shape: null }, { name: 'a.out', dtype: 'float32' as const, shape: null },
    ] };
    expect(explain({ model: several })).toMatchObject({ loss: { output: 'a.out' }, unsupported: [], batchIndependent: true });
  });
});

describe('the plan', () => {
  it('tells where the batch moves', () => {
    const { batchMoves } = explain({ model: model([
      node('turn', 'Transpose', ['x']), node('back', 'Transpose', ['turn.out']), layer('a', 'back.out', 'w'),
    ], 'a.out') });
    expect(batchMoves).toEqual([
      { node: 'turn', operator: 'Transpose', axis: 1, before: 1, after: 1 },
      { node: 'back', operator: 'Transpose', axis: 0, before: 1, after: 1 },
    ]);
  });

  it('never gains arithmetic by privacy, and adds none without', () => {
    const shares = modes.map((mode) => [mode, explain({ model: buildModel('cnn-tanh'), mode }).plan.extraFlopShare] as const);
    for (const [mode, share] of shares) {
      if (mode === 'non-private') expect(share).toBe(0);
      else expect(share).toBeGreaterThan(0);
    }
    const share = new Map(shares);
    expect(share.get('ghost')).toBeGreaterThan(share.get('book-keeping')!);
  });
});
