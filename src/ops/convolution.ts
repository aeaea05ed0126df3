import {
  type Attributes, type Node, int, intAttribute, ints, intsAttribute, showShape, stringAttribute,
} from '../graph/ir.ts';
import { type Shape, type TensorType, sizeOf } from '../tensor/tensor.ts';
import type { BatchAxis } from './batch.ts';
import { type GraphBuilder, type Value, reduceSum, reshape, slice, transpose } from './builder.ts';
import { rowsAligned } from './layout.ts';
import { badOperands, batchOf, operand, outputGradient, violation } from './operands.ts';
import type {
  BatchContext, BatchResult, ConvolutionGeometry, OperandContext, Operator, ParameterContext, ParameterUse,
} from './operator.ts';
import { reachOf, slidingWindows, splitPads } from './windows.ts';

const groupsOf = (node: Node): number => intAttribute(node, 'group', 1);
const spatialAxes = (rank: number): number[] => Array.from({ length: rank - 2 }, (_, i) => i + 2);

const asAttributes = ({ kernel, strides, dilations, pads, groups }: ConvolutionGeometry): Attributes => ({
  kernel_shape: ints(kernel), strides: ints(strides), dilations: ints(dilations), pads: ints(pads), group: int(groups),
});

/** Checks what both operators ask of their operands; `channels` and `bias` are what the weight allows. */
function checkOperands(context: OperandContext, channels: number | undefined, outputs: number): void {
  const [x, w, bias] = [operand(context, 0), operand(context, 1), context.inputs[2]];
  const groups = groupsOf(context.node);
  const declared = intsAttribute(context.node, 'kernel_shape', w.shape.slice(2));
  const fits = x.shape.length >= 3 && x.shape.length === w.shape.length && x.shape[1] === channels
    && x.dtype === w.dtype && groups >= 1 && w.shape[0]! % groups === 0
    && declared.join() === w.shape.slice(2).join();
  if (!fits) {
    throw badOperands(context,
      `input ${showShape(x.shape)}, weight ${showShape(w.shape)}, ${groups} groups, kernel ${showShape(declared)}`,
      'an input [N, C, ...spatial] and a weight for its channels, groups and kernel');
  }
  if (bias !== undefined && (bias.shape.length !== 1 || bias.shape[0] !== outputs)) {
    throw badOperands(context, `bias ${showShape(bias.shape)}`, `a vector of ${outputs} numbers`);
  }
}

function convolutionBatch({ node, batch }: BatchContext): BatchResult {
  const [x, w, bias] = batch;
  if (w !== undefined || bias !== undefined) {
    return violation((w ?? bias)?.axis ?? 0,
      `convolves with a ${w === undefined ? 'bias' : 'kernel'} that depends on the examples`,
      'use the same kernel and bias for every example');
  }
  if (x === undefined || x.axis === 0) return [x];
  return violation(x.axis, `${node.op} mixes what lies along axis ${x.axis}, which carries the batch`,
    'put the batch in axis 0 of the input');
}

/** The images of each row side by side, the row being the outer factor: [B·m, ...]. */
const images = (b: GraphBuilder, x: Value, batch: BatchAxis): Value =>
  batch.before === 1 ? x : reshape(b, rowsAligned(b, x, batch), b.shape(x));

/** x without its last elements along the spatial axes (`counts`), or the first and the last. */
function crop(b: GraphBuilder, x: Value, front: Shape, back: Shape): Value {
  const shape = b.shape(x);
  const axes = spatialAxes(shape.length).filter((_, i) => front[i]! > 0 || back[i]! > 0);
  if (axes.length === 0) return x;
  return slice(b, x, axes, axes.map((axis) => front[axis - 2]!), axes.map((axis) => shape[axis]! - back[axis - 2]!));
}

/** dX of a convolution whose input had the spatial sizes `spatial`. */
function inputGradient(b: GraphBuilder, dY: Value, w: Value, spatial: Shape, geometry: ConvolutionGeometry): Value {
  const { strides, pads } = geometry;
  const rank = spatial.length;
  const reach = reachOf(geometry);
  const counts = b.shape(dY).slice(2);
  // What the last window left over at the end of the input: no gradient, but it has its place.
  const remainder = spatial.map((size, i) =>
    size + pads[i]! + pads[rank + i]! - reach[i]! - 1 - strides[i]! * (counts[i]! - 1));
  return b.op('ConvTranspose', [dY, w], { ...asAttributes(geometry), output_padding: ints(remainder) });
}

