import { GhostgradError } from '../errors.ts';
import { intAttribute, showNode, showType } from '../graph/ir.ts';
import { dataTypeName, dtypeOf } from '../graph/onnx.ts';
import { type DType, isFloat, toNumbers } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, add, div, mul, neg, scale, sub, where } from './builder.ts';
import { type Element, type Fold, foldElementwise, fromElements, onNumbers } from './fold.ts';
import { badOperands, operand } from './operands.ts';
import type { GradientContext, GradientRule, OperandContext, Operator } from './operator.ts';
import {
  type Partial, broadcastType, broadcasting, castTo, elementwiseBatch, elementwiseShape,
  gate, noGradientFlows, rowwise, sameShape, scalarLike, unary,
} from './rules.ts';

/** An operator on broadcast operands of one element type: two of them, or any number. */
const arithmetic = (partial: Partial, fold?: Fold, count?: number): Operator => ({
  shape: elementwiseShape(undefined, count), ...broadcasting(partial), ...(fold && { fold }),
});
/** Where a bias or a scale of its own node stands. */
const binary = (partial: Partial, fold: Fold): Operator => ({
  ...arithmetic(partial, fold, 2), learnedByChannel: [0, 1],
});

const zeroLike = (b: GraphBuilder, v: Value): Value => scalarLike(b, 0, v);

const power: Operator = {
  shape: (context) => {
    const [base, exponent] = [operand(context, 0), operand(context, 1)];
    // The exponent may be of another type; the result is of the base's.
    return [broadcastType(context, [base, { ...exponent, dtype: base.dtype }])];
  },
  ...broadcasting(({ b, inputs, outputs }, dY, index) => {
    const [x, y] = [inputs[0]!, outputs[0]!];
    const exponent = castTo(b, inputs[1]!, b.type(x).dtype);
    if (index === 1) {
      // Where the base is not positive the power is constant or undefined around the exponent.
      const slope = mul(b, y, b.op('Log', [x]));
      return mul(b, dY, where(b, b.op('Greater', [x, zeroLike(b, x)]), slope, zeroLike(b, x)));
    }
    const known = b.constantOf(inputs[1]!);
    const n = known?.data.length === 1 ? toNumbers(known)[0] : undefined;
    if (n === 0) return scale(b, dY, 0);
    if (n === 1) return dY;
    if (n === 2) return mul(b, dY, scale(b, x, 2));
    if (n === 0.5) return div(b, scale(b, dY, 0.5), y);
    if (n !== undefined) return mul(b, scale(b, dY, n), b.op('Pow', [x, scalarLike(b, n - 1, x)]));
    const slope = mul(b, exponent, b.op('Pow', [x, sub(b, exponent, scalarLike(b, 1, x))]));
    const flat = b.op('Equal', [exponent, zeroLike(b, x)]);
    return mul(b, dY, where(b, flat, zeroLike(b, x), slope));
  }),
  fold: (context) =>
    foldElementwise(onNumbers((x, n) => x ** n, (x, n) => x ** n), context.constants[0]?.dtype)(context),
};

/** Max and Min: the gradient goes to the first operand that equals the result. */
const extremum: Partial = ({ b, inputs, outputs }, dY, index) => {
  if (inputs.length === 1) return dY;
  const wins = (i: number): Value => b.op('Equal', [inputs[i]!, outputs[0]!]);
  if (index === 0) return gate(b, wins(index), dY);
  const taken = inputs.slice(0, index).map((_, i) => wins(i)).reduce((any, w) => b.op('Or', [any, w]));
  const free = b.op('Not', [taken]);
  // The last operand has what the others left.
  return gate(b, index === inputs.length - 1 ? free : b.op('And', [free, wins(index)]), dY);
};

