import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attribute, type Attributes, float, int, ints, string } from '../../src/graph/ir.ts';
import { expandComposites, runnable } from '../../src/ops/expand.ts';
import { refusalOf } from '../../src/ops/refusals.ts';
import { float32, tensor } from '../../src/tensor/tensor.ts';
import { checkExpansion, expectRowsApart } from '../support/expansion-check.ts';
import { type Operand, type Sample, buildNode, constantOperand, feedsOf, floats, given, shared, withSession } from '../support/operator-sample.ts';

const numRuns = 15;

const floatList = (...value: number[]): Attribute => ({ type: 'floats', value });

/** Activations without a kink near the products that samples give, which are compared with finite differences. */
const smooth = ['Tanh', 'Sigmoid'];

const gemms: fc.Arbitrary<Sample> = fc.record({
  rows: fc.integer({ min: 1, max: 3 }), inner: fc.integer({ min: 1, max: 4 }), columns: fc.integer({ min: 1, max: 3 }), transB: fc.boolean(),
  bias: fc.boolean(), activation: fc.constantFrom(...smooth), alpha: fc.constantFrom(1, 0.5),
}).chain((s) => fc.tuple(floats([s.rows, s.inner]), floats(s.transB ? [s.columns, s.inner] : [s.inner, s.columns]), floats([s.columns]))
  .map(([x, weight, bias]): Sample => ({
    op: 'com.microsoft:FusedGemm', inputs: [given(x), shared(weight), ...(s.bias ? [shared(bias)] : [])],
    attributes: { activation: string(s.activation), transB: int(s.transB ? 1 : 0), alpha: float(s.alpha), beta: float(2) },
  })));

const convolutions: fc.Arbitrary<Sample> = fc.record({
  rows: fc.integer({ min: 1, max: 2 }), channels: fc.integer({ min: 1, max: 2 }), activation: fc.constantFrom(...smooth), added: fc.boolean(), pads: fc.constantFrom(0, 1),
}).chain((s) => {
  const side = 4 - 2 + 2 * s.pads + 1;
  return fc.tuple(floats([s.rows, s.channels, 4, 4]), floats([2, s.channels, 2, 2]), floats([2]), floats([s.rows, 2, side, side])).map(([x, weight, bias, z]): Sample => ({
    op: 'com.microsoft:FusedConv', inputs: [given(x), shared(weight), shared(bias), ...(s.added ? [given(z)] : [])],
    attributes: { activation: string(s.activation), kernel_shape: ints([2, 2]), pads: ints([s.pads, s.pads, s.pads, s.pads]) },
  }));
});

const products: fc.Arbitrary<Sample> = fc.record({ rows: fc.integer({ min: 1, max: 3 }), transB: fc.boolean(), alpha: fc.constantFrom(1, 0.5) })
  .chain((s) => fc.tuple(floats([s.rows, 2, 3]), floats(s.transB ? [4, 3] : [3, 4])).map(([x, y]): Sample => ({
    op: 'com.microsoft:TransposeMatMul', inputs: [given(x), shared(y)], attributes: { transB: int(s.transB ? 1 : 0), alpha: float(s.alpha) },
  })));

describe.each(Object.entries({ FusedGemm: gemms, FusedConv: convolutions, TransposeMatMul: products }))('com.microsoft:%s', (_, samples) => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample)), { numRuns });
  });

  it('keeps the rows of the batch apart', () => {
    fc.assert(fc.property(samples, expectRowsApart), { numRuns });
  });
});

const wave = (...shape: number[]): Operand => given(float32(Array.from({ length: shape.reduce((n, m) => n * m, 1) }, (_, i) => 2 * Math.sin(1.7 * i + shape.length)), shape));

const settings: readonly (readonly [string, Attributes, Attributes])[] = [
  ['Relu', {}, {}], ['LeakyRelu', { activation_alpha: float(0.3) }, { activation_params: floatList(0.3) }],
  ['HardSigmoid', { activation_alpha: float(0.3), activation_beta: float(0.4) }, { activation_params: floatList(0.3, 0.4) }],
];

