import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attribute, float, int, ints, string } from '../../src/graph/ir.ts';
import { type Tensor, float32, int64 } from '../../src/tensor/tensor.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { type Sample, buildNode, constantOperand, floats } from '../support/operator-sample.ts';

const list = (value: readonly number[]): Attribute => ({ type: 'floats', value });
const ml = (op: string, inputs: readonly Tensor[], attributes: Sample['attributes'] = {}, outputs = 1): Sample =>
  ({ op: `ai.onnx.ml:${op}`, inputs: inputs.map((value) => ({ value })), attributes, outputs });

const x = float32([0.5, -1, 2, 3, 0.25, -2], [2, 3]);
const check = (sample: Sample) => checkExpansion(sample, { tolerance: 1e-5 });

describe('operators of scikit-learn pipelines expand into what ONNX Runtime computes', () => {
  it('Scaler', async () => {
    await check(ml('Scaler', [x], { offset: list([1, 2, 3]), scale: list([0.5, 2, -1]) }));
    await check(ml('Scaler', [x], { offset: list([1]), scale: list([0.5]) }));
    await check(ml('Scaler', [int64([1, 2, 3, 4], [2, 2])], { offset: list([1, 2]), scale: list([0.5, 2]) }));
    expect(() => buildNode(ml('Scaler', [x], { offset: list([1, 2]) }))).toThrow(/one for each feature/);
  });

  it('LinearRegressor', async () => {
    await fc.assert(fc.asyncProperty(fc.integer({ min: 1, max: 3 }), fc.boolean(), (targets, shifted) =>
      check(ml('LinearRegressor', [x], {
        targets: int(targets), coefficients: list(Array.from({ length: 3 * targets }, (_, i) => i / 2 - 1)),
        ...(shifted ? { intercepts: list(Array.from({ length: targets }, (_, i) => i + 1)) } : {}),
      }))), { numRuns: 6 });
    expect(() => buildNode(ml('LinearRegressor', [x], { coefficients: list([1]) }))).toThrow(/3 coefficients/);
  });

  it('LinearClassifier', async () => {
    const coefficients = [0.5, -0.25, 1, -1, 0.5, 0.25, 0.1, 0.2, -0.3];
    for (const kind of ['NONE', 'LOGISTIC', 'SOFTMAX']) {
      const settings = { post_transform: string(kind), multi_class: int(1) };
      await check(ml('LinearClassifier', [x], {
        ...settings, coefficients: list(coefficients), intercepts: list([0.1, 0.2, -0.3]), classlabels_ints: ints([4, 7, 9]),
      }, 2));
      await check(ml('LinearClassifier', [x], {
        ...settings, coefficients: list(coefficients.slice(0, 6)), intercepts: list([0.1, 0.2]), classlabels_ints: ints([0, 1]),
      }, 2));
    }
  });

  it('Normalizer', async () => {
    for (const norm of ['MAX', 'L1', 'L2']) await check(ml('Normalizer', [x], { norm: string(norm) }));
    await checkExpansion(ml('Normalizer', [float32([0, 0, 1, 2], [2, 2])], { norm: string('L1') }), { wrt: [] });
  });

  it('Binarizer and Imputer', async () => {
    await checkExpansion(ml('Binarizer', [x], { threshold: float(0.3) }), { wrt: [] });
    // A marked value is a point of its own: nothing is continuous there.
    await checkExpansion(ml('Imputer', [x], { imputed_value_floats: list([9, 8, 7]), replaced_value_float: float(-1) }), { wrt: [] });
    await check(ml('Imputer', [x], { imputed_value_floats: list([9, 8, 7]), replaced_value_float: float(99) }));
    const { b } = buildNode(ml('Imputer', [x], { imputed_value_floats: list([5]), replaced_value_float: float(NaN) }));
    expect(b.type('y0')).toEqual({ dtype: 'float32', shape: [2, 3] });
    expect(() => buildNode(ml('Imputer', [x]))).toThrow(/no imputed_value_floats/);
  });

  it('FeatureVectorizer and ArrayFeatureExtractor', async () => {
    const [a, c] = fc.sample(fc.tuple(floats([2, 3]), floats([2, 1])), { seed: 1, numRuns: 1 })[0]!;
    await check(ml('FeatureVectorizer', [a, c], { inputdimensions: ints([3, 1]) }));
    await check({ op: 'ai.onnx.ml:ArrayFeatureExtractor', inputs: [{ value: x }, constantOperand(int64([2, 0]))] });
    await check({ op: 'ai.onnx.ml:ArrayFeatureExtractor', inputs: [{ value: float32([1, 2, 3]) }, constantOperand(int64([2, 0]))] });
  });

  it('OneHotEncoder', async () => {
    await check(ml('OneHotEncoder', [int64([1, 3, 5, 2], [2, 2])], { cats_int64s: ints([1, 2, 3]), zeros: int(1) }));
    expect(() => buildNode(ml('OneHotEncoder', [x]))).toThrow(/encode text/);
  });
});