const modulo: Operator = {
  shape: elementwiseShape(undefined, 2),
  ...broadcasting(({ b, inputs }, dY, index) => {
    if (index === 0) return dY;
    // The quotient rounded toward zero, as C's fmod has it.
    const quotient = div(b, inputs[0]!, inputs[1]!);
    const whole = mul(b, b.op('Sign', [quotient]), b.op('Floor', [b.op('Abs', [quotient])]));
    return neg(b, mul(b, dY, whole));
  }),
  fold: (context) => {
    const floored = intAttribute(context.node, 'fmod', 0) === 0;
    return foldElementwise(onNumbers(
      (x, y) => (floored ? ((x % y) + y) % y : x % y), (x, y) => (floored ? ((x % y) + y) % y : x % y),
    ))(context);
  },
};

const reciprocalRoot = (b: GraphBuilder, dY: Value, square: Value): Value => div(b, dY, b.op('Sqrt', [square]));
const one = (b: GraphBuilder, like: Value): Value => scalarLike(b, 1, like);

/** Elementwise functions of one operand; derivatives use the output where that saves a computation. */
const functions = {
  Neg: {
    ...unary(({ b }, dY) => neg(b, dY)),
    fold: foldElementwise(onNumbers((x) => -x, (x) => -x)),
  },
  Abs: {
    ...unary(({ b }, dY, x) => mul(b, dY, b.op('Sign', [x]))),
    fold: foldElementwise(onNumbers(Math.abs, (x) => (x < 0n ? -x : x))),
  },
  Sqrt: {
    ...unary(({ b }, dY, _, y) => div(b, scale(b, dY, 0.5), y)),
    fold: foldElementwise(onNumbers(Math.sqrt)),
  },
  Exp: { ...unary(({ b }, dY, _, y) => mul(b, dY, y)), fold: foldElementwise(onNumbers(Math.exp)) },
  Log: { ...unary(({ b }, dY, x) => div(b, dY, x)), fold: foldElementwise(onNumbers(Math.log)) },
  Reciprocal: {
    ...unary(({ b }, dY, _, y) => neg(b, mul(b, dY, mul(b, y, y)))),
    fold: foldElementwise(onNumbers((x) => 1 / x)),
  },
  Erf: unary(({ b }, dY, x) => mul(b, scale(b, dY, 2 / Math.sqrt(Math.PI)), b.op('Exp', [neg(b, mul(b, x, x))]))),
  Sin: unary(({ b }, dY, x) => mul(b, dY, b.op('Cos', [x]))),
  Cos: unary(({ b }, dY, x) => neg(b, mul(b, dY, b.op('Sin', [x])))),
  Tan: unary(({ b }, dY, _, y) => mul(b, dY, add(b, mul(b, y, y), one(b, y)))),
  Asin: unary(({ b }, dY, x) => reciprocalRoot(b, dY, sub(b, one(b, x), mul(b, x, x)))),
  Acos: unary(({ b }, dY, x) => neg(b, reciprocalRoot(b, dY, sub(b, one(b, x), mul(b, x, x))))),
  Atan: unary(({ b }, dY, x) => div(b, dY, add(b, mul(b, x, x), one(b, x)))),
  Sinh: unary(({ b }, dY, x) => mul(b, dY, b.op('Cosh', [x]))),
  Cosh: unary(({ b }, dY, x) => mul(b, dY, b.op('Sinh', [x]))),
  Asinh: unary(({ b }, dY, x) => reciprocalRoot(b, dY, add(b, mul(b, x, x), one(b, x)))),
  Acosh: unary(({ b }, dY, x) => reciprocalRoot(b, dY, sub(b, mul(b, x, x), one(b, x)))),
  Atanh: unary(({ b }, dY, x) => div(b, dY, sub(b, one(b, x), mul(b, x, x)))),
} satisfies Record<string, Operator>;

