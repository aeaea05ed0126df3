import { type Node, int, intAttribute, showShape, showType, string, stringAttribute } from '../graph/ir.ts';
import { type Shape, type Tensor, int64, isFloat, sizeOf, toNumbers } from '../tensor/tensor.ts';
import { addRows, addRowsAt } from './add-rows.ts';
import { sameBatch } from './batch.ts';
import { type GraphBuilder, type Value, concat, filled, mul, pad, reduceSum, reshape, slice, sub, transpose } from './builder.ts';
import { elementAt, pick } from './fold.ts';
import { rowsAligned, rowsAndPositions } from './layout.ts';
import { badOperands, batchOf, operand, outputGradient, violation } from './operands.ts';
import type {
  BatchContext, BatchResult, GradientContext, GradientRule, OperandContext, Operator, ParameterContext, ParameterUse, ViewContext,
} from './operator.ts';
import { axisAttribute, castTo, jointBatch, requiredIntegers } from './rules.ts';
import { type View, reshapedView, slicedView } from './view.ts';

const sumInto = { reduction: string('add') };

/** Entries start, start + step, …, `count` of them, along a constant list of indices. */
interface Run {
  readonly start: number;
  readonly step: number;
  readonly count: number;
}

/** Cuts a list of indices into runs of constant step, each as long as can be. */
function runsOf(indices: readonly number[]): Run[] {
  const runs: Run[] = [];
  for (let i = 0; i < indices.length;) {
    const start = indices[i]!;
    const step = i + 1 < indices.length ? indices[i + 1]! - start : 1;
    let count = 1;
    while (i + count < indices.length && indices[i + count] === start + count * step) count++;
    runs.push({ start, step, count });
    i += count;
  }
  return runs;
}

/**
 * The adjoint of picking entries `indices` (constant, not negative) along an axis of size `size`: each entry of g is
 * added to where it came from. A few runs of neighbouring indices become padding; anything else is scattered.
 */
export function scatterAlong(b: GraphBuilder, g: Value, indices: readonly number[], axis: number, size: number): Value {
  const shape = b.shape(g);
  const along = (n: number): number[] => shape.map((_, i) => (i === axis ? n : 0));
  const runs = runsOf(indices);
  if (indices.length === 0) return filled(b, 0, shape.map((n, i) => (i === axis ? size : n)), b.type(g).dtype);
  if (runs.length > 4 || runs.some(({ step }) => Math.abs(step) > 1)) {
    return scatterByIndices(b, g, b.constant(int64(indices)), axis, size);
  }
  let end = 0;
  const parts = runs.map(({ start, step, count }) => {
    const from = end;
    end += count;
    const part = slice(b, g, [axis], [from], [end]);
    const low = Math.min(start, start + step * (count - 1));
    const placed = step === 0 ? reduceSum(b, part, [axis], true)
      : step < 0 ? slice(b, part, [axis], [count - 1], [-count - 1], [-1]) : part;
    return pad(b, placed, [...along(low), ...along(size - low - b.shape(placed)[axis]!)]);
  });
  return parts.length === 1 ? parts[0]! : b.op('Sum', parts);
}

/** The same for integers of any rank: g is [...outer, ...indices, ...inner], the result [...outer, size, ...inner]. */
function scatterByIndices(b: GraphBuilder, g: Value, indices: Value, axis: number, size: number): Value {
  const shape = b.shape(g);
  const places = b.shape(indices).length;
  const count = sizeOf(b.shape(indices));
  const [outer, inner] = [shape.slice(0, axis), shape.slice(axis + places)];
  const flat = reshape(b, g, [sizeOf(outer), count, sizeOf(inner)]);
  const rows = reshape(b, transpose(b, flat, [1, 0, 2]), [count, sizeOf(outer) * sizeOf(inner)]);
  const fromFront = b.op('Mod', [reshape(b, castTo(b, indices, 'int64'), [count]), b.scalar(size, 'int64')]);
  const added = reshape(b, addRows(b, size, fromFront, rows), [size, sizeOf(outer), sizeOf(inner)]);
  return reshape(b, transpose(b, added, [1, 0, 2]), [...outer, size, ...inner]);
}

function gatherShape(context: OperandContext): Shape {
  const [x, indices] = [operand(context, 0), operand(context, 1)];
  const axis = axisAttribute(context.node, x.shape.length, 0);
  if (isFloat(indices.dtype)) throw badOperands(context, `indices ${showType(indices)}`, 'integers');
  return [...x.shape.slice(0, axis), ...indices.shape, ...x.shape.slice(axis + 1)];
}

