import { int, intAttribute } from '../graph/ir.ts';
import type { DType, Tensor, TensorType } from '../tensor/tensor.ts';
import type { BatchAxis } from './batch.ts';
import { type GraphBuilder, type Value, div, filled, mul, neg, reduceSum, reshape, scale, where } from './builder.ts';
import { type Element, type Fold, computed, elementAt, onNumbers, reduceConstant } from './fold.ts';
import { badOperands, operand, outputGradient } from './operands.ts';
import type { BatchContext, BatchResult, FoldContext, OperandContext, Operator } from './operator.ts';
import {
  alongAxes, axisAttribute, builtIntegers, castTo, fromFront, integers, noGradientFlows, refuseAlong,
  requiredIntegers, scalarLike, sameShape,
} from './rules.ts';

/** Which axes a Reduce operator reduces: those of its second input; without any, all of them or (when asked) none. */
function reducedAxes(node: OperandContext['node'], given: readonly number[] | undefined, rank: number): number[] {
  if (given === undefined || given.length === 0) {
    return intAttribute(node, 'noop_with_empty_axes', 0) === 0 ? Array.from({ length: rank }, (_, i) => i) : [];
  }
  return given.map((axis) => fromFront(node, axis, rank));
}

const axesOf = (context: OperandContext): number[] =>
  reducedAxes(context.node, integers(context, 1), context.inputs[0]?.shape.length ?? 0);

const keeps = (node: OperandContext['node']): boolean => intAttribute(node, 'keepdims', 1) !== 0;

function reducedType(x: TensorType, axes: readonly number[], keepdims: boolean, dtype: DType = x.dtype): TensorType {
  return {
    dtype,
    shape: keepdims ? x.shape.map((n, i) => (axes.includes(i) ? 1 : n)) : x.shape.filter((_, i) => !axes.includes(i)),
  };
}

/** The batch after some axes are gone: refused when it is one of them. */
function batchAfter(context: BatchContext, axes: readonly number[], keepdims: boolean): BatchResult {
  const refused = refuseAlong(context, axes, 'reduces over',
    'reduce over the features only, and let the loss have one value an example');
  if (refused !== undefined) return refused;
  const at = context.batch[0];
  const left: BatchAxis | undefined = at
    && { ...at, axis: keepdims ? at.axis : at.axis - axes.filter((axis) => axis < at.axis).length };
  return context.outputs.map(() => left);
}

/** What the gradient of a reduction works with: everything has x's rank, `y` and `dY` size 1 along the reduced axes. */
interface Reduced {
  readonly b: GraphBuilder;
  readonly x: Value;
  readonly y: Value;
  readonly dY: Value;
  readonly axes: readonly number[];
  /** How many elements each result is made of. */
  readonly count: number;
}

type ReductionGradient = (reduced: Reduced) => Value;
type ReductionFold = (t: Tensor, axes: readonly number[], keepdims: boolean) => Tensor | undefined;

/** @param gradient dx, or something that broadcasts to it */
const reduction = (gradient: ReductionGradient, fold?: ReductionFold): Operator => ({
  shape: (context) => [reducedType(operand(context, 0), axesOf(context), keeps(context.node))],
  batch: (context) => batchAfter(context, axesOf(context), keeps(context.node)),
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    const x = inputs[0]!;
    const shape = b.shape(x);
    const axes = reducedAxes(node, builtIntegers(context, 1), shape.length);
    const kept = shape.map((n, i) => (axes.includes(i) ? 1 : n));
    const y = reshape(b, outputs[0]!, kept);
    const dY = reshape(b, outputGradient(context), kept);
    const dX = gradient({ b, x, y, dY, axes, count: axes.reduce((n, axis) => n * shape[axis]!, 1) });
    return [b.shape(dX).join() === shape.join() ? dX : b.op('Expand', [dX, b.ints(shape)])];
  },
  ...(fold && {
    fold: ({ node, inputs, constants }: FoldContext) => {
      const x = constants[0]!;
      const axes = axesOf({ node, inputs, constants });
      const result = fold(x, axes, keeps(node));
      return result && [result];
    },
  }),
});

