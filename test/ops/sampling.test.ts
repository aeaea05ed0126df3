import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { traceBatch } from '../../src/autodiff/batch-independence.ts';
import { int, ints, string } from '../../src/graph/ir.ts';
import { leading } from '../../src/ops/batch.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type Tensor, float32, int64, sizeOf, toNumbers } from '../../src/tensor/tensor.ts';
import { list, operandAt } from '../support/batched.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { type Sample, buildNode, constantOperand, floats } from '../support/operator-sample.ts';

const some = (min: number, max: number) => fc.integer({ min, max });

/** Grid values whose places in the image stand well between elements and away from mirrors. */
const smooth = (grid: Tensor, sizes: readonly number[], corners: boolean): Tensor => float32(toNumbers(grid).map((v, i) => {
  const size = sizes[sizes.length - 1 - (i % sizes.length)]!;
  const place = ((v + 1) / 2) * (corners ? size - 1 : size) - (corners ? 0 : 0.5);
  const moved = Math.floor(place) + 0.2 + 0.07 * ((i * 7) % 3);
  return ((moved + (corners ? 0 : 0.5)) / (corners ? size - 1 : size)) * 2 - 1;
}), grid.shape);

const grids = (axes: number, modes: readonly string[]): fc.Arbitrary<Sample> => fc.record({
  rows: some(1, 2), channels: some(1, 2), space: fc.array(some(2, 4), { minLength: axes, maxLength: axes }),
  places: fc.array(some(1, 3), { minLength: axes, maxLength: axes }), mode: fc.constantFrom(...modes),
  outside: fc.constantFrom('zeros', 'border', 'reflection'), corners: fc.boolean(),
}).chain(({ rows, channels, space, places, mode, outside, corners }) =>
  fc.tuple(floats([rows, channels, ...space]), floats([rows, ...places, axes], { low: -1.6, high: 1.6 })).map(([x, grid]): Sample => ({
    op: 'GridSample', inputs: [{ value: x }, { value: smooth(grid, space, corners) }],
    attributes: { mode: string(mode), padding_mode: string(outside), align_corners: int(Number(corners)) },
  })));

describe('GridSample', () => {
  it('expands into what ONNX Runtime computes, with the gradient of the images', async () => {
    const samples = fc.oneof(grids(2, ['linear', 'nearest', 'cubic']), grids(3, ['linear', 'nearest']));
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample, { wrt: [0], tolerance: 1e-4 })), { numRuns: 60 });
  });

  it('has the gradient of the places', async () => {
    await fc.assert(fc.asyncProperty(grids(2, ['linear', 'cubic']), (sample) => checkExpansion(sample, { wrt: [1], tolerance: 1e-4 })), { numRuns: 30 });
  });

  it('looks at every image by its own places', () => {
    const trace = (withGrid: boolean) => {
      const { b } = buildNode({ op: 'GridSample', inputs: [operandAt([7, 2, 3, 3]), operandAt([7, 2, 2, 2])], attributes: { mode: string('linear') } });
      return traceBatch(expandComposites(b.build([['y0', 'y0']])), new Map([['x0', leading], ...(withGrid ? [['x1', leading] as const] : [])]));
    };
    expect(trace(true).violations).toEqual([]);
    expect(trace(true).batch.get('y0')).toEqual(leading);
    expect(trace(false).violations.length).toBeGreaterThan(0);
  });
});

describe('AffineGrid', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    const samples = fc.tuple(some(1, 2), fc.array(some(2, 4), { minLength: 2, maxLength: 3 }), fc.boolean()).chain(([rows, space, corners]) =>
      floats([rows, space.length, space.length + 1]).map((theta): Sample => ({
        op: 'AffineGrid', inputs: [{ value: theta }, constantOperand(int64([rows, 3, ...space]))], attributes: { align_corners: int(Number(corners)) },
      })));
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample)), { numRuns: 20 });
  });
});

describe('DeformConv', () => {
  const samples = fc.record({
    rows: some(1, 2), perGroup: some(1, 2), groups: some(1, 2), offsetGroups: some(1, 2), outputs: some(1, 2), space: fc.tuple(some(5, 7), some(5, 7)),
    kernel: fc.tuple(some(1, 3), some(1, 2)), strides: fc.tuple(some(1, 2), some(1, 2)), dilations: fc.tuple(some(1, 2), some(1, 2)),
    pads: list(4, 0, 1), biased: fc.boolean(), masked: fc.boolean(),
  }).chain(({ rows, perGroup, groups, offsetGroups, outputs, space, kernel, strides, dilations, pads, biased, masked }) => {
    const channels = groups * perGroup * offsetGroups;
    const counts = space.map((n, i) => Math.floor((n + pads[i]! + pads[i + 2]! - dilations[i]! * (kernel[i]! - 1) - 1) / strides[i]!) + 1);
    const taps = sizeOf(kernel);
    return fc.tuple(
      floats([rows, channels, ...space]), floats([groups * outputs, channels / groups, ...kernel]),
      // Whole steps and a part that finite differences do not carry past the next element.
      list(rows * offsetGroups * 2 * taps * sizeOf(counts), -2, 2), floats([groups * outputs]),
      floats([rows, offsetGroups * taps, ...counts], { low: 0.2, high: 1 }),
    ).map(([x, w, steps, bias, mask]): Sample => ({
      op: 'DeformConv', inputs: [
        { value: x }, { value: w }, { value: float32(steps.map((s, i) => s + 0.3 + (i % 3) * 0.15), [rows, offsetGroups * 2 * taps, ...counts]) },
        biased ? { value: bias } : undefined, ...(masked ? [{ value: mask }] : []),
      ],
      attributes: {
        kernel_shape: ints(kernel), strides: ints(strides), dilations: ints(dilations), pads: ints(pads), group: int(groups), offset_group: int(offsetGroups),
      },
    }));
  });

  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample, { tolerance: 1e-4 })), { numRuns: 30 });
  });
});
