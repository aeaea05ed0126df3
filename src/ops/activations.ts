import { float, floatAttribute, showShape, showType, stringAttribute } from '../graph/ir.ts';
import { type GraphBuilder, type Value, add, div, mul, neg, reduceSum, scale, sub, where } from './builder.ts';
import { scatteredAlong } from './gathering.ts';
import { badOperands, operand, outputGradient } from './operands.ts';
import type { GradientContext, Operator } from './operator.ts';
import {
  alongAxes, axisAttribute, broadcastShapes, broadcasting, castTo, elementwiseBatch, gate, noGradientFlows, scalarLike,
  unary,
} from './rules.ts';

const plus = (b: GraphBuilder, x: Value, c: number): Value => add(b, x, scalarLike(b, c, x));
const from = (b: GraphBuilder, c: number, x: Value): Value => sub(b, scalarLike(b, c, x), x);
const above = (b: GraphBuilder, x: Value, c: number): Value => b.op('Greater', [x, scalarLike(b, c, x)]);
const below = (b: GraphBuilder, x: Value, c: number): Value => b.op('Less', [x, scalarLike(b, c, x)]);

/** y ≥ 0, and it is 0 exactly where nothing flows back: as bool it is the mask, without a comparison. */
const relu = unary(({ b }, dY, _, y) => gate(b, castTo(b, y, 'bool'), dY));

const leakyRelu = unary(({ b, node }, dY, x) => {
  const slope = floatAttribute(node, 'alpha', 0.01);
  return mul(b, dY, where(b, above(b, x, 0), scalarLike(b, 1, x), scalarLike(b, slope, x)));
});

/** Slopes broadcast to x, not the other way round. */
const prelu: Operator = {
  learned: [1],
  shape: (context) => {
    const [x, slope] = [operand(context, 0), operand(context, 1)];
    const joint = broadcastShapes([x.shape, slope.shape]);
    if (x.dtype !== slope.dtype || joint?.join() !== x.shape.join()) {
      throw badOperands(context, `slopes ${showType(slope)} for ${showType(x)}`,
        'slopes of the same element type that broadcast to the input');
    }
    return [x];
  },
  ...broadcasting(({ b, inputs }, dY, index) => {
    const [x, slope] = [inputs[0]!, inputs[1]!];
    const zero = scalarLike(b, 0, x);
    return index === 0
      ? mul(b, dY, where(b, above(b, x, 0), scalarLike(b, 1, x), slope))
      : mul(b, dY, b.op('Min', [x, zero]));
  }),
};

/** Where x > 0 the slope is `linear`; elsewhere y + offset, which continues it when offset = linear. */
const exponentialUnit = (b: GraphBuilder, dY: Value, x: Value, y: Value, linear: number, offset: number): Value =>
  mul(b, dY, linear === offset
    ? plus(b, b.op('Min', [y, scalarLike(b, 0, y)]), offset)
    : where(b, above(b, x, 0), scalarLike(b, linear, y), plus(b, y, offset)));

const elu = unary(({ b, node }, dY, x, y) => exponentialUnit(b, dY, x, y, 1, floatAttribute(node, 'alpha', 1)));

const selu = unary(({ b, node }, dY, x, y) => {
  const alpha = floatAttribute(node, 'alpha', 1.6732632423543772);
  const gamma = floatAttribute(node, 'gamma', 1.0507009873554805);
  return exponentialUnit(b, dY, x, y, gamma, gamma * alpha);
});

/** exp(x / alpha) = y / alpha + 1 where x < 0. */
const celu = unary(({ b, node }, dY, _, y) => {
  const negative = b.op('Min', [y, scalarLike(b, 0, y)]);
  return mul(b, dY, plus(b, scale(b, negative, 1 / floatAttribute(node, 'alpha', 1)), 1));
});

const sigmoid = unary(({ b }, dY, _, y) => mul(b, dY, sub(b, y, mul(b, y, y))));

