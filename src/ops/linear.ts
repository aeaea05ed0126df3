import { type Node, floatAttribute, intAttribute, showShape } from '../graph/ir.ts';
import { type Shape, type TensorType, sizeOf } from '../tensor/tensor.ts';
import { type BatchAxis, sameBatch } from './batch.ts';
import { type GraphBuilder, type Value, matmul, reshape, scale, sumTo, transpose } from './builder.ts';
import { rowsAligned, rowsAndPositions } from './layout.ts';
import { badOperands, batchOf, operand, outputGradient, violation } from './operands.ts';
import type {
  BatchContext, BatchResult, GradientContext, OperandContext, Operator, ParameterContext, ParameterUse,
} from './operator.ts';

/**
 * What MatMul, Gemm and FusedMatMul share: alpha · op(A) · op(B) over the last two axes, op being the transpose
 * where asked. A vector A stands for a row, a vector B for a column; its virtual axis is dropped from the product.
 */
interface Product {
  readonly transposeA: boolean;
  readonly transposeB: boolean;
  readonly alpha: number;
}

const plain: Product = { transposeA: false, transposeB: false, alpha: 1 };

const gemmProduct = (node: Node): Product => ({
  transposeA: intAttribute(node, 'transA', 0) !== 0,
  transposeB: intAttribute(node, 'transB', 0) !== 0,
  alpha: floatAttribute(node, 'alpha', 1),
});

/** A vector has no axes to swap. */
const forRanks = ({ transposeA, transposeB, alpha }: Product, a: Shape, b: Shape): Product => ({
  transposeA: transposeA && a.length > 1, transposeB: transposeB && b.length > 1, alpha,
});

const asRow = (a: Shape): Shape => (a.length === 1 ? [1, ...a] : a);
const asColumn = (b: Shape): Shape => (b.length === 1 ? [...b, 1] : b);

/** The product's shape with the virtual axes of vectors kept; undefined where the operands do not fit. */
function matrixShape(a: Shape, b: Shape, { transposeA, transposeB }: Product): Shape | undefined {
  const [left, right] = [asRow(a), asColumn(b)];
  const [m, k] = transposeA ? [left.at(-1), left.at(-2)] : [left.at(-2), left.at(-1)];
  const [k2, n] = transposeB ? [right.at(-1), right.at(-2)] : [right.at(-2), right.at(-1)];
  if (m === undefined || n === undefined || k !== k2) return undefined;
  const rank = Math.max(left.length, right.length) - 2;
  const stack: number[] = [];
  for (let i = 0; i < rank; i++) {
    const x = left[left.length - 2 - rank + i] ?? 1;
    const y = right[right.length - 2 - rank + i] ?? 1;
    if (x !== y && x !== 1 && y !== 1) return undefined;
    stack.push(x === 1 ? y : x);
  }
  return [...stack, m, n];
}

function productType(context: OperandContext, product: Product): TensorType {
  const [a, b] = [operand(context, 0), operand(context, 1)];
  const full = matrixShape(a.shape, b.shape, forRanks(product, a.shape, b.shape));
  if (full === undefined || a.dtype !== b.dtype) {
    throw badOperands(context, `${a.dtype}${showShape(a.shape)} times ${b.dtype}${showShape(b.shape)}`,
      'matrices of one element type whose inner dimensions agree');
  }
  const rank = full.length;
  const isVirtual = (axis: number): boolean =>
    (axis === rank - 2 && a.shape.length === 1) || (axis === rank - 1 && b.shape.length === 1);
  return { dtype: a.dtype, shape: full.filter((_, axis) => !isVirtual(axis)) };
}

const contracts = (axis: number) => violation(axis, `sums over the batch axis (axis ${axis} is contracted)`,
  'transpose the operand so that the product sums over features, not over examples');

/** Where the product carries the batch of its operands. */
function productBatch({ inputs, batch, outputs }: BatchContext, product: Product): BatchResult {
  const [a, b] = [inputs[0]?.shape ?? [], inputs[1]?.shape ?? []];
  const { transposeA, transposeB } = forRanks(product, a, b);
  const output = outputs[0]?.shape ?? [];
  const rank = output.length + (a.length === 1 ? 1 : 0) + (b.length === 1 ? 1 : 0);
  const found: BatchAxis[] = [];
  for (const [side, shape, transposed] of [[0, a, transposeA], [1, b, transposeB]] as const) {
    const at = batch[side];
    if (at === undefined) continue;
    const fromEnd = shape.length - at.axis;
    const contracted = shape.length === 1 || fromEnd === ((side === 0) === transposed ? 2 : 1);
    if (contracted) return contracts(at.axis);
    const full = fromEnd > 2 ? rank - fromEnd : rank - (side === 0 ? 2 : 1);
    const axis = a.length === 1 && full === rank - 1 ? full - 1 : full;
    if (output[axis] !== shape[at.axis]) {
      return violation(at.axis, 'repeats the batch axis by broadcasting',
        'give both operands the same batch dimension');
    }
    const facing = [b, a][side]!;
    const met = fromEnd > 2 ? facing[facing.length - fromEnd] : undefined;
    if (batch[1 - side] === undefined && met !== undefined && met !== 1) {
      return violation(at.axis, 'multiplies every example by a matrix of its own, found by its position in the batch',
        'use the same matrix for every example');
    }
    found.push({ ...at, axis });
  }
  const [first, second] = found;
  if (first !== undefined && second !== undefined && !sameBatch(first, second)) {
    return violation(batch[1]?.axis ?? 0, 'multiplies the rows of different examples with one another',
      'put the batch in the same leading axis of both operands');
  }
  return [first ?? second];
}

