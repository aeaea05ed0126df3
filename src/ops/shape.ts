import { GhostgradError } from '../errors.ts';
import { type Node, int, intAttribute, intsAttribute, showNode, showShape, stringAttribute } from '../graph/ir.ts';
import { dataTypeName, dtypeOf } from '../graph/onnx.ts';
import {
  type Shape, type Tensor, type TensorType, float32, int64, isFloat, sizeOf, toNumbers,
} from '../tensor/tensor.ts';
import type { BatchAxis } from './batch.ts';
import { reduceSum, reshape, sumTo, transpose } from './builder.ts';
import { expandTo, fromElements, pick, withShape } from './fold.ts';
import { rowsAligned } from './layout.ts';
import { badOperands, batchOf, operand, outputGradient, violation } from './operands.ts';
import type {
  BatchContext, BatchResult, OperandContext, Operator, ParameterContext, ParameterUse, SpreadContext,
} from './operator.ts';
import {
  alongAxes, broadcastShapes, builtIntegers, fromFront, integers, noGradientFlows, requiredIntegers,
  unknownOperand, withoutBatch,
} from './rules.ts';
import { reshapedView, transposedView } from './view.ts';

/**
 * Where a row-major reshape takes the batch. With P elements' worth of axes before the batch and S after it, the new
 * axis that holds it is the one whose own offset divides P and whose inner size divides S.
 */
export function reshapeBatch({ axis, before, after }: BatchAxis, from: Shape, to: Shape): BatchAxis | undefined {
  const outer = sizeOf(from.slice(0, axis)) * before;
  const inner = sizeOf(from.slice(axis + 1)) * after;
  for (const [j] of to.entries()) {
    const [left, right] = [sizeOf(to.slice(0, j)), sizeOf(to.slice(j + 1))];
    if (outer % left === 0 && inner % right === 0) return { axis: j, before: outer / left, after: inner / right };
  }
  return undefined;
}

function reshapedBatch({ node, inputs, batch, outputs }: BatchContext): BatchResult {
  const at = batch[0];
  if (at === undefined) return [undefined];
  const [from, to] = [inputs[0]?.shape ?? [], outputs[0]?.shape ?? []];
  const moved = reshapeBatch(at, from, to);
  return moved === undefined
    ? violation(at.axis, `${node.op} cuts the values of the examples across one another`,
      'keep the batch an axis of its own (-1 or 0 in its place), or merge it whole with a neighbouring axis')
    : [moved];
}

/** An operator that only renames the places of a row-major array. */
const reshaping = (shapeOf: (context: OperandContext) => Shape): Operator => ({
  shape: (context) => {
    const x = operand(context, 0);
    const shape = shapeOf(context);
    if (sizeOf(shape) !== sizeOf(x.shape) || !shape.every(Number.isInteger)) {
      throw badOperands(context, `${showShape(x.shape)} into ${showShape(shape)}`, 'shapes with equally many elements');
    }
    return [{ dtype: x.dtype, shape }];
  },
  batch: reshapedBatch,
  gradient: (context) => [reshape(context.b, outputGradient(context), context.b.shape(context.inputs[0]!))],
  view: ({ outputs, view }) => [reshapedView(view, outputs[0]?.shape ?? [])],
  fold: (context) => [withShape(context.constants[0]!, shapeOf(context))],
});

/** 0 copies a dimension (unless `allowzero`), -1 takes what is left. */
function reshapeTarget(context: OperandContext): Shape {
  const from = operand(context, 0).shape;
  const allowZero = intAttribute(context.node, 'allowzero', 0) !== 0;
  const asked = requiredIntegers(context, 1).map((n, i) => (n === 0 && !allowZero ? from[i] ?? -2 : n));
  const rest = asked.filter((n) => n !== -1);
  if (rest.length < asked.length - 1 || rest.some((n) => n < 0)) {
    throw badOperands(context, showShape(asked), 'sizes of at least 0 and at most one -1');
  }
  return rest.length === asked.length ? asked : asked.map((n) => (n === -1 ? sizeOf(from) / sizeOf(rest) : n));
}

