import {
  type Node, float, floatAttribute, int, intAttribute, showShape,
} from '../graph/ir.ts';
import { type Shape, type TensorType, sizeOf } from '../tensor/tensor.ts';
import {
  type GraphBuilder, type Value, add, div, filled, mul, neg, reduceMean, reduceSum, reshape, scale, sub,
  sumTo,
} from './builder.ts';
import { rowsAligned } from './layout.ts';
import { badOperands, batchOf, operand, outputGradient, violation } from './operands.ts';
import type {
  BatchContext, BatchResult, GradientContext, OperandContext, Operator, ParameterContext, ParameterUse,
} from './operator.ts';
import { axisAttribute, jointBatch, notDifferentiable } from './rules.ts';

/** x (any shape that splits into groups) standardised over each group of `size` consecutive elements. */
interface Standardised {
  /** [groups, size]: zero mean, unit variance. */
  readonly value: Value;
  /** [groups, 1]: 1 / sqrt(variance + epsilon). */
  readonly inverse: Value;
}

/** One fused kernel, LayerNormalization with scale 1, gives both. */
function standardise(b: GraphBuilder, x: Value, size: number, epsilon: number): Standardised {
  const groups = sizeOf(b.shape(x)) / size;
  const [value, , inverse] = b.ops(
    'LayerNormalization', [reshape(b, x, [groups, size]), filled(b, 1, [size], b.type(x).dtype)], 3,
    { axis: int(1), epsilon: float(epsilon) },
  );
  return { value: value!, inverse: inverse! };
}

/** The same from what LayerNormalization saved on the way forward: two passes that broadcast, for one that sums twice. */
function standardisedAsBefore({ b, node, inputs, outputs }: GradientContext): Standardised {
  const shape = b.shape(inputs[0]!);
  const size = sizeOf(shape.slice(axisOf(node, shape.length)));
  const groups = sizeOf(shape) / size;
  const [mean, inverse] = [1, 2].map((i) => reshape(b, b.optionalOutput(outputs[0]!, i), [groups, 1])) as [Value, Value];
  return { value: mul(b, sub(b, reshape(b, inputs[0]!, [groups, size]), mean), inverse), inverse };
}

/** Gradient behind a standardisation: what is left of g [groups, size] after its mean and its part along the value. */
function behind(b: GraphBuilder, g: Value, { value, inverse }: Standardised): Value {
  const mean = reduceMean(b, g, [1], true);
  const part = reduceMean(b, mul(b, g, value), [1], true);
  return mul(b, sub(b, sub(b, g, mean), mul(b, value, part)), inverse);
}

/** The gradient of the normalised output: zero where the loss depends on the statistics alone. */
const normalisedGradient = ({ b, outputs, outputGradients }: GradientContext): Value =>
  outputGradients[0] ?? filled(b, 0, b.shape(outputs[0]!), b.type(outputs[0]!).dtype);

/** What flows back from the statistics given out beside it, mean and 1/deviation: of the shape of `value`. */
function behindStatistics({ b, outputGradients }: GradientContext, { value, inverse }: Standardised): Value | undefined {
  const [, ofMean, ofInverse] = outputGradients;
  const each = (g: Value): Value => scale(b, reshape(b, g, b.shape(inverse)), 1 / b.shape(value)[1]!);
  const parts = [
    ...(ofMean === undefined ? [] : [each(ofMean)]),
    ...(ofInverse === undefined ? [] : [neg(b, mul(b, mul(b, each(ofInverse), mul(b, inverse, inverse)), value))]),
  ];
  return parts.length === 0 ? undefined : parts.reduce((sum, part) => add(b, sum, part));
}

const epsilonOf = (node: Node): number => floatAttribute(node, 'epsilon', 1e-5);

/** A vector per channel lined up with axis 1 of a value with `trailing` axes behind that. */
const lineUp = (b: GraphBuilder, v: Value, trailing: number): Value =>
  reshape(b, v, [...b.shape(v), ...Array<number>(trailing).fill(1)]);

/** g summed to the shape of a vector (or more) that meets it `trailing` axes before its last. */
const sumLike = (b: GraphBuilder, g: Value, v: Value, trailing: number): Value =>
  reshape(b, sumTo(b, g, [...b.shape(v), ...Array<number>(trailing).fill(1)]), b.shape(v));