describe('activations behind fused products', () => {
  it.each(settings)('%s has the settings that the node gives', async (name, byName, inOrder) => {
    const activation = string(name);
    await checkExpansion({ op: 'com.microsoft:FusedGemm', inputs: [wave(2, 3), wave(3, 4)], attributes: { activation, ...byName } }, { wrt: [] });
    await checkExpansion({ op: 'com.microsoft:FusedConv', inputs: [wave(1, 2, 4, 4), wave(2, 2, 2, 2)], attributes: { activation, ...inOrder } }, { wrt: [] });
  });

  it('Clip has its bounds', async () => {
    const attributes = { activation: string('Clip'), activation_params: floatList(-0.5, 1) };
    await checkExpansion({ op: 'com.microsoft:FusedConv', inputs: [wave(1, 2, 4, 4), wave(2, 2, 2, 2)], attributes }, { wrt: [] });
  });

  it('unknown ones are refused by name', () => {
    const sample: Sample = { op: 'com.microsoft:FusedGemm', inputs: [wave(2, 3), wave(3, 4)], attributes: { activation: string('Wobble') } };
    expect(() => buildNode(sample)).toThrow(/activation Wobble[^]*one of Relu, Tanh/);
  });
});

const erf = (x: number): number => {
  // The series converges for the small numbers here.
  let [term, sum] = [x, x];
  for (let n = 1; n < 60; n++) {
    term *= -x * x / n;
    sum += term / (2 * n + 1);
  }
  return 2 / Math.sqrt(Math.PI) * sum;
};
const gelu = (x: number): number => x * (1 + erf(x / Math.SQRT2)) / 2;
const fastGelu = (x: number): number => x / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

describe('fusions that ONNX Runtime computes on GPUs alone', () => {
  const [x, weight, bias, skip] = [wave(2, 2, 4), shared(wave(4, 3).value), shared(wave(4).value), wave(2, 2, 4)];
  const at = ({ value }: Operand, i: number): number => Number(value.data[i % value.data.length]);
  const product = (i: number): number => [0, 1, 2, 3].reduce((sum, k) => sum + at(x, Math.floor(i / 3) * 4 + k) * at(weight, k * 3 + (i % 3)), 0);
  const cases: readonly (readonly [Sample, (i: number) => number])[] = [
    [{ op: 'com.microsoft:BiasAdd', inputs: [x, bias, skip] }, (i) => at(x, i) + at(bias, i) + at(skip, i)],
    [{ op: 'com.microsoft:BiasSplitGelu', inputs: [x, bias] }, (i) => {
      const j = Math.floor(i / 2) * 4 + (i % 2);
      return (at(x, j) + at(bias, j)) * gelu(at(x, j + 2) + at(bias, j + 2));
    }],
    [{ op: 'com.microsoft:GemmFastGelu', inputs: [x, weight, shared(wave(3).value)] }, (i) => fastGelu(product(i) + at(wave(3), i))],
    [{ op: 'com.microsoft:FusedMatMulActivation', inputs: [x, weight], attributes: { activation: string('Tanh'), alpha: float(0.5) } }, (i) => Math.tanh(product(i) / 2)],
  ];

  it.each(cases)('are what they say ($op), with their gradients', async (sample, reference) => {
    await checkExpansion(sample, { kernel: false });
    expectRowsApart(sample);
    const whole = buildNode(sample).b.build([['y0', 'y0']]);
    expect(runnable(whole)).toEqual(expandComposites(whole));
    const y = (await withSession(runnable(whole), (run) => run(feedsOf(sample))))['y0']!;
    y.data.forEach((value: number | bigint, i: number) => expect(Number(value)).toBeCloseTo(reference(i), 4));
  });
});

describe('com.microsoft:DequantizeLinear', () => {
  it.each([[[], {}], [[3], { axis: int(1) }]])('is what ONNX Runtime computes with scales of shape %j', async (shape, attributes) => {
    const byte = (values: readonly number[], own: readonly number[]): Operand => ({ value: tensor('uint8', own, Uint8Array.from(values)) });
    const scales = shape.length === 0 ? [0.5] : [0.5, 0.25, 2];
    await checkExpansion({
      op: 'com.microsoft:DequantizeLinear', attributes,
      inputs: [byte([0, 1, 2, 130, 200, 255], [2, 3]), constantOperand(float32(scales, shape)), constantOperand(byte(scales.map((_, i) => 128 + i), shape).value)],
    });
  });
});

describe('operators of ONNX Runtime that are refused', () => {
  it.each([
    ['com.microsoft:QAttention', /whole numbers/], ['com.microsoft:QLinearConv', /whole numbers/], ['com.microsoft:DynamicQuantizeMatMul', /whole numbers/],
    ['com.microsoft:QEmbedLayerNormalization', /whole numbers/], ['com.microsoft.nchwc:Conv', /memory layout[^]*/], ['com.microsoft:BeamSearch', /generating text/],
    ['com.microsoft:PackedAttention', /one axis without padding/], ['com.microsoft:EPContext', /compiled for one device/], ['com.microsoft:MatMulBnb4', /few bits/],
  ])('%s says why', (key, reason) => {
    expect(refusalOf(key)?.reason).toMatch(reason);
    expect(refusalOf(key)?.fix).not.toBe('');
  });
});