function flattened(context: OperandContext): Shape {
  const { shape } = operand(context, 0);
  const axis = intAttribute(context.node, 'axis', 1);
  const at = axis === shape.length ? axis : fromFront(context.node, axis, Math.max(1, shape.length));
  return [sizeOf(shape.slice(0, at)), sizeOf(shape.slice(at))];
}

function squeezed(context: OperandContext): Shape {
  const { shape } = operand(context, 0);
  const axes = integers(context, 1)?.map((axis) => fromFront(context.node, axis, shape.length));
  return shape.filter((n, i) => (axes === undefined ? n !== 1 : !axes.includes(i)));
}

function unsqueezed(context: OperandContext): Shape {
  const { shape } = operand(context, 0);
  const given = requiredIntegers(context, 1);
  const rank = shape.length + given.length;
  const axes = new Set(given.map((axis) => fromFront(context.node, axis, rank)));
  const sizes = shape.values();
  return Array.from({ length: rank }, (_, i) => (axes.has(i) ? 1 : sizes.next().value ?? 1));
}

const permutationOf = (node: Node, rank: number): readonly number[] =>
  intsAttribute(node, 'perm', Array.from({ length: rank }, (_, i) => rank - 1 - i));

const transposition: Operator = {
  shape: (context) => {
    const { dtype, shape } = operand(context, 0);
    const perm = permutationOf(context.node, shape.length);
    if ([...perm].sort((a, b) => a - b).some((axis, i) => axis !== i) || perm.length !== shape.length) {
      throw badOperands(context, `perm ${showShape(perm)} for ${showShape(shape)}`, 'each axis once');
    }
    return [{ dtype, shape: perm.map((axis) => shape[axis]!) }];
  },
  batch: ({ node, inputs, batch }) => {
    const at = batch[0];
    return [at && { ...at, axis: permutationOf(node, inputs[0]?.shape.length ?? 0).indexOf(at.axis) }];
  },
  gradient: (context) => {
    const perm = permutationOf(context.node, context.b.shape(context.inputs[0]!).length);
    return [transpose(context.b, outputGradient(context), perm.map((_, axis) => perm.indexOf(axis)))];
  },
  view: ({ node, view }) => [transposedView(view, permutationOf(node, view.shape.length))],
  fold: ({ node, constants }) => {
    const x = constants[0]!;
    const perm = permutationOf(node, x.shape.length);
    return [pick(x, perm.map((axis) => x.shape[axis]!), (at) => perm.map((_, axis) => at[perm.indexOf(axis)]!))];
  },
};

function expandedShape(context: OperandContext): Shape {
  const x = operand(context, 0);
  const target = requiredIntegers(context, 1);
  const shape = broadcastShapes([x.shape, target]);
  if (shape !== undefined && target.every((n) => n >= 0)) return shape;
  throw badOperands(context, `${showShape(x.shape)} into ${showShape(target)}`, 'shapes that broadcast together');
}

/** The axis along which an input of one row is repeated for every row of the batch. */
const spreadAxis = ({ inputs, outputs, rows }: SpreadContext): BatchAxis | undefined =>
  repeatedAxis(outputs[0]?.shape ?? [], inputs[0]?.shape ?? [], rows);

function repeatedAxis(to: Shape, from: Shape, rows: number): BatchAxis | undefined {
  const axis = to.findIndex((n, i) => n % rows === 0 && n > 0 && (from[i - to.length + from.length] ?? 1) === 1);
  return axis < 0 ? undefined : { axis, before: 1, after: to[axis]! / rows };
}

/** A parameter repeated for every row: a class token, a learned query. */
const spreadUse = (context: ParameterContext): ParameterUse => ({
  kind: 'broadcast', gradient: rowsAligned(context.b, outputGradient(context), batchOf(context, context.outputBatch[0])),
});

