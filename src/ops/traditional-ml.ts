import { type Node, floatAttribute, int, intAttribute, intsAttribute, showShape, stringAttribute } from '../graph/ir.ts';
import { float32, int64, sizeOf } from '../tensor/tensor.ts';
import { knownIntegers } from './arranging.ts';
import { type GraphBuilder, type Value, add, concat, div, mul, neg, reduceMax, reduceSum, reshape, sub, where } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { badOperands } from './operands.ts';
import { castTo, scalarLike } from './rules.ts';

/** Operators that scikit-learn pipelines are exported to. What they learnt stands in attributes, which are never trained. */

function floatsAttribute(node: Node, name: string): readonly number[] {
  const a = node.attributes[name];
  return a?.type === 'floats' ? a.value : [];
}

const real = ({ b, inputs }: ExpandContext, index = 0): Value => castTo(b, inputs[index]!, 'float32');

/** Features [N, C]; a vector is one example. */
function features(context: ExpandContext): Value {
  const x = real(context);
  const shape = context.b.shape(x);
  if (shape.length === 1) return reshape(context.b, x, [1, ...shape]);
  if (shape.length === 2) return x;
  throw badOperands(context, `features ${showShape(shape)}`, 'features [N, C]');
}

const scaler: Composite = {
  expand: (context) => {
    const { b, node } = context;
    const x = real(context);
    const [offset, factor] = [floatsAttribute(node, 'offset'), floatsAttribute(node, 'scale')];
    const width = b.shape(x).at(-1) ?? 1;
    if (![offset, factor].every(({ length }) => [0, 1, width].includes(length))) {
      throw badOperands({ node }, `${offset.length} offsets and ${factor.length} scales of ${width} features`, 'one, or one for each feature');
    }
    const shifted = offset.length === 0 ? x : sub(b, x, b.constant(float32(offset)));
    return [factor.length === 0 ? shifted : mul(b, shifted, b.constant(float32(factor)))];
  },
};

/** Scores of `count` linear functions. */
function linearScores(context: ExpandContext, coefficients: readonly number[], intercepts: readonly number[], count: number): Value {
  const { b, node } = context;
  const x = features(context);
  const width = b.shape(x)[1]!;
  if (coefficients.length !== count * width || ![0, count].includes(intercepts.length)) {
    throw badOperands({ node }, `${coefficients.length} coefficients and ${intercepts.length} intercepts for ${count} results of ${width} features`,
      `${count * width} coefficients`);
  }
  const matrix = float32(Array.from({ length: width * count }, (_, i) => coefficients[(i % count) * width + Math.floor(i / count)]!), [width, count]);
  const product = b.op('MatMul', [x, b.constant(matrix)]);
  return intercepts.length === 0 ? product : add(b, product, b.constant(float32(intercepts)));
}

function postTransform(b: GraphBuilder, node: Node, scores: Value): Value {
  const kind = stringAttribute(node, 'post_transform', 'NONE');
  if (kind === 'NONE') return scores;
  if (kind === 'LOGISTIC') return b.op('Sigmoid', [scores]);
  if (kind === 'SOFTMAX') return b.op('Softmax', [scores], { axis: int(-1) });
  throw badOperands({ node }, `post_transform ${kind}`, 'NONE, LOGISTIC or SOFTMAX');
}

const linearRegressor: Composite = {
  expand: (context) => {
    const { b, node } = context;
    const scores = linearScores(context, floatsAttribute(node, 'coefficients'), floatsAttribute(node, 'intercepts'), intAttribute(node, 'targets', 1));
    return [postTransform(b, node, scores)];
  },
};

/** The class of the highest score, and the scores. Two classes may share one score, of the second. */
const linearClassifier: Composite = {
  expand: (context) => {
    const { b, node } = context;
    const [coefficients, intercepts] = [floatsAttribute(node, 'coefficients'), floatsAttribute(node, 'intercepts')];
    const labels = intsAttribute(node, 'classlabels_ints', []);
    const names = node.attributes['classlabels_strings'];
    const classes = names?.type === 'strings' && names.value.length > 0 ? names.value.length : labels.length;
    const count = coefficients.length / (b.shape(features(context))[1] ?? 1);
    const scores = linearScores(context, coefficients, intercepts, count);
    const single = count === 1 && classes === 2;
    const isLogistic = stringAttribute(node, 'post_transform', 'NONE') === 'LOGISTIC';
    const winner = single ? castTo(b, reshape(b, b.op('Greater', [scores, scalarLike(b, 0, scores)]), [b.shape(scores)[0]!]), 'int64')
      : b.op('ArgMax', [scores], { axis: int(1), keepdims: int(0) });
    const label = labels.length === 0 ? undefined : b.op('Gather', [b.constant(int64(labels)), winner]);
    if (!single) return [label, postTransform(b, node, scores)];
    const other = isLogistic ? sub(b, scalarLike(b, 1, scores), b.op('Sigmoid', [scores])) : neg(b, scores);
    return [label, concat(b, [other, postTransform(b, node, scores)], 1)];
  },
};

