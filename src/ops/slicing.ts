import { type Node, intAttribute, showShape, showType, stringAttribute } from '../graph/ir.ts';
import type { Shape } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, concat, filled, pad, reduceSum, reshape, slice, sub } from './builder.ts';
import { concatConstants, pick } from './fold.ts';
import { scatterAlong } from './gathering.ts';
import { badOperands, operand, outputGradient, requireUnrolled, violation } from './operands.ts';
import type { BatchContext, BatchResult, GradientContext, OperandContext, Operator } from './operator.ts';
import {
  alongAxes, axisAttribute, builtIntegers, fromFront, integers, jointBatch, refuseAlong, requiredIntegers,
} from './rules.ts';
import { slicedView } from './view.ts';

const concatenation: Operator = {
  shape: (context) => {
    const parts = context.node.inputs.map((_, i) => operand(context, i));
    const first = operand(context, 0);
    const axis = axisAttribute(context.node, first.shape.length, 0);
    const fits = parts.every(({ dtype, shape }) => dtype === first.dtype && shape.length === first.shape.length
      && shape.every((n, i) => i === axis || n === first.shape[i]));
    if (!fits) throw badOperands(context, parts.map(showType).join(', '), `operands that differ only in axis ${axis}`);
    const size = parts.reduce((sum, t) => sum + t.shape[axis]!, 0);
    return [{ dtype: first.dtype, shape: first.shape.map((n, i) => (i === axis ? size : n)) }];
  },
  batch: (context): BatchResult => {
    const rank = context.inputs[0]?.shape.length ?? 0;
    const joint = jointBatch(context, rank, false);
    if (joint !== undefined && 'violation' in joint) return joint;
    if (joint?.axis === axisAttribute(context.node, rank, 0)) {
      return violation(joint.axis, `Concat joins values along axis ${joint.axis}, which carries the batch`,
        'join along the features or along time');
    }
    return [joint];
  },
  gradient: (context) => {
    const { b, node, inputs, needed } = context;
    const dY = outputGradient(context);
    const axis = axisAttribute(node, b.shape(dY).length, 0);
    let end = 0;
    return inputs.map((v, i) => {
      const start = end;
      end += b.shape(v)[axis]!;
      return needed[i] === true ? slice(b, dY, [axis], [start], [end]) : undefined;
    });
  },
  fold: ({ node, constants }) => [concatConstants(constants, axisAttribute(node, constants[0]!.shape.length, 0))],
};

/** Sizes of the pieces: given, or as equal as can be with the last one smaller. */
function pieces(node: Node, given: readonly number[] | undefined, size: number): readonly number[] {
  if (given !== undefined) return given;
  const count = intAttribute(node, 'num_outputs', node.outputs.length);
  if (count < node.outputs.length || count > Math.max(size, node.outputs.length)) {
    throw badOperands({ node }, `num_outputs ${count} for ${node.outputs.length} outputs of an axis of ${size}`, 'as many as there are outputs');
  }
  const each = Math.ceil(size / count);
  return Array.from({ length: count }, (_, i) => Math.max(0, Math.min(each, size - i * each)));
}

const split: Operator = {
  shape: (context) => {
    const { dtype, shape } = operand(context, 0);
    const axis = axisAttribute(context.node, shape.length, 0);
    const sizes = pieces(context.node, integers(context, 1), shape[axis]!);
    if (sizes.reduce((sum, n) => sum + n, 0) !== shape[axis] || sizes.length !== context.node.outputs.length) {
      throw badOperands(context, `pieces ${showShape(sizes)} of ${showShape(shape)}`,
        `${context.node.outputs.length} sizes that add up to axis ${axis}`);
    }
    return sizes.map((size) => ({ dtype, shape: shape.map((n, i) => (i === axis ? size : n)) }));
  },
  batch: alongAxes(
    ({ node, inputs }) => [axisAttribute(node, inputs[0]?.shape.length ?? 0, 0)],
    'splits', 'split the features or time only',
  ),
  gradient: (context) => {
    const { b, node, inputs, outputGradients } = context;
    const { dtype, shape } = b.type(inputs[0]!);
    const axis = axisAttribute(node, shape.length, 0);
    return [concat(b, pieces(node, builtIntegers(context, 1), shape[axis]!).map((size, i) =>
      outputGradients[i] ?? filled(b, 0, shape.map((n, k) => (k === axis ? size : n)), dtype)), axis)];
  },
  view: ({ node, outputs, view }) => {
    const axis = axisAttribute(node, view.shape.length, 0);
    let end = 0;
    return outputs.map(({ shape }) => {
      const start = end;
      end += shape[axis]!;
      return slicedView(view, axis, start, 1, shape[axis]!);
    });
  },
  fold: ({ node, inputs, constants }) => {
    const x = constants[0]!;
    const axis = axisAttribute(node, x.shape.length, 0);
    let end = 0;
    return pieces(node, integers({ node, inputs, constants }, 1), x.shape[axis]!).map((size) => {
      const start = end;
      end += size;
      const shape = x.shape.map((n, i) => (i === axis ? size : n));
      return pick(x, shape, (at) => at.map((n, i) => (i === axis ? n + start : n)));
    });
  },
};

