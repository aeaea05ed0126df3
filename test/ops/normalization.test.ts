import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, float, int, ints } from '../../src/graph/ir.ts';
import { float32, sizeOf } from '../../src/tensor/tensor.ts';
import { checkBatchRule } from '../support/batch-check.ts';
import { accepted, batchPlace, list, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkGradient, checkTypes } from '../support/gradient-check.ts';
import {
  type Operand, type Sample, build, floatOperand, gradientContext, gradients,
} from '../support/operator-sample.ts';
import { checkParameterUse } from '../support/parameter-check.ts';
import { randomTensor, testRandom } from '../support/random-network.ts';

const numRuns = 30;

/** Large enough for finite differences to see a smooth function. */
const epsilon = float(0.3);

interface Family {
  readonly op: string;
  /** Operands behind x for an x of this shape, and attributes; undefined where the operator does not take it. */
  readonly around: (x: readonly number[], choice: number) => {
    readonly others: readonly fc.Arbitrary<Operand>[];
    readonly attributes: Attributes;
  } | undefined;
  /** Inputs that gradients exist for. */
  readonly wrt: readonly number[];
  /** Axes of x that the batch may lie in, of those tried. */
  readonly batchAxes: (x: readonly number[], choice: number) => readonly number[];
}

const vector = (n: number): fc.Arbitrary<Operand> => floatOperand([n]);

const varianceAxes = (choice: number): number[] => [[2, 3], [0, 2, 3], [1, 2, 3], [1, 3]][choice % 4]!;

const families: readonly Family[] = [
  {
    op: 'LayerNormalization', wrt: [0, 1, 2],
    around: (x, choice) => {
      const axis = choice % x.length;
      return {
        others: [floatOperand(x.slice(axis)), floatOperand(x.slice(axis))],
        attributes: { axis: int(choice % 2 === 0 ? axis : axis - x.length), epsilon },
      };
    },
    batchAxes: (x, choice) => [0, 1, 2].filter((axis) => axis < choice % x.length),
  },
  {
    op: 'GroupNormalization', wrt: [0, 1, 2],
    around: (x, choice) => {
      const groups = choice % 2 + 1;
      return x[1]! % groups === 0
        ? { others: [vector(x[1]!), vector(x[1]!)], attributes: { num_groups: int(groups), epsilon } } : undefined;
    },
    batchAxes: () => [0],
  },
  {
    op: 'InstanceNormalization', wrt: [0, 1, 2],
    around: (x) => (x.length < 3 ? undefined : { others: [vector(x[1]!), vector(x[1]!)], attributes: { epsilon } }),
    batchAxes: () => [0],
  },
  {
    op: 'BatchNormalization', wrt: [0, 1, 2],
    around: (x) => ({
      others: [vector(x[1]!), vector(x[1]!), vector(x[1]!), floatOperand([x[1]!], { low: 0.5, high: 2 })],
      attributes: { epsilon },
    }),
    batchAxes: () => [0, 2],
  },
  {
    op: 'LpNormalization', wrt: [0],
    around: (x, choice) => ({ others: [], attributes: { axis: int(choice % x.length), p: int(choice % 2 + 1) } }),
    batchAxes: (x, choice) => [0, 1, 2].filter((axis) => axis !== choice % x.length),
  },
  {
    op: 'MeanVarianceNormalization', wrt: [0],
    // Without an epsilon, few elements make it close to a step.
    around: (x, choice) => (x.length < 4 || sizeOf(varianceAxes(choice).map((axis) => x[axis]!)) < 8 ? undefined
      : { others: [], attributes: { axes: ints(varianceAxes(choice)) } }),
    batchAxes: (_, choice) => [0, 1, 2].filter((axis) => !varianceAxes(choice).includes(axis)),
  },
  {
    op: 'LRN', wrt: [0],
    around: (x, choice) => (x.length < 4 ? undefined : {
      others: [],
      attributes: { size: int([1, 3, 5][choice % 3]!), alpha: float(0.7), beta: float(0.6), bias: float(1.2) },
    }),
    batchAxes: () => [0, 2],
  },
];

const inputShapes = fc.integer({ min: 2, max: 4 }).chain((rank) => list(rank, 2, 4));
/** Not within 0.5 of 0, where the 1-norm has a kink and the 2-norm bends too fast for finite differences. */
const spread = { avoid: [-0.4, -0.2, 0, 0.2, 0.4] };

