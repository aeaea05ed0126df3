import { TensorProto_DataType as DataType } from 'onnx-buf';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { decodeModel } from '../../src/graph/decode.ts';
import { type Graph, int } from '../../src/graph/ir.ts';
import { specialise } from '../../src/graph/specialise.ts';
import { leading } from '../../src/ops/batch.ts';
import { semantics } from '../../src/ops/table.ts';
import { type Tensor, float32, sizeOf, tensor } from '../../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../../src/training/compile.ts';
import { encoded, refused } from '../graph/messages.ts';
import { graphOf, node, runGraph, value } from '../graph/onnxruntime.ts';
import { says, refusal } from '../support/batched.ts';
import { checkFold } from '../support/gradient-check.ts';
import { type Operand, type Sample, constantOperand, floats } from '../support/operator-sample.ts';
import { describeOperators } from '../support/operator-suite.ts';
import { randomTensor, testRandom } from '../support/random-network.ts';

const bytes = (shape: readonly number[], signed = true): fc.Arbitrary<Tensor> =>
  fc.array(fc.integer(signed ? { min: -128, max: 127 } : { min: 0, max: 255 }), { minLength: sizeOf(shape), maxLength: sizeOf(shape) })
    .map((xs) => (signed ? tensor('int8', shape, Int8Array.from(xs)) : tensor('uint8', shape, Uint8Array.from(xs))));
const scales = (shape: readonly number[]): fc.Arbitrary<Operand> => floats(shape, { low: 0.01, high: 0.2 }).map(constantOperand);

interface Way {
  readonly scale: readonly number[];
  readonly attributes: NonNullable<Sample['attributes']>;
}

/** Values [3, 4, 5], the batch in front. */
const shape = [3, 4, 5];
const ways = fc.constantFrom<Way>(
  { scale: [], attributes: {} }, { scale: [1], attributes: {} }, { scale: [4], attributes: {} },
  { scale: [5], attributes: { axis: int(-1) } }, { scale: [3, 2, 5], attributes: { axis: int(1), block_size: int(2) } },
  { scale: [3, 4, 2], attributes: { axis: int(2), block_size: int(3) } },
);
const operand = (t: Tensor): Operand => ({ value: t, batch: leading });

const samplesOf = (op: 'DequantizeLinear' | 'QuantizeLinear'): fc.Arbitrary<Sample> =>
  fc.tuple(ways, fc.boolean(), fc.boolean()).chain(([{ scale, attributes }, signed, shifted]) => fc.record({
    x: op === 'DequantizeLinear' ? bytes(shape, signed) : floats(shape, { low: -9, high: 9 }),
    s: scales(scale), zero: bytes(scale, signed),
  }).map(({ x, s, zero }): Sample => ({
    op, attributes, inputs: [operand(x), s, ...(shifted || op === 'QuantizeLinear' ? [constantOperand(zero)] : [])],
  })));

describeOperators({
  DequantizeLinear: { samples: samplesOf('DequantizeLinear'), flows: false },
  QuantizeLinear: { samples: samplesOf('QuantizeLinear').filter(({ attributes }) => attributes?.['block_size'] === undefined), flows: false },
});