/** The use of a scale (input 1) or a bias (input 2) that meets `normalised`. */
function scaleOrBias(context: ParameterContext, trailing: number, normalised: () => Value): ParameterUse {
  const { b, index, outputBatch } = context;
  const dY = normalisedGradient(context);
  const gradient = index === 1 ? mul(b, dY, normalised()) : dY;
  return { kind: 'broadcast', gradient: rowsAligned(b, gradient, batchOf(context, outputBatch[0])), trailing };
}

const axisOf = (node: Node, rank: number): number => axisAttribute(node, rank, -1);

const layerNormalization: Operator = {
  learned: [1, 2],
  biases: [2],
  normalises: [1, 2],
  shape: (context) => {
    const [x, s] = [operand(context, 0), operand(context, 1)];
    const rank = x.shape.length;
    const axis = axisOf(context.node, rank);
    const fits = ({ shape }: TensorType) => shape.length <= rank
      && shape.every((n, i) => n === 1 || n === x.shape[rank - shape.length + i]);
    if (![s, context.inputs[2]].every((t) => t === undefined || fits(t))) {
      throw badOperands(context, `input ${showShape(x.shape)}, axis ${axis}, scale ${showShape(s.shape)}`,
        'a scale and a bias that broadcast to the input');
    }
    const statistic: TensorType = { dtype: 'float32', shape: x.shape.map((n, i) => (i < axis ? n : 1)) };
    return [x, statistic, statistic];
  },
  batch: (context) => {
    const rank = context.inputs[0]?.shape.length ?? 0;
    const joint = jointBatch(context, rank, true);
    if (joint === undefined || 'violation' in joint) return joint ?? context.outputs.map(() => undefined);
    if (context.batch[0] === undefined || joint.axis >= axisOf(context.node, rank)) {
      return violation(joint.axis, `normalises over the batch axis (axis ${joint.axis})`,
        'normalise over the features only');
    }
    return context.outputs.map(() => joint);
  },
  gradient: (context) => {
    const { b, inputs, needed } = context;
    const [x, s, bias] = [inputs[0]!, inputs[1]!, inputs[2] ?? ''];
    const dY = normalisedGradient(context);
    const standard = standardisedAsBefore(context);
    const inputGradient = (): Value => {
      const direct = behind(b, reshape(b, mul(b, dY, s), b.shape(standard.value)), standard);
      const beside = behindStatistics(context, standard);
      return reshape(b, beside === undefined ? direct : add(b, direct, beside), b.shape(x));
    };
    return [
      needed[0] === true ? inputGradient() : undefined,
      needed[1] === true ? sumLike(b, mul(b, dY, reshape(b, standard.value, b.shape(x))), s, 0) : undefined,
      needed[2] === true && bias !== '' ? sumLike(b, dY, bias, 0) : undefined,
    ];
  },
  parameter: (context) => scaleOrBias(context, 0, () =>
    reshape(context.b, standardisedAsBefore(context).value, context.b.shape(context.inputs[0]!))),
};

function channelsType(context: OperandContext, vectors: readonly number[], leastRank: number): TensorType {
  const x = operand(context, 0);
  const others = vectors.map((i) => operand(context, i).shape);
  if (x.shape.length < leastRank || !others.every((v) => v.length === 1 && v[0] === x.shape[1])) {
    throw badOperands(context, `input ${showShape(x.shape)} with ${others.map(showShape).join(', ')}`,
      'an input [N, C, ...] and vectors of C numbers');
  }
  return x;
}

/** The statistics are each image's own, so the batch must lie in axis 0; scale and bias are everyone's. */
function perImageBatch({ node, batch, outputs }: BatchContext): BatchResult {
  const shared = batch.find((at, i) => i > 0 && at !== undefined);
  if (shared !== undefined) {
    return violation(shared.axis, `${node.op} takes a scale or bias that depends on the examples`,
      'multiply and add it after the normalisation instead');
  }
  const at = batch[0];
  if (at !== undefined && at.axis !== 0) {
    return violation(at.axis, `normalises over the batch (axis ${at.axis})`, 'put the batch in axis 0 of the input');
  }
  return outputs.map(() => at);
}

