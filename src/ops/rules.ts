import { GhostgradError } from '../errors.ts';
import { type Node, int, intAttribute, showNode, showShape, showType } from '../graph/ir.ts';
import { dataTypeOf } from '../graph/onnx.ts';
import { type DType, type Shape, type Tensor, type TensorType, isFloat, sizeOf, toNumbers } from '../tensor/tensor.ts';
import { type BatchAxis, sameBatch } from './batch.ts';
import { type GraphBuilder, type Value, mul, sumTo } from './builder.ts';
import { rowsAligned } from './layout.ts';
import { badOperands, batchOf, operand, outputGradient, violation } from './operands.ts';
import type {
  BatchContext, BatchResult, BatchViolation, GradientContext, GradientRule, NoGradient, OperandContext, Operator,
} from './operator.ts';

/** Rules that many operators share. */

export const notDifferentiable = (reason: string, fix: string): NoGradient => ({ reason, fix });

/** For whatever is constant almost everywhere (integers, booleans, steps): nothing flows back. */
export const noGradientFlows: GradientRule = ({ inputs }) => inputs.map(() => undefined);

/** The error for an operand that only the running graph would know, where a shape depends on it. */
export const unknownOperand = (node: Node, index: number): GhostgradError => new GhostgradError({
  what: `the shapes depend on a value that is not known before the graph runs`, where: showNode(node),
  found: `input ${index} of ${node.op} computed from data or parameters`,
  expected: 'a constant, or arithmetic on shapes',
  fix: 'export the model with fixed sizes for all but the batch axis',
});

/** A constant integer operand; undefined where it is omitted. Throws GhostgradError when it is not constant. */
export function integers({ node, inputs, constants }: OperandContext, index: number): number[] | undefined {
  if (inputs[index] === undefined) return undefined;
  const found = constants[index];
  if (found === undefined) throw unknownOperand(node, index);
  return toNumbers(found);
}

/** The same, of a required operand. */
export function requiredIntegers(context: OperandContext, index: number): number[] {
  operand(context, index);
  return integers(context, index) ?? [];
}

/** Integers behind an operand of a graph under construction. Throws GhostgradError when it is not constant. */
export function builtIntegers({ b, node, inputs }: GradientContext, index: number): number[] | undefined {
  const value = inputs[index];
  if (value === undefined || value === '') return undefined;
  const found = b.constantOf(value);
  if (found === undefined) throw unknownOperand(node, index);
  return toNumbers(found);
}

/** An axis counted from the front. Throws GhostgradError when it is out of [-rank, rank). */
export function fromFront(node: Node, axis: number, rank: number): number {
  if (axis >= -rank && axis < rank) return axis < 0 ? axis + rank : axis;
  throw badOperands({ node }, `axis ${axis}`, `an axis from ${-rank} to ${rank - 1}`);
}

/** The attribute `axis`, counted from the front. */
export const axisAttribute = (node: Node, rank: number, fallback: number): number =>
  fromFront(node, intAttribute(node, 'axis', fallback), rank);

/** The shape that all the shapes broadcast to; undefined where they do not fit. */
export function broadcastShapes(shapes: readonly Shape[]): Shape | undefined {
  const rank = Math.max(0, ...shapes.map((s) => s.length));
  const joint: number[] = [];
  for (let i = 0; i < rank; i++) {
    const sizes = new Set(shapes.map((s) => s[s.length - rank + i] ?? 1).filter((n) => n !== 1));
    if (sizes.size > 1) return undefined;
    joint.push([...sizes][0] ?? 1);
  }
  return joint;
}

/** The type of broadcast operands that must be of one element type; `dtype` when the result has another. */
export function broadcastType(context: OperandContext, operands: readonly TensorType[], dtype?: DType): TensorType {
  const shape = broadcastShapes(operands.map((t) => t.shape));
  const first = operands[0] ?? operand(context, 0);
  if (shape === undefined || operands.some((t) => t.dtype !== first.dtype)) {
    throw badOperands(context, operands.map(showType).join(', '),
      'operands of one element type that broadcast together');
  }
  return { dtype: dtype ?? first.dtype, shape };
}

/** Every input broadcast together: `count` of them, by default any number. */
export const elementwiseShape = (dtype?: DType, count?: number): Operator['shape'] => (context) => {
  const { length } = context.node.inputs;
  if (length === 0 || (count !== undefined && length !== count)) {
    throw badOperands(context, `${length} inputs`, count === undefined ? 'at least one' : String(count));
  }
  return [broadcastType(context, context.node.inputs.map((_, i) => operand(context, i)), dtype)];
};

/** The type of the first input. */
export const sameShape: Operator['shape'] = (context) => [operand(context, 0)];

/** Each element depends on the element in its place. */
export const rowwise: Operator['batch'] = ({ batch, outputs }) => outputs.map(() => batch[0]);

/** For outputs that depend on shapes only. */
export const withoutBatch: Operator['batch'] = ({ outputs }) => outputs.map(() => undefined);

/** Whether a constant says the same to every row of the batch. */
export function repeatsRows(t: Tensor | undefined, { axis, before, after }: BatchAxis): boolean {
  const size = t?.shape[axis];
  if (t === undefined || size === undefined) return false;
  const rows = size / (before * after);
  const inner = after * sizeOf(t.shape.slice(axis + 1));
  const block = rows * inner;
  return Number.isInteger(rows) && t.data.every((v: number | bigint, i: number) => {
    const first = t.data[Math.floor(i / block) * block + (i % inner)];
    return v === first || Object.is(v, first);
  });
}