describe('quantised weights', () => {
  it('fold to the floats that ONNX Runtime computes', async () => {
    await fc.assert(fc.asyncProperty(samplesOf('DequantizeLinear'), (sample) => checkFold(sample)), { numRuns: 30 });
  });

  it('must not take their scales from the place in the batch', () => {
    const x = operand(tensor('int8', [3, 4], new Int8Array(12)));
    expect(says({ op: 'DequantizeLinear', attributes: { axis: int(0) }, inputs: [x, constantOperand(float32([1, 2, 3]))] }))
      .toMatchObject(refusal(/axis 0, which carries the batch/));
  });

  it('of four bits are read as eight', async () => {
    const packed = { name: 'w', dims: [3n], rawData: Uint8Array.of(0x8f, 0x07) };
    const graph = (dataType: DataType) => decodeModel(encoded({
      initializer: [{ ...packed, dataType }, { name: 's', dims: [], dataType: DataType.FLOAT, floatData: [0.5] }],
      node: [
        { opType: 'DequantizeLinear', input: ['w', 's'], output: ['f'] }, { opType: 'Add', input: ['x', 'f'], output: ['y'] },
      ],
    }, { opsetImport: [{ domain: '', version: 21n }] }));
    for (const [dataType, expected] of [[DataType.INT4, [-1, -8, 7]], [DataType.UINT4, [15, 8, 7]]] as const) {
      expect([...graph(dataType).initializers.get('w')!.data]).toEqual(expected);
      const { y } = await runGraph(graph(dataType), { x: float32([0, 0, 0]) });
      expect(y!.values).toEqual(expected.map((n) => n / 2));
    }
  });

  it('of four bits are refused where something is rounded to them, or bytes are missing', () => {
    const zero = { name: 'z', dims: [], dataType: DataType.INT4, int32Data: [3] };
    const scale = { name: 's', dims: [], dataType: DataType.FLOAT, floatData: [0.5] };
    refused(encoded({
      initializer: [zero, scale], node: [{ opType: 'QuantizeLinear', input: ['x', 's', 'z'], output: ['y'] }],
    }), /four bits are not supported/);
    refused(encoded({ initializer: [{ ...zero, dims: [3n], int32Data: [3] }], node: [{ opType: 'Relu', input: ['x'], output: ['y'] }] }),
      /1 bytes[^]*2 bytes for 3 elements/);
  });
});

/** x → [rounded to 8 bits and back] · a weight kept in 8 bits → + bias → head. */
const quantised = (): Graph => {
  const random = testRandom(7);
  return graphOf({
    inputs: [value('x', ['batch', 4])], outputs: [value('logits', ['batch', 2])],
    initializers: new Map<string, Tensor>([
      ['q', tensor('int8', [4, 3], Int8Array.from({ length: 12 }, (_, i) => 20 * i - 120))], ['qs', float32([0.01, 0.02, 0.03])],
      ['xs', float32([0.05], [])], ['xz', tensor('uint8', [], Uint8Array.of(128))],
      ['bias', randomTensor(random, [3])], ['head', randomTensor(random, [3, 2])],
    ]),
    nodes: [
      node('QuantizeLinear', ['x', 'xs', 'xz'], ['xq']), node('DequantizeLinear', ['xq', 'xs', 'xz'], ['xf']),
      node('DequantizeLinear', ['q', 'qs'], ['w'], { axis: int(1) }), node('MatMul', ['xf', 'w'], ['p']),
      node('Add', ['p', 'bias'], ['a']), node('QuantizeLinear', ['a', 'xs', 'xz'], ['aq']),
      node('DequantizeLinear', ['aq', 'xs', 'xz'], ['af']), node('MatMul', ['af', 'head'], ['logits']),
    ],
  });
};

describe('a quantised model', () => {
  it('holds its weights as frozen literals once shapes are fixed', () => {
    const typed = specialise(quantised(), { x: [5, 4] }, semantics);
    expect(typed.literals).toContain('w');
    expect(typed.nodes.some(({ outputs }) => outputs.includes('w'))).toBe(false);
    expect(typed.initializers.has('q')).toBe(false);
  });

  it('trains what lies behind the last rounding, and says why not the rest', () => {
    const behind = analyse({ model: quantised(), loss: 'cross-entropy', trainable: ['head'] });
    expect(behind).toMatchObject({ parameters: ['head'], violations: [], obstacles: [] });
    const all = analyse({ model: quantised(), loss: 'cross-entropy' });
    expect(all.obstacles).toMatchObject([{ operator: 'DequantizeLinear', reason: expect.stringMatching(/rounds activations/) as string }]);
    expect(() => requireTrainable(all)).toThrow(/--trainable/);
  });

  it('never trains a scale of its quantisation', () => {
    expect(() => analyse({ model: quantised(), loss: 'cross-entropy', trainable: ['qs'] })).toThrow(/matches no parameter/);
  });
});
