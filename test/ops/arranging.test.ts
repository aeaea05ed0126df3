import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { traceBatch } from '../../src/autodiff/batch-independence.ts';
import { int, ints } from '../../src/graph/ir.ts';
import { leading } from '../../src/ops/batch.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { int64, sizeOf } from '../../src/tensor/tensor.ts';
import { list, operandAt } from '../support/batched.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { type Sample, buildNode, constantOperand, floats } from '../support/operator-sample.ts';

const some = (min: number, max: number) => fc.integer({ min, max });

describe('CenterCropPad', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    const samples = fc.tuple(some(1, 6), some(1, 6), some(1, 7), some(1, 7), fc.boolean()).chain(([h, w, y, x, chosen]) =>
      floats([2, h, w]).map((value): Sample => ({
        op: 'CenterCropPad', inputs: [{ value }, constantOperand(int64(chosen ? [x, y] : [2, y, x]))],
        ...(chosen ? { attributes: { axes: ints([-1, 1]) } } : {}),
      })));
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample)), { numRuns: 30 });
  });

  it('refuses a size for each axis but one', () => {
    expect(() => buildNode({ op: 'CenterCropPad', inputs: [operandAt([2, 3]), constantOperand(int64([2]))] })).toThrow(/one size for each axis/);
  });
});

describe('Col2Im', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    const samples = fc.record({
      rows: some(1, 2), channels: some(1, 3), image: fc.tuple(some(4, 7), some(4, 7)), block: fc.tuple(some(1, 3), some(1, 3)),
      strides: fc.tuple(some(1, 3), some(1, 3)), dilations: fc.tuple(some(1, 2), some(1, 2)), pads: list(4, 0, 1),
    }).chain(({ rows, channels, image, block, strides, dilations, pads }) => {
      const counts = image.map((n, i) => Math.floor((n + pads[i]! + pads[i + 2]! - dilations[i]! * (block[i]! - 1) - 1) / strides[i]!) + 1);
      return counts.every((n) => n > 0) ? floats([rows, channels * sizeOf(block), sizeOf(counts)]).map((value): Sample => ({
        op: 'Col2Im', inputs: [{ value }, constantOperand(int64(image)), constantOperand(int64(block))],
        attributes: { strides: ints(strides), dilations: ints(dilations), pads: ints(pads) },
      })) : fc.constant(undefined);
    });
    await fc.assert(fc.asyncProperty(samples, async (sample) => { if (sample !== undefined) await checkExpansion(sample); }), { numRuns: 40 });
  });

  it('refuses columns that are not of such blocks', () => {
    expect(() => buildNode({ op: 'Col2Im', inputs: [operandAt([1, 4, 5]), constantOperand(int64([3, 3])), constantOperand(int64([2, 2]))] }))
      .toThrow(/\[N, C · 4, 4\]/);
  });
});

describe('ReverseSequence', () => {
  const samples = fc.record({ rows: some(1, 4), steps: some(1, 5), width: some(1, 2), timeFirst: fc.boolean(), constant: fc.boolean(), alike: fc.boolean() })
    .chain(({ rows, steps, width, timeFirst, constant, alike }) => fc.tuple(
      floats(timeFirst ? [steps, rows, width] : [rows, steps, width]), list(rows, 0, steps),
    ).map(([value, lengths]): Sample => ({
      op: 'ReverseSequence', inputs: [{ value }, { value: int64(alike ? lengths.map(() => lengths[0]!) : lengths), constant }],
      attributes: { batch_axis: int(timeFirst ? 1 : 0), time_axis: int(timeFirst ? 0 : 1) },
    })));

  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample)), { numRuns: 40 });
  });

  it('keeps examples apart whose lengths come with them, or are all the same', () => {
    const trace = (lengths: number[], carried: boolean) => {
      const { b } = buildNode({
        op: 'ReverseSequence', inputs: [operandAt([7, 3]), carried ? { value: int64(lengths) } : constantOperand(int64(lengths))],
        attributes: { batch_axis: int(0), time_axis: int(1) },
      });
      const places = new Map([['x0', leading], ...(carried ? [['x1', leading] as const] : [])]);
      return traceBatch(expandComposites(b.build([['y0', 'y0']])), places).violations.length;
    };
    expect(trace([1, 2, 3, 1, 2, 3, 1], true)).toBe(0);
    expect(trace([2, 2, 2, 2, 2, 2, 2], false)).toBe(0);
    expect(trace([1, 2, 3, 1, 2, 3, 1], false)).toBe(1);
  });
});
