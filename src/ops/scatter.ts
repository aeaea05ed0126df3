import { type Attributes, type Node, showShape, showType, string, stringAttribute } from '../graph/ir.ts';
import { type Shape, type Tensor, tensor } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, div, filled, mul, where } from './builder.ts';
import { coordinates, elementAt, flatten, stridesOf } from './fold.ts';
import { depthOf, elementsAxis, elementsBatch, fromEnd, zerosLike } from './gathering.ts';
import { badOperands, operand, outputGradient, violation } from './operands.ts';
import type { BatchResult, FoldContext, GradientContext, GradientRule, Operator } from './operator.ts';
import { axisAttribute, castTo, gate, jointBatch, scalarLike } from './rules.ts';

/** Writing and reading at the places of one node. */
interface Places {
  readonly scatter: (data: Value, updates: Value, reduction: string) => Value;
  readonly gather: (data: Value) => Value;
}

const placesOf = ({ b, node, inputs }: GradientContext, gatherOp: string, axis: Attributes): Places => ({
  scatter: (data, updates, reduction) => b.op(node.op, [data, inputs[1]!, updates], { ...axis, reduction: string(reduction) }),
  gather: (data) => b.op(gatherOp, [data, inputs[1]!], axis),
});

const onesLike = (b: GraphBuilder, v: Value): Value => filled(b, 1, b.shape(v), b.type(v).dtype);

/** The gradients of the data and of the updates, for each way to combine the two. */
type Combined = (context: GradientContext, places: Places, dY: Value) => readonly [Value, Value];

const overwriting: Combined = ({ b, inputs }, { scatter, gather }, dY) =>
  [scatter(dY, zerosLike(b, inputs[2]!), 'none'), gather(dY)];

const adding: Combined = (_, { gather }, dY) => [dY, gather(dY)];

/** Products of the others, exact also where an update is 0. */
const multiplying: Combined = ({ b, inputs }, { scatter, gather }, dY) => {
  const [data, updates] = [inputs[0]!, inputs[2]!];
  const [zero, one] = [scalarLike(b, 0, updates), scalarLike(b, 1, updates)];
  const isZero = b.op('Equal', [updates, zero]);
  const nonzero = where(b, isZero, one, updates);
  const others = gather(scatter(onesLike(b, data), nonzero, 'mul'));
  const zeros = gather(scatter(zerosLike(b, data), castTo(b, isZero, b.type(updates).dtype), 'add'));
  const without = where(b, b.op('Equal', [zeros, zero]), div(b, others, nonzero), zero);
  const atZero = where(b, b.op('Equal', [zeros, one]), others, zero);
  return [mul(b, dY, scatter(onesLike(b, data), updates, 'mul')), mul(b, gather(mul(b, dY, data)), where(b, isZero, atZero, without))];
};

/** Whatever ties for the extremum of its place shares the gradient equally. */
const choosing: Combined = ({ b, inputs, outputs }, { scatter, gather }, dY) => {
  const [data, updates, y] = [inputs[0]!, inputs[2]!, outputs[0]!];
  const [kept, taken] = [b.op('Equal', [data, y]), b.op('Equal', [updates, gather(y)])];
  const count = scatter(castTo(b, kept, b.type(dY).dtype), castTo(b, taken, b.type(dY).dtype), 'add');
  const share = div(b, dY, count);
  return [gate(b, kept, share), gate(b, taken, gather(share))];
};

const combinations: Readonly<Record<string, Combined>> = {
  none: overwriting, add: adding, mul: multiplying, max: choosing, min: choosing,
};

const reductionOf = (node: Node): string => stringAttribute(node, 'reduction', 'none');

function checkReduction(node: Node): void {
  if (Object.hasOwn(combinations, reductionOf(node))) return;
  throw badOperands({ node }, `reduction "${reductionOf(node)}"`, Object.keys(combinations).join(', '));
}

