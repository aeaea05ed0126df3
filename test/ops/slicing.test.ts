import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int, string } from '../../src/graph/ir.ts';
import { type slicing } from '../../src/ops/slicing.ts';
import { float32, int64 } from '../../src/tensor/tensor.ts';
import { batchPlace, list, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkFold, checkGradient, checkTypes } from '../support/gradient-check.ts';
import { type Operand, type Sample, build, constantOperand, floats } from '../support/operator-sample.ts';
import { type OperatorCase, batchedOperand, describeOperators, dimensions } from '../support/operator-suite.ts';

type Name = keyof typeof slicing;

const anAxis = (x: Operand) => fc.integer({ min: -x.value.shape.length, max: x.value.shape.length - 1 });

const concatenations: fc.Arbitrary<Sample> = fc.record({ shape: dimensions({ min: 1, max: 4 }),
  sizes: fc.array(fc.constantFrom(1, 2, 3), { minLength: 1, maxLength: 3 }) })
  .chain(({ shape, sizes }) =>
    fc.tuple(batchPlace(shape.map((_, i) => i)), fc.integer({ min: -shape.length, max: shape.length - 1 }),
    list(sizes.length, 0, 3))
    .chain(([at, axis, kinds]) => {
      const full = withRows(shape, at);
      const along = axis < 0 ? axis + shape.length : axis;
      // Kind 0 does not carry the batch: it is refused unless every row says the same.
      return fc.tuple(...sizes.map((size, i) => floats(full.map((n, a) => (a === along && a !== at.axis ? size : n)))
        .map((value): Operand => ({ value, batch: kinds[i] === 0 && i > 0 ? undefined : at }))))
        .map((inputs) => ({ op: 'Concat', inputs, attributes: { axis: int(axis) } }));
    }));

const splits: fc.Arbitrary<Sample> = batchedOperand().chain((x) => anAxis(x).chain((axis) => {
  const size = x.value.shape.at(axis)!;
  const even = fc.integer({ min: 1, max: size }).filter((n) => Math.ceil(size / n) * (n - 1) < size)
    .map((n): Sample => ({ op: 'Split', inputs: [x], outputs: n,
      attributes: { axis: int(axis), num_outputs: int(n) } }));
  const uneven = fc.integer({ min: 0, max: size }).map((n): Sample =>
    ({ op: 'Split', inputs: [x, constantOperand(int64([n, size - n]))], outputs: 2, attributes: { axis: int(axis) } }));
  return fc.oneof(even, uneven);
}));

const slices: fc.Arbitrary<Sample> = batchedOperand()
  .chain((x) => fc.uniqueArray(fc.nat({ max: x.value.shape.length - 1 }), { minLength: 1, maxLength: 2 })
  .chain((axes) => fc.tuple(list(axes.length, -9, 9), list(axes.length, -9, 9),
    fc.array(fc.constantFrom(1, 1, 2, 3, -1, -2), { minLength: axes.length, maxLength: axes.length }), fc.boolean(),
    fc.boolean())
    .map(([starts, ends, steps, stepped, back]): Sample => ({
      op: 'Slice',
      inputs: [x, ...[starts, ends, back ? axes.map((a) => a - x.value.shape.length) : axes,
        ...(stepped ? [steps] : [])].map((v) => constantOperand(int64(v)))],
    }))))
  // An empty slice has no rows to tell apart.
  .filter((sample) => build(sample).b.shape('y0').every((n) => n > 0));

/** Reflection needs at least two entries, and no more padding than there are entries beside the border. */
const paddings: fc.Arbitrary<Sample> = batchedOperand().chain((x) => fc.tuple(
  fc.constantFrom('constant', 'constant', 'edge', 'reflect', 'wrap'), list(2 * x.value.shape.length, -1, 2),
    fc.boolean(), fc.boolean(), fc.constantFrom(0, 0, 1),
).map(([mode, drawn, valued, listed, everywhere]): Sample => {
  const rank = x.value.shape.length;
  const pads = drawn.map((n, i) => {
    const [axis, size] = [i % rank, x.value.shape[i % rank]!];
    if (axis === x.batch?.axis && everywhere === 0) return 0;
    const low = mode === 'constant' && size > 2 ? n : Math.max(0, n);
    return mode === 'reflect' || mode === 'wrap' ? Math.min(low, size - 1) : low;
  });
  return {
    op: 'Pad', attributes: { mode: string(mode) },
    inputs: [x, constantOperand(int64(pads)), valued && mode === 'constant' ? { value: float32([3], []) }
      : undefined,
      ...(listed ? [constantOperand(int64(x.value.shape.map((_, i) => i - rank)))] : [])],
  };
}));

const cases: Readonly<Record<Name, OperatorCase>> = {
  Concat: { samples: concatenations }, Split: { samples: splits }, Slice: { samples: slices },
    Pad: { samples: paddings },
};

describeOperators(cases, 60);