/** What a normalisation of groups of channels, and the use of its scale and its bias, are differentiated with. */
interface ByChannel {
  readonly standard: Standardised;
  /** [N, C] sums over the positions of each channel of the output's gradient, and of its product with the standardised input. */
  readonly sums: Value;
  readonly products: Value;
  /** [N, C, positions] what these are sums of. */
  readonly gradient: Value;
  readonly product: Value;
  readonly positions: number;
  /** Consecutive elements that are standardised together. */
  readonly size: number;
}

/** How many consecutive elements of an input of this shape are standardised together. */
type GroupSize = (node: Node, x: Shape) => number;

function byChannel(context: GradientContext, groupSize: GroupSize): ByChannel {
  const { b, node, inputs } = context;
  const shape = b.shape(inputs[0]!) as readonly [number, number, ...number[]];
  const [size, positions] = [groupSize(node, shape), sizeOf(shape.slice(2))];
  const standard = standardise(b, inputs[0]!, size, epsilonOf(node));
  const rows = (x: Value) => reshape(b, x, [shape[0], shape[1], positions]);
  const dY = rows(normalisedGradient(context));
  const sum = (x: Value) => (positions === 1 ? reshape(b, x, shape.slice(0, 2)) : reduceSum(b, x, [2]));
  const product = mul(b, dY, rows(standard.value));
  return { standard, sums: sum(dY), products: sum(product), gradient: dY, product, positions, size };
}

/**
 * Scale and shift of each channel behind a standardisation of groups of channels. Whatever is summed over positions is summed
 * for each channel first, so that few passes over the whole gradient do for parameters and input:
 * dx = (s·dY - Σ_c s·sums/size - x̂·Σ_c s·products/size)/σ.
 */
const channelNormRules = (groupSize: GroupSize): Pick<Operator, 'gradient' | 'parameter'> => ({
  gradient: (context) => {
    const { b, inputs, needed } = context;
    const [x, s] = [inputs[0]!, inputs[1]!];
    const [n, channels, ...spatial] = b.shape(x) as [number, number, ...number[]];
    const { standard: { value, inverse }, sums, products, gradient, size } = byChannel(context, groupSize);
    const inputGradient = (): Value => {
      const groups = sizeOf(b.shape(inverse));
      const byGroup = (v: Value) => reshape(b, v, [groups, n * channels / groups]);
      const share = (v: Value) => mul(b, scale(b, reduceSum(b, byGroup(mul(b, v, s)), [1], true), 1 / size), inverse);
      const factors = mul(b, byGroup(b.op('Expand', [s, b.ints([n, channels])])), inverse);
      const direct = mul(b, gradient, reshape(b, factors, [n, channels, 1]));
      const around = add(b, mul(b, value, share(products)), share(sums));
      return sub(b, ...[direct, around].map((v) => reshape(b, v, [n, channels, ...spatial])) as [Value, Value]);
    };
    return [
      needed[0] === true ? inputGradient() : undefined,
      needed[1] === true ? reduceSum(b, products, [0]) : undefined,
      needed[2] === true ? reduceSum(b, sums, [0]) : undefined,
    ];
  },
  parameter: (context) => {
    const { b, index, outputBatch } = context;
    const { sums, products, gradient, product, positions } = byChannel(context, groupSize);
    const rows = (x: Value) => rowsAligned(b, x, batchOf(context, outputBatch[0]));
    return index === 1
      ? { kind: 'broadcast', gradient: rows(products), summed: { of: rows(product), terms: positions } }
      : { kind: 'broadcast', gradient: rows(sums), summed: { of: rows(gradient), terms: positions } };
  },
});

const groupNormalization: Operator = {
  learned: [1, 2],
  biases: [2],
  normalises: [1, 2],
  shape: (context) => {
    const x = channelsType(context, [1, 2], 2);
    const groups = intAttribute(context.node, 'num_groups', 0);
    if (groups < 1 || x.shape[1]! % groups !== 0) {
      throw badOperands(context, `${groups} groups of ${x.shape[1]} channels`,
        'a number of groups that divides the channels');
    }
    return [x];
  },
  batch: perImageBatch,
  ...channelNormRules((node, x) => sizeOf(x.slice(1)) / intAttribute(node, 'num_groups', 1)),
};