/**
 * dW summed over the images: a convolution of the input with the output gradient in which images and channels
 * change places, and strides and dilations too.
 */
function weightGradient(b: GraphBuilder, x: Value, dY: Value, geometry: ConvolutionGeometry): Value {
  const { kernel, strides, dilations, pads, groups } = geometry;
  const [n, c, ...spatial] = b.shape(x) as [number, number, ...number[]];
  const counts = b.shape(dY).slice(2);
  const byChannel = transpose(b, reshape(b, x, [n, groups, c / groups, sizeOf(spatial)]), [2, 1, 0, 3]);
  const swapped = reshape(b, byChannel, [c / groups, groups * n, ...spatial]);
  const axes = spatial.map((_, i) => i + 2);
  const windows = transpose(b, dY, [1, 0, ...axes]);
  const found = b.op('Conv', [swapped, windows], asAttributes({
    kernel: counts, strides: dilations, dilations: strides, pads, groups,
  }));
  const extra = b.shape(found).slice(2).map((size, i) => size - kernel[i]!);
  return transpose(b, crop(b, found, extra.map(() => 0), extra), [1, 0, ...axes]);
}

const biasGradient = (b: GraphBuilder, dY: Value): Value => reduceSum(b, dY, [0, ...spatialAxes(b.shape(dY).length)]);

function biasUse(context: ParameterContext): ParameterUse {
  const dY = outputGradient(context);
  const rows = rowsAligned(context.b, dY, batchOf(context, context.outputBatch[0]));
  return { kind: 'broadcast', gradient: rows, trailing: context.b.shape(dY).length - 2 };
}

const convGeometry = (node: Node, x: Shape, w: Shape): ConvolutionGeometry & { counts: Shape } =>
  ({ ...slidingWindows(node, x.slice(2), w.slice(2), 'convolution'), groups: groupsOf(node) });

const conv: Operator = {
  learned: [1, 2],
  biases: [2],
  shape: (context) => {
    const [x, w] = [operand(context, 0), operand(context, 1)];
    checkOperands(context, (w.shape[1] ?? 0) * groupsOf(context.node), w.shape[0] ?? 0);
    const { counts } = convGeometry(context.node, x.shape, w.shape);
    return [{ dtype: x.dtype, shape: [x.shape[0]!, w.shape[0]!, ...counts] }];
  },
  batch: convolutionBatch,
  gradient: (context) => {
    const { b, node, inputs, needed } = context;
    const [x, w] = [inputs[0]!, inputs[1]!];
    const dY = outputGradient(context);
    const geometry = convGeometry(node, b.shape(x), b.shape(w));
    return [
      needed[0] === true ? inputGradient(b, dY, w, b.shape(x).slice(2), geometry) : undefined,
      needed[1] === true ? weightGradient(b, x, dY, geometry) : undefined,
      needed[2] === true ? biasGradient(b, dY) : undefined,
    ];
  },
  parameter: (context) => {
    if (context.index === 2) return biasUse(context);
    const { b, node, inputs, inputBatch, outputBatch } = context;
    const [x, w] = [inputs[0]!, inputs[1]!];
    const { counts: _, ...geometry } = convGeometry(node, b.shape(x), b.shape(w));
    return {
      kind: 'convolution',
      input: images(b, x, batchOf(context, inputBatch[0])),
      outputGradient: images(b, outputGradient(context), batchOf(context, outputBatch[0])),
      geometry,
    };
  },
};

/** A transposed convolution is the adjoint of a convolution from its output to its input: that one's geometry. */
interface Adjoint {
  /** Pads behind may be negative: so many of the output's last elements no product reaches. */
  readonly geometry: ConvolutionGeometry;
  readonly output: Shape;
  /** Whether the attributes agree with one another: what ONNX Runtime runs. */
  readonly consistent: boolean;
}