/** One axis of a Slice: the entries start, start + step, …, `count` of them. */
interface Cut {
  readonly axis: number;
  readonly start: number;
  readonly step: number;
  readonly count: number;
}

/** Bounds count from the back when negative and are clamped to the axis, as ONNX has it. */
function cut(n: number, axis: number, start: number, end: number, step: number): Cut {
  const at = (bound: number): number => (bound < 0 ? bound + n : bound);
  const clamp = (bound: number, low: number, high: number): number => Math.min(high, Math.max(low, bound));
  const [first, last] = step > 0
    ? [clamp(at(start), 0, n), clamp(at(end), 0, n)]
    : [clamp(at(start), 0, n - 1), clamp(at(end), -1, n - 1)];
  return { axis, start: first, step, count: Math.max(0, Math.ceil((last - first) / step)) };
}

function cutsOf(node: Node, shape: Shape, read: (index: number) => number[] | undefined): Cut[] {
  const [starts, ends] = [read(1) ?? [], read(2) ?? []];
  const axes = read(3)?.map((axis) => fromFront(node, axis, shape.length)) ?? starts.map((_, i) => i);
  const steps = read(4) ?? starts.map(() => 1);
  return axes.map((axis, i) => cut(shape[axis]!, axis, starts[i]!, ends[i]!, steps[i]!));
}

const contextCuts = (context: OperandContext): Cut[] =>
  cutsOf(context.node, operand(context, 0).shape, (index) => integers(context, index));

const isWhole = ({ axis, start, step, count }: Cut, shape: Shape): boolean =>
  start === 0 && step === 1 && count === shape[axis];

const afterCuts = (shape: Shape, cuts: readonly Cut[]): Shape =>
  shape.map((n, i) => cuts.find(({ axis }) => axis === i)?.count ?? n);

/** The adjoint of one cut: entries back where they were taken from, zeros between. */
function uncut(b: GraphBuilder, g: Value, { axis, start, step, count }: Cut, size: number): Value {
  const shape = b.shape(g);
  const along = (n: number): number[] => shape.map((_, i) => (i === axis ? n : 0));
  if (count === 0) return filled(b, 0, shape.map((n, i) => (i === axis ? size : n)), b.type(g).dtype);
  if (step < 0) {
    const forward = slice(b, g, [axis], [count - 1], [-count - 1], [-1]);
    return uncut(b, forward, { axis, start: start + (count - 1) * step, step: -step, count }, size);
  }
  if (step === 1) return pad(b, g, [...along(start), ...along(size - start - count)]);
  const column = [...shape.slice(0, axis + 1), 1, ...shape.slice(axis + 1)];
  const gaps = column.map((_, i) => (i === axis + 1 ? step - 1 : 0));
  const spread = pad(b, reshape(b, g, column), [...column.map(() => 0), ...gaps]);
  // The last entry needs no zeros behind it: what sticks out past the end is cut off.
  const dense = reshape(b, spread, shape.map((n, i) => (i === axis ? n * step : n)));
  const behind = size - start - count * step;
  const fitted = behind < 0 ? slice(b, dense, [axis], [0], [size - start]) : dense;
  return pad(b, fitted, [...along(start), ...along(Math.max(0, behind))]);
}

const slice_: Operator = {
  sizes: [2],
  shape: (context) => {
    const { dtype, shape } = operand(context, 0);
    requiredIntegers(context, 1);
    requiredIntegers(context, 2);
    return [{ dtype, shape: afterCuts(shape, contextCuts(context)) }];
  },
  batch: alongAxes(
    (context) => contextCuts(context).filter((c) => !isWhole(c, context.inputs[0]?.shape ?? []))
      .map(({ axis }) => axis),
    'takes a part of', 'slice the features or time only',
  ),
  view: (context) => [contextCuts(context).reduce((v, { axis, start, step, count }) => slicedView(v, axis, start, step, count), context.view)],
  gradient: (context) => {
    const { b, node, inputs } = context;
    const shape = b.shape(inputs[0]!);
    const cuts = cutsOf(node, shape, (index) => builtIntegers(context, index));
    return [cuts.reduce((g, c) => uncut(b, g, c, shape[c.axis]!), outputGradient(context))];
  },
  fold: (context) => {
    const x = context.constants[0]!;
    const cuts = contextCuts(context);
    return [pick(x, afterCuts(x.shape, cuts), (at) => at.map((n, i) => {
      const c = cuts.find(({ axis }) => axis === i);
      return c === undefined ? n : c.start + n * c.step;
    }))];
  },
};