const expand: Operator = {
  sizes: [1],
  shape: (context) => [{ dtype: operand(context, 0).dtype, shape: expandedShape(context) }],
  batch: ({ inputs, batch, outputs }) => {
    const at = batch[0];
    return [at && { ...at, axis: at.axis + (outputs[0]?.shape.length ?? 0) - (inputs[0]?.shape.length ?? 0) }];
  },
  gradient: (context) => [sumTo(context.b, outputGradient(context), context.b.shape(context.inputs[0]!))],
  parameter: spreadUse,
  spread: spreadAxis,
  // Axes of size 1 put in front repeat nothing.
  view: ({ outputs, view }) => [reshapedView(view, outputs[0]?.shape ?? [])],
  fold: (context) => [expandTo(context.constants[0]!, expandedShape(context))],
};

function repeatsOf(context: OperandContext): number[] {
  const repeats = requiredIntegers(context, 1);
  const { shape } = operand(context, 0);
  if (repeats.length === shape.length && repeats.every((n) => n >= 0)) return repeats;
  throw badOperands(context, `repeats ${showShape(repeats)} for ${showShape(shape)}`,
    'one count of at least 0 for each axis');
}

const tiledShape = (context: OperandContext): Shape =>
  repeatsOf(context).map((n, i) => n * operand(context, 0).shape[i]!);

const tile: Operator = {
  sizes: [1],
  shape: (context) => [{ dtype: operand(context, 0).dtype, shape: tiledShape(context) }],
  batch: alongAxes(
    (context) => repeatsOf(context).flatMap((n, i) => (n === 1 ? [] : [i])),
    'repeats', 'repeat other axes than the batch',
  ),
  gradient: (context) => {
    const { b, inputs } = context;
    const shape = b.shape(inputs[0]!);
    const repeats = builtIntegers(context, 1) ?? [];
    const split = reshape(b, outputGradient(context), shape.flatMap((n, i) => [repeats[i]!, n]));
    return [reduceSum(b, split, shape.map((_, i) => 2 * i))];
  },
  parameter: spreadUse,
  // Where only single entries are repeated, it broadcasts as Expand does.
  spread: (context) => (repeatsOf(context).every((n, i) => n === 1 || context.inputs[0]?.shape[i] === 1) ? spreadAxis(context) : undefined),
  fold: (context) => {
    const x = context.constants[0]!;
    return [pick(x, tiledShape(context), (at) => at.map((n, i) => n % x.shape[i]!))];
  },
};

const slicedShape = ({ node, inputs }: Pick<OperandContext, 'node' | 'inputs'>): Shape => {
  const shape = inputs[0]?.shape ?? [];
  const bound = (n: number): number => Math.min(shape.length, Math.max(0, n < 0 ? n + shape.length : n));
  return shape.slice(bound(intAttribute(node, 'start', 0)), bound(intAttribute(node, 'end', shape.length)));
};

const shapeOperator: Operator = {
  shape: (context) => {
    operand(context, 0);
    return [{ dtype: 'int64', shape: [slicedShape(context).length] }];
  },
  batch: withoutBatch, gradient: noGradientFlows, foldsTypes: true,
  fold: (context) => [int64(slicedShape(context))],
};

const size: Operator = {
  shape: (context) => {
    operand(context, 0);
    return [{ dtype: 'int64', shape: [] }];
  },
  batch: withoutBatch, gradient: noGradientFlows, foldsTypes: true,
  fold: ({ inputs }) => [int64([sizeOf(inputs[0]?.shape ?? [])], [])],
};

function rangeCount(context: OperandContext): number {
  const [start, limit, delta] = [0, 1, 2].map((i) => requiredIntegers(context, i)[0] ?? 0) as [number, number, number];
  return Math.max(0, Math.ceil((limit - start) / delta));
}

const range: Operator = {
  shape: (context) => [{ dtype: operand(context, 0).dtype, shape: [rangeCount(context)] }],
  batch: withoutBatch, gradient: noGradientFlows,
  fold: (context) => {
    const [start, , delta] = context.constants.map((t) => toNumbers(t)[0] ?? 0);
    const count = rangeCount(context);
    return [fromElements(context.constants[0]!.dtype, [count],
      Array.from({ length: count }, (_, i) => start! + i * delta!))];
  },
};

