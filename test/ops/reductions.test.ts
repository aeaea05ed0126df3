import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int } from '../../src/graph/ir.ts';
import { type reductions } from '../../src/ops/reductions.ts';
import { type Tensor, float32, int64, sizeOf } from '../../src/tensor/tensor.ts';
import { list, operandAt, refusal, says } from '../support/batched.ts';
import { checkFold, checkGradient, checkTypes, gradientOf } from '../support/gradient-check.ts';
import { type Domain, type Sample, build, constantOperand } from '../support/operator-sample.ts';
import { type OperatorCase, batchedOperand, describeOperators } from '../support/operator-suite.ts';

type Name = keyof typeof reductions;

const positive: Domain = { low: 0.5, high: 2 };

const axes = (rank: number): fc.Arbitrary<number[] | undefined> => fc.option(
  fc.subarray(Array.from({ length: rank }, (_, i) => i)).chain((chosen) => list(chosen.length, 0, 1)
    .map((back) => chosen.map((axis, i) => (back[i] === 1 ? axis - rank : axis)))),
  { nil: undefined, freq: 6 },
);

/** Axes counted from either end, or none: then all are reduced, or none at all. */
const reduce = (op: Name, domain?: Domain): OperatorCase => ({
  samples: batchedOperand(domain).chain((x) => fc.record({
    axes: axes(x.value.shape.length), keepdims: fc.constantFrom(0, 1), noop: fc.constantFrom(0, 1),
  }).map(({ axes, keepdims, noop }): Sample => ({
    op, inputs: axes === undefined ? [x] : [x, constantOperand(int64(axes))],
    attributes: { keepdims: int(keepdims), noop_with_empty_axes: int(noop) },
  }))),
});

const alongAxis = (op: Name): OperatorCase => ({
  samples: batchedOperand({ distinct: true }).chain((x) => fc.record({
    axis: fc.integer({ min: -x.value.shape.length, max: x.value.shape.length - 1 }), keepdims: fc.constantFrom(0, 1),
  }).map(({ axis, keepdims }): Sample =>
    ({ op, inputs: [x], attributes: { axis: int(axis), keepdims: int(keepdims) } }))),
  flows: false,
});

const cases: Readonly<Record<Name, OperatorCase>> = {
  ReduceSum: reduce('ReduceSum'), ReduceMean: reduce('ReduceMean'),
  ReduceMax: reduce('ReduceMax', { distinct: true }), ReduceMin: reduce('ReduceMin', { distinct: true }),
  ReduceProd: reduce('ReduceProd', { low: 0.8, high: 1.2 }), ReduceSumSquare: reduce('ReduceSumSquare'),
  ReduceL1: reduce('ReduceL1', { avoid: [0] }), ReduceL2: reduce('ReduceL2', positive),
  ReduceLogSum: reduce('ReduceLogSum', positive), ReduceLogSumExp: reduce('ReduceLogSumExp'),
  ArgMax: alongAxis('ArgMax'), ArgMin: alongAxis('ArgMin'),
  CumSum: {
    samples: batchedOperand().chain((x) => fc.record({
      axis: fc.integer({ min: -x.value.shape.length, max: x.value.shape.length - 1 }),
        exclusive: fc.constantFrom(0, 1), reverse: fc.constantFrom(0, 1),
    }).map(({ axis, exclusive, reverse }): Sample => ({
      op: 'CumSum', inputs: [x, constantOperand(int64([axis], []))],
        attributes: { exclusive: int(exclusive), reverse: int(reverse) },
    }))),
  },
  TopK: {
    samples: batchedOperand({ distinct: true })
      .chain((x) => fc.integer({ min: -x.value.shape.length, max: x.value.shape.length - 1 })
      .chain((axis) => fc.record({ k: fc.integer({ min: 1, max: x.value.shape.at(axis)! }),
        largest: fc.constantFrom(0, 1) })
        .map(({ k, largest }): Sample => ({
          op: 'TopK', inputs: [x, constantOperand(int64([k]))], outputs: 2,
            attributes: { axis: int(axis), largest: int(largest) },
        })))),
  },
};

describeOperators(cases, 30);

