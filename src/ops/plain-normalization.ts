import {
  type Node, floatAttribute, int, intAttribute, ints, intsAttribute, showShape,
} from '../graph/ir.ts';
import { sizeOf } from '../tensor/tensor.ts';
import {
  type GraphBuilder, type Value, add, div, mul, reduceMean, reduceSum, reduceSumSquare, reshape, scale, sub, where,
} from './builder.ts';
import { badOperands, operand, outputGradient, violation } from './operands.ts';
import type { BatchContext, BatchResult, Operator } from './operator.ts';
import { axisAttribute, fromFront } from './rules.ts';

const axisOf = (node: Node, rank: number): number => axisAttribute(node, rank, -1);

/** The batch must stay out of the axes that are normalised together. */
function outsideAxes({ inputs, batch }: BatchContext, axesOf: (rank: number) => readonly number[]): BatchResult {
  const at = batch[0];
  if (at !== undefined && axesOf(inputs[0]?.shape.length ?? 0).includes(at.axis)) {
    return violation(at.axis, `normalises over the batch axis (axis ${at.axis})`, 'normalise over the features only');
  }
  return [at];
}

const lpNormalization: Operator = {
  shape: (context) => {
    const x = operand(context, 0);
    axisOf(context.node, x.shape.length);
    const p = intAttribute(context.node, 'p', 2);
    if (p !== 1 && p !== 2) throw badOperands(context, `p = ${p}`, 'p = 1 or 2');
    return [x];
  },
  batch: (context) => outsideAxes(context, (rank) => [axisOf(context.node, rank)]),
  // y = x / n: dx = (dy - n'·Σ dy·y) / n, where n' is y for the 2-norm and sign(x) for the 1-norm; 0 where n = 0.
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    const [x, y, dY] = [inputs[0]!, outputs[0]!, outputGradient(context)];
    const axes = [axisOf(node, b.shape(x).length)];
    const one = intAttribute(node, 'p', 2) === 1;
    const norm = one ? reduceSum(b, b.op('Abs', [x]), axes, true) : b.op('Sqrt', [reduceSumSquare(b, x, axes, true)]);
    const zero = b.scalar(0, b.type(x).dtype);
    const inverse = where(b, b.op('Equal', [norm, zero]), zero, div(b, b.scalar(1, b.type(x).dtype), norm));
    const part = mul(b, one ? b.op('Sign', [x]) : y, reduceSum(b, mul(b, dY, y), axes, true));
    return [mul(b, sub(b, dY, part), inverse)];
  },
};

const varianceAxes = (node: Node) => (rank: number): readonly number[] =>
  intsAttribute(node, 'axes', [0, 2, 3]).map((axis) => fromFront(node, axis, rank));

const meanVarianceNormalization: Operator = {
  normalises: [],
  shape: (context) => {
    const x = operand(context, 0);
    varianceAxes(context.node)(x.shape.length);
    return [x];
  },
  batch: (context) => outsideAxes(context, varianceAxes(context.node)),
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    const [x, y, dY] = [inputs[0]!, outputs[0]!, outputGradient(context)];
    const axes = varianceAxes(node)(b.shape(x).length);
    const centred = sub(b, x, reduceMean(b, x, axes, true));
    const variance = reduceMean(b, mul(b, centred, centred), axes, true);
    const along = mul(b, y, reduceMean(b, mul(b, dY, y), axes, true));
    return [div(b, sub(b, sub(b, dY, reduceMean(b, dY, axes, true)), along), b.op('Sqrt', [variance]))];
  },
};

/** Sums over windows along the channels: `before` channels in front of each one and `after` behind it. */
function channelSums(b: GraphBuilder, x: Value, before: number, after: number): Value {
  const shape = b.shape(x);
  const size = before + after + 1;
  const flat = reshape(b, x, [shape[0]!, 1, shape[1]!, sizeOf(shape.slice(2))]);
  const mean = b.op('AveragePool', [flat], {
    kernel_shape: ints([size, 1]), pads: ints([before, 0, after, 0]), count_include_pad: int(1),
  });
  return reshape(b, scale(b, mean, size), shape);
}

const lrn: Operator = {
  shape: (context) => {
    const x = operand(context, 0);
    const size = intAttribute(context.node, 'size', 0);
    if (x.shape.length < 3 || size < 1) {
      throw badOperands(context, `input ${showShape(x.shape)}, size ${size}`, 'an input [N, C, ...spatial] and a size');
    }
    return [x];
  },
  batch: (context) => outsideAxes(context, () => [1]),
  // y = x·d^-β with d = bias + α/size·Σ x²: dx = dy·d^-β - (2αβ/size)·x·Σ dy·y/d over the mirrored windows.
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    const [x, y, dY] = [inputs[0]!, outputs[0]!, outputGradient(context)];
    const size = intAttribute(node, 'size', 1);
    const [alpha, beta] = [floatAttribute(node, 'alpha', 1e-4), floatAttribute(node, 'beta', 0.75)];
    const [before, after] = [Math.floor((size - 1) / 2), Math.ceil((size - 1) / 2)];
    const squares = scale(b, channelSums(b, mul(b, x, x), before, after), alpha / size);
    const d = add(b, squares, b.scalar(floatAttribute(node, 'bias', 1), b.type(x).dtype));
    const back = channelSums(b, div(b, mul(b, dY, y), d), after, before);
    const direct = mul(b, dY, b.op('Pow', [d, b.scalar(-beta, b.type(x).dtype)]));
    return [sub(b, direct, mul(b, x, scale(b, back, 2 * alpha * beta / size)))];
  },
};

/** Normalisations without parameters. */
export const plainNormalization = {
  LpNormalization: lpNormalization, MeanVarianceNormalization: meanVarianceNormalization, LRN: lrn,
} satisfies Record<string, Operator>;