/** Half to even, as ONNX rounds. */
function roundHalfEven(x: number): number {
  const floor = Math.floor(x);
  if (x - floor !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

const stepwise = (f: (x: number) => number): Operator => ({
  shape: sameShape, batch: rowwise, gradient: noGradientFlows, fold: foldElementwise(onNumbers(f)),
});

const steps = {
  Sign: stepwise(Math.sign), Floor: stepwise(Math.floor), Ceil: stepwise(Math.ceil), Round: stepwise(roundHalfEven),
} satisfies Record<string, Operator>;

type Relation = (a: Element, b: Element) => boolean;

const relation = (holds: Relation): Operator => ({
  shape: elementwiseShape('bool', 2), batch: elementwiseBatch, gradient: noGradientFlows,
  fold: foldElementwise((a, b) => Number(holds(a, b)), 'bool'),
});

const test = (holds: (x: number) => boolean): Operator => ({
  shape: (context) => [{ dtype: 'bool', shape: operand(context, 0).shape }],
  batch: rowwise, gradient: noGradientFlows,
  fold: foldElementwise((x) => Number(holds(Number(x))), 'bool'),
});

const truth = (x: Element): boolean => Number(x) !== 0;

/** Comparisons and logic. */
const relations = {
  Equal: relation((a, b) => a === b),
  Greater: relation((a, b) => a > b),
  GreaterOrEqual: relation((a, b) => a >= b),
  Less: relation((a, b) => a < b),
  LessOrEqual: relation((a, b) => a <= b),
  And: relation((a, b) => truth(a) && truth(b)),
  Or: relation((a, b) => truth(a) || truth(b)),
  Xor: relation((a, b) => truth(a) !== truth(b)),
  Not: test((x) => x === 0),
  IsNaN: test(Number.isNaN),
  IsInf: {
    shape: (context) => [{ dtype: 'bool', shape: operand(context, 0).shape }],
    batch: rowwise, gradient: noGradientFlows,
    fold: (context) => {
      const counts = (side: string): boolean => intAttribute(context.node, `detect_${side}`, 1) !== 0;
      return foldElementwise((x) => Number((x === Infinity && counts('positive')) || (x === -Infinity && counts('negative'))), 'bool')(context);
    },
  },
} satisfies Record<string, Operator>;

const clipPartial: Partial = ({ b, inputs, outputs }, dY, index) => {
  const x = inputs[0]!;
  if (index === 0) return gate(b, b.op('Equal', [x, outputs[0]!]), dY);
  return gate(b, b.op(index === 1 ? 'Less' : 'Greater', [x, inputs[index]!]), dY);
};

const clip: Operator = {
  shape: (context) => {
    const x = operand(context, 0);
    const bounds = [context.inputs[1], context.inputs[2]].filter((t) => t !== undefined);
    if (bounds.some((t) => t.dtype !== x.dtype || t.shape.length > 0)) {
      throw badOperands(context, `bounds ${bounds.map(showType).join(', ')} for ${showType(x)}`,
        'scalars of the same element type');
    }
    return [x];
  },
  ...broadcasting(clipPartial),
  fold: foldElementwise((x, low, high) => {
    const raised = low !== undefined && x < low ? low : x;
    return high !== undefined && raised > high ? high : raised;
  }),
};

const select: Operator = {
  shape: (context) => {
    const [condition, x, y] = [operand(context, 0), operand(context, 1), operand(context, 2)];
    if (condition.dtype !== 'bool' || x.dtype !== y.dtype) {
      throw badOperands(context, [condition, x, y].map(showType).join(', '),
        'a bool condition and two operands of one element type');
    }
    return [broadcastType(context, [{ ...condition, dtype: x.dtype }, x, y])];
  },
  ...broadcasting(({ b, inputs }, dY, index) => {
    const zero = zeroLike(b, dY);
    return index === 1 ? where(b, inputs[0]!, dY, zero) : where(b, inputs[0]!, zero, dY);
  }),
  fold: foldElementwise((condition, x, y) => (truth(condition) ? x : y)),
};

function castType(context: OperandContext, to: DType | undefined, shown: string) {
  if (to === undefined) throw badOperands(context, `the type ${shown}`, 'an element type of numbers or bool');
  return [{ dtype: to, shape: operand(context, 0).shape }];
}

/** Back to the type it came from; nothing flows through integers. */
const castGradient: GradientRule = ({ b, inputs, outputGradients }: GradientContext) => {
  const [x, dY] = [inputs[0]!, outputGradients[0]];
  return dY === undefined || !isFloat(b.type(x).dtype) ? [undefined] : [castTo(b, dY, b.type(x).dtype)];
};

const foldCast = (to: DType | undefined): Fold => ({ constants }) => {
  const x = constants[0]!;
  const halves = ['float16', 'bfloat16'];
  if (to === undefined || halves.includes(to) || halves.includes(x.dtype)) return undefined;
  return [fromElements(to, x.shape, Array.from(x.data as ArrayLike<Element>))];
};

const cast: Operator = {
  shape: (context) => {
    const to = intAttribute(context.node, 'to', 1);
    return castType(context, dtypeOf(to), dataTypeName(to));
  },
  batch: rowwise,
  gradient: castGradient,
  view: ({ inputs, outputs, view }) => [inputs[0]?.dtype === outputs[0]?.dtype ? view : undefined],
  fold: (context) => foldCast(dtypeOf(intAttribute(context.node, 'to', 1)))(context),
};

const castLike: Operator = {
  shape: (context) => castType(context, operand(context, 1).dtype, ''),
  batch: rowwise,
  gradient: castGradient,
  fold: (context) => foldCast(context.inputs[1]?.dtype)(context),
};

/** Dropout of a deployed model: the identity, and a mask of ones. */
const dropout: Operator = {
  shape: (context) => {
    const x = operand(context, 0);
    const mode = context.constants[2];
    if (context.inputs[2] !== undefined && (mode === undefined || toNumbers(mode).some((on) => on !== 0))) {
      throw new GhostgradError({
        what: 'Dropout in training mode', where: showNode(context.node),
        found: mode === undefined ? 'a training_mode computed by the graph' : 'training_mode true',
        expected: 'Dropout as the identity', fix: 'export the model in inference mode (training_mode false)',
      });
    }
    return [x, { dtype: 'bool', shape: x.shape }];
  },
  batch: rowwise,
  view: ({ view }) => [view],
  gradient: ({ outputGradients }) => [outputGradients[0]],
};

/** Elementwise arithmetic, comparison, logic, casts. */
export const elementwise = {
  Add: { ...binary((_, dY) => dY, foldElementwise(onNumbers((x, y) => x + y, (x, y) => x + y))), biases: [0, 1] },
  Sub: binary(
    ({ b }, dY, index) => (index === 0 ? dY : neg(b, dY)), foldElementwise(onNumbers((x, y) => x - y, (x, y) => x - y)),
  ),
  Mul: binary(
    ({ b, inputs }, dY, index) => mul(b, dY, inputs[1 - index]!),
    foldElementwise(onNumbers((x, y) => x * y, (x, y) => x * y)),
  ),
  Div: binary(({ b, inputs, outputs }, dY, index) => {
    const quotient = div(b, dY, inputs[1]!);
    return index === 0 ? quotient : neg(b, mul(b, quotient, outputs[0]!));
  }, foldElementwise(onNumbers((x, y) => x / y, (x, y) => x / y))),
  Pow: power,
  Mod: modulo,
  Max: arithmetic(extremum, foldElementwise((...xs) => xs.reduce((a, x) => (x > a || Number.isNaN(x) ? x : a)))),
  Min: arithmetic(extremum, foldElementwise((...xs) => xs.reduce((a, x) => (x < a || Number.isNaN(x) ? x : a)))),
  Sum: arithmetic((_, dY) => dY, foldElementwise(onNumbers((...xs) => xs.reduce((a, x) => a + x)))),
  Mean: arithmetic(({ b, inputs }, dY) => scale(b, dY, 1 / inputs.length),
    foldElementwise(onNumbers((...xs) => xs.reduce((a, x) => a + x) / xs.length))),
  ...functions,
  ...steps,
  ...relations,
  Clip: clip,
  Where: select,
  Cast: cast,
  CastLike: castLike,
  Dropout: dropout,
  Identity: { ...unary((_, dY) => dY), view: ({ view }) => [view], fold: ({ constants }) => constants },
} satisfies Record<string, Operator>;