/** dA (summed to A's shape by the caller) from matrices of equal rank. */
const leftGradient = (b: GraphBuilder, right: Value, dY: Value, { transposeA, transposeB, alpha }: Product): Value =>
  transposeA
    ? matmul(b, right, dY, { transposeX: transposeB, transposeY: true, alpha })
    : matmul(b, dY, right, { transposeY: !transposeB, alpha });

/** dB (summed to B's shape by the caller) from matrices of equal rank. */
const rightGradient = (b: GraphBuilder, left: Value, dY: Value, { transposeA, transposeB, alpha }: Product): Value =>
  transposeB
    ? matmul(b, dY, left, { transposeX: true, transposeY: transposeA, alpha })
    : matmul(b, left, dY, { transposeX: !transposeA, alpha });

function productGradients(
  { b, inputs, needed }: GradientContext, dY: Value, flags: Product,
): readonly (Value | undefined)[] {
  const [left, right] = [inputs[0]!, inputs[1]!];
  const product = forRanks(flags, b.shape(left), b.shape(right));
  const c = asColumn(b.shape(right));
  let a = asRow(b.shape(left));
  let full = matrixShape(a, c, product)!;
  // One matrix product instead of a stack of products and a sum.
  if (needed[1] === true && c.length === 2 && a.length > 2 && !product.transposeA) {
    a = [sizeOf(a.slice(0, -1)), a.at(-1)!];
    full = [a[0]!, full.at(-1)!];
  }
  const [x, y, g] = [reshape(b, left, a), reshape(b, right, c), reshape(b, dY, full)];
  return [
    needed[0] === true ? reshape(b, sumTo(b, leftGradient(b, y, g, product), a), b.shape(left)) : undefined,
    needed[1] === true ? reshape(b, sumTo(b, rightGradient(b, x, g, product), c), b.shape(right)) : undefined,
  ];
}

interface Placed {
  readonly value: Value;
  readonly batch: BatchAxis;
}

/** The last two axes swapped, the batch followed. */
function swapLast(b: GraphBuilder, { value, batch }: Placed): Placed {
  const rank = b.shape(value).length;
  const order = Array.from({ length: rank }, (_, i) => (i < rank - 2 ? i : 2 * rank - 3 - i));
  return { value: transpose(b, value, order), batch: { ...batch, axis: order.indexOf(batch.axis) } };
}

/** The use of a matrix or vector parameter on either side; stacks of matrices go to {@link stackUse}. */
function productUse(context: ParameterContext, flags: Product): ParameterUse {
  const { b, index, inputs, inputBatch, outputBatch } = context;
  const product = forRanks(flags, b.shape(inputs[0]!), b.shape(inputs[1]!));
  const other: Placed = { value: inputs[1 - index]!, batch: batchOf(context, inputBatch[1 - index]) };
  const gradient: Placed = { value: outputGradient(context), batch: batchOf(context, outputBatch[0]) };
  const rank = b.shape(inputs[index]!).length;
  if (rank > 2) return stackUse(context, product, other, gradient);
  // The positions T are A's rows when the parameter is B, and B's columns when it is A.
  const swapInput = index === 1 ? product.transposeA : !product.transposeB;
  const x = swapInput ? swapLast(b, other) : other;
  const shape = b.shape(gradient.value);
  const column: Placed = rank === 1
    ? { ...gradient, value: reshape(b, gradient.value, [...shape, 1]) }
    : index === 0 ? swapLast(b, gradient) : gradient;
  return {
    kind: 'outer',
    input: rowsAndPositions(b, x.value, x.batch, 1),
    outputGradient: rowsAndPositions(b, column.value, column.batch, 1),
    transposed: rank === 2 && (index === 1 ? product.transposeB : !product.transposeA),
    ...(product.alpha === 1 ? {} : { scale: product.alpha }),
  };
}

