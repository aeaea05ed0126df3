import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { float, int, ints, string } from '../../src/graph/ir.ts';
import { reshapeBatch, type shape } from '../../src/ops/shape.ts';
import { type Tensor, float32, int64, sizeOf, tensor, zeros } from '../../src/tensor/tensor.ts';
import { accepted, batchPlace, list, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkFold, checkTypes } from '../support/gradient-check.ts';
import { type Operand, type Sample, build, constantOperand, floatOperand } from '../support/operator-sample.ts';
import { type OperatorCase, batchedOperand, describeOperators, dimensions } from '../support/operator-suite.ts';

type Name = keyof typeof shape;

/** Another shape with as many elements, made by dealing out the prime factors anew in their order or shuffled. */
const regrouped = (from: readonly number[]): fc.Arbitrary<number[]> => {
  const factors = from.flatMap(primeFactors);
  return fc.tuple(
    fc.oneof(fc.constant(factors), fc.shuffledSubarray(factors, { minLength: factors.length })),
      fc.array(fc.boolean(), { minLength: factors.length, maxLength: factors.length }), fc.boolean(),
  ).map(([order, joins, one]) => {
    const to: number[] = [];
    order.forEach((f, i) => { if (i > 0 && joins[i] === true) to.push(to.pop()! * f); else to.push(f); });
    return one ? [1, ...to] : to;
  });
};

const primeFactors = (n: number): number[] => {
  for (let p = 2; p <= n; p++) if (n % p === 0) return [p, ...primeFactors(n / p)];
  return [];
};

/** With 0 for a dimension that is copied, or -1 for one that is inferred. */
const reshapeSample = (x: Operand): fc.Arbitrary<Sample> => regrouped(x.value.shape)
  .chain((to) => fc.nat({ max: to.length }).map((k) => {
  const asked = to.map((n, i) => (i === k ? -1 : n === x.value.shape[i] ? 0 : n));
  return { op: 'Reshape', inputs: [x, constantOperand(int64(asked))] };
}));

const nowhere = (sample: (x: Operand) => Sample, rank = { min: 1, max: 4 }): OperatorCase => ({
  samples: batchedOperand({}, rank).map(sample), flows: false,
});

const image = fc.tuple(batchPlace([0, 0, 0, 1]), fc.constantFrom(2, 3)).chain(([at, size]) =>
  floatOperand(withRows([2, 2 * size ** 2, 2 * size, size], at), {}, at).map((x) => ({ x, size })));

