import { GhostgradError } from '../errors.ts';
import { type Node, intAttribute, showNode, showShape } from '../graph/ir.ts';
import { dataTypeName, dtypeOf } from '../graph/onnx.ts';
import { type DType, type Shape, type Tensor, isFloat, sizeOf, tensor } from '../tensor/tensor.ts';
import { badOperands, operand, violation } from './operands.ts';
import type { BatchContext, BatchResult, NoGradient, OperandContext, Operator } from './operator.ts';
import { fromFront } from './rules.ts';

/** How a scale (and a zero point of the same shape) meets the values: one for all, for each index of an axis, or for each block along it. */
interface Granularity {
  readonly axis: number;
  /** Values along the axis that share a scale; `Infinity` where all values share one. */
  readonly block: number;
}

/** @throws GhostgradError where the scale does not fit the values */
function granularity(context: OperandContext): Granularity {
  const [x, scale] = [operand(context, 0), operand(context, 1)];
  const zero = context.inputs[2];
  const rank = x.shape.length;
  const misfit = (): GhostgradError => badOperands(context,
    `values ${showShape(x.shape)}, scale ${showShape(scale.shape)}${zero === undefined ? '' : `, zero point ${showShape(zero.shape)}`}`,
    'one scale for all, for each index of the axis, or for each block along it, and a zero point of the same shape');
  if (zero !== undefined && sizeOf(zero.shape) !== sizeOf(scale.shape)) throw misfit();
  if (sizeOf(scale.shape) === 1 && scale.shape.length <= 1) return { axis: 0, block: Infinity };
  const axis = fromFront(context.node, intAttribute(context.node, 'axis', 1), rank);
  if (scale.shape.length === 1) {
    if (scale.shape[0] !== x.shape[axis]) throw misfit();
    return { axis, block: 1 };
  }
  const block = intAttribute(context.node, 'block_size', 0);
  const fits = block > 0 && scale.shape.length === rank
    && scale.shape.every((n, i) => n === (i === axis ? Math.ceil(x.shape[i]! / block) : x.shape[i]));
  if (!fits) throw misfit();
  return { axis, block };
}

/** Where the scale of each value stands, in row-major order. */
function scalePlaces(shape: Shape, { axis, block }: Granularity, isVector: boolean): (i: number) => number {
  if (block === Infinity) return () => 0;
  const inner = sizeOf(shape.slice(axis + 1));
  const along = shape[axis]!;
  const blocks = Math.ceil(along / block);
  return (i) => {
    const at = Math.floor(i / inner) % along;
    if (isVector) return at;
    return (Math.floor(i / (inner * along)) * blocks + Math.floor(at / block)) * inner + (i % inner);
  };
}

/** Scales belong to the model; an axis of the batch must not choose among them. */
function quantisedBatch(context: BatchContext): BatchResult {
  const { node, batch } = context;
  const at = batch[0];
  const own = batch.slice(1).find((b) => b !== undefined);
  if (own !== undefined) {
    return violation(own.axis, `${node.op} takes a scale that is computed from the data`,
      'quantise with fixed scales (static quantisation), or bring the float model');
  }
  const { axis, block } = granularity(context);
  // Scales of blocks have the values' own size along the axes without blocks, the batch's among them.
  const ofBlocks = context.inputs[1]?.shape.length !== 1;
  if (at !== undefined && block !== Infinity && (at.axis === axis || ofBlocks)) {
    return violation(at.axis, `${node.op} takes a scale for each place along axis ${at.axis}, which carries the batch`,
      'quantise along another axis');
  }
  return [at];
}

const throughIntegers: NoGradient = {
  reason: 'rounds activations to integers, through which no gradient flows',
  fix: 'train only what lies behind it (--trainable), or bring the model from before quantisation',
};

const dequantizeLinear: Operator = {
  shape: (context) => {
    granularity(context);
    return [{ dtype: operand(context, 1).dtype, shape: operand(context, 0).shape }];
  },
  batch: quantisedBatch,
  gradient: throughIntegers,
  untrained: [1],
  fold: (context) => {
    const [x, scale, zero] = context.constants as [Tensor, Tensor, Tensor | undefined];
    if (scale.dtype !== 'float32') return undefined;
    const place = scalePlaces(x.shape, granularity(context), scale.shape.length === 1);
    const values = new Float32Array(x.data.length);
    for (let i = 0; i < values.length; i++) {
      const k = place(i);
      values[i] = Math.fround(Number(x.data[i]) - Number(zero?.data[k] ?? 0)) * Number(scale.data[k]);
    }
    return [tensor('float32', x.shape, values)];
  },
};

/** The type of quantised values: the zero point's, or as asked; uint8 where nothing says it. */
function quantisedType({ node, inputs }: OperandContext): DType {
  const asked = intAttribute(node, 'output_dtype', 0);
  const dtype = inputs[2]?.dtype ?? (asked === 0 ? 'uint8' : dtypeOf(asked));
  if (dtype !== undefined && !isFloat(dtype)) return dtype;
  throw unsupportedType(node, asked);
}

const unsupportedType = (node: Node, asked: number): GhostgradError => new GhostgradError({
  what: 'quantisation to a type that is not supported', where: showNode(node), found: dataTypeName(asked),
  expected: 'integers of at least a byte', fix: 'bring the model from before quantisation',
});

const quantizeLinear: Operator = {
  shape: (context) => {
    granularity(context);
    return [{ dtype: quantisedType(context), shape: operand(context, 0).shape }];
  },
  batch: quantisedBatch,
  gradient: throughIntegers,
  untrained: [1],
};

/**
 * Quantised models. A weight kept as integers is folded to the floats that it stands for, and is frozen; rounded
 * activations may only lie before everything that is trained.
 */
export const quantization = {
  DequantizeLinear: dequantizeLinear, QuantizeLinear: quantizeLinear,
} satisfies Record<string, Operator>;