const larger = (a: Element, b: Element): Element => (a > b || Number.isNaN(a) ? a : b);
const smaller = (a: Element, b: Element): Element => (a < b || Number.isNaN(a) ? a : b);

/** Elements that tie for the extremum share the gradient equally. */
const extremum: ReductionGradient = ({ b, x, y, dY, axes }) => {
  const holds = castTo(b, b.op('Equal', [x, y]), b.type(x).dtype);
  return mul(b, holds, div(b, dY, reduceSum(b, holds, axes, true)));
};

/** The product of the others, exact also where one of the elements is 0. */
const product: ReductionGradient = ({ b, x, dY, axes }) => {
  if (axes.length === 0) return dY;
  const [zero, one] = [scalarLike(b, 0, x), scalarLike(b, 1, x)];
  const isZero = b.op('Equal', [x, zero]);
  const nonzero = where(b, isZero, one, x);
  const others = b.op('ReduceProd', [nonzero, b.ints(axes)], { keepdims: int(1) });
  const zeros = reduceSum(b, castTo(b, isZero, b.type(x).dtype), axes, true);
  const without = where(b, b.op('Equal', [zeros, zero]), div(b, others, nonzero), zero);
  const atZero = where(b, b.op('Equal', [zeros, one]), others, zero);
  return mul(b, dY, where(b, isZero, atZero, without));
};

const sumFold: ReductionFold = (t, axes, keepdims) =>
  reduceConstant(t, axes, keepdims, onNumbers((x, y) => x + y, (x, y) => x + y), 0);
const foldWith = (combine: (a: Element, b: Element) => Element, start?: Element): ReductionFold =>
  (t, axes, keepdims) => reduceConstant(t, axes, keepdims, (...xs) => combine(xs[0]!, xs[1]!), start);

/** The place of the first (or last) extremum along an axis. */
const foldArgument = (better: (a: Element, b: Element) => boolean): Fold => ({ node, constants }) => {
  const x = constants[0]!;
  if (x.dtype === 'float16' || x.dtype === 'bfloat16') return undefined;
  const axis = axisAttribute(node, x.shape.length, 0);
  const isLast = intAttribute(node, 'select_last_index', 0) !== 0;
  const { shape } = reducedType(x, [axis], keeps(node));
  if (x.shape[axis] === 0) return undefined;
  return [computed('int64', shape, (at) => {
    const entry = (i: number): Element => elementAt(x, keeps(node) ? at.with(axis, i) : at.toSpliced(axis, 0, i));
    let best = 0;
    for (let i = 1; i < x.shape[axis]!; i++) {
      if (better(entry(i), entry(best)) || (isLast && entry(i) === entry(best))) best = i;
    }
    return best;
  })];
};

const argument = (fold: Fold): Operator => ({
  shape: (context) => {
    const x = operand(context, 0);
    return [reducedType(x, [axisAttribute(context.node, x.shape.length, 0)], keeps(context.node), 'int64')];
  },
  batch: (context) => batchAfter(context, [axisAttribute(context.node, context.inputs[0]?.shape.length ?? 0, 0)],
    keeps(context.node)),
  gradient: noGradientFlows,
  fold,
});

function scanAxis(context: OperandContext): number {
  const axis = requiredIntegers(context, 1)[0] ?? 0;
  return fromFront(context.node, axis, operand(context, 0).shape.length);
}