/** Each example divided by a norm of its features; by 1 where that is 0. */
const normalizer: Composite = {
  expand: (context) => {
    const { b, node } = context;
    const x = real(context);
    const axes = [b.shape(x).length - 1];
    const kind = stringAttribute(node, 'norm', 'MAX');
    const norm = kind === 'L1' ? reduceSum(b, b.op('Abs', [x]), axes, true)
      : kind === 'L2' ? b.op('ReduceL2', [x, b.ints(axes)], { keepdims: int(1) }) : reduceMax(b, x, axes, true);
    const isZero = b.op('Equal', [norm, scalarLike(b, 0, norm)]);
    return [div(b, x, where(b, isZero, scalarLike(b, 1, norm), norm))];
  },
};

const binarizer: Composite = {
  expand: (context) => {
    const x = real(context);
    const threshold = scalarLike(context.b, floatAttribute(context.node, 'threshold', 0), x);
    return [castTo(context.b, context.b.op('Greater', [x, threshold]), 'float32')];
  },
};

/** Missing values, marked by a number or NaN, replaced. */
const imputer: Composite = {
  expand: (context) => {
    const { b, node } = context;
    const x = real(context);
    const values = floatsAttribute(node, 'imputed_value_floats');
    if (values.length === 0) throw badOperands({ node }, 'no imputed_value_floats', 'float features and the values that replace missing ones');
    const mark = floatAttribute(node, 'replaced_value_float', 0);
    const missing = Number.isNaN(mark) ? b.op('IsNaN', [x]) : b.op('Equal', [x, scalarLike(b, mark, x)]);
    return [where(b, missing, b.constant(float32(values)), x)];
  },
};

const featureVectorizer: Composite = {
  expand: (context) => {
    const { b, inputs } = context;
    return [concat(b, inputs.map((_, i) => {
      const x = real(context, i);
      const shape = b.shape(x);
      return shape.length === 2 ? x : reshape(b, x, [shape[0] ?? 1, sizeOf(shape.slice(1))]);
    }), 1)];
  },
};

const arrayFeatureExtractor: Composite = {
  expand: (context) => {
    const { b, inputs } = context;
    const x = inputs[0]!;
    const shape = b.shape(x);
    const picked = b.op('Gather', [x, b.ints(knownIntegers(context, 1))], { axis: int(shape.length - 1) });
    return [shape.length === 1 ? reshape(b, picked, [1, ...b.shape(picked)]) : picked];
  },
};

/** One place for each known category, 1 where it is the value's. */
const oneHotEncoder: Composite = {
  expand: ({ b, node, inputs }) => {
    const categories = intsAttribute(node, 'cats_int64s', []);
    const x = inputs[0]!;
    if (categories.length === 0) throw badOperands({ node }, 'categories of text', 'cats_int64s: encode text before the model');
    const whole = castTo(b, x, 'int64');
    const same = b.op('Equal', [reshape(b, whole, [...b.shape(x), 1]), b.ints(categories)]);
    return [castTo(b, same, 'float32')];
  },
};

export const traditional = {
  'ai.onnx.ml:Scaler': scaler, 'ai.onnx.ml:LinearRegressor': linearRegressor, 'ai.onnx.ml:LinearClassifier': linearClassifier,
  'ai.onnx.ml:Normalizer': normalizer, 'ai.onnx.ml:Binarizer': binarizer, 'ai.onnx.ml:Imputer': imputer,
  'ai.onnx.ml:FeatureVectorizer': featureVectorizer, 'ai.onnx.ml:ArrayFeatureExtractor': arrayFeatureExtractor,
  'ai.onnx.ml:OneHotEncoder': oneHotEncoder,
} satisfies Record<string, Composite>;

