import { describe, expect, it } from 'vitest';
import { activations } from '../../src/ops/activations.ts';
import { arranging } from '../../src/ops/arranging.ts';
import { attention } from '../../src/ops/attention.ts';
import { bitwise } from '../../src/ops/bitwise.ts';
import { contributed } from '../../src/ops/contributed.ts';
import { convolution } from '../../src/ops/convolution.ts';
import { contraction } from '../../src/ops/einsum.ts';
import { elementwise } from '../../src/ops/elementwise.ts';
import { gathering } from '../../src/ops/gathering.ts';
import { linear } from '../../src/ops/linear.ts';
import { losses } from '../../src/ops/losses.ts';
import { normalization } from '../../src/ops/normalization.ts';
import { plainNormalization } from '../../src/ops/plain-normalization.ts';
import { pooling } from '../../src/ops/pooling.ts';
import { products } from '../../src/ops/products.ts';
import { quantization } from '../../src/ops/quantization.ts';
import { recurrent } from '../../src/ops/recurrent.ts';
import { reductions } from '../../src/ops/reductions.ts';
import { refusalOf } from '../../src/ops/refusals.ts';
import { resizing } from '../../src/ops/resize.ts';
import { sampling } from '../../src/ops/sampling.ts';
import { scattering } from '../../src/ops/scatter.ts';
import { shape } from '../../src/ops/shape.ts';
import { slicing } from '../../src/ops/slicing.ts';
import { spectral } from '../../src/ops/spectral.ts';
import { hasOperator, operatorOf, operators, semantics } from '../../src/ops/table.ts';
import { traditional } from '../../src/ops/traditional-ml.ts';
import { int64 } from '../../src/tensor/tensor.ts';

const node = (op: string, inputs: string[] = [], domain = '') =>
  ({ op, domain, name: 'n', inputs, outputs: ['y'], attributes: {} });

describe('the operator table', () => {
  it('holds every entry of every family, none twice', () => {
    const families = [
      activations, attention, contributed, convolution, elementwise, gathering, linear, normalization, plainNormalization, pooling, recurrent,
      reductions, resizing, scattering, sampling, arranging, contraction, losses, spectral, products, bitwise, quantization,
      traditional, shape, slicing,
    ];
    expect(families.flatMap((family) => Object.keys(family)).sort()).toEqual(Object.keys(operators).sort());
  });

  it('finds operators by name and domain', () => {
    expect(hasOperator(node('MatMul'))).toBe(true);
    expect(hasOperator(node('MatMul', [], 'ai.onnx'))).toBe(true);
    expect(hasOperator(node('FusedMatMul', [], 'com.microsoft'))).toBe(true);
    expect(hasOperator(node('FusedMatMul'))).toBe(false);
    expect(hasOperator(node('toString'))).toBe(false);
  });

  it('names the node, the operator and the nearest one where it has none', () => {
    expect(() => operatorOf(node('Convv')))
      .toThrow(/unsupported operator Convv: [^]*nearest name there is Conv\) \(Convv node "n"\)[^]*fix:/);
    expect(() => semantics.infer(node('Loop'), [], [])).toThrow(/unsupported operator Loop/);
  });

  it('says why an operator is refused on purpose, and what to do instead', () => {
    expect(() => operatorOf(node('SequenceAt'))).toThrow(/unsupported operator SequenceAt: it works on lists[^]*fix:/);
    expect(() => operatorOf(node('TreeEnsembleRegressor', [], 'ai.onnx.ml'))).toThrow(/decision tree[^]*fix:/);
    expect(() => operatorOf(node('TreeEnsembleRegressor'))).toThrow(/not in the table of operators/);
  });

  it('refuses nothing that it holds', () => {
    expect(Object.keys(operators).filter((key) => refusalOf(key) !== undefined)).toEqual([]);
  });

  it('infers as many types as a node has outputs', () => {
    const attributes = { kernel_shape: { type: 'ints', value: [2] } } as const;
    expect(semantics.infer({ ...node('MaxPool', ['x']), attributes }, [{ dtype: 'float32', shape: [1, 1, 4] }], []))
      .toEqual([{ dtype: 'float32', shape: [1, 1, 3] }]);
  });

  it('folds what is constant, and shapes of what is not', () => {
    const type = { dtype: 'int64', shape: [2] } as const;
    const [a, b] = [int64([1, 2]), int64([3, 4])];
    expect(semantics.fold(node('Add', ['a', 'b']), [type, type], [a, b])).toEqual([int64([4, 6])]);
    expect(semantics.fold(node('Add', ['a', 'b']), [type, type], [a, undefined])).toBeUndefined();
    expect(semantics.fold(node('Shape', ['x']), [{ dtype: 'float32', shape: [7, 5] }], [undefined]))
      .toEqual([int64([7, 5])]);
    expect(semantics.fold(node('MatMul', ['a', 'b']), [type, type], [a, b])).toBeUndefined();
  });
});
