import { type Node, int, intAttribute, showShape, showType } from '../graph/ir.ts';
import { type TensorType, isFloat, sizeOf } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, mul, reshape, scale, slice, sub, sumTo } from './builder.ts';
import { rowsAligned } from './layout.ts';
import { badOperands, batchOf, operand, outputGradient, violation } from './operands.ts';
import type { Operator } from './operator.ts';
import { castTo, fromFront, noGradientFlows } from './rules.ts';

/** How a weight [N, K] lies in bytes: blocks along K, each number `bits` wide, the first one lowest in its byte. */
interface Packing {
  readonly N: number;
  readonly K: number;
  readonly bits: number;
  readonly block: number;
  readonly blocks: number;
}

function packingOf(node: Node): Packing {
  const [N, K, bits, block] = [intAttribute(node, 'N', 0), intAttribute(node, 'K', 0), intAttribute(node, 'bits', 4), intAttribute(node, 'block_size', 0)];
  if (N < 1 || K < 1 || block < 1 || ![2, 4, 8].includes(bits)) {
    throw badOperands({ node }, `N ${N}, K ${K}, ${bits} bits, blocks of ${block}`, 'positive N, K and block_size, and 2, 4 or 8 bits');
  }
  return { N, K, bits, block, blocks: Math.ceil(K / block) };
}

/** The numbers in bytes x [..., n] as floats [..., n·8/bits], by arithmetic that floats do exactly. */
function unpack(b: GraphBuilder, x: Value, bits: number): Value {
  const shape = b.shape(x);
  const per = 8 / bits;
  const digits: Value[] = [];
  let rest = castTo(b, x, 'float32');
  for (let i = 0; i < per - 1; i++) {
    const above = b.op('Floor', [scale(b, rest, 2 ** -bits)]);
    digits.push(sub(b, rest, scale(b, above, 2 ** bits)));
    rest = above;
  }
  const columns = [...digits, rest].map((digit) => reshape(b, digit, [...shape, 1]));
  return per === 1 ? rest : reshape(b, b.op('Concat', columns, { axis: int(shape.length) }), [...shape.slice(0, -1), shape.at(-1)! * per]);
}

/** The weight [N, K] itself. It is frozen, so the engine computes it once where it folds constants. */
function dequantised(b: GraphBuilder, node: Node, inputs: readonly Value[]): Value {
  const { N, K, bits, block, blocks } = packingOf(node);
  const [, packed, scales, zeros = ''] = inputs as [Value, Value, Value, Value | undefined];
  const codes = reshape(b, unpack(b, packed, bits), [N, blocks, block]);
  const perBlock = (v: Value): Value => reshape(b, v, [N, blocks, 1]);
  const offset = (): Value => {
    if (zeros === '') return b.scalar(2 ** (bits - 1));
    if (b.type(zeros).dtype !== 'uint8') return perBlock(castTo(b, zeros, 'float32'));
    const rows = reshape(b, zeros, [N, sizeOf(b.shape(zeros)) / N]);
    return perBlock(slice(b, unpack(b, rows, bits), [1], [0], [blocks]));
  };
  const weight = reshape(b, mul(b, sub(b, codes, offset()), perBlock(castTo(b, scales, 'float32'))), [N, blocks * block]);
  return blocks * block === K ? weight : slice(b, weight, [1], [0], [K]);
}

/**
 * A product with a weight in few bits, which stays frozen: the forward keeps the engine's kernel, and the gradient
 * flows through the weight that the bits stand for.
 */
const matMulNBits: Operator = {
  learned: [5],
  untrained: [1, 2, 3, 4],
  shape: (context) => {
    const { N, K, bits, block, blocks } = packingOf(context.node);
    const [x, packed, scales] = [operand(context, 0), operand(context, 1), operand(context, 2)];
    const bytes = N * blocks * (block * bits / 8);
    if (x.shape.at(-1) !== K || packed.dtype !== 'uint8' || sizeOf(packed.shape) !== bytes || sizeOf(scales.shape) !== N * blocks) {
      throw badOperands(context, `${showShape(x.shape)} times ${showType(packed)}, ${sizeOf(scales.shape)} scales`,
        `an input [..., ${K}], ${bytes} bytes of weight and ${N * blocks} scales`);
    }
    if (context.inputs[4] !== undefined) throw badOperands(context, 'g_idx, an order of its own for the rows of the weight', 'a weight whose blocks lie in order');
    if (intAttribute(context.node, 'weight_prepacked', 0) !== 0) {
      throw badOperands(context, 'a weight laid out for one kind of GPU', 'weight_prepacked 0');
    }
    return [{ dtype: x.dtype, shape: [...x.shape.slice(0, -1), N] } satisfies TensorType];
  },
  batch: ({ inputs, batch }) => {
    const at = batch[0];
    const other = batch.findIndex((place, i) => i > 0 && place !== undefined);
    if (other > 0) return violation(batch[other]!.axis, 'multiplies by a weight that depends on the examples', 'use a weight that is the same for all examples');
    if (at !== undefined && at.axis === (inputs[0]?.shape.length ?? 0) - 1) {
      return violation(at.axis, `sums over the batch axis (axis ${at.axis} is contracted)`, 'transpose the operand so that the product sums over features');
    }
    return [at];
  },
  gradient: (context) => {
    const { b, node, inputs, needed } = context;
    const dY = outputGradient(context);
    const bias = inputs[5] ?? '';
    return [
      needed[0] === true ? b.op('MatMul', [dY, castTo(b, dequantised(b, node, inputs), b.type(dY).dtype)]) : undefined,
      undefined, undefined, undefined, undefined,
      needed[5] === true && bias !== '' ? sumTo(b, dY, b.shape(bias)) : undefined,
    ];
  },
  parameter: (context) => ({
    kind: 'broadcast', gradient: rowsAligned(context.b, outputGradient(context), batchOf(context, context.outputBatch[0])),
  }),
};

/** Rows of a table in few bits, which stays frozen; positions are whole numbers, so nothing flows back. */
const gatherBlockQuantized: Operator = {
  untrained: [0, 2, 3],
  shape: (context) => {
    const [table, places, scales] = [operand(context, 0), operand(context, 1), operand(context, 2)];
    const bits = intAttribute(context.node, 'bits', 4);
    const axis = fromFront(context.node, intAttribute(context.node, 'gather_axis', 0), table.shape.length);
    if (table.dtype !== 'uint8' || axis !== 0 || isFloat(places.dtype)) {
      throw badOperands(context, `${showType(table)} looked up along axis ${axis} by ${showType(places)}`, 'bytes looked up along axis 0 by whole numbers');
    }
    const rest = table.shape.slice(1);
    return [{ dtype: scales.dtype, shape: [...places.shape, ...rest.with(-1, rest.at(-1)! * 8 / bits)] }];
  },
  batch: ({ batch }) => {
    const other = batch.findIndex((place, i) => i !== 1 && place !== undefined);
    return other < 0 ? [batch[1]] : violation(batch[other]!.axis, 'looks up values in a table that depends on the examples', 'use a table that is the same for all examples');
  },
  gradient: noGradientFlows,
};

/** Weights kept in few bits. */
export const lowBits = {
  'com.microsoft:MatMulNBits': matMulNBits, 'com.microsoft:GatherBlockQuantized': gatherBlockQuantized,
} satisfies Record<string, Operator>;