function gatherBatch({ node, inputs, batch }: BatchContext): BatchResult {
  const [x, indices] = [inputs[0]?.shape ?? [], inputs[1]?.shape ?? []];
  const axis = axisAttribute(node, x.length, 0);
  const [data, picked] = batch;
  if (data === undefined) return [picked && { ...picked, axis: picked.axis + axis }];
  if (picked !== undefined) {
    return violation(data.axis, 'looks values of each example up in every example',
      'use GatherElements, or GatherND with batch_dims');
  }
  if (data.axis === axis) {
    return violation(axis, `picks examples by their position (axis ${axis} carries the batch)`,
      'gather along the features or time only');
  }
  return [{ ...data, axis: data.axis < axis ? data.axis : data.axis - 1 + indices.length }];
}

const gatherGradient: GradientRule = (context) => {
  const { b, node, inputs } = context;
  const shape = b.shape(inputs[0]!);
  const axis = axisAttribute(node, shape.length, 0);
  const size = shape[axis]!;
  const dY = outputGradient(context);
  const known = b.constantOf(inputs[1]!);
  if (known === undefined) return [scatterByIndices(b, dY, inputs[1]!, axis, size), undefined];
  const flat = reshape(b, dY, [...shape.slice(0, axis), known.data.length, ...shape.slice(axis + 1)]);
  return [scatterAlong(b, flat, toNumbers(known).map((i) => (i < 0 ? i + size : i)), axis, size), undefined];
};

/** A table of which the examples pick rows. */
function gatherUse(context: ParameterContext): ParameterUse {
  const { b, node, index, inputs, inputBatch, outputBatch } = context;
  if (index !== 0) throw new Error('indices are no parameters');
  const table = b.shape(inputs[0]!);
  const axis = axisAttribute(node, table.length, 0);
  // Mod takes the sign of the divisor: indices from the back become indices from the front.
  const places = b.op('Mod', [castTo(b, inputs[1]!, 'int64'), b.scalar(table[axis]!, 'int64')]);
  const picked = batchOf(context, outputBatch[0]);
  // Constant indices that are the same for every row carry the batch where the output says so.
  const indices = rowsAndPositions(b, places, inputBatch[1] ?? { ...picked, axis: picked.axis - axis }, 0);
  const dY = rowsAligned(b, outputGradient(context), picked);
  const [rows, T] = b.shape(indices) as [number, number];
  const [outer, inner] = [sizeOf(table.slice(0, axis)), sizeOf(table.slice(axis + 1))];
  if (axis === 0) return { kind: 'gather', indices, outputGradient: reshape(b, dY, [rows, T, inner]) };
  const updates = reshape(b, dY, [rows, outer, T, inner]);
  const spread = b.op('Expand', [reshape(b, indices, [rows, 1, T, 1]), b.ints([rows, outer, T, inner])]);
  const perExample = b.op('ScatterElements',
    [filled(b, 0, [rows, outer, table[axis]!, inner], b.type(dY).dtype), spread, updates],
    { axis: int(2), ...sumInto });
  return { kind: 'opaque', perExample: reshape(b, perExample, [rows, ...table]) };
}

/** Constant indices a step apart, as positions are, take a slice. */
function gatherView(context: ViewContext): readonly (View | undefined)[] {
  const { node, constants, outputs, view } = context;
  const indices = constants[1];
  if (indices === undefined) return [undefined];
  const axis = axisAttribute(node, view.shape.length, 0);
  const runs = runsOf(toNumbers(indices).map((i) => (i < 0 ? i + view.shape[axis]! : i)));
  const [run] = runs;
  if (run === undefined || runs.length > 1 || (run.count > 1 && run.step === 0)) return [undefined];
  return [reshapedView(slicedView(view, axis, run.start, run.step, run.count), outputs[0]?.shape ?? [])];
}

const gather: Operator = {
  learned: [0],
  lookUps: (node) => (intAttribute(node, 'axis', 0) === 0 ? [{ rows: 1, table: 0 }] : []),
  shape: (context) => [{ dtype: operand(context, 0).dtype, shape: gatherShape(context) }],
  batch: gatherBatch,
  gradient: gatherGradient,
  parameter: gatherUse,
  view: gatherView,
  fold: (context) => {
    const [x, indices] = [context.constants[0]!, context.constants[1]!];
    const axis = axisAttribute(context.node, x.shape.length, 0);
    const picked = toNumbers(indices);
    const rank = indices.shape.length;
    return [pick(x, gatherShape(context), (at) => {
      const place = at.slice(axis, axis + rank).reduce((flat, n, i) => flat * indices.shape[i]! + n, 0);
      const i = picked[place]!;
      return [...at.slice(0, axis), i < 0 ? i + x.shape[axis]! : i, ...at.slice(axis + rank)];
    })];
  },
};