/** Padding of one axis: `before` and `after` entries, fewer than 0 to cut off. */
interface Padding {
  readonly axis: number;
  readonly before: number;
  readonly after: number;
}

function paddings(node: Node, rank: number, pads: readonly number[], given: readonly number[] | undefined): Padding[] {
  const axes = given?.map((axis) => fromFront(node, axis, rank)) ?? Array.from({ length: rank }, (_, i) => i);
  return axes.map((axis, i) => ({ axis, before: pads[i] ?? 0, after: pads[axes.length + i] ?? 0 }))
    .filter(({ before, after }) => before !== 0 || after !== 0);
}

const contextPaddings = (context: OperandContext): Padding[] =>
  paddings(context.node, operand(context, 0).shape.length, requiredIntegers(context, 1), integers(context, 3));

/** Which entry of an axis of size n each entry of the padded axis repeats. */
function paddedIndices(mode: string, n: number, { before, after }: Padding): number[] {
  return Array.from({ length: n + before + after }, (_, i) => {
    const at = i - before;
    if (mode === 'edge') return Math.min(n - 1, Math.max(0, at));
    if (mode === 'wrap') return ((at % n) + n) % n;
    const period = Math.max(1, 2 * (n - 1));
    const phase = ((at % period) + period) % period;
    return Math.min(phase, period - phase);
  });
}

const padding: Operator = {
  shape: (context) => {
    const { dtype, shape } = operand(context, 0);
    const wanted = contextPaddings(context);
    const padded = shape.map((n, i) =>
      wanted.filter(({ axis }) => axis === i).reduce((sum, { before, after }) => sum + before + after, n));
    const mirrors = stringAttribute(context.node, 'mode', 'constant') !== 'constant';
    wanted.forEach(({ axis }) => { if (mirrors) requireUnrolled(context, padded[axis]!, 'an axis'); });
    if (padded.every((n) => n >= 0)) return [{ dtype, shape: padded }];
    throw badOperands(context, `${showShape(padded)} after padding`, 'sizes of at least 0');
  },
  batch: (context) => {
    const axes = contextPaddings(context).map(({ axis }) => axis);
    return refuseAlong(context, axes, 'pads', 'pad the features, time or space only') ?? constantPadBatch(context);
  },
  gradient: (context) => {
    const { b, node, inputs } = context;
    const shape = b.shape(inputs[0]!);
    const mode = stringAttribute(node, 'mode', 'constant');
    const wanted = paddings(node, shape.length, builtIntegers(context, 1) ?? [], builtIntegers(context, 3));
    const dY = outputGradient(context);
    if (mode === 'constant') {
      const inside = unpad(b, dY, wanted, shape);
      return [inside, undefined, context.needed[2] === true ? paddingGradient(context, dY, inside) : undefined];
    }
    const fold = (g: Value, p: Padding, size: number): Value =>
      scatterAlong(b, g, paddedIndices(mode, size, p), p.axis, size);
    return [wanted.reduce((g, p) => fold(g, p, shape[p.axis]!), dY)];
  },
  untrained: [2],
};

/** The padding value stands everywhere but where the input does. */
function paddingGradient({ b, inputs }: GradientContext, dY: Value, inside: Value): Value {
  const everything = (g: Value): Value => reduceSum(b, g, b.shape(g).map((_, i) => i));
  return reshape(b, sub(b, everything(dY), everything(inside)), b.shape(inputs[2]!));
}

/** A padding value computed from the batch would reach every row. */
function constantPadBatch({ batch, outputs }: BatchContext): BatchResult {
  const value = batch[2];
  if (value !== undefined) return violation(value.axis, 'pads with a value of the examples', 'pad with a constant');
  return outputs.map(() => batch[0]);
}

/** Cuts the padding off, and puts zeros where padding had cut. */
function unpad(b: GraphBuilder, g: Value, wanted: readonly Padding[], shape: Shape): Value {
  const cuts = wanted.filter(({ before, after }) => before > 0 || after > 0);
  const kept = cuts.length === 0 ? g
    : slice(b, g, cuts.map(({ axis }) => axis), cuts.map(({ before }) => Math.max(0, before)),
    cuts.map(({ axis, after }) => b.shape(g)[axis]! - Math.max(0, after)));
  const missing = (side: 'before' | 'after'): number[] =>
    shape.map((_, i) => Math.max(0, -(wanted.find(({ axis }) => axis === i)?.[side] ?? 0)));
  return pad(b, kept, [...missing('before'), ...missing('after')]);
}

/** Cutting values up and joining them. */
export const slicing = {
  Concat: concatenation, Split: split, Slice: slice_, Pad: padding,
} satisfies Record<string, Operator>;