describe.each(families)('$op', ({ op, around, wrt, batchAxes }) => {
  it('has the type that ONNX Runtime computes, and the gradient of finite differences', async () => {
    const samples = accepted(fc.tuple(inputShapes, fc.nat(11)).filter(([x, choice]) => around(x, choice) !== undefined)
      .chain(([x, choice]) => {
        const { others, attributes } = around(x, choice)!;
        return fc.tuple(floatOperand(x, spread), ...others).map((inputs): Sample => ({ op, inputs, attributes }));
      }));
    await fc.assert(fc.asyncProperty(samples, async (sample) => {
      await checkTypes(sample);
      await checkGradient(sample, { wrt });
    }), { numRuns });
  });

  it('keeps examples apart or refuses, and says the per-example gradients of parameters', async () => {
    const samples = fc.tuple(inputShapes.filter((x) => x.length > 2), batchPlace([0, 0, 1, 2]), fc.nat(11))
      .map(([shape, at, choice]) => ({ x: withRows(shape, at), at, choice }))
      .filter(({ x, choice }) => around(x, choice) !== undefined)
      .chain(({ x, at, choice }) => {
        const { others, attributes } = around(x, choice)!;
        return fc.tuple(floatOperand(x, spread, at), ...others)
          .map((inputs) => ({ allowed: batchAxes(x, choice).includes(at.axis), sample: { op, inputs, attributes } }));
      });
    await fc.assert(fc.asyncProperty(samples, async ({ sample, allowed }) => {
      expect(await checkBatchRule(sample)).toBe(allowed ? 'proved' : 'refused');
      if (!allowed) return;
      for (const index of wrt.filter((i) => i > 0)) await checkParameterUse(sample, index);
    }), { numRuns });
  });
});

describe('normalisations', () => {
  const batchNorm = (training: number): Sample => ({
    op: 'BatchNormalization', attributes: { training_mode: int(training) }, outputs: training === 1 ? 3 : 1,
    inputs: [operandAt([5, 2, 3], 0), ...[1, 2, 3, 4].map(() => operandAt([2]))],
  });

  it('refuse BatchNorm in training mode with the way out, and take it frozen', () => {
    const fix = expect.stringMatching(/GroupNorm/) as string;
    expect(says(batchNorm(1))).toMatchObject({ ...refusal(/statistics of the batch/), fix });
    expect(says(batchNorm(0))).toEqual([{ axis: 0, before: 1, after: 1 }]);
    const built = build(batchNorm(1));
    expect(() => gradients(built, gradientContext(built, batchNorm(1), [0], [0]))).toThrow(/training mode/);
  });

  it('never train the running statistics', () => {
    expect(build(batchNorm(0)).operator.untrained).toEqual([3, 4]);
  });

  it('refuse to normalise over the batch, by default axes too', () => {
    const layerNorm = (scale: number[]): Sample => ({
      op: 'LayerNormalization', inputs: [operandAt([5, 4], 0), operandAt(scale)], attributes: { axis: int(0) },
    });
    expect(says(layerNorm([5, 4]))).toMatchObject(refusal(/position/));
    expect(says(layerNorm([4]))).toMatchObject(refusal(/over the batch/));
    expect(says({ op: 'MeanVarianceNormalization', inputs: [operandAt([5, 2, 3, 3], 0)] }))
      .toMatchObject(refusal(/over the batch/));
  });

  it('take a scale that each example has for itself, but not one found by position', () => {
    const layerNorm = (scale: Operand): Sample =>
      ({ op: 'LayerNormalization', inputs: [operandAt([5, 3, 4], 0), scale] });
    expect(says(layerNorm(operandAt([5, 1, 4], 0)))).toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(says(layerNorm(operandAt([5, 1, 4])))).toMatchObject(refusal(/position/));
    const inputs = [operandAt([5, 4, 3], 0), operandAt([4]), operandAt([4], 0)];
    expect(says({ op: 'GroupNormalization', inputs, attributes: { num_groups: int(2) } }))
      .toMatchObject(refusal(/depends on the examples/));
  });

  it('give mean and inverse deviation beside the result, with the gradients through them', async () => {
    const random = testRandom(5);
    const sample: Sample = {
      op: 'LayerNormalization', outputs: 3, attributes: { axis: int(1), epsilon },
      inputs: [[2, 3, 4], [3, 4], [3, 4]].map((shape) => ({ value: randomTensor(random, shape) })),
    };
    await checkTypes(sample);
    for (const cotangents of [[0, 1, 2], [0, 2], [1], [2]]) await checkGradient(sample, { cotangents });
  });

  it('pass gradients to statistics that are computed', async () => {
    const random = testRandom(6);
    const inputs = [[3, 2, 3], [2], [2], [2]].map((shape) => ({ value: randomTensor(random, shape) }));
    await checkGradient({
      op: 'BatchNormalization', attributes: { epsilon }, inputs: [...inputs, { value: float32([0.7, 1.6]) }],
    });
  });

  it('refuse operands that do not fit', () => {
    const norm = (op: string, shapes: number[][], attributes: Attributes = {}) => () =>
      build({ op, inputs: shapes.map((s) => operandAt(s)), attributes });
    expect(norm('LayerNormalization', [[2, 3], [4]])).toThrow(/broadcast to the input/);
    expect(norm('LayerNormalization', [[2, 3], [3]], { axis: int(2) })).toThrow(/axis 2/);
    expect(norm('GroupNormalization', [[2, 3, 4], [3], [3]], { num_groups: int(2) })).toThrow(/divides the channels/);
    expect(norm('InstanceNormalization', [[2, 3, 4], [4], [3]])).toThrow(/vectors of C numbers/);
    expect(norm('LpNormalization', [[2, 3]], { p: int(3) })).toThrow(/p = 1 or 2/);
    expect(norm('LRN', [[2, 3]], { size: int(3) })).toThrow(/spatial/);
  });
});