/**
 * The one place where operands of rank ≤ `rank`, aligned from the right, carry the batch: all that carry it must carry
 * it there, and no other may tell rows apart by their position (a constant of B different rows would).
 *
 * @param broadcasts whether an operand may lack the batch axis or have size 1 there, because the operator repeats it
 */
export function jointBatch(
  { node, inputs, constants, batch }: BatchContext, rank: number, broadcasts: boolean,
): BatchAxis | BatchViolation | undefined {
  const shiftOf = (i: number) => rank - (inputs[i]?.shape.length ?? rank);
  const carrier = batch.findIndex((at) => at !== undefined);
  const own = batch[carrier];
  if (own === undefined) return undefined;
  const joint = { ...own, axis: own.axis + shiftOf(carrier) };
  for (const [i, type] of inputs.entries()) {
    if (type === undefined) continue;
    const at = batch[i];
    const axis = joint.axis - shiftOf(i);
    if (at !== undefined) {
      if (sameBatch({ ...at, axis: at.axis + shiftOf(i) }, joint)) continue;
      return violation(at.axis,
        `${node.op} combines values of different examples: its operands carry the batch in different places`,
        'bring the batch to the same axis of all operands');
    }
    const repeated = broadcasts && (axis < 0 || type.shape[axis] === 1);
    if (!repeated && !repeatsRows(constants[i], { ...joint, axis })) {
      return violation(joint.axis,
        `input ${i} of ${node.op} ${showShape(type.shape)} tells examples apart by their position in the batch`,
        'use an operand that is the same for every example (size 1 along the batch axis)');
    }
  }
  return joint;
}

/** The batch rule of operators that work elementwise on broadcast operands. */
export const elementwiseBatch: Operator['batch'] = (context) => {
  const joint = jointBatch(context, context.outputs[0]?.shape.length ?? 0, true);
  return joint !== undefined && 'violation' in joint ? joint : context.outputs.map(() => joint);
};

/** Refuses an operator that works along `axes`, when one of them carries the batch. */
export const refuseAlong = (
  { node, batch }: Pick<BatchContext, 'node' | 'batch'>, axes: readonly number[], does: string, fix: string, index = 0,
): BatchViolation | undefined => {
  const at = batch[index];
  if (at === undefined || !axes.includes(at.axis)) return undefined;
  return violation(at.axis, `${node.op} ${does} axis ${at.axis}, which carries the batch`, fix);
};

/** The rule of an operator that works along some axes and leaves the others where they are. */
export const alongAxes = (
  axes: (context: BatchContext) => readonly number[], does: string, fix: string,
): Operator['batch'] => (context): BatchResult =>
  refuseAlong(context, axes(context), does, fix) ?? context.outputs.map(() => context.batch[0]);

/** An elementwise operator's gradient for input `index` before broadcasting is undone: of the output's shape. */
export type Partial = (context: GradientContext, dY: Value, index: number) => Value | undefined;

const dtypeOf = (b: GraphBuilder, v: Value | undefined): DType | undefined =>
  (v === undefined || v === '' ? undefined : b.type(v).dtype);

/** Gradients from partial derivatives: each summed to the shape of its input; integer inputs have none. */
export const broadcastGradient = (partial: Partial): GradientRule => (context) => {
  const { b, inputs, needed } = context;
  const dY = outputGradient(context);
  return inputs.map((v, i) => {
    const dtype = dtypeOf(b, v);
    if (needed[i] !== true || dtype === undefined || !isFloat(dtype)) return undefined;
    const full = partial(context, dY, i);
    return full === undefined ? undefined : sumTo(b, full, b.shape(v));
  });
};

/** The use of a parameter that is broadcast against data: bias, scale, threshold, slope. */
export const broadcastParameter = (partial: Partial): NonNullable<Operator['parameter']> => (context) => {
  const { b, node, index, outputBatch } = context;
  const gradient = partial(context, outputGradient(context), index);
  if (gradient === undefined) {
    throw new GhostgradError({
      what: `input ${index} of ${node.op} has no gradient`, where: showNode(node),
      found: `the trainable parameter "${node.inputs[index] ?? ''}"`, fix: 'freeze the parameter',
    });
  }
  return { kind: 'broadcast', gradient: rowsAligned(b, gradient, batchOf(context, outputBatch[0])) };
};

/** An elementwise operator on broadcast operands, any of which may be a parameter. */
export const broadcasting = (partial: Partial): Omit<Operator, 'shape'> => ({
  batch: elementwiseBatch, gradient: broadcastGradient(partial), parameter: broadcastParameter(partial),
});

/** An elementwise function of one operand. */
export const unary = (
  derivative: (context: GradientContext, dY: Value, x: Value, y: Value) => Value,
): Omit<Operator, 'shape'> & Pick<Operator, 'shape'> => ({
  shape: sameShape,
  batch: rowwise,
  gradient: (context) => [derivative(context, outputGradient(context), context.inputs[0]!, context.outputs[0]!)],
});

export const castTo = (b: GraphBuilder, x: Value, dtype: DType): Value =>
  b.type(x).dtype === dtype ? x : b.op('Cast', [x], { to: int(dataTypeOf[dtype]) });

/** A float scalar of the element type of `like`. */
export const scalarLike = (b: GraphBuilder, x: number, like: Value): Value => b.scalar(x, b.type(like).dtype);

/**
 * `g` where the condition (bool) holds, 0 elsewhere. A product with 0 or 1: exact, and in ONNX Runtime less than half
 * the time of Where. A non-finite g stays non-finite, in its own row.
 */
export const gate = (b: GraphBuilder, condition: Value, g: Value): Value =>
  mul(b, castTo(b, condition, b.type(g).dtype), g);
