import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, float, int, ints, string } from '../../src/graph/ir.ts';
import { type resizing } from '../../src/ops/resize.ts';
import { noGradientOf, operatorOf } from '../../src/ops/table.ts';
import { float32, int64 } from '../../src/tensor/tensor.ts';
import { batchPlace, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkGradient, checkTypes } from '../support/gradient-check.ts';
import { type Sample, build, constantOperand, floatOperand } from '../support/operator-sample.ts';
import { type OperatorCase, describeOperators } from '../support/operator-suite.ts';

const coordinates = [
  'half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_crop_and_resize',
] as const;

interface Choice {
  readonly mode: 'nearest' | 'linear' | 'cubic';
  readonly how: (typeof coordinates)[number];
  readonly nearest: string;
  readonly antialias: boolean;
  readonly exclude: boolean;
}

const choices: fc.Arbitrary<Choice> = fc.record({
  mode: fc.constantFrom('nearest', 'linear', 'cubic'), how: fc.constantFrom(...coordinates),
  nearest: fc.constantFrom('round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'),
  antialias: fc.nat({ max: 3 }).map((n) => n === 0), exclude: fc.boolean(),
});

const settings = ({ mode, how, nearest, antialias, exclude }: Choice): Attributes => ({
  mode: string(mode), coordinate_transformation_mode: string(how),
  ...(mode === 'nearest' ? { nearest_mode: string(nearest) } : {}),
  ...(mode === 'cubic' ? { cubic_coeff_a: float(-0.6), exclude_outside: int(Number(exclude && how !== 'tf_crop_and_resize')) } : {}),
  // The engine antialiases neither nearest neighbours nor crops.
  ...(antialias && mode !== 'nearest' && how !== 'tf_crop_and_resize' ? { antialias: int(1) } : {}),
  ...(how === 'tf_crop_and_resize' ? { extrapolation_value: float(3) } : {}),
});

/** Images resized by scales or to sizes, the batch in axis 0 or 1; now and then (to be refused) in a resized one. */
const images: fc.Arbitrary<Sample> = fc.record({
  choice: choices, h: fc.integer({ min: 2, max: 5 }), w: fc.integer({ min: 2, max: 5 }),
  to: fc.tuple(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 1, max: 9 })),
  scales: fc.tuple(fc.constantFrom(1, 2, 3, 0.5, 1.5, 0.7), fc.constantFrom(1, 2, 4, 0.6, 2.5)),
  bySize: fc.boolean(), roi: fc.tuple(fc.constantFrom(0, 0.2, -0.3), fc.constantFrom(1, 0.7, 1.2)),
}).chain(({ choice, h, w, to, scales, bySize, roi }) => batchPlace([0, 1]).chain((at) => {
  const shape = withRows([2, 2, h, w], at);
  const inputs = bySize
    ? [undefined, constantOperand(int64([shape[0]!, shape[1]!, ...to]))]
    : [constantOperand(float32([1, 1, ...scales]))];
  const region = choice.how === 'tf_crop_and_resize'
    ? constantOperand(float32([0, 0, roi[0], roi[0], 1, 1, roi[1], roi[1]])) : undefined;
  return floatOperand(shape, {}, at).map((x): Sample => ({ op: 'Resize', inputs: [x, region, ...inputs], attributes: settings(choice) }));
})).filter(({ inputs }) => {
  const scales = inputs[2]?.value;
  return scales === undefined || inputs[0]!.value.shape.every((n, i) => n * Number(scales.data[i]) >= 1);
});

const cases: Readonly<Record<keyof typeof resizing, OperatorCase>> = { Resize: { samples: images } };
describeOperators(cases, 60);

describe('Resize', () => {
  const grow = (attributes: Attributes, scale = 2): Sample => ({
    op: 'Resize', attributes, inputs: [operandAt([2, 3, 4, 5], 0), undefined, constantOperand(float32([1, 1, scale, scale]))],
  });

  it('resizes other ranks than images', async () => {
    for (const [shape, mode] of [[[2, 3, 4], 'nearest'], [[2, 3, 4], 'linear'], [[3, 4], 'cubic'], [[1, 2, 3, 2, 4], 'linear'],
      [[1, 2, 3, 2, 4], 'nearest']] as const) {
      const scales = shape.map((_, i) => (i < 2 && shape.length > 2 ? 1 : 1.5));
      const sample: Sample = {
        op: 'Resize', attributes: { mode: string(mode) },
        inputs: [fc.sample(floatOperand(shape), { seed: 1, numRuns: 1 })[0], undefined, constantOperand(float32(scales))],
      };
      await checkTypes(sample);
      await checkGradient(sample);
    }
  });

  it('takes sizes of chosen axes, and keeps the aspect ratio where asked', async () => {
    for (const policy of ['stretch', 'not_larger', 'not_smaller']) {
      const sample: Sample = {
        op: 'Resize', attributes: { mode: string('linear'), axes: ints([3, 2]), keep_aspect_ratio_policy: string(policy) },
        inputs: [fc.sample(floatOperand([1, 2, 4, 6]), { seed: 2, numRuns: 1 })[0], undefined, undefined, constantOperand(int64([9, 8]))],
      };
      await checkTypes(sample);
      await checkGradient(sample);
    }
  });

  it('has no gradient where a kept aspect ratio rounds a size up', () => {
    const { node, b } = build({
      op: 'Resize', attributes: { mode: string('linear'), keep_aspect_ratio_policy: string('not_larger'), axes: ints([2, 3]) },
      inputs: [operandAt([1, 2, 5, 8]), undefined, undefined, constantOperand(int64([3, 7]))],
    });
    expect(noGradientOf({
      node, inputs: node.inputs.map((v) => (v === '' ? undefined : b.type(v))), constants: node.inputs.map(b.constantOf), reached: [true],
    })?.reason).toMatch(/rounds a size/);
  });

  it('needs no matrix to upsample by a whole factor', () => {
    const operators = (sample: Sample): string[] => {
      const { b, node } = build(sample);
      const rule = operatorOf(node).gradient;
      if ('reason' in rule) throw new Error(rule.reason);
      const dY = b.input('dy', b.type('y0'));
      const [g] = rule({ b, node, inputs: node.inputs, outputs: node.outputs, outputGradients: [dY], needed: [true, false, false] });
      return b.build([['g', g!]]).nodes.map(({ op }) => op);
    };
    for (const attributes of [
      { coordinate_transformation_mode: string('asymmetric'), nearest_mode: string('floor') }, {},
    ]) expect(operators(grow(attributes))).not.toContain('Resize');
    expect(operators(grow({ mode: string('linear') }))).toContain('Resize');
  });

  it('refuses to resample the batch, and sizes that do not fit', () => {
    expect(says(grow({}))).toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(says({ ...grow({}), inputs: [operandAt([2, 3, 4, 5], 2), undefined, constantOperand(float32([1, 1, 2, 2]))] }))
      .toMatchObject(refusal(/resamples axis 2/));
    expect(() => build({ op: 'Resize', inputs: [operandAt([2, 3]), undefined, constantOperand(float32([1]))] })).toThrow(/either scales or sizes/);
    expect(() => build({ op: 'Resize', inputs: [operandAt([2, 3]), undefined, { value: float32([1, 2]) }] })).toThrow(/not known before the graph runs/);
  });
});