/** A stack of matrices as parameter, e.g. one for each head: the per-example gradient is itself a stacked product. */
function stackUse(context: ParameterContext, product: Product, other: Placed, gradient: Placed): ParameterUse {
  const { b, index, inputs } = context;
  const shape = b.shape(inputs[index]!);
  const rank = b.shape(gradient.value).length;
  const widen = (value: Value, batch: BatchAxis): Value => {
    const extra = rank - b.shape(value).length;
    const wide = reshape(b, value, [...Array<number>(extra).fill(1), ...b.shape(value)]);
    return rowsAligned(b, wide, { ...batch, axis: batch.axis + extra });
  };
  const [x, dY] = [widen(other.value, other.batch), rowsAligned(b, gradient.value, gradient.batch)];
  const perExample = (index === 1 ? rightGradient : leftGradient)(b, x, dY, product);
  const rows = b.shape(dY)[0]!;
  const ones = Array<number>(rank - shape.length).fill(1);
  return { kind: 'opaque', perExample: reshape(b, sumTo(b, perExample, [rows, ...ones, ...shape]), [rows, ...shape]) };
}

const matMul: Operator = {
  learned: [0, 1],
  shape: (context) => [productType(context, plain)],
  batch: (context) => productBatch(context, plain),
  gradient: (context) => productGradients(context, outputGradient(context), plain),
  parameter: (context) => productUse(context, plain),
};

const fusedMatMul: Operator = {
  learned: [0, 1],
  shape: (context) => {
    const product = gemmProduct(context.node);
    if (intAttribute(context.node, 'transBatchA', 0) !== 0 || intAttribute(context.node, 'transBatchB', 0) !== 0) {
      throw badOperands(context, 'transBatchA or transBatchB', 'a FusedMatMul that swaps only the last two axes');
    }
    const hasVector = operand(context, 0).shape.length < 2 || operand(context, 1).shape.length < 2;
    if (hasVector && (product.transposeA || product.transposeB)) {
      throw badOperands(context, 'a vector beside a transposed operand',
        'matrices, which ONNX Runtime transposes as asked');
    }
    return [productType(context, product)];
  },
  batch: (context) => productBatch(context, gemmProduct(context.node)),
  gradient: (context) => productGradients(context, outputGradient(context), gemmProduct(context.node)),
  parameter: (context) => productUse(context, gemmProduct(context.node)),
};

const broadcastsTo = (from: Shape, to: Shape): boolean =>
  from.length <= to.length && from.every((n, i) => n === 1 || n === to[to.length - from.length + i]);

const gemm: Operator = {
  learned: [0, 1, 2],
  biases: [2],
  shape: (context) => {
    const [a, b, c] = [operand(context, 0), operand(context, 1), context.inputs[2]];
    if (a.shape.length !== 2 || b.shape.length !== 2) {
      throw badOperands(context, `${showShape(a.shape)} times ${showShape(b.shape)}`, 'two matrices');
    }
    const type = productType(context, gemmProduct(context.node));
    if (c !== undefined && !broadcastsTo(c.shape, type.shape)) {
      throw badOperands(context, `C of shape ${showShape(c.shape)}`,
        `a shape that broadcasts to ${showShape(type.shape)}`);
    }
    return [type];
  },
  batch: (context) => {
    const product = productBatch(context, gemmProduct(context.node));
    if ('violation' in product) return product;
    const [c, own, place] = [context.inputs[2]?.shape ?? [], context.batch[2], product[0]];
    const joint = own === undefined ? undefined : { ...own, axis: own.axis + 2 - c.length };
    if (joint !== undefined && (place === undefined || !sameBatch(place, joint))) {
      return violation(own?.axis ?? 0, 'adds the rows of one example to those of another',
        'align the batch axes of the product and C');
    }
    const met = place === undefined ? undefined : c[place.axis - 2 + c.length];
    if (joint === undefined && place !== undefined && met !== undefined && met !== 1) {
      return violation(place.axis, 'adds to every example numbers found by its position in the batch',
        'add the same C to every example');
    }
    return [place];
  },
  gradient: (context) => {
    const { b, node, inputs, needed } = context;
    const dY = outputGradient(context);
    const c = inputs[2];
    const [dA, dB] = productGradients(context, dY, gemmProduct(node));
    if (c === undefined || c === '' || needed[2] !== true) return [dA, dB];
    return [dA, dB, scale(b, sumTo(b, dY, b.shape(c)), floatAttribute(node, 'beta', 1))];
  },
  parameter: (context) => {
    if (context.index < 2) return productUse(context, gemmProduct(context.node));
    const beta = floatAttribute(context.node, 'beta', 1);
    const rows = rowsAligned(context.b, outputGradient(context), batchOf(context, context.outputBatch[0]));
    return { kind: 'broadcast', gradient: scale(context.b, rows, beta) };
  },
};

/** Matrix products. */
export const linear = {
  MatMul: matMul, Gemm: gemm, 'com.microsoft:FusedMatMul': fusedMatMul,
} satisfies Record<string, Operator>;
