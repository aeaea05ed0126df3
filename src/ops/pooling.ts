import { type Node, int, intAttribute, intsAttribute, showShape, string } from '../graph/ir.ts';
import { type Shape, type TensorType, float32, sizeOf } from '../tensor/tensor.ts';
import {
  type GraphBuilder, type Value, concat, filled, mul, pad, reshape, scale, slice, sub, where,
} from './builder.ts';
import { badOperands, operand, outputGradient, requireUnrolled, violation } from './operands.ts';
import type { BatchContext, BatchResult, GradientContext, OperandContext, Operator } from './operator.ts';
import { gate } from './rules.ts';
import { type Windows, slidingWindows } from './windows.ts';

/** The windows along one axis of a value. */
interface Line {
  readonly axis: number;
  readonly size: number;
  readonly kernel: number;
  readonly stride: number;
  readonly dilation: number;
  readonly before: number;
  readonly count: number;
}

const windowsOf = (node: Node, x: Shape): Windows =>
  slidingWindows(node, x.slice(2), intsAttribute(node, 'kernel_shape', []), 'pooling');

const linesOf = (x: Shape, { kernel, strides, dilations, pads, counts }: Windows): Line[] =>
  kernel.map((k, i) => ({
    axis: i + 2, size: x[i + 2]!, kernel: k, stride: strides[i]!, dilation: dilations[i]!,
    before: pads[i]!, count: counts[i]!,
  }));

const along = (rank: number, axis: number, n: number): number[] =>
  Array.from({ length: rank }, (_, i) => (i === axis ? n : 0));

/** For each element of the kernel, what the windows see there: kernel-many values whose `axis` has `count` entries. */
function seen(b: GraphBuilder, x: Value, { axis, size, kernel, stride, dilation, before, count }: Line): Value[] {
  const rank = b.shape(x).length;
  const span = (count - 1) * stride + 1;
  const after = Math.max(0, span + (kernel - 1) * dilation - before - size);
  const pads = [...along(rank, axis, before), ...along(rank, axis, after)];
  const padded = before === 0 && after === 0 ? x
    : b.op('Pad', [x, b.ints(pads), b.scalar(-Infinity, b.type(x).dtype)]);
  return Array.from({ length: kernel }, (_, o) =>
    slice(b, padded, [axis], [o * dilation], [o * dilation + span], [stride]));
}

/** The adjoint of {@link seen}: what each window gives to each element of the kernel, summed where it came from. */
function spread(b: GraphBuilder, pieces: readonly Value[], line: Line): Value {
  const { axis, size, stride, dilation, before, count } = line;
  const shape = b.shape(pieces[0]!);
  const rank = shape.length;
  const shifts = pieces.map((_, o) => Math.floor((o * dilation) / stride));
  const length = Math.max(Math.ceil((before + size) / stride), Math.max(...shifts) + count);
  // Position o·dilation + stride·i of the padded input is entry (shift + i) of phase (o·dilation mod stride).
  const phases = Array.from({ length: stride }, (_, phase) => {
    const terms = pieces.flatMap((piece, o) => (o * dilation % stride !== phase ? [] : [pad(b, piece, [
      ...along(rank, axis, shifts[o]!), ...along(rank, axis, length - count - shifts[o]!),
    ])]));
    if (terms.length === 0) return undefined;
    return terms.length === 1 ? terms[0] : b.op('Sum', terms);
  });
  const spreadOut = interleave(b, phases, [...shape.slice(0, axis), length, ...shape.slice(axis + 1)], axis);
  return before === 0 && length * stride === size ? spreadOut : slice(b, spreadOut, [axis], [before], [before + size]);
}

/** Entry i of phase f goes to place i·phases + f along `axis`; an absent phase is zero. */
function interleave(b: GraphBuilder, phases: readonly (Value | undefined)[], shape: Shape, axis: number): Value {
  const first = phases.find((v) => v !== undefined)!;
  if (phases.length === 1) return first;
  const column = [...shape.slice(0, axis + 1), 1, ...shape.slice(axis + 1)];
  const full = [...shape.slice(0, axis + 1), phases.length, ...shape.slice(axis + 1)];
  const stacked = phases.every((v) => v === first)
    ? b.op('Expand', [reshape(b, first, column), b.ints(full)])
    : concat(b, phases.map((v) => (v === undefined
      ? b.op('Expand', [b.scalar(0, b.type(first).dtype), b.ints(column)])
      : reshape(b, v, column))), axis + 1);
  return reshape(b, stacked, [...shape.slice(0, axis), shape[axis]! * phases.length, ...shape.slice(axis + 1)]);
}

const isTrivial = ({ kernel, stride, before, count, size }: Line): boolean =>
  kernel === 1 && stride === 1 && before === 0 && count === size;

