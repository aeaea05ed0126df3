import { type Node, float, floatAttribute, int, intAttribute, showShape } from '../graph/ir.ts';
import { sizeOf } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, add, mul, reduceMean, reduceSum, reshape, sub, transpose } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { badOperands } from './operands.ts';
import type { Operator } from './operator.ts';
import { axisAttribute, castTo } from './rules.ts';

interface RmsOptions {
  readonly scale: Value;
  /** The first of the axes normalised over, all the following included. */
  readonly axis: number;
  readonly epsilon: number;
}

/** x / √(mean x² + ε) · scale, and 1 / √(mean x² + ε). */
export function rmsNormalised(b: GraphBuilder, x: Value, { scale, axis, epsilon }: RmsOptions): { readonly y: Value; readonly inverse: Value } {
  const axes = b.shape(x).flatMap((_, i) => (i >= axis ? [i] : []));
  const meanSquare = reduceMean(b, mul(b, x, x), axes, true);
  const inverse = b.op('Reciprocal', [b.op('Sqrt', [add(b, meanSquare, b.scalar(epsilon, b.type(x).dtype))])]);
  return { y: mul(b, mul(b, x, inverse), scale), inverse };
}

/** What ONNX Runtime's optimizer writes for x / rms(x) · scale; it stands in the standard domain. */
const simplifiedLayerNormalization: Composite = {
  learned: [1],
  normalises: [1],
  expand: ({ b, node, inputs }) => {
    const [x, scale] = [inputs[0]!, inputs[1]!];
    const axis = axisAttribute(node, b.shape(x).length, -1);
    const { y, inverse } = rmsNormalised(b, x, { scale, axis, epsilon: floatAttribute(node, 'epsilon', 1e-5) });
    return [y, inverse];
  },
};

const addAll = (b: GraphBuilder, x: Value, ...others: readonly (Value | undefined)[]): Value =>
  others.reduce<Value>((sum, other) => (other === undefined ? sum : add(b, sum, other)), x);

const smallEpsilon = (node: Node): number => floatAttribute(node, 'epsilon', 1e-12);

/** The residual sum that a fused normalisation takes: input + skip (+ bias). */
function residual({ b, node, inputs }: ExpandContext, skip: Value | undefined, bias: Value | undefined): Value {
  if (skip === undefined) throw badOperands({ node }, 'an omitted skip', 'an input and a skip of one shape');
  return addAll(b, inputs[0]!, skip, bias);
}

/** LayerNormalization over the last axis: its value, mean and inverse deviation. */
const layerNormalised = (b: GraphBuilder, x: Value, gamma: Value, beta: Value | undefined, epsilon: number): readonly Value[] =>
  b.ops('LayerNormalization', beta === undefined ? [x, gamma] : [x, gamma, beta], 3, { axis: int(-1), epsilon: float(epsilon) });

const skipLayerNormalization: Composite = {
  learned: [2, 3, 4],
  biases: [3, 4],
  normalises: [2, 3],
  expand: (context) => {
    const { b, node, inputs: [, skip, gamma, beta, bias] } = context;
    const sum = residual(context, skip, bias);
    const [y, mean, inverse] = layerNormalised(b, sum, gamma!, beta, smallEpsilon(node));
    return [y, mean, inverse, sum];
  },
};

const skipSimplifiedLayerNormalization: Composite = {
  learned: [2, 3],
  biases: [3],
  normalises: [2],
  expand: (context) => {
    const { b, node, inputs: [, skip, gamma, bias] } = context;
    const sum = residual(context, skip, bias);
    const { y, inverse } = rmsNormalised(b, sum, { scale: gamma!, axis: b.shape(sum).length - 1, epsilon: smallEpsilon(node) });
    // There is no mean; the engine gives zeros.
    return [y, sub(b, inverse, inverse), inverse, sum];
  },
};

/** How many words each row's mask lets through, int32 [B]; none without a mask. */
function maskIndex(b: GraphBuilder, ids: Value, mask: Value | undefined): Value {
  const counted = mask === undefined ? b.op('Less', [ids, ids]) : b.op('Equal', [mask, castTo(b, b.scalar(1), b.type(mask).dtype)]);
  return reduceSum(b, castTo(b, counted, 'int32'), [1]);
}