const hardSigmoid = unary(({ b, node }, dY, _, y) => {
  const inside = b.op('And', [above(b, y, 0), below(b, y, 1)]);
  return gate(b, inside, scale(b, dY, floatAttribute(node, 'alpha', 0.2)));
});

/** The slope is x / 3 + 1/2 between -3 and 3. */
const hardSwish = unary(({ b }, dY, x) => {
  const middle = plus(b, scale(b, x, 1 / 3), 0.5);
  const right = where(b, above(b, x, 3), scalarLike(b, 1, x), middle);
  return mul(b, dY, where(b, below(b, x, -3), scalarLike(b, 0, x), right));
});

const tanhUnit = unary(({ b }, dY, _, y) => mul(b, dY, from(b, 1, mul(b, y, y))));
const softplus = unary(({ b }, dY, x) => mul(b, dY, b.op('Sigmoid', [x])));

const softsign = unary(({ b }, dY, x) => {
  const divisor = plus(b, b.op('Abs', [x]), 1);
  return div(b, dY, mul(b, divisor, divisor));
});

const thresholdedRelu = unary(({ b, node }, dY, x) => gate(b, above(b, x, floatAttribute(node, 'alpha', 1)), dY));

/** x moved towards 0 by `bias` outside of ±lambd, and 0 within. */
const shrink = unary(({ b, node }, dY, x) => gate(b, above(b, b.op('Abs', [x]), floatAttribute(node, 'lambd', 0.5)), dY));

/** x·tanh(softplus(x)). */
const mish = unary(({ b }, dY, x) => {
  const t = b.op('Tanh', [b.op('Softplus', [x])]);
  const slope = mul(b, mul(b, x, from(b, 1, mul(b, t, t))), b.op('Sigmoid', [x]));
  return mul(b, dY, add(b, t, slope));
});

/**
 * Derivative of x·Φ(x): Φ(x) + x·φ(x), with s = x/√2 as Φ = (1 + erf s)/2 and x·φ = s·exp(-s²)/√π, in as few passes over
 * memory as the operators allow: HardSigmoid halves and shifts in one.
 */
function geluSlope(b: GraphBuilder, x: Value): Value {
  const s = scale(b, x, Math.SQRT1_2);
  const normal = b.op('HardSigmoid', [b.op('Erf', [s])], { alpha: float(0.5), beta: float(0.5) });
  return add(b, normal, scale(b, div(b, s, b.op('Exp', [mul(b, s, s)])), 1 / Math.sqrt(Math.PI)));
}

const tanhGeluRate = Math.sqrt(2 / Math.PI);
const tanhGeluCube = 0.044715;

/** Derivative of x·(1 + tanh(u))/2 with u = √(2/π)·(x + 0.044715·x³). */
function tanhGeluSlope(b: GraphBuilder, x: Value): Value {
  const square = mul(b, x, x);
  const t = b.op('Tanh', [mul(b, x, plus(b, scale(b, square, tanhGeluRate * tanhGeluCube), tanhGeluRate))]);
  const rate = plus(b, scale(b, square, 1.5 * tanhGeluRate * tanhGeluCube), tanhGeluRate / 2);
  return add(b, plus(b, scale(b, t, 0.5), 0.5), mul(b, mul(b, x, rate), from(b, 1, mul(b, t, t))));
}

const gelu = unary(({ b, node }, dY, x) =>
  mul(b, dY, stringAttribute(node, 'approximate', 'none') === 'tanh' ? tanhGeluSlope(b, x) : geluSlope(b, x)));