const cumSum: Operator = {
  shape: sameShape,
  batch: alongAxes((context) => [scanAxis(context)], 'accumulates along', 'accumulate along time or features only'),
  // The sum of what comes after is the sum of what came before, seen from the other end.
  gradient: (context) => {
    const { b, node, inputs } = context;
    return [b.op('CumSum', [outputGradient(context), inputs[1]!], {
      exclusive: int(intAttribute(node, 'exclusive', 0)), reverse: int(1 - intAttribute(node, 'reverse', 0)),
    })];
  },
  fold: ({ node, inputs, constants }) => {
    const x = constants[0]!;
    if (x.dtype === 'float16' || x.dtype === 'bfloat16') return undefined;
    const axis = scanAxis({ node, inputs, constants });
    const [reverse, exclusive] = ['reverse', 'exclusive'].map((name) => intAttribute(node, name, 0)) as [number, number];
    const size = x.shape[axis]!;
    const sum = onNumbers((a, b) => a + b, (a, b) => a + b);
    const zero: Element = typeof x.data[0] === 'bigint' ? 0n : 0;
    return [computed(x.dtype, x.shape, (at) => {
      const here = at[axis]!;
      const [from, to] = reverse === 0 ? [0, here + 1 - exclusive] : [here + exclusive, size];
      let total = zero;
      for (let i = from; i < to; i++) total = sum(total, elementAt(x, at.with(axis, i)));
      return total;
    })];
  },
};

const topKAxis = (context: OperandContext): number => axisAttribute(context.node, operand(context, 0).shape.length, -1);

const topK: Operator = {
  shape: (context) => {
    const x = operand(context, 0);
    const axis = topKAxis(context);
    const k = requiredIntegers(context, 1)[0] ?? -1;
    if (k < 0 || k > x.shape[axis]!) throw badOperands(context, `k = ${k}`, `from 0 to ${x.shape[axis]}`);
    const shape = x.shape.map((n, i) => (i === axis ? k : n));
    return [{ dtype: x.dtype, shape }, { dtype: 'int64', shape }];
  },
  batch: alongAxes((context) => [topKAxis(context)], 'sorts along', 'sort along the features only'),
  gradient: (context) => {
    const { b, node, inputs, outputs } = context;
    const dY = context.outputGradients[0];
    if (dY === undefined) return [undefined];
    const shape = b.shape(inputs[0]!);
    const places = b.optionalOutput(outputs[0]!, 1);
    return [b.op('ScatterElements', [filled(b, 0, shape, b.type(dY).dtype), places, dY],
      { axis: int(axisAttribute(node, shape.length, -1)) })];
  },
};

/** Reductions, and what else works along an axis. */
export const reductions = {
  ReduceSum: reduction(({ dY }) => dY, sumFold),
  ReduceMean: reduction(({ b, dY, count }) => scale(b, dY, 1 / count)),
  ReduceMax: reduction(extremum, foldWith(larger)),
  ReduceMin: reduction(extremum, foldWith(smaller)),
  ReduceProd: reduction(product, (t, axes, keepdims) =>
    reduceConstant(t, axes, keepdims, onNumbers((x, y) => x * y, (x, y) => x * y), 1)),
  ReduceSumSquare: reduction(({ b, x, dY }) => mul(b, x, scale(b, dY, 2))),
  ReduceL1: reduction(({ b, x, dY }) => mul(b, b.op('Sign', [x]), dY)),
  // The gradient of the norm of zeros is taken as 0.
  ReduceL2: reduction(({ b, x, y, dY }) => {
    const isZero = b.op('Equal', [y, scalarLike(b, 0, y)]);
    return mul(b, x, div(b, dY, where(b, isZero, scalarLike(b, 1, y), y)));
  }),
  ReduceLogSum: reduction(({ b, y, dY }) => mul(b, dY, b.op('Exp', [neg(b, y)]))),
  ReduceLogSumExp: reduction(({ b, x, y, dY }) => mul(b, b.op('Exp', [b.op('Sub', [x, y])]), dY)),
  ArgMax: argument(foldArgument((a, b) => a > b)),
  ArgMin: argument(foldArgument((a, b) => a < b)),
  CumSum: cumSum,
  TopK: topK,
} satisfies Record<string, Operator>;