const cases: Readonly<Record<Exclude<Name, 'Constant' | 'ConstantOfShape' | 'Range' | 'NonZero'>, OperatorCase>> = {
  Reshape: { samples: batchedOperand().chain(reshapeSample) },
  Flatten: {
    samples: batchedOperand().chain((x) => fc.integer({ min: -x.value.shape.length, max: x.value.shape.length })
      .map((axis) => ({ op: 'Flatten', inputs: [x], attributes: { axis: int(axis) } }))),
  },
  Squeeze: {
    samples: fc.tuple(batchedOperand(), fc.boolean(), fc.boolean()).map(([x, some, back]) => {
      const rank = x.value.shape.length;
      const ones = x.value.shape.flatMap((n, i) => (n === 1 ? [back ? i - rank : i] : []));
      return { op: 'Squeeze', inputs: some && ones.length > 0 ? [x, constantOperand(int64(ones))] : [x] };
    }),
  },
  Unsqueeze: {
    samples: batchedOperand().chain((x) =>
      fc.uniqueArray(fc.nat({ max: x.value.shape.length }), { minLength: 1, maxLength: 2 })
      .chain((axes) => fc.boolean().map((back) => ({
        op: 'Unsqueeze', inputs: [x,
          constantOperand(int64(axes.map((a) => (back ? a - x.value.shape.length - axes.length : a))))],
      })))),
  },
  Transpose: {
    samples: batchedOperand().chain((x) =>
      fc.option(fc.shuffledSubarray(x.value.shape.map((_, i) => i), { minLength: x.value.shape.length }))
      .map((perm) => ({ op: 'Transpose', inputs: [x], attributes: perm === null ? {} : { perm: ints(perm) } }))),
  },
  Expand: {
    samples: batchedOperand().chain((x) =>
      fc.tuple(list(x.value.shape.length, 1, 3), dimensions({ min: 0, max: 2 }), fc.boolean())
      .map(([wider, extra, short]) => {
        const target = x.value.shape.map((n, i) => (n === 1 ? wider[i]! : short ? 1 : n));
        return { op: 'Expand', inputs: [x, constantOperand(int64([...extra, ...target]))] };
      })),
  },
  Tile: {
    samples: batchedOperand().chain((x) => list(x.value.shape.length, 1, 2)
      .map((repeats) => ({ op: 'Tile', inputs: [x, constantOperand(int64(repeats))] }))),
  },
  Shape: nowhere((x) => ({ op: 'Shape', inputs: [x], attributes: { start: int(-2), end: int(9) } })),
  Size: nowhere((x) => ({ op: 'Size', inputs: [x] })),
  EyeLike: nowhere((x) => ({ op: 'EyeLike', inputs: [x], attributes: { k: int(1) } }), { min: 2, max: 2 }),
  Trilu: {
    samples: batchedOperand({}, { min: 2, max: 4 })
      .chain((x) => fc.tuple(fc.option(fc.integer({ min: -2, max: 2 })), fc.constantFrom(0, 1))
      .map(([k, upper]) => ({
        op: 'Trilu', inputs: k === null ? [x] : [x, constantOperand(int64([k], []))], attributes: { upper: int(upper) },
      }))),
  },
  DepthToSpace: {
    samples: accepted(fc.tuple(image, fc.constantFrom('DCR', 'CRD')).map(([{ x, size }, mode]) =>
      ({ op: 'DepthToSpace', inputs: [x], attributes: { blocksize: int(size), mode: string(mode) } }))),
  },
  SpaceToDepth: {
    samples: image.map(({ x, size }) => ({ op: 'SpaceToDepth', inputs: [x], attributes: { blocksize: int(size) } })),
  },
};

describeOperators(cases, 40);

describe('a reshape', () => {
  const into = (x: Operand, to: readonly number[]): Sample =>
    ({ op: 'Reshape', inputs: [x, constantOperand(int64(to))] });

  it('follows the batch through merging and splitting', () => {
    const B = 7;
    expect(says(into(operandAt([B, 4, 6], 0), [-1, 6]))).toEqual([{ axis: 0, before: 1, after: 4 }]);
    expect(says(into(operandAt([4, B, 6], 1), [-1, 6]))).toEqual([{ axis: 0, before: 4, after: 1 }]);
    expect(says(into({ ...operandAt([4 * B, 6]), batch: { axis: 0, before: 4, after: 1 } }, [4, -1, 6])))
      .toEqual([{ axis: 1, before: 1, after: 1 }]);
    expect(says(into({ ...operandAt([4 * B, 6]), batch: { axis: 0, before: 4, after: 1 } }, [2, -1, 3])))
      .toEqual([{ axis: 1, before: 2, after: 2 }]);
    expect(says(into(operandAt([B, 4], 0), [1, -1, 2, 2, 1]))).toEqual([{ axis: 1, before: 1, after: 1 }]);
  });

  it('is refused where it cuts across examples', () => {
    const B = 7;
    expect(says(into(operandAt([B, 4], 0), [4, -1]))).toMatchObject(refusal(/across one another/));
    expect(says(into(operandAt([4, B, 6], 1), [3, -1, 8]))).toMatchObject(refusal(/across one another/));
    expect(says({ op: 'Flatten', inputs: [operandAt([B, 4], 0)], attributes: { axis: int(0) } }))
      .toEqual([{ axis: 1, before: 1, after: 4 }]);
  });

  it('takes the batch to the one place that has the right factors', () => {
    fc.assert(fc.property(dimensions({ min: 1, max: 4 }), dimensions({ min: 1, max: 4 }), batchPlace([0]),
      (left, right, { before, after }) => {
      const from = [...left, before * 7 * after, ...right];
      const at = { axis: left.length, before, after };
      expect(reshapeBatch(at, from, [sizeOf(from)]))
        .toEqual({ axis: 0, before: sizeOf(left) * before, after: sizeOf(right) * after });
      expect(reshapeBatch(at, from, [...left, before, 7, after, ...right]))
        .toEqual({ axis: left.length + 1, before: 1, after: 1 });
    }));
  });

  it('refuses targets that do not fit', () => {
    expect(() => build(into(operandAt([2, 3]), [4, 2]))).toThrow(/\[2, 3\] into \[4, 2\]/);
    expect(() => build(into(operandAt([2, 3]), [-1, -1]))).toThrow(/at most one -1/);
    expect(() => build(into(operandAt([2, 3]), [4, -1]))).toThrow(/equally many elements/);
    expect(() => build(into(operandAt([2, 3]), [2, 3, 0]))).toThrow(/sizes of at least 0/);
    expect(() => build({ op: 'Reshape', inputs: [operandAt([2, 3]), { value: int64([6]) }] }))
      .toThrow(/not known before the graph runs/);
  });

  it('with allowzero keeps a 0 as it is', async () => {
    await checkTypes({ op: 'Reshape', inputs: [operandAt([0, 3]), constantOperand(int64([3, 0]))],
      attributes: { allowzero: int(1) } });
  });
});