/** An activation of x + bias; FastGelu may omit the bias, a vector along the last axis. */
const biasedGelu = (slope: (b: GraphBuilder, x: Value) => Value): Operator => {
  const rules = broadcasting(({ b, inputs }, dY) => {
    const [x, bias] = [inputs[0]!, inputs[1] ?? ''];
    return mul(b, dY, slope(b, bias === '' ? x : add(b, x, bias)));
  });
  return {
    ...rules,
    biases: [1],
    shape: (context) => {
      const [x, bias] = [operand(context, 0), context.inputs[1]];
      if (bias !== undefined && (bias.shape.length !== 1 || bias.shape[0] !== x.shape.at(-1))) {
        throw badOperands(context, `bias ${showShape(bias.shape)} for ${showShape(x.shape)}`,
          'a vector as long as the last axis of the input');
      }
      return [x];
    },
    batch: elementwiseBatch,
  };
};

/** x·sigmoid(alpha·x). */
const sigmoidLinear = (usual: number): Operator => unary(({ b, node }, dY, x, y) => {
  const alpha = floatAttribute(node, 'alpha', usual);
  const s = b.op('Sigmoid', [scale(b, x, alpha)]);
  return mul(b, dY, add(b, s, scale(b, sub(b, y, mul(b, y, s)), alpha)));
});

const softmaxAxis = ({ b, node, inputs }: GradientContext): number =>
  axisAttribute(node, b.shape(inputs[0]!).length, -1);

/** What Softmax, LogSoftmax and Hardmax share: they normalise over one axis. */
const overOneAxis: Pick<Operator, 'shape' | 'batch'> = {
  shape: (context) => {
    const x = operand(context, 0);
    axisAttribute(context.node, x.shape.length, -1);
    return [x];
  },
  batch: alongAxes(
    ({ node, inputs }) => [axisAttribute(node, inputs[0]?.shape.length ?? 0, -1)],
    'normalises over', 'normalise over the features or classes only',
  ),
};

const softmax: Operator = {
  ...overOneAxis,
  gradient: (context) => {
    const { b, outputs } = context;
    const y = outputs[0]!;
    const weighted = mul(b, outputGradient(context), y);
    return [sub(b, weighted, mul(b, y, reduceSum(b, weighted, [softmaxAxis(context)], true)))];
  },
};

/**
 * dY − p·Σ dY with p = exp(y). A dY that is zero but for a few numbers, as a loss that picks one class has it, is never laid
 * out: its numbers are added to −p·Σ dY where they belong.
 */
const logSoftmax: Operator = {
  ...overOneAxis,
  gradient: (context) => {
    const { b, outputs } = context;
    const dY = outputGradient(context);
    const axis = softmaxAxis(context);
    const total = (x: Value): Value => reduceSum(b, x, [axis], true);
    const p = b.op('Exp', [outputs[0]!]);
    const few = scatteredAlong(b, dY, axis);
    return [few === undefined ? sub(b, dY, mul(b, p, total(dY))) : few.onto(mul(b, p, neg(b, total(few.updates))))];
  },
};

/** Nonlinearities, and the normalisations over one axis that end classifiers. */
export const activations = {
  Relu: relu, LeakyRelu: leakyRelu, PRelu: prelu, ThresholdedRelu: thresholdedRelu,
  Elu: elu, Selu: selu, Celu: celu,
  Sigmoid: sigmoid, HardSigmoid: hardSigmoid, HardSwish: hardSwish,
  Tanh: tanhUnit, Softplus: softplus, Softsign: softsign, Mish: mish, Shrink: shrink, Swish: sigmoidLinear(1),
  Gelu: gelu,
  'com.microsoft:FastGelu': biasedGelu(tanhGeluSlope),
  'com.microsoft:BiasGelu': biasedGelu(geluSlope),
  'com.microsoft:Gelu': unary(({ b }, dY, x) => mul(b, dY, geluSlope(b, x))),
  'com.microsoft:QuickGelu': sigmoidLinear(1.702),
  Softmax: softmax, LogSoftmax: logSoftmax, Hardmax: { ...overOneAxis, gradient: noGradientFlows },
} satisfies Record<string, Operator>;