describe('the batch', () => {
  const whole = [{ axis: 0, before: 1, after: 1 }];
  const cut = (x: Operand, start: number, end: number, step = 1): Sample =>
    ({ op: 'Slice', inputs: [x, ...[start, end, 0, step].map((n) => constantOperand(int64([n])))] });

  it('may be sliced only as a whole', () => {
    const x = operandAt([5, 4], 0);
    expect(says(cut(x, 0, 2 ** 53))).toEqual(whole);
    expect(says(cut(x, -5, 5))).toEqual(whole);
    for (const part of [cut(x, 0, 4), cut(x, 1, 5), cut(x, 0, 5, 2), cut(x, -1, -9, -1)]) {
      expect(says(part)).toMatchObject(refusal(/takes a part of axis 0/));
    }
  });

  it('may be neither joined, nor split, nor padded', () => {
    const x = operandAt([5, 4], 0);
    expect(says({ op: 'Concat', inputs: [x, x], attributes: { axis: int(-2) } }))
      .toMatchObject(refusal(/joins values along axis 0/));
    expect(says({ op: 'Split', inputs: [x], outputs: 1, attributes: { num_outputs: int(1) } }))
      .toMatchObject(refusal(/splits axis 0/));
    expect(says({ op: 'Pad', inputs: [x, constantOperand(int64([1, 0, 0, 0]))] }))
      .toMatchObject(refusal(/pads axis 0/));
    expect(says({ op: 'Pad', inputs: [x, constantOperand(int64([0, 1, 0, 0]))] })).toEqual(whole);
  });

  it('may be joined to what is the same for every example', () => {
    const x = operandAt([3, 4], 0);
    const join = (y: Operand): Sample => ({ op: 'Concat', inputs: [x, y], attributes: { axis: int(1) } });
    expect(says(join(constantOperand(float32([1, 2, 1, 2, 1, 2], [3, 2]))))).toEqual(whole);
    expect(says(join(constantOperand(float32([1, 2, 1, 2, 1, 3], [3, 2])))))
      .toMatchObject(refusal(/position in the batch/));
    expect(says(join({ value: float32([1, 2, 1, 2, 1, 2], [3, 2]) }))).toMatchObject(refusal(/position in the batch/));
  });
});

describe('gradients', () => {
  it.each([[0, 7, 3], [1, 7, 3], [1, 6, 2], [-1, -9, -2], [5, 0, -3], [2, 3, 4]])('of a slice from %i to %i by %i',
    async (start, end, step) => {
    const inputs = [{ value: float32([1, 2, 3, 4, 5, 6, 7]) }, ...[start, end, 0, step]
      .map((n) => constantOperand(int64([n])))];
    await checkTypes({ op: 'Slice', inputs });
    await checkGradient({ op: 'Slice', inputs });
  });

  it('of an empty slice is zero', async () => {
    const inputs = [{ value: float32([1, 2]) }, ...[1, 1].map((n) => constantOperand(int64([n])))];
    await checkGradient({ op: 'Slice', inputs });
  });

  it('of a Split of which only one piece is used', async () => {
    const value = float32([1, 2, 3, 4, 5]);
    await checkGradient({ op: 'Split', inputs: [{ value }], outputs: 3, attributes: { num_outputs: int(3) } },
      { cotangents: [1] });
  });
});

describe('shape rules', () => {
  it('refuse what does not fit', () => {
    expect(() => build({ op: 'Concat', inputs: [operandAt([2, 3]), operandAt([3, 3])], attributes: { axis: int(1) } }))
      .toThrow(/differ only in axis 1/);
    expect(() => build({ op: 'Split', inputs: [operandAt([4]), constantOperand(int64([1, 2]))], outputs: 2 }))
      .toThrow(/add up to axis 0/);
    expect(() => build({ op: 'Pad', inputs: [operandAt([2]), constantOperand(int64([-3, 0]))] })).toThrow(/at least 0/);
    expect(() => build({ op: 'Slice', inputs: [operandAt([4]), { value: int64([0]) }, constantOperand(int64([2]))] }))
      .toThrow(/not known/);
  });
});

describe('folding', () => {
  const x = int64([0, 1, 2, 3, 4, 5], [2, 3]);

  it('is what ONNX Runtime computes', async () => {
    await checkFold({ op: 'Concat', inputs: [x, int64([9, 8, 7], [1, 3])].map(constantOperand),
      attributes: { axis: int(0) } });
    await checkFold({ op: 'Concat', inputs: [x, int64([9, 8], [2, 1]), x].map(constantOperand),
      attributes: { axis: int(-1) } });
    await checkFold({ op: 'Split', inputs: [constantOperand(x)], outputs: 2,
      attributes: { axis: int(1), num_outputs: int(2) } });
    await checkFold({ op: 'Split', inputs: [x, int64([1, 1])].map(constantOperand), outputs: 2 });
    await fc.assert(fc.asyncProperty(list(2, -4, 4), list(2, -4, 4), fc.constantFrom(1, 2, -1),
      async (starts, ends, step) => {
      await checkFold({ op: 'Slice', inputs: [x, int64(starts), int64(ends), int64([1, 0]), int64([step, step])]
        .map(constantOperand) });
    }), { numRuns: 20 });
  });
});