describe('what turns the batch about', () => {
  it('Transpose follows it, Trilu and Tile refuse it', () => {
    const transposed: Sample = { op: 'Transpose', inputs: [operandAt([3, 4, 5], 0)],
      attributes: { perm: ints([1, 2, 0]) } };
    expect(says(transposed)).toEqual([{ axis: 2, before: 1, after: 1 }]);
    expect(says({ op: 'Trilu', inputs: [operandAt([3, 4], 0)] })).toMatchObject(refusal(/triangle/));
    expect(says({ op: 'Tile', inputs: [operandAt([3, 4], 0), constantOperand(int64([2, 1]))] }))
      .toMatchObject(refusal(/repeats/));
    expect(says({ op: 'DepthToSpace', inputs: [operandAt([1, 4, 2, 2], 1)], attributes: { blocksize: int(2) } }))
      .toMatchObject(refusal(/axis 1/));
  });

  it('values that depend on shapes alone carry no batch', () => {
    expect(says({ op: 'Shape', inputs: [operandAt([3, 4], 0)] })).toEqual([undefined]);
    expect(says({ op: 'EyeLike', inputs: [operandAt([3, 4], 0)] })).toEqual([undefined]);
  });
});

describe('values made of constants', () => {
  const integers: Tensor = int64([0, 3, 0, -1, 0, 2], [2, 3]);

  it.each<[string, Sample]>([
    ['Range', { op: 'Range', inputs: [int64([2], []), int64([11], []), int64([3], [])].map(constantOperand) }],
    ['Range downwards', { op: 'Range', inputs: [int64([5], []), int64([-2], []), int64([-3], [])]
      .map(constantOperand) }],
    ['Range of floats', { op: 'Range', inputs: [float32([0], []), float32([1], []), float32([0.25], [])]
      .map(constantOperand) }],
    ['ConstantOfShape', { op: 'ConstantOfShape', inputs: [constantOperand(int64([2, 3]))],
      attributes: { value: { type: 'tensor', value: int64([7]) } } }],
    ['ConstantOfShape of zeros', { op: 'ConstantOfShape', inputs: [constantOperand(int64([2]))] }],
    ['NonZero', { op: 'NonZero', inputs: [constantOperand(integers)] }],
    ['NonZero of bools', { op: 'NonZero', inputs: [constantOperand(tensor('bool', [3], Uint8Array.of(1, 0, 1)))] }],
    ['Transpose', { op: 'Transpose', inputs: [constantOperand(integers)] }],
    ['Transpose of rank 3',
      { op: 'Transpose', inputs: [constantOperand(int64(Array.from({ length: 24 }, (_, i) => i), [2, 3, 4]))],
      attributes: { perm: ints([2, 0, 1]) } }],
    ['Reshape', { op: 'Reshape', inputs: [integers, int64([3, -1])].map(constantOperand) }],
    ['Squeeze', { op: 'Squeeze', inputs: [int64([4], [1, 1]), int64([0])].map(constantOperand) }],
    ['Unsqueeze', { op: 'Unsqueeze', inputs: [int64([4], []), int64([0])].map(constantOperand) }],
    ['Flatten', { op: 'Flatten', inputs: [constantOperand(float32([1, 2, 3, 4], [2, 2, 1]))] }],
    ['Expand', { op: 'Expand', inputs: [int64([1, 2], [2, 1]), int64([2, 2, 3])].map(constantOperand) }],
    ['Tile', { op: 'Tile', inputs: [integers, int64([2, 1])].map(constantOperand) }],
    ['Trilu', { op: 'Trilu', inputs: [int64([1, 2, 3, 4, 5, 6], [2, 3]), int64([1], [])].map(constantOperand) }],
    ['Trilu, lower', { op: 'Trilu', inputs: [constantOperand(float32([1, 2, 3, 4, 5, 6, 7, 8], [2, 2, 2]))],
      attributes: { upper: int(0) } }],
    ['Shape', { op: 'Shape', inputs: [constantOperand(integers)] }],
    ['Shape of a part', { op: 'Shape', inputs: [constantOperand(zeros('float32', [2, 3, 4]))],
      attributes: { start: int(1), end: int(-1) } }],
    ['Size', { op: 'Size', inputs: [constantOperand(integers)] }],
    ['EyeLike', { op: 'EyeLike', inputs: [constantOperand(float32([1, 2, 3, 4, 5, 6], [2, 3]))],
      attributes: { k: int(-1) } }],
    ['EyeLike of another type',
      { op: 'EyeLike', inputs: [constantOperand(float32([1, 2, 3, 4], [2, 2]))], attributes: { dtype: int(7) } }],
    ['Constant', { op: 'Constant', inputs: [], attributes: { value: { type: 'tensor', value: integers } } }],
    ['Constant float', { op: 'Constant', inputs: [], attributes: { value_float: float(1.5) } }],
    ['Constant int', { op: 'Constant', inputs: [], attributes: { value_int: int(5) } }],
    ['Constant floats', { op: 'Constant', inputs: [],
      attributes: { value_floats: { type: 'floats', value: [1.5, 2] } } }],
    ['Constant ints', { op: 'Constant', inputs: [], attributes: { value_ints: ints([1, 2]) } }],
  ])('%s is what ONNX Runtime computes', async (_, sample) => {
    await checkTypes(sample);
    await checkFold(sample);
  });

  it('carry no batch and let nothing flow', () => {
    const made: Sample[] = [
      { op: 'Range', inputs: [int64([0], []), int64([2], []), int64([1], [])].map(constantOperand) },
      { op: 'ConstantOfShape', inputs: [constantOperand(int64([2, 3]))] },
      { op: 'Constant', inputs: [], attributes: { value_int: int(5) } },
      { op: 'NonZero', inputs: [constantOperand(integers)] },
    ];
    for (const sample of made) expect(says(sample)).toEqual([undefined]);
  });

  it('refuse shapes that depend on data', () => {
    expect(() => build({ op: 'NonZero', inputs: [operandAt([3])] })).toThrow(/not known before the graph runs/);
    expect(() => build({ op: 'NonZero', inputs: [{ value: integers }] })).toThrow(/not known before the graph runs/);
    expect(() => build({ op: 'ConstantOfShape', inputs: [{ value: int64([2]) }] })).toThrow(/input 0/);
    expect(() => build({ op: 'Constant', inputs: [], attributes: { value_string: string('a') } }))
      .toThrow(/value_string/);
  });

  it('refuse images that the blocks do not divide', () => {
    expect(() => build({ op: 'SpaceToDepth', inputs: [operandAt([1, 1, 3, 4])], attributes: { blocksize: int(2) } }))
      .toThrow(/blocks of 2/);
    expect(() => build({ op: 'EyeLike', inputs: [operandAt([3])] })).toThrow(/a matrix/);
    expect(() => build({ op: 'Transpose', inputs: [operandAt([3, 2])], attributes: { perm: ints([0, 0]) } }))
      .toThrow(/each axis once/);
  });
});
