import { type Node, int, intAttribute, ints, intsAttribute, showShape } from '../graph/ir.ts';
import { type Shape, float32, int64, sizeOf, toNumbers } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, concat, pad, reshape, slice } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { badOperands, requireUnrolled } from './operands.ts';
import { castTo, fromFront, unknownOperand } from './rules.ts';

/** Whole numbers that an expansion is built from. Throws GhostgradError where only the running graph knows them. */
export function knownIntegers({ b, node, inputs }: ExpandContext, index: number): number[] {
  const known = inputs[index] === undefined ? undefined : b.constantOf(inputs[index]);
  if (known === undefined) throw unknownOperand(node, index);
  return toNumbers(known);
}

/** Throws GhostgradError where an expansion would need a table of constants that is too large to hold. */
export const requireTable = (node: Node, entries: number): void => { requireUnrolled({ node }, entries, 'a table', 2 ** 24); };

/** Cut or padded with zeros to given sizes, the middle staying the middle. */
const centerCropPad: Composite = {
  expand: (context) => {
    const { b, node, inputs } = context;
    const x = inputs[0]!;
    const { length: rank } = b.shape(x);
    const sizes = knownIntegers(context, 1);
    const axes = intsAttribute(node, 'axes', Array.from({ length: rank }, (_, i) => i)).map((axis) => fromFront(node, axis, rank));
    if (axes.length !== sizes.length || sizes.some((n) => n < 0)) {
      throw badOperands({ node }, `sizes ${showShape(sizes)} of axes ${showShape(axes)}`, 'one size for each axis');
    }
    return [axes.reduce((value, axis, i) => centred(b, value, axis, sizes[i]!), x)];
  },
};

function centred(b: GraphBuilder, x: Value, axis: number, size: number): Value {
  const shape = b.shape(x);
  const missing = size - shape[axis]!;
  const before = Math.floor(Math.abs(missing) / 2);
  const along = (n: number): number[] => shape.map((_, i) => (i === axis ? n : 0));
  if (missing >= 0) return pad(b, x, [...along(before), ...along(missing - before)]);
  return slice(b, x, [axis], [before], [before + size]);
}

/** Blocks added up where they overlap: what a transposed convolution does that gives each entry of a block a channel. */
const col2Im: Composite = {
  expand: (context) => {
    const { b, node, inputs } = context;
    const columns = inputs[0]!;
    const [image, block] = [knownIntegers(context, 1), knownIntegers(context, 2)];
    const ones = block.map(() => 1);
    const [strides, dilations] = [intsAttribute(node, 'strides', ones), intsAttribute(node, 'dilations', ones)];
    const pads = intsAttribute(node, 'pads', [...ones, ...ones].map(() => 0));
    const room = image.map((n, i) => n + pads[i]! + pads[block.length + i]! - dilations[i]! * (block[i]! - 1) - 1);
    const counts = room.map((n, i) => Math.floor(n / strides[i]!) + 1);
    const [rows = 0, entries = 0, places] = b.shape(columns);
    const size = sizeOf(block);
    if (b.shape(columns).length !== 3 || entries % size !== 0 || places !== sizeOf(counts) || counts.some((n) => n < 1)) {
      throw badOperands({ node }, `columns ${showShape(b.shape(columns))} for blocks ${showShape(block)} of an image ${showShape(image)}`,
        `[N, C · ${size}, ${sizeOf(counts)}]`);
    }
    const channels = entries / size;
    requireTable(node, entries * size);
    const unit = Array.from({ length: entries * size }, (_, i) => Number(Math.floor(i / size) % size === i % size));
    return [b.op('ConvTranspose', [
      reshape(b, columns, [rows, entries, ...counts]), b.constant(float32(unit, [entries, 1, ...block])),
    ], {
      kernel_shape: ints(block), strides: ints(strides), dilations: ints(dilations), pads: ints(pads), group: int(channels),
      output_padding: ints(room.map((n, i) => n % strides[i]!)),
    })];
  },
};

/** The first entries of each sequence in reverse, as many as its length says; the others stay where they are. */
const reverseSequence: Composite = {
  expand: ({ b, node, inputs }) => {
    const [x, lengths] = [inputs[0]!, inputs[1]!];
    const shape = b.shape(x);
    const [batch, time] = [intAttribute(node, 'batch_axis', 1), intAttribute(node, 'time_axis', 0)];
    if (shape.length < 2 || batch + time !== 1 || b.shape(lengths).join() !== String(shape[batch])) {
      throw badOperands({ node }, `${showShape(shape)} with lengths ${showShape(b.shape(lengths))}, batch axis ${batch}, time axis ${time}`,
        'the batch and time in the first two axes, and a length for each sequence');
    }
    const known = b.constantOf(lengths);
    const first = known === undefined ? undefined : toNumbers(known);
    if (first?.every((n) => n === first[0]) === true) return [reversedAlike(b, x, time, first[0] ?? 0)];
    requireTable(node, shape[time]!);
    const only = (axis: number): Shape => shape.map((n, i) => (i === axis ? n : 1));
    const steps = b.constant(int64(Array.from({ length: shape[time]! }, (_, i) => i), only(time)));
    const ends = reshape(b, castTo(b, lengths, 'int64'), only(batch));
    const mirrored = b.op('Sub', [b.op('Sub', [ends, b.scalar(1, 'int64')]), steps]);
    const places = b.op('Where', [b.op('Less', [steps, ends]), mirrored, steps]);
    return [b.op('GatherElements', [x, b.op('Expand', [places, b.ints(shape)])], { axis: int(time) })];
  },
};

/** All sequences of one length: no place depends on the row. */
function reversedAlike(b: GraphBuilder, x: Value, axis: number, length: number): Value {
  const size = b.shape(x)[axis]!;
  if (length <= 1) return x;
  const front = slice(b, x, [axis], [length - 1], [-size - 1], [-1]);
  return length === size ? front : concat(b, [front, slice(b, x, [axis], [length], [size])], axis);
}

/** Values put in other places. */
export const arranging = {
  CenterCropPad: centerCropPad, Col2Im: col2Im, ReverseSequence: reverseSequence,
} satisfies Record<string, Composite>;