const instanceNormalization: Operator = {
  learned: [1, 2],
  biases: [2],
  normalises: [1, 2],
  shape: (context) => [channelsType(context, [1, 2], 3)],
  batch: perImageBatch,
  ...channelNormRules((_, x) => sizeOf(x.slice(2))),
};

const isTraining = (node: Node): boolean => intAttribute(node, 'training_mode', 0) !== 0;
const freezeBatchNorm = 'export the model in evaluation mode (frozen statistics), or replace BatchNorm by GroupNorm';

const batchNormalization: Operator = {
  learned: [1, 2],
  biases: [2],
  normalises: [1, 2],
  shape: (context) => {
    const x = channelsType(context, [1, 2, 3, 4], 2);
    const statistic: TensorType = { dtype: operand(context, 3).dtype, shape: [x.shape[1]!] };
    return [x, statistic, statistic];
  },
  batch: ({ node, batch, outputs }) => {
    const at = batch[0];
    if (isTraining(node)) {
      return violation(at?.axis ?? 0,
        'normalises by statistics of the batch, so every example depends on all others', freezeBatchNorm);
    }
    const shared = batch.find((a, i) => i > 0 && a !== undefined);
    if (shared !== undefined || at?.axis === 1) {
      return violation(shared?.axis ?? 1, 'normalises by statistics that depend on the examples', freezeBatchNorm);
    }
    return outputs.map((_, i) => (i === 0 ? at : undefined));
  },
  // With frozen statistics an affine map of each channel.
  gradient: (context) => {
    const { b, inputs, needed } = context;
    const [x, s, bias] = [inputs[0]!, inputs[1]!, inputs[2]!];
    const dY = outputGradient(context);
    const trailing = b.shape(x).length - 2;
    const perChannel = (g: Value, v: Value): Value => sumLike(b, g, v, trailing);
    return [
      needed[0] === true ? mul(b, dY, lineUp(b, div(b, s, deviation(context)), trailing)) : undefined,
      needed[1] === true ? perChannel(mul(b, dY, frozenNormalised(context)), s) : undefined,
      needed[2] === true ? perChannel(dY, bias) : undefined,
      ...statisticGradients(context, perChannel),
    ];
  },
  obstacle: (context) => (isTraining(context.node)
    ? notDifferentiable('training mode normalises every example by the statistics of its batch', freezeBatchNorm)
    : undefined),
  parameter: (context) =>
    scaleOrBias(context, context.b.shape(context.inputs[0]!).length - 2, () => frozenNormalised(context)),
  untrained: [3, 4],
};

/** Mean and variance move y as the bias does, by -s/√(variance + ε), and as the scale does, by -s/2(variance + ε). */
function statisticGradients(
  context: GradientContext, perChannel: (g: Value, v: Value) => Value,
): readonly (Value | undefined)[] {
  const { b, inputs, needed } = context;
  const [s, mean, variance] = [inputs[1]!, inputs[3]!, inputs[4]!];
  const dY = outputGradient(context);
  const share = (): Value => div(b, s, deviation(context));
  const along = (): Value => perChannel(mul(b, dY, frozenNormalised(context)), variance);
  return [
    needed[3] === true ? neg(b, mul(b, perChannel(dY, mean), share())) : undefined,
    needed[4] === true ? scale(b, div(b, mul(b, along(), share()), deviation(context)), -0.5) : undefined,
  ];
}

/** sqrt(running variance + epsilon), one for each channel. */
const deviation = ({ b, node, inputs }: GradientContext): Value =>
  b.op('Sqrt', [add(b, inputs[4]!, b.scalar(epsilonOf(node), b.type(inputs[4]!).dtype))]);

function frozenNormalised(context: GradientContext): Value {
  const { b, inputs } = context;
  const trailing = b.shape(inputs[0]!).length - 2;
  return div(b, sub(b, inputs[0]!, lineUp(b, inputs[3]!, trailing)), lineUp(b, deviation(context), trailing));
}

/** Normalisations with a scale and a bias. BatchNormalization is differentiated with frozen statistics only. */
export const normalization = {
  LayerNormalization: layerNormalization, GroupNormalization: groupNormalization,
  InstanceNormalization: instanceNormalization, BatchNormalization: batchNormalization,
} satisfies Record<string, Operator>;