const scatterGradient = (gatherOp: string, axis: (context: GradientContext) => Attributes): GradientRule => (context) => {
  const places = placesOf(context, gatherOp, axis(context));
  const [data, updates] = combinations[reductionOf(context.node)]!(context, places, outputGradient(context));
  return [data, undefined, updates];
};

/** Constants with others written or added to them: `target` says where an update goes. */
const foldScatter = (target: (context: FoldContext, at: readonly number[]) => readonly number[]) => (context: FoldContext) => {
  const [data, , updates] = context.constants as [Tensor, Tensor, Tensor];
  const reduction = reductionOf(context.node);
  if (reduction !== 'none' && reduction !== 'add') return undefined;
  if (data.dtype === 'float16' || data.dtype === 'bfloat16' || data.dtype === 'bool') return undefined;
  const result = data.data.slice();
  const strides = stridesOf(data.shape);
  for (const at of coordinates(updates.shape)) {
    const place = flatten(target(context, at), strides);
    const value = elementAt(updates, at);
    const before = result[place]!;
    result[place] = reduction === 'none' ? value
      : typeof before === 'bigint' ? before + BigInt(value) : before + Number(value);
  }
  return [tensor(data.dtype, data.shape, result)];
};

const scatterElements: Operator = {
  shape: (context) => {
    const [x, indices, updates] = [operand(context, 0), operand(context, 1), operand(context, 2)];
    checkReduction(context.node);
    if (x.dtype !== updates.dtype || indices.shape.join() !== updates.shape.join()
      || indices.shape.length !== x.shape.length) {
      throw badOperands(context, [x, indices, updates].map(showType).join(', '),
        'updates of the shape of the indices, of the rank and type of the data');
    }
    return [x];
  },
  batch: elementsBatch,
  gradient: scatterGradient('GatherElements', elementsAxis),
  fold: foldScatter(({ node, constants }, at) => {
    const { shape } = constants[0]!;
    const axis = axisAttribute(node, shape.length, 0);
    return at.with(axis, fromEnd(Number(elementAt(constants[1]!, at)), shape[axis]!));
  }),
};

const scatterND: Operator = {
  shape: (context) => {
    const [x, indices, updates] = [operand(context, 0), operand(context, 1), operand(context, 2)];
    checkReduction(context.node);
    const wanted = [...indices.shape.slice(0, -1), ...x.shape.slice(depthOf(indices.shape))];
    if (x.dtype !== updates.dtype || updates.shape.join() !== wanted.join()) {
      throw badOperands(context, `updates ${showType(updates)}`, `${x.dtype}${showShape(wanted)}`);
    }
    return [x];
  },
  batch: (context): BatchResult => {
    const { inputs, batch } = context;
    const [x, indices, updates] = [0, 1, 2].map((i) => inputs[i]?.shape ?? []) as [Shape, Shape, Shape];
    const indexed = [depthOf(indices), 0, indices.length - 1];
    const named = batch.find((at, i) => at !== undefined && (i === 1 || at.axis < indexed[i]!));
    if (named !== undefined) {
      return violation(named.axis, 'writes to places of the batch that the indices name',
        'scatter within each example: put the batch behind the axes that are indexed');
    }
    // Data and updates end in the same axes.
    const rank = Math.max(x.length, updates.length);
    const joint = jointBatch({ ...context, inputs: [inputs[0], undefined, inputs[2]] }, rank, false);
    if (joint !== undefined && 'violation' in joint) return joint;
    return [joint && { ...joint, axis: joint.axis - rank + x.length }];
  },
  gradient: scatterGradient('GatherND', () => ({})),
  fold: foldScatter(({ constants }, at) => {
    const [data, indices] = [constants[0]!, constants[1]!];
    const rank = indices.shape.length - 1;
    const place = Array.from({ length: depthOf(indices.shape) }, (_, i) =>
      fromEnd(Number(elementAt(indices, [...at.slice(0, rank), i])), data.shape[i]!));
    return [...place, ...at.slice(rank)];
  }),
};

/** Writing values to places that integers name. */
export const scattering = { ScatterElements: scatterElements, ScatterND: scatterND } satisfies Record<string, Operator>;
