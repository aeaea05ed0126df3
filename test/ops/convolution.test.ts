import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int, ints, string } from '../../src/graph/ir.ts';
import { checkBatchRule } from '../support/batch-check.ts';
import { accepted, batchPlace, list, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkGradient, checkTypes } from '../support/gradient-check.ts';
import { type Sample, build, floatOperand } from '../support/operator-sample.ts';
import { checkParameterUse } from '../support/parameter-check.ts';
import { windows } from '../support/window-sample.ts';

const numRuns = 60;

interface Channels {
  readonly images: number;
  readonly groups: number;
  readonly inputs: number;
  readonly outputs: number;
  readonly bias: boolean;
}

const channels: fc.Arbitrary<Channels> = fc.record({
  images: fc.integer({ min: 1, max: 3 }), groups: fc.constantFrom(1, 1, 2, 3), inputs: fc.integer({ min: 1, max: 2 }),
  outputs: fc.integer({ min: 1, max: 2 }), bias: fc.boolean(),
});

/** Kernels [p, c/g, ...] and [c, p/g, ...]. */
const weightShape = (op: string, { groups, inputs, outputs }: Channels, kernel: readonly number[]): number[] =>
  (op === 'Conv' ? [outputs * groups, inputs, ...kernel] : [inputs * groups, outputs, ...kernel]);

const convolutions = (op: 'Conv' | 'ConvTranspose', ranks?: readonly number[]): fc.Arbitrary<Sample> =>
  accepted(fc.record({ w: windows(ranks), c: channels, extra: list(3, 0, 1), grow: list(1, -1, 2), declared: fc.boolean() })
    .chain(({ w, c, extra, grow: [grow = 0], declared }) => {
      const strides = w.attributes['strides'];
      const sizes = strides?.type === 'ints' ? w.spatial.map((n, i) => Math.max(1, n * strides.value[i]! + grow)) : [];
      const attributes = {
        ...w.attributes, group: int(c.groups),
        ...(op === 'Conv' ? {} : { output_padding: ints(extra.slice(0, w.spatial.length)) }),
        ...(op === 'ConvTranspose' && declared && !('pads' in w.attributes) ? { output_shape: ints(sizes) } : {}),
      };
      const operands = [
        floatOperand([c.images, c.inputs * c.groups, ...w.spatial]), floatOperand(weightShape(op, c, w.kernel)),
        ...(c.bias ? [floatOperand([c.outputs * c.groups])] : []),
      ];
      return fc.tuple(...operands).map((inputs): Sample => ({ op, inputs, attributes }));
    }));

/** The batch anywhere in the input. */
const batched = (op: 'Conv' | 'ConvTranspose'): fc.Arbitrary<Sample> =>
  accepted(fc.record({ w: windows([1, 2]), c: channels, at: batchPlace([0, 0, 0, 1, 2]) }).chain(({ w, c, at }) => {
    const x = withRows([1, c.inputs * c.groups, ...w.spatial], at);
    const perGroup = { ...c, inputs: x[1]! / c.groups };
    const operands = [
      floatOperand(x, {}, at), floatOperand(weightShape(op, perGroup, w.kernel)),
      ...(c.bias ? [floatOperand([c.outputs * c.groups])] : []),
    ];
    const attributes = { ...w.attributes, group: int(c.groups) };
    return fc.tuple(...operands).map((inputs): Sample => ({ op, inputs, attributes }));
  }));

describe.each(['Conv', 'ConvTranspose'] as const)('%s', (op) => {
  it('has the type that ONNX Runtime computes, and the gradient of finite differences', async () => {
    await fc.assert(fc.asyncProperty(convolutions(op), async (sample) => {
      await checkTypes(sample);
      await checkGradient(sample);
    }), { numRuns });
  });

  it('keeps images apart, and says the per-example gradients of weight and bias', async () => {
    await fc.assert(fc.asyncProperty(batched(op), async (sample) => {
      const said = await checkBatchRule(sample);
      expect(said).toBe(sample.inputs[0]?.batch?.axis === 0 ? 'proved' : 'refused');
      if (said === 'refused') return;
      for (let index = 1; index < sample.inputs.length; index++) await checkParameterUse(sample, index);
    }), { numRuns });
  });
});

describe('convolutions', () => {
  it('refuse a kernel that depends on the examples', () => {
    const sample = { op: 'Conv', inputs: [operandAt([1, 2, 5, 5]), operandAt([3, 2, 3, 3], 0)] };
    expect(says(sample)).toMatchObject(refusal(/kernel that depends/));
  });

  it('refuse operands that do not fit, by name and with what was found', () => {
    const conv = (x: number[], w: number[], attributes = {}) => () =>
      build({ op: 'Conv', inputs: [operandAt(x), operandAt(w)], attributes });
    expect(conv([1, 3, 5, 5], [4, 2, 3, 3])).toThrow(/Conv node "node"[^]*\[1, 3, 5, 5\][^]*\[4, 2, 3, 3\]/);
    expect(conv([1, 2, 2, 2], [4, 2, 3, 3])).toThrow(/no smaller than the kernel/);
    const dilatedSame = { dilations: ints([2, 2]), auto_pad: string('SAME_UPPER') };
    expect(conv([1, 2, 5, 5], [4, 2, 3, 3], dilatedSame)).toThrow(/SAME_UPPER/);
    expect(conv([1, 2, 5, 5], [4, 2, 3, 3], { pads: ints([-1, 0, 0, 0]) })).toThrow(/negative pads/);
    expect(() => build({
      op: 'ConvTranspose', inputs: [operandAt([1, 2, 5]), operandAt([2, 4, 3])], attributes: { output_padding: ints([1]) },
    })).toThrow(/output_padding/);
  });
});
