import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { traceBatch } from '../../src/autodiff/batch-independence.ts';
import { type Attributes, int, string } from '../../src/graph/ir.ts';
import { leading } from '../../src/ops/batch.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type Tensor, int64, sizeOf, tensor, toNumbers } from '../../src/tensor/tensor.ts';
import { list, operandAt } from '../support/batched.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { type Sample, buildNode, constantOperand, floats } from '../support/operator-sample.ts';

const samples = (op: string): fc.Arbitrary<Sample> => fc.record({
  rows: fc.integer({ min: 1, max: 4 }), classes: fc.integer({ min: 1, max: 4 }),
  places: fc.array(fc.integer({ min: 1, max: 3 }), { maxLength: 2 }), reduction: fc.constantFrom('none', 'mean', 'sum'),
  weighted: fc.boolean(), ignored: fc.constantFrom(undefined, -1, 0, 7), narrow: fc.boolean(),
}).chain(({ rows, classes, places, reduction, weighted, ignored, narrow }) => {
  const shape = [rows, ...places];
  return fc.tuple(
    floats([rows, classes, ...places]), floats([classes], { low: 0.5, high: 2 }), list(sizeOf(shape), 0, classes - 1),
    list(sizeOf(shape), 0, 2),
  ).map(([x, weight, targets, skips]): Sample => {
    // Not all are ignored: the mean of none is not a number.
    const chosen = targets.map((t, i) => (ignored !== undefined && skips[i] === 0 && i > 0 ? ignored : t));
    if (ignored === 0) chosen[0] = classes - 1;
    const wide = int64(chosen, shape);
    const target: Tensor = narrow ? tensor('int32', shape, Int32Array.from(toNumbers(wide))) : wide;
    return {
      op, inputs: [{ value: x }, { value: target }, ...(weighted ? [constantOperand(weight)] : [])],
      outputs: op.startsWith('Softmax') ? 2 : 1,
      attributes: { reduction: string(reduction), ...(ignored === undefined || (ignored === 0 && classes === 1) ? {} : { ignore_index: int(ignored) }) },
    };
  });
});

describe.each(['NegativeLogLikelihoodLoss', 'SoftmaxCrossEntropyLoss'])('%s', (op) => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(samples(op), (sample) => checkExpansion(sample)), { numRuns: 60 });
  });

  const trace = (attributes: Attributes) => {
    const { b } = buildNode({
      op, attributes, inputs: [operandAt([7, 3], 0), { value: int64(Array<number>(7).fill(1)), batch: leading }],
    });
    return traceBatch(expandComposites(b.build([['y0', 'y0']])), new Map([['x0', leading], ['x1', leading]]));
  };

  it('has one loss for each example without a reduction, and mixes examples with one', () => {
    const each = trace({ reduction: string('none'), ignore_index: int(2) });
    expect(each.violations).toEqual([]);
    expect(each.batch.get('y0')).toEqual(leading);
    for (const reduction of ['mean', 'sum']) {
      expect(trace({ reduction: string(reduction) }).violations[0]?.reason).toMatch(/reduces over axis 0/);
    }
  });

  it('refuses classes that do not lie as the scores do', () => {
    expect(() => buildNode({ op, inputs: [operandAt([2, 3, 4]), { value: int64([0, 1]) }] })).toThrow(/cannot take these operands/);
    expect(() => buildNode({ op, attributes: { reduction: string('max') }, inputs: [operandAt([2, 3]), { value: int64([0, 1]) }] }))
      .toThrow(/reduction "max"/);
  });
});