/** 0, step, 2·step, …, `count` of them, int64. */
const counted = (b: GraphBuilder, count: number, step = 1): Value =>
  b.op('Range', [0, count * step, step].map((n) => b.scalar(n, 'int64')));

/**
 * The gradient of MaxPool: each window hands its own to the first of its maxima in row-major order, ties included.
 * The kernel has written down where each maximum stands, as a place in the whole input. Less the place where its
 * plane begins it is a place in that plane, and scattering is done plane by plane: whatever stands in a row (NaN too),
 * its gradient cannot reach another row.
 */
export function maxPoolGradientByIndices(b: GraphBuilder, x: Value, y: Value, dY: Value, windows: Windows): Value {
  const shape = b.shape(x);
  const [planes, size, count] = [shape[0]! * shape[1]!, sizeOf(shape.slice(2)), sizeOf(windows.counts)];
  const begins = reshape(b, counted(b, planes, size), [planes, 1]);
  const places = sub(b, reshape(b, b.optionalOutput(y, 1), [planes, count]), begins);
  const overlapping = linesOf(shape, windows).some((line) => (line.kernel - 1) * line.dilation >= line.stride);
  const scattered = b.op('ScatterElements',
    [filled(b, 0, [planes, size], b.type(dY).dtype), places, reshape(b, dY, [planes, count])],
    { axis: int(1), ...(overlapping ? { reduction: string('add') } : {}) });
  return reshape(b, scattered, shape);
}

/**
 * The same gradient without indices, of elementwise operations alone. Axis by axis: the first row that holds the
 * window's maximum, and in that row the first element that equals it.
 */
export function maxPoolGradientBySlices(b: GraphBuilder, x: Value, y: Value, dY: Value, windows: Windows): Value {
  const lines = linesOf(b.shape(x), windows).filter((line) => !isTrivial(line)).reverse();
  // Maxima along the last axis, of those the maxima along the one before it, and so on.
  let level = x;
  const levels = lines.map((line, i) => {
    const slices = seen(b, level, line);
    level = i === lines.length - 1 ? y : slices.length === 1 ? slices[0]! : b.op('Max', slices);
    return { line, slices, maximum: level };
  });
  return levels.reduceRight((gradient, { line, slices, maximum }) => {
    let left = gradient;
    const pieces = slices.map((slice, o) => {
      if (o === slices.length - 1) return left;
      const piece = gate(b, b.op('Equal', [slice, maximum]), left);
      left = sub(b, left, piece);
      return piece;
    });
    return spread(b, pieces, line);
  }, dY);
}

/** How many elements each window of AveragePool divides by, along one axis. */
function divisors(line: Line, after: number, includePad: boolean): number[] {
  const { size, kernel, stride, dilation, before, count } = line;
  const [low, high] = includePad ? [-before, size + after] : [0, size];
  return Array.from({ length: count }, (_, i) => {
    const start = i * stride - before;
    return Array.from({ length: kernel }, (_, o) => start + o * dilation).filter((at) => at >= low && at < high).length;
  });
}

function averagePoolGradient({ b, node }: Pick<GradientContext, 'b' | 'node'>, x: Shape, dY: Value, windows: Windows, includePad: boolean): Value {
  const lines = linesOf(x, windows);
  lines.forEach(({ count }) => { requireUnrolled({ node }, count, 'an axis'); });
  const perAxis = lines.map((line, i) => divisors(line, windows.pads[lines.length + i]!, includePad));
  const table = perAxis.reduce((left, right) => left.flatMap((n) => right.map((m) => n * m)), [1]);
  const uniform = table.every((n) => n === table[0]);
  const shared = uniform
    ? scale(b, dY, 1 / table[0]!)
    : mul(b, dY, b.constant(float32(table.map((n) => 1 / n), [1, 1, ...windows.counts])));
  return lines.filter((line) => !isTrivial(line)).reduce(
    (gradient, line) => spread(b, Array<Value>(line.kernel).fill(gradient), line), shared,
  );
}

/** Each image and channel is pooled on its own: the batch may lie in either axis, merged or not. */
function poolingBatch({ node, batch, outputs }: BatchContext): BatchResult {
  const at = batch[0];
  if (at !== undefined && (node.outputs[1] ?? '') !== '') {
    return violation(at.axis, 'gives out indices, which tell where in the batch an example lies',
      'drop the second output of the node');
  }
  if (at !== undefined && at.axis > 1) {
    return violation(at.axis, `${node.op} pools over axis ${at.axis}, which carries the batch`,
      'put the batch in axis 0 of the input');
  }
  return outputs.map(() => at);
}

function pooledType(context: OperandContext): TensorType {
  const x = operand(context, 0);
  const { counts } = windowsOf(context.node, x.shape);
  return { dtype: x.dtype, shape: [...x.shape.slice(0, 2), ...counts] };
}