describe('gradients where finite differences do not reach', () => {
  const over = (op: string, value: Tensor): Sample => ({ op, inputs: [{ value }], attributes: { keepdims: int(0) } });

  it('elements that tie for the maximum share its gradient', async () => {
    expect(await gradientOf(over('ReduceMax', float32([1, 3, 3, 2])), float32([6], []))).toEqual([[0, 3, 3, 0]]);
    expect(await gradientOf(over('ReduceMin', float32([1, 1, 1, 2])), float32([6], []))).toEqual([[2, 2, 2, 0]]);
  });

  it('a product with one zero has a slope there alone, with two none', async () => {
    expect(await gradientOf(over('ReduceProd', float32([2, 0, 3])), float32([1], []))).toEqual([[0, 6, 0]]);
    expect(await gradientOf(over('ReduceProd', float32([2, 0, 0])), float32([1], []))).toEqual([[0, 0, 0]]);
    await checkGradient(over('ReduceProd', float32([2, 0, 3, -1, 0.5, 1], [2, 3])));
  });

  it.each(Object.keys(cases).filter((op) =>
    op.startsWith('Reduce')))('%s that reduces nothing is checked all the same', async (op) => {
    const value = float32([0.5, 1, 1.5, 2], [2, 2]);
    const attributes = { noop_with_empty_axes: int(1) };
    for (const inputs of [[{ value }], [{ value }, constantOperand(int64([]))]]) {
      await checkTypes({ op, inputs, attributes });
      await checkGradient({ op, inputs, attributes });
    }
  });

  it('the norm of zeros has none', async () => {
    expect(await gradientOf(over('ReduceL2', float32([0, 0])), float32([1], []))).toEqual([[0, 0]]);
  });
});

describe('reductions and the batch', () => {
  const sum = (shape: number[], axis: number | undefined, over: number[], keepdims: number): Sample => ({
    op: 'ReduceSum', inputs: [operandAt(shape, axis), constantOperand(int64(over))],
      attributes: { keepdims: int(keepdims) },
  });

  it('follow the batch past the axes that vanish', () => {
    expect(says(sum([2, 3, 4, 5], 2, [0, 3], 0))).toEqual([{ axis: 1, before: 1, after: 1 }]);
    expect(says(sum([2, 3, 4, 5], 2, [0, 3], 1))).toEqual([{ axis: 2, before: 1, after: 1 }]);
  });

  it('refuse to reduce over the batch', () => {
    expect(says(sum([2, 3], 0, [0], 1))).toMatchObject(refusal(/reduces over axis 0, which carries the batch/));
    expect(says({ op: 'ReduceMean', inputs: [operandAt([2, 3], 1)] })).toMatchObject(refusal(/axis 1/));
    expect(says({ op: 'ArgMax', inputs: [operandAt([2, 3], 0)] })).toMatchObject(refusal(/axis 0/));
    expect(says({ op: 'CumSum', inputs: [operandAt([2, 3], 0), constantOperand(int64([-2], []))] }))
      .toMatchObject(refusal(/accumulates/));
    expect(says({ op: 'TopK', inputs: [operandAt([2, 3], 1), constantOperand(int64([1]))] }))
      .toMatchObject(refusal(/sorts/));
  });
});

describe('shape rules', () => {
  it('refuse axes that are computed by the graph, or out of range', () => {
    expect(() => build({ op: 'ReduceSum', inputs: [operandAt([2, 3]), { value: int64([0]) }] }))
      .toThrow(/not known before the graph runs[^]*input 1/);
    expect(() => build({ op: 'ReduceSum', inputs: [operandAt([2, 3]), constantOperand(int64([2]))] }))
      .toThrow(/axis 2/);
    expect(() => build({ op: 'TopK', inputs: [operandAt([2, 3]), constantOperand(int64([4]))] }))
      .toThrow(/k = 4[^]*from 0 to 3/);
  });

  it('an ArgMax of ties and of NaN has the type that ONNX Runtime computes', async () => {
    const found = await checkTypes({ op: 'ArgMax', inputs: [{ value: float32([1, 1, NaN, 2], [2, 2]) }],
      attributes: { axis: int(1) } });
    expect(found['y0']!.shape).toEqual([2, 1]);
  });
});

describe('folding', () => {
  it.each(['ReduceSum', 'ReduceProd', 'ReduceMax', 'ReduceMin'])('%s of integers and floats', async (op) => {
    const shape = [2, 3, 2];
    await fc.assert(fc.asyncProperty(list(sizeOf(shape), -4, 4), fc.subarray([0, 1, 2], { minLength: 1 }),
      fc.constantFrom(0, 1), async (values, over, keep) => {
      const attributes = { keepdims: int(keep) };
      await checkFold({ op, inputs: [int64(values, shape), int64(over)].map(constantOperand), attributes });
      await checkFold({ op, inputs: [constantOperand(float32(values, shape)), constantOperand(int64(over))],
        attributes });
      await checkFold({ op, inputs: [constantOperand(int64(values, shape))], attributes });
    }), { numRuns: 8 });
  });
});

describe('folding', () => {
  it('of running sums and of places of extrema is what ONNX Runtime computes', async () => {
    const x = int64([3, 1, 3, 1, 5, 5], [2, 3]);
    for (const one of [0, 1]) {
      for (const other of [0, 1]) {
        await checkFold({
          op: 'CumSum', inputs: [x, int64([one], [])].map(constantOperand), attributes: { exclusive: int(other), reverse: int(one) },
        });
        for (const op of ['ArgMax', 'ArgMin']) {
          await checkFold({ op, inputs: [constantOperand(x)], attributes: { axis: int(one), keepdims: int(other), select_last_index: int(other) } });
        }
      }
    }
  });
});