function fillValue(node: Node): Tensor {
  const value = node.attributes['value'];
  return value?.type === 'tensor' ? value.value : float32([0]);
}

const constantOfShape: Operator = {
  sizes: [0],
  shape: (context) => {
    const shape = requiredIntegers(context, 0);
    if (shape.some((n) => n < 0)) throw badOperands(context, showShape(shape), 'sizes of at least 0');
    return [{ dtype: fillValue(context.node).dtype, shape }];
  },
  batch: withoutBatch, gradient: noGradientFlows,
  // Where it is too large to be folded.
  spread: ({ outputs, rows }) => repeatedAxis(outputs[0]?.shape ?? [], [], rows),
  fold: (context) => [expandTo(withShape(fillValue(context.node), []), requiredIntegers(context, 0))],
};

function eyeType(context: OperandContext): TensorType {
  const x = operand(context, 0);
  const asked = context.node.attributes['dtype'];
  const dtype = asked?.type === 'int' ? dtypeOf(asked.value) : x.dtype;
  if (x.shape.length !== 2 || dtype === undefined) {
    throw badOperands(context,
      `${showShape(x.shape)} to ${asked?.type === 'int' ? dataTypeName(asked.value) : x.dtype}`,
      'a matrix, and a type of numbers');
  }
  return { dtype, shape: x.shape };
}

const eyeLike: Operator = {
  shape: (context) => [eyeType(context)],
  batch: withoutBatch, gradient: noGradientFlows, foldsTypes: true,
  fold: (context) => {
    const { dtype, shape } = eyeType(context);
    if (dtype === 'float16' || dtype === 'bfloat16') return undefined;
    const k = intAttribute(context.node, 'k', 0);
    const columns = shape[1]!;
    return [fromElements(dtype, shape,
      Array.from({ length: sizeOf(shape) }, (_, i) => Number(i % columns - Math.floor(i / columns) === k)))];
  },
};

const trilu: Operator = {
  shape: (context) => {
    const x = operand(context, 0);
    if (x.shape.length < 2) throw badOperands(context, showShape(x.shape), 'matrices');
    return [x];
  },
  batch: alongAxes(({ inputs }) => {
    const rank = inputs[0]?.shape.length ?? 0;
    return [rank - 2, rank - 1];
  }, 'keeps a triangle over', 'put the batch before the two axes of the matrices'),
  gradient: (context) => {
    const { b, node, inputs } = context;
    const k = inputs[1];
    return [b.op('Trilu', [outputGradient(context), ...(k === undefined || k === '' ? [] : [k])],
      { upper: int(intAttribute(node, 'upper', 1)) })];
  },
  fold: ({ node, constants }) => {
    const x = constants[0]!;
    const k = constants[1] === undefined ? 0 : toNumbers(constants[1])[0] ?? 0;
    const upper = intAttribute(node, 'upper', 1) !== 0;
    const [rows, columns] = x.shape.slice(-2) as [number, number];
    const data = x.data.slice();
    for (let i = 0; i < data.length; i++) {
      const diagonal = i % columns - Math.floor(i / columns) % rows;
      if (upper ? diagonal < k : diagonal > k) data[i] = (typeof data[i] === 'bigint' ? 0n : 0);
    }
    return [{ ...x, data }];
  },
};

/** Places of the elements that are not 0, as columns; only of constants, since otherwise the shape depends on data. */
function nonZeroPlaces(t: Tensor): Tensor {
  const flat = toNumbers(t).flatMap((v, i) => (v === 0 ? [] : [i]));
  return int64(t.shape.flatMap((n, axis) => {
    const inner = sizeOf(t.shape.slice(axis + 1));
    return flat.map((i) => Math.floor(i / inner) % n);
  }), [t.shape.length, flat.length]);
}