function globalType(context: OperandContext): TensorType {
  const x = operand(context, 0);
  if (x.shape.length < 3) throw badOperands(context, `input ${showShape(x.shape)}`, 'an input [N, C, ...spatial]');
  return { dtype: x.dtype, shape: x.shape.map((n, i) => (i < 2 ? n : 1)) };
}

const maxPool: Operator = {
  shape: (context) => {
    const type = pooledType(context);
    return [type, { dtype: 'int64', shape: type.shape }];
  },
  batch: poolingBatch,
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    const x = inputs[0]!;
    const windows = windowsOf(node, b.shape(x));
    // Slices are as fast for windows one step apart, and then need no second output of a slower kernel; with longer
    // steps indices are (BENCHMARKS.md). The other storage order counts places column by column.
    const bySlices = windows.strides.every((s) => s === 1) || intAttribute(node, 'storage_order', 0) !== 0;
    const rule = bySlices ? maxPoolGradientBySlices : maxPoolGradientByIndices;
    return [rule(b, x, outputs[0]!, outputGradient(context), windows)];
  },
};

const averagePool: Operator = {
  shape: (context) => [pooledType(context)],
  batch: poolingBatch,
  gradient: (context) => {
    const { b, node, inputs } = context;
    const x = b.shape(inputs[0]!);
    const includePad = intAttribute(node, 'count_include_pad', 0) !== 0;
    return [averagePoolGradient(context, x, outputGradient(context), windowsOf(node, x), includePad)];
  },
};

const globalAveragePool: Operator = {
  shape: (context) => [globalType(context)],
  batch: poolingBatch,
  gradient: (context) => {
    const { b, inputs } = context;
    const shape = b.shape(inputs[0]!);
    const share = scale(b, outputGradient(context), 1 / sizeOf(shape.slice(2)));
    return [b.op('Expand', [share, b.ints(shape)])];
  },
};

const globalMaxPool: Operator = {
  shape: (context) => [globalType(context)],
  batch: poolingBatch,
  gradient: (context) => {
    const { b, inputs } = context;
    const shape = b.shape(inputs[0]!);
    const [n, c] = [shape[0]!, shape[1]!];
    const size = sizeOf(shape.slice(2));
    const first = b.op('ArgMax', [reshape(b, inputs[0]!, [n, c, size])], { axis: int(2), keepdims: int(1) });
    const places = counted(b, size);
    const dY = reshape(b, outputGradient(context), [n, c, 1]);
    const chosen = where(b, b.op('Equal', [first, places]), dY, b.scalar(0, b.type(dY).dtype));
    return [reshape(b, chosen, shape)];
  },
};

/** dY·(|x| / y)^(p-1)·sign(x), of which the caller spreads dY·y^(1-p); 0 where a window holds nothing but zeros. */
function lpGradient(b: GraphBuilder, p: number, x: Value, y: Value, dY: Value, spreadOut: (g: Value) => Value): Value {
  const like = (n: number): Value => b.scalar(n, b.type(x).dtype);
  if (p === 1) return mul(b, b.op('Sign', [x]), spreadOut(dY));
  const isZero = b.op('Equal', [y, like(0)]);
  const share = where(b, isZero, like(0), mul(b, dY, b.op('Pow', [where(b, isZero, like(1), y), like(1 - p)])));
  const slope = p === 2 ? x : mul(b, b.op('Sign', [x]), b.op('Pow', [b.op('Abs', [x]), like(p - 1)]));
  return mul(b, slope, spreadOut(share));
}

const lpPool: Operator = {
  shape: (context) => [pooledType(context)],
  batch: poolingBatch,
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    const lines = linesOf(b.shape(inputs[0]!), windowsOf(node, b.shape(inputs[0]!))).filter((line) => !isTrivial(line));
    lines.forEach(({ count }) => { requireUnrolled({ node }, count, 'an axis'); });
    return [lpGradient(b, intAttribute(node, 'p', 2), inputs[0]!, outputs[0]!, outputGradient(context), (g) =>
      lines.reduce((spreading, line) => spread(b, Array<Value>(line.kernel).fill(spreading), line), g))];
  },
};

const globalLpPool: Operator = {
  shape: (context) => [globalType(context)],
  batch: poolingBatch,
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    return [lpGradient(b, intAttribute(node, 'p', 2), inputs[0]!, outputs[0]!, outputGradient(context), (g) => g)];
  },
};

/** Pooling over spatial axes. */
export const pooling = {
  MaxPool: maxPool, AveragePool: averagePool, GlobalAveragePool: globalAveragePool, GlobalMaxPool: globalMaxPool,
  LpPool: lpPool, GlobalLpPool: globalLpPool,
} satisfies Record<string, Operator>;