function adjointOf(node: Node, x: Shape, w: Shape): Adjoint {
  const [spatial, kernel] = [x.slice(2), w.slice(2)];
  const ones = kernel.map(() => 1);
  const strides = intsAttribute(node, 'strides', ones);
  const dilations = intsAttribute(node, 'dilations', ones);
  const extra = intsAttribute(node, 'output_padding', ones.map(() => 0));
  const declared = intsAttribute(node, 'pads', [...ones, ...ones].map(() => 0));
  const wanted = intsAttribute(node, 'output_shape', undefined);
  const mode = stringAttribute(node, 'auto_pad', 'NOTSET');
  const full = reachOf({ kernel, dilations }).map((reach, i) => (spatial[i]! - 1) * strides[i]! + reach + 1);
  const target = wanted?.slice(-kernel.length)
    ?? (mode.startsWith('SAME') ? spatial.map((size, i) => size * strides[i]!) : undefined);
  const pads = target === undefined
    ? (mode === 'VALID' ? declared.map(() => 0) : declared)
    : splitPads(full.map((size, i) => Math.max(0, size + extra[i]! - target[i]!)), mode !== 'SAME_UPPER');
  const output = wanted === undefined
    ? full.map((size, i) => size + extra[i]! - pads[i]! - pads[kernel.length + i]!)
    : wanted.slice(-kernel.length);
  const behind = full.map((size, i) => size - pads[i]! - output[i]!);
  const consistent = [strides, dilations, extra, output].every((xs) => xs.length === kernel.length)
    && pads.length === 2 * kernel.length && pads.every((n) => n >= 0)
    && output.every((size, i) => {
      const stride = strides[i]!;
      // As many windows must fit into the output as the input has elements.
      const slack = size + pads[i]! + pads[kernel.length + i]! - full[i]!;
      return size >= 1 && extra[i]! < Math.max(stride, dilations[i]!) && slack >= 0 && slack < stride;
    });
  const around = [...pads.slice(0, kernel.length), ...behind];
  return { geometry: { kernel, strides, dilations, pads: around, groups: groupsOf(node) }, output, consistent };
}

/** The adjoint's operands with no negative pads left: the output gradient cropped to what products reach. */
function reached(b: GraphBuilder, node: Node, x: Value, w: Value, dY: Value) {
  const { geometry } = adjointOf(node, b.shape(x), b.shape(w));
  const excess = geometry.pads.map((n) => Math.max(0, -n));
  const rank = geometry.kernel.length;
  return {
    met: crop(b, dY, excess.slice(0, rank), excess.slice(rank)),
    geometry: { ...geometry, pads: geometry.pads.map((n) => Math.max(0, n)) },
  };
}

function convTransposeType(context: OperandContext): TensorType {
  const [x, w] = [operand(context, 0), operand(context, 1)];
  const groups = groupsOf(context.node);
  const outputs = (w.shape[1] ?? 0) * groups;
  checkOperands(context, w.shape[0], outputs);
  const { output, consistent } = adjointOf(context.node, x.shape, w.shape);
  if (!consistent) {
    throw badOperands(context,
      `input ${showShape(x.shape)} and weight ${showShape(w.shape)} giving an output ${showShape(output)}`,
      'strides, dilations, pads and output_padding (less than the stride or the dilation) that agree with the output');
  }
  return { dtype: x.dtype, shape: [x.shape[0]!, outputs, ...output] };
}

const convTranspose: Operator = {
  learned: [1, 2],
  biases: [2],
  shape: (context) => [convTransposeType(context)],
  batch: convolutionBatch,
  gradient: (context) => {
    const { b, node, inputs, needed } = context;
    const [x, w] = [inputs[0]!, inputs[1]!];
    const dY = outputGradient(context);
    const { met, geometry } = reached(b, node, x, w, dY);
    return [
      needed[0] === true ? b.op('Conv', [met, w], asAttributes(geometry)) : undefined,
      needed[1] === true ? weightGradient(b, met, x, geometry) : undefined,
      needed[2] === true ? biasGradient(b, dY) : undefined,
    ];
  },
  // The weight [c, p/g, ...k] is used as by the convolution that takes the output's gradient to the input.
  parameter: (context) => {
    if (context.index === 2) return biasUse(context);
    const { b, node, inputs, inputBatch, outputBatch } = context;
    const [x, w] = [inputs[0]!, inputs[1]!];
    const { met, geometry } = reached(b, node, x, w, outputGradient(context));
    return {
      kind: 'convolution',
      input: images(b, met, batchOf(context, outputBatch[0])),
      outputGradient: images(b, x, batchOf(context, inputBatch[0])),
      geometry,
    };
  },
};

/** Convolutions of any rank. */
export const convolution = { Conv: conv, ConvTranspose: convTranspose } satisfies Record<string, Operator>;