/** Operands of equal rank, all of which carry the batch in one place other than the axis looked along. */
export function elementsBatch(context: BatchContext): BatchResult {
  const rank = context.inputs[0]?.shape.length ?? 0;
  const joint = jointBatch(context, rank, false);
  if (joint !== undefined && 'violation' in joint) return joint;
  if (joint?.axis === axisAttribute(context.node, rank, 0)) {
    return violation(joint.axis, `${context.node.op} moves values along axis ${joint.axis}, which carries the batch`,
      'use an axis of features or time');
  }
  return [joint];
}

export const zerosLike = (b: GraphBuilder, v: Value): Value => filled(b, 0, b.shape(v), b.type(v).dtype);
export const elementsAxis = ({ b, node, inputs }: GradientContext) =>
  ({ axis: int(axisAttribute(node, b.shape(inputs[0]!).length, 0)) });

/** Numbers that stand somewhere along one axis of an array which is zero else. */
interface Scattered {
  readonly updates: Value;
  /** Adds them to an array of the same shape, where they stand. */
  readonly onto: (data: Value) => Value;
}

/** What {@link gatherElements} gives back to its data, where that is all that `x` is. */
export function scatteredAlong(b: GraphBuilder, x: Value, axis: number): Scattered | undefined {
  const made = b.producerOf(x);
  if (made?.op !== 'ScatterElements' || made.inputs[0] !== zerosLike(b, x)) return undefined;
  const [, indices, updates] = made.inputs as [Value, Value, Value];
  if (stringAttribute(made, 'reduction', 'none') !== 'add' || axisAttribute(made, b.shape(x).length, 0) !== axis) return undefined;
  return { updates, onto: (data) => b.op('ScatterElements', [data, indices, updates], made.attributes) };
}

const gatherElements: Operator = {
  shape: (context) => {
    const [x, indices] = [operand(context, 0), operand(context, 1)];
    const axis = axisAttribute(context.node, x.shape.length, 0);
    if (indices.shape.length !== x.shape.length || indices.shape.some((n, i) => i !== axis && n > x.shape[i]!)) {
      throw badOperands(context, `indices ${showShape(indices.shape)} into ${showShape(x.shape)}`,
        'indices of the same rank, not larger than the data');
    }
    return [{ dtype: x.dtype, shape: indices.shape }];
  },
  batch: elementsBatch,
  gradient: (context) => {
    const { b, inputs } = context;
    return [b.op('ScatterElements', [zerosLike(b, inputs[0]!), inputs[1]!, outputGradient(context)],
      { ...elementsAxis(context), ...sumInto })];
  },
  fold: ({ node, constants }) => {
    const [x, indices] = [constants[0]!, constants[1]!];
    const axis = axisAttribute(node, x.shape.length, 0);
    return [pick(x, indices.shape, (at) => at.with(axis, fromEnd(Number(elementAt(indices, at)), x.shape[axis]!)))];
  },
};

/** An index counted from the front. */
export const fromEnd = (index: number, size: number): number => (index < 0 ? index + size : index);

export const depthOf = (indices: Shape): number => indices.at(-1) ?? 0;
const batchDims = (node: Node): number => intAttribute(node, 'batch_dims', 0);

function gatherNDBatch({ node, inputs, batch }: BatchContext): BatchResult {
  const indices = inputs[1]?.shape ?? [];
  const shared = batchDims(node);
  const [data, picked] = batch;
  const trailing = shared + depthOf(indices);
  if (data !== undefined && picked === undefined && data.axis >= trailing) {
    return [{ ...data, axis: indices.length - 1 + data.axis - trailing }];
  }
  const inPlaces = picked !== undefined && picked.axis >= shared && picked.axis < indices.length - 1;
  if (data === undefined && inPlaces) return [picked];
  // Along the first `shared` axes data and indices are looked at together.
  if (data !== undefined && picked !== undefined && data.axis < shared && sameBatch(data, picked)) return [data];
  return violation((data ?? picked)?.axis ?? 0, `${node.op} looks values up across examples`,
    'make the batch one of the batch_dims, of the data and of the indices');
}