const nonZero: Operator = {
  shape: (context) => {
    const known = operand(context, 0) && context.constants[0];
    if (known === undefined || isFloat(known.dtype)) throw unknownOperand(context.node, 0);
    const { dtype, shape } = nonZeroPlaces(known);
    return [{ dtype, shape }];
  },
  batch: withoutBatch, gradient: noGradientFlows,
  fold: ({ constants }) => [nonZeroPlaces(constants[0]!)],
};

/** What DepthToSpace and SpaceToDepth share: channels and space trade places within an image. */
const imageBatch = alongAxes(() => [1, 2, 3], 'mixes the places of', 'put the batch in axis 0 of the images');

type Resize = (n: number, c: number, h: number, w: number, size: number) => Shape;

function blockType(context: OperandContext, resize: Resize): TensorType {
  const { dtype, shape } = operand(context, 0);
  const size = intAttribute(context.node, 'blocksize', 0);
  const [n, c, h, w] = shape;
  const resized = shape.length === 4 && size > 0 ? resize(n!, c!, h!, w!, size) : [];
  if (resized.length === 4 && resized.every(Number.isInteger)) return { dtype, shape: resized };
  throw badOperands(context, `${showShape(shape)} with blocks of ${size}`,
    'images [N, C, H, W] that the blocks divide');
}

const depthToSpace: Operator = {
  shape: (context) => [blockType(context, (n, c, h, w, size) => [n, c / size ** 2, h * size, w * size])],
  batch: imageBatch,
  gradient: (context) => {
    const { b, node, inputs } = context;
    const size = intAttribute(node, 'blocksize', 1);
    const dY = outputGradient(context);
    if (stringAttribute(node, 'mode', 'DCR') === 'DCR') return [b.op('SpaceToDepth', [dY], { blocksize: int(size) })];
    const shape = b.shape(inputs[0]!);
    const [n, c, h, w] = shape as [number, number, number, number];
    const blocks = reshape(b, dY, [n, c / size ** 2, h, size, w, size]);
    return [reshape(b, transpose(b, blocks, [0, 1, 3, 5, 2, 4]), shape)];
  },
};

const spaceToDepth: Operator = {
  shape: (context) => [blockType(context, (n, c, h, w, size) => [n, c * size ** 2, h / size, w / size])],
  batch: imageBatch,
  gradient: (context) =>
    [context.b.op('DepthToSpace', [outputGradient(context)],
      { blocksize: int(intAttribute(context.node, 'blocksize', 1)) })],
};

function constantValue(node: Node): Tensor {
  const { value, value_float: real, value_int: whole, value_floats: reals, value_ints: wholes } = node.attributes;
  if (value?.type === 'tensor') return value.value;
  if (real?.type === 'float') return float32([real.value], []);
  if (whole?.type === 'int') return int64([whole.value], []);
  if (reals?.type === 'floats') return float32(reals.value);
  if (wholes?.type === 'ints') return int64(wholes.value);
  throw new GhostgradError({
    what: 'a Constant of a kind that is not supported', where: showNode(node),
    found: Object.keys(node.attributes).join(', '), expected: 'a dense tensor of numbers',
  });
}

const constant: Operator = {
  shape: ({ node }) => [constantValue(node)].map(({ dtype, shape }) => ({ dtype, shape })),
  batch: withoutBatch, gradient: noGradientFlows,
  fold: ({ node }) => [constantValue(node)],
};

/** Shapes: reading them, changing them, and making values from them. */
export const shape = {
  Reshape: { ...reshaping(reshapeTarget), sizes: [1] }, Flatten: reshaping(flattened),
  Squeeze: reshaping(squeezed), Unsqueeze: reshaping(unsqueezed),
  Transpose: transposition, Expand: expand, Tile: tile,
  Shape: shapeOperator, Size: size, Range: range, ConstantOfShape: constantOfShape, EyeLike: eyeLike,
  Constant: constant, Trilu: trilu, NonZero: nonZero, DepthToSpace: depthToSpace, SpaceToDepth: spaceToDepth,
} satisfies Record<string, Operator>;