/** BERT's embedding layer: words, positions and segments looked up, added and normalised. */
const embedLayerNormalization: Composite = {
  learned: [2, 3, 4, 5, 6],
  lookUps: () => [{ rows: 0, table: 2 }, { rows: 1, table: 4 }, { rows: 8, table: 3 }],
  biases: [6],
  normalises: [5, 6],
  expand: ({ b, node, inputs }) => {
    const [ids, segments, words, positions, kinds, gamma, beta, mask, places] = inputs;
    if (ids === undefined || words === undefined || positions === undefined || gamma === undefined || beta === undefined) {
      throw badOperands({ node }, 'omitted inputs', 'input_ids, the embeddings of words and positions, gamma and beta');
    }
    const steps = b.shape(ids)[1]!;
    const [most, width] = b.shape(positions) as [number, number];
    if (steps > most && places === undefined) throw badOperands({ node }, `${steps} positions`, `at most ${most}, as many as the model has embeddings for`);
    const lookUp = (table: Value, index: Value): Value => b.op('Gather', [table, index], { axis: int(0) });
    const position = places !== undefined ? lookUp(positions, places)
      : steps === most ? positions : b.op('Slice', [positions, b.ints([0]), b.ints([steps]), b.ints([0])]);
    const segment = kinds === undefined || segments === undefined ? undefined : lookUp(kinds, segments);
    const sum = addAll(b, lookUp(words, ids), reshape(b, position, b.shape(position).length === 3 ? b.shape(position) : [1, steps, width]), segment);
    const [y] = layerNormalised(b, sum, gamma, beta, smallEpsilon(node));
    return [y, maskIndex(b, ids, mask), sum];
  },
};

/** GroupNorm and SkipGroupNorm: channels first or last, and an activation behind. */
function groupNormalised({ b, node }: ExpandContext, x: Value, gamma: Value, beta: Value): Value {
  const last = intAttribute(node, 'channels_last', 1) !== 0;
  const shape = b.shape(x);
  if (shape.length !== 4) throw badOperands({ node }, showShape(shape), 'images of four axes');
  const y = b.op('GroupNormalization', [last ? transpose(b, x, [0, 3, 1, 2]) : x, gamma, beta],
    { num_groups: int(intAttribute(node, 'groups', 1)), epsilon: float(floatAttribute(node, 'epsilon', 1e-5)) });
  const active = intAttribute(node, 'activation', 0) === 1 ? mul(b, y, b.op('Sigmoid', [y])) : y;
  return last ? transpose(b, active, [0, 2, 3, 1]) : active;
}

const groupNorm: Composite = {
  learned: [1, 2],
  biases: [2],
  normalises: [1, 2],
  expand: (context) => [groupNormalised(context, context.inputs[0]!, context.inputs[1]!, context.inputs[2]!)],
  lacksKernel: () => true,
};

const skipGroupNorm: Composite = {
  learned: [1, 2, 4],
  biases: [2, 4],
  normalises: [1, 2],
  expand: (context) => {
    const { b, node, inputs: [x, gamma, beta, skip, bias] } = context;
    const [shape, own] = [b.shape(x!), skip === undefined ? [] : b.shape(skip)];
    const last = intAttribute(node, 'channels_last', 1) !== 0;
    // A skip [B, C] and the bias [C] are the same at every pixel.
    const perChannel = (v: Value): Value => reshape(b, v, last ? [sizeOf(b.shape(v)) / shape[3]!, 1, 1, shape[3]!] : [sizeOf(b.shape(v)) / shape[1]!, shape[1]!, 1, 1]);
    const joined = skip === undefined ? undefined : own.length === 2 ? perChannel(skip) : skip;
    const sum = addAll(b, x!, joined, bias === undefined ? undefined : perChannel(bias));
    if (joined === undefined) throw badOperands({ node }, 'an omitted skip', 'an input and a skip');
    return [groupNormalised(context, sum, gamma!, beta!), sum];
  },
  lacksKernel: () => true,
};

/** x / rms(x) · scale · SiLU(gate), over every group of as many features as there are scales. */
const gatedRmsNorm: Composite = {
  learned: [1],
  normalises: [1],
  expand: ({ b, node, inputs: [x, scale, gate] }) => {
    const [shape, size] = [b.shape(x!), b.shape(scale!)[0]!];
    const groups = [...shape.slice(0, -1), shape.at(-1)! / size, size];
    const { y } = rmsNormalised(b, reshape(b, x!, groups), { scale: scale!, axis: groups.length - 1, epsilon: floatAttribute(node, 'epsilon', 1e-5) });
    return [mul(b, reshape(b, y, shape), mul(b, gate!, b.op('Sigmoid', [gate!])))];
  },
};

/** Normalisations that only ONNX Runtime's optimizer and its tools write. */
export const fusedNorms = {
  SimplifiedLayerNormalization: simplifiedLayerNormalization,
  'com.microsoft:SkipLayerNormalization': skipLayerNormalization,
  'com.microsoft:SkipSimplifiedLayerNormalization': skipSimplifiedLayerNormalization,
  'com.microsoft:EmbedLayerNormalization': embedLayerNormalization,
  'com.microsoft:GroupNorm': groupNorm, 'com.microsoft:SkipGroupNorm': skipGroupNorm,
  'com.microsoft:GatedRMSNorm': gatedRmsNorm,
} satisfies Record<string, Operator | Composite>;
