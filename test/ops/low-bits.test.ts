import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int } from '../../src/graph/ir.ts';
import { type FloatTensor, type Tensor, float32, tensor } from '../../src/tensor/tensor.ts';
import { refusal } from '../support/batched.ts';
import { checkTypes } from '../support/gradient-check.ts';
import {
  type Operand, type Sample, batchResult, build, constantOperand, feedsOf, floats, given, gradientContext, gradients, shared, wholes, withSession,
} from '../support/operator-sample.ts';
import { checkParameterUse } from '../support/parameter-check.ts';

interface Weight {
  readonly bits: number;
  readonly N: number;
  readonly K: number;
  readonly block: number;
  readonly zeros: 'none' | 'packed' | 'floats';
}

const bytes = (length: number): fc.Arbitrary<Uint8Array> => fc.uint8Array({ minLength: length, maxLength: length });

/** A product with a weight in few bits, its operands as ONNX Runtime lays them out; and the weight, one number at a time. */
const products = fc.record({
  bits: fc.constantFrom(4, 8), N: fc.integer({ min: 1, max: 3 }), K: fc.constantFrom(16, 24, 32), block: fc.constant(16),
  zeros: fc.constantFrom<Weight['zeros']>('none', 'packed', 'floats'), rows: fc.integer({ min: 1, max: 3 }), bias: fc.boolean(),
}).chain((s) => {
  const blocks = Math.ceil(s.K / s.block);
  // ONNX Runtime computes with zero points of floats up to 4 bits only.
  const kind = s.bits === 8 && s.zeros === 'floats' ? 'packed' : s.zeros;
  const zeroBytes = Math.ceil(blocks * s.bits / 8);
  return fc.tuple(
    fc.constant(s), floats([s.rows, 2, s.K]), bytes(s.N * blocks * s.block * s.bits / 8), floats([s.N * blocks], { low: 0.01, high: 0.05 }),
    bytes(s.N * zeroBytes), floats([s.N * blocks]), floats([s.N]),
  ).map(([, x, packed, scales, zeroPacked, zeroFloats, bias]) => {
    const digit = (data: Uint8Array, i: number): number => (data[Math.floor(i * s.bits / 8)]! >> (i * s.bits % 8)) % 2 ** s.bits;
    const weight = Array.from({ length: s.N * s.K }, (_, i) => {
      const [n, k] = [Math.floor(i / s.K), i % s.K];
      const at = n * blocks + Math.floor(k / s.block);
      const zero = kind === 'none' ? 2 ** (s.bits - 1) : kind === 'floats' ? zeroFloats.data[at]!
        : digit(zeroPacked.slice(n * zeroBytes, (n + 1) * zeroBytes), Math.floor(k / s.block));
      return (digit(packed, at * s.block + (k % s.block)) - zero) * scales.data[at]!;
    });
    const zeros: Tensor | undefined = kind === 'none' ? undefined : kind === 'floats' ? zeroFloats : tensor('uint8', [s.N * zeroBytes], zeroPacked);
    const inputs: (Operand | undefined)[] = [
      given(x), constantOperand(tensor('uint8', [s.N, blocks, s.block * s.bits / 8], packed)), constantOperand(scales), zeros && constantOperand(zeros),
      undefined, s.bias ? shared(bias) : undefined,
    ];
    const sample: Sample = {
      op: 'com.microsoft:MatMulNBits', inputs: s.bias ? inputs : inputs.slice(0, 4),
      attributes: { N: int(s.N), K: int(s.K), bits: int(s.bits), block_size: int(s.block) },
    };
    return { sample, weight, N: s.N, K: s.K };
  });
});

describe('com.microsoft:MatMulNBits', () => {
  it('has the types that ONNX Runtime computes, and the gradient of the weight that its bits stand for', async () => {
    await fc.assert(fc.asyncProperty(products, async ({ sample, weight, N, K }) => {
      const y = (await checkTypes(sample))['y0']!;
      const x = sample.inputs[0]!.value as FloatTensor;
      const bias = sample.inputs[5]?.value;
      const rows = x.data.length / K;
      const built = build(sample);
      const context = gradientContext(built, sample, [0]);
      const dX = gradients(built, context)[0]!;
      const dy = float32(Array.from({ length: rows * N }, (_, i) => Math.cos(i)), [...x.shape.slice(0, -1), N]);
      const found = (await withSession(built.b.build([['dx', dX]]), (run) => run({ ...feedsOf(sample), dy0: dy })))['dx']!;
      for (let r = 0; r < rows; r++) {
        for (let n = 0; n < N; n++) {
          const wanted = weight.slice(n * K, (n + 1) * K).reduce((sum, w, k) => sum + w * x.data[r * K + k]!, 0) + Number(bias?.data[n] ?? 0);
          expect(Number(y.data[r * N + n])).toBeCloseTo(wanted, 2);
        }
        for (let k = 0; k < K; k++) {
          const wanted = Array.from({ length: N }, (_, n) => dy.data[r * N + n]! * weight[n * K + k]!).reduce((sum, v) => sum + v, 0);
          expect(Number(found.data[r * K + k])).toBeCloseTo(wanted, 4);
        }
      }
    }), { numRuns: 25 });
  });

  it('says what each row gives to a bias, and keeps rows apart', async () => {
    await fc.assert(fc.asyncProperty(products.filter(({ sample }) => sample.inputs.length > 5), async ({ sample }) => {
      await checkParameterUse(sample, 5);
    }), { numRuns: 8 });
    const { sample } = fc.sample(products, { seed: 2, numRuns: 1 })[0]!;
    const turned = { ...sample, inputs: sample.inputs.map((o, i) => (i === 0 && o !== undefined ? { ...o, batch: { axis: 2, before: 1, after: 1 } } : o)) };
    expect(batchResult(build(turned), turned)).toMatchObject(refusal(/sums over the batch axis/));
  });

  it('refuses weights in an order of their own', () => {
    const { sample } = fc.sample(products, { seed: 2, numRuns: 1 })[0]!;
    const order = constantOperand(tensor('int32', [16], new Int32Array(16)));
    expect(() => build({ ...sample, inputs: [...sample.inputs.slice(0, 3), undefined, order] })).toThrow(/g_idx/);
  });
});

describe('com.microsoft:GatherBlockQuantized', () => {
  it('has the types that ONNX Runtime computes, and lets nothing flow back', async () => {
    await fc.assert(fc.asyncProperty(bytes(5 * 16), floats([5, 2]), wholes([3, 2], 0, 4), async (table, scales, places) => {
      const sample: Sample = {
        op: 'com.microsoft:GatherBlockQuantized', attributes: { bits: int(4), block_size: int(16), gather_axis: int(0), quantize_axis: int(1) },
        inputs: [constantOperand(tensor('uint8', [5, 16], table)), given(places), constantOperand(scales)],
      };
      expect((await checkTypes(sample))['y0']!.shape).toEqual([3, 2, 32]);
      const built = build(sample);
      expect(batchResult(built, sample)).toEqual([{ axis: 0, before: 1, after: 1 }]);
      expect(gradients(built, gradientContext(built, sample, [2])).every((g) => g === undefined)).toBe(true);
    }), { numRuns: 5 });
  });
});