function gatheredShape(context: OperandContext): Shape {
  const [x, indices] = [operand(context, 0), operand(context, 1)];
  const trailing = batchDims(context.node) + depthOf(indices.shape);
  if (indices.shape.length === 0 || trailing > x.shape.length) {
    throw badOperands(context, `indices ${showShape(indices.shape)} into ${showShape(x.shape)}`,
      'places of at most the rank of the data');
  }
  return [...indices.shape.slice(0, -1), ...x.shape.slice(trailing)];
}

const gatherND: Operator = {
  shape: (context) => [{ dtype: operand(context, 0).dtype, shape: gatheredShape(context) }],
  batch: gatherNDBatch,
  gradient: (context) => {
    const { b, node, inputs } = context;
    const [x, indices] = [inputs[0]!, inputs[1]!];
    const places = wholePlaces(b, indices, batchDims(node));
    const r = b.shape(places).at(-1)!;
    const [n, shape] = [sizeOf(b.shape(places)) / r, b.shape(x)];
    const rows = reshape(b, outputGradient(context), [n, sizeOf(shape.slice(r))]);
    const added = addRowsAt(b, shape.slice(0, r), reshape(b, castTo(b, places, 'int64'), [n, r]), rows);
    return [reshape(b, added, shape)];
  },
  fold: (context) => {
    const [x, indices] = [context.constants[0]!, context.constants[1]!];
    const [shared, rank, depth] = [batchDims(context.node), indices.shape.length - 1, depthOf(indices.shape)];
    return [pick(x, gatheredShape(context), (at) => [
      ...at.slice(0, shared),
      ...Array.from({ length: depth }, (_, i) => fromEnd(Number(elementAt(indices, [...at.slice(0, rank), i])), x.shape[shared + i]!)),
      ...at.slice(rank),
    ])];
  },
};

/** Places with the coordinates of the shared leading axes written out. */
function wholePlaces(b: GraphBuilder, indices: Value, shared: number): Value {
  const shape = b.shape(indices).slice(0, -1);
  const columns = Array.from({ length: shared }, (_, axis) => {
    const along = int64(Array.from({ length: shape[axis]! }, (_, i) => i), shape.map((n, i) => (i === axis ? n : 1)));
    return reshape(b, b.op('Expand', [b.constant(along), b.ints(shape)]), [...shape, 1]);
  });
  return concat(b, [...columns, indices], shape.length);
}

const oneHotAxis = (node: Node, rank: number): number => {
  const axis = intAttribute(node, 'axis', -1);
  return axis < 0 ? axis + rank + 1 : axis;
};

function oneHotShape(context: OperandContext): Shape {
  const indices = operand(context, 0).shape;
  return indices.toSpliced(oneHotAxis(context.node, indices.length), 0, requiredIntegers(context, 1)[0] ?? 0);
}

const oneHot: Operator = {
  shape: (context) => [{ dtype: operand(context, 2).dtype, shape: oneHotShape(context) }],
  batch: ({ node, inputs, batch }) => {
    const [at, , values] = batch;
    if (values !== undefined) {
      return violation(values.axis, 'writes values of the examples to every example', 'use constant values');
    }
    return [at && { ...at, axis: at.axis + (oneHotAxis(node, inputs[0]?.shape.length ?? 0) <= at.axis ? 1 : 0) }];
  },
  // Every place holds one of two values, [off, on].
  gradient: (context) => {
    const { b, node, inputs, needed } = context;
    const { dtype } = b.type(inputs[2]!);
    if (needed[2] !== true) return [];
    const dY = outputGradient(context);
    const bits = b.op('Concat', [b.scalar(0, dtype), b.scalar(1, dtype)].map((v) => reshape(b, v, [1])), { axis: int(0) });
    const hot = b.op('OneHot', [inputs[0]!, inputs[1]!, bits], node.attributes);
    const everywhere = (g: Value): Value => reshape(b, reduceSum(b, g, b.shape(g).map((_, i) => i), true), [1]);
    const on = everywhere(mul(b, dY, hot));
    return [undefined, undefined, concat(b, [sub(b, everywhere(dY), on), on], 0)];
  },
  untrained: [2],
  fold: (context) => {
    const [indices, , values] = context.constants as [Tensor, Tensor, Tensor];
    const shape = oneHotShape(context);
    const axis = oneHotAxis(context.node, indices.shape.length);
    return [pick(values, shape, (at) => {
      const index = Math.trunc(Number(elementAt(indices, at.toSpliced(axis, 1))));
      return [Number(fromEnd(index, shape[axis]!) === at[axis])];
    })];
  },
};

/** Looking values up by integers. */
export const gathering = {
  Gather: gather, GatherElements: gatherElements, GatherND: gatherND, OneHot: oneHot,
} satisfies Record<string, Operator>;
