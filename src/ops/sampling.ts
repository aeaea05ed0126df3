import { type Node, int, intAttribute, intsAttribute, showShape, stringAttribute } from '../graph/ir.ts';
import { type Shape, float32, sizeOf } from '../tensor/tensor.ts';
import { knownIntegers, requireTable } from './arranging.ts';
import { type GraphBuilder, type Value, add, mul, reshape, scale, slice, sub, transpose, where } from './builder.ts';
import type { Composite } from './composite.ts';
import { badOperands } from './operands.ts';
import { castTo, scalarLike } from './rules.ts';

/** What stands outside an image: nothing, its border, or its mirror image. */
type Outside = 'zeros' | 'border' | 'reflection';

/** Places along one spatial axis, [N, P], in elements of it. */
interface Line {
  readonly size: number;
  readonly at: Value;
  /** Where the mirrors stand. */
  readonly mirrors: readonly [number, number];
}

/** Taps along one axis: which element (a whole number as float, perhaps outside), and how much of it. */
interface Tap {
  readonly at: Value;
  readonly weight?: Value;
}

const clip = (b: GraphBuilder, x: Value, low: number, high: number): Value =>
  b.op('Clip', [x, scalarLike(b, low, x), scalarLike(b, high, x)]);

/** x folded back and forth between two mirrors. */
function reflect(b: GraphBuilder, x: Value, [low, high]: readonly [number, number]): Value {
  const range = high - low;
  if (range === 0) return clip(b, x, low, high);
  const away = b.op('Abs', [sub(b, x, scalarLike(b, low, x))]);
  const phase = b.op('Mod', [away, scalarLike(b, 2 * range, x)], { fmod: int(1) });
  const folded = sub(b, scalarLike(b, range, x), b.op('Abs', [sub(b, phase, scalarLike(b, range, x))]));
  return add(b, folded, scalarLike(b, low, x));
}

const inside = (b: GraphBuilder, x: Value, { size, mirrors }: Line, outside: Outside): Value =>
  (outside === 'border' ? clip(b, x, 0, size - 1) : outside === 'reflection' ? reflect(b, x, mirrors) : x);

const shifted = (b: GraphBuilder, x: Value, by: number): Value => (by === 0 ? x : add(b, x, scalarLike(b, by, x)));

/** Two neighbours, the nearer one weighing more. */
function linearTaps(b: GraphBuilder, at: Value): Tap[] {
  const low = b.op('Floor', [at]);
  const part = sub(b, at, low);
  return [{ at: low, weight: sub(b, scalarLike(b, 1, part), part) }, { at: shifted(b, low, 1), weight: part }];
}

/** Four neighbours by Keys' cubic kernel with a = -3/4. */
function cubicTaps(b: GraphBuilder, at: Value): Tap[] {
  const a = -0.75;
  const low = b.op('Floor', [at]);
  const part = sub(b, at, low);
  const polynomial = (x: Value, coefficients: readonly number[]): Value => coefficients.slice(1).reduce<Value>(
    (sum, c) => shifted(b, mul(b, sum, x), c), b.op('Expand', [scalarLike(b, coefficients[0]!, x), b.ints(b.shape(x))]));
  const near = [a + 2, -(a + 3), 0, 1];
  const far = [a, -5 * a, 8 * a, -4 * a];
  const from = (by: number): Value => (by > 0 ? sub(b, scalarLike(b, by, part), part) : shifted(b, part, -by));
  return [
    { at: shifted(b, low, -1), weight: polynomial(from(-1), far) }, { at: low, weight: polynomial(part, near) },
    { at: shifted(b, low, 1), weight: polynomial(from(1), near) }, { at: shifted(b, low, 2), weight: polynomial(from(2), far) },
  ];
}

/**
 * Values of images x [N, C, ...space] at places between their elements: [N, C, P]. Every image is looked at by its own
 * places; gradients flow to the images and, through the weights, to the places.
 */
function sample(
  b: GraphBuilder, x: Value, lines: readonly Line[], taps: (at: Value) => Tap[], outside: Outside,
): Value {
  const [rows = 0, channels = 0, ...space] = b.shape(x);
  const count = b.shape(lines[0]!.at)[1]!;
  const flat = reshape(b, x, [rows, channels, sizeOf(space)]);
  const perLine = lines.map((line) => taps(line.at).map(({ at, weight }) => {
    const place = inside(b, at, line, outside);
    const kept = clip(b, place, 0, line.size - 1);
    return { index: castTo(b, b.op('Round', [kept]), 'int64'), weight, valid: outside === 'zeros' ? b.op('Equal', [kept, place]) : undefined };
  }));
  const corners = perLine.reduce<{ index?: Value; weight?: Value | undefined; valid?: Value | undefined }[]>((soFar, along, i) =>
    soFar.flatMap((corner) => along.map(({ index, weight, valid }) => ({
      index: corner.index === undefined ? index : add(b, mul(b, corner.index, b.scalar(lines[i]!.size, 'int64')), index),
      weight: corner.weight === undefined || weight === undefined ? corner.weight ?? weight : mul(b, corner.weight, weight),
      valid: corner.valid === undefined || valid === undefined ? corner.valid ?? valid : b.op('And', [corner.valid, valid]),
    }))), [{}]);
  const parts = corners.map(({ index, weight, valid }) => {
    const places = b.op('Expand', [reshape(b, index!, [rows, 1, count]), b.ints([rows, channels, count])]);
    const found = b.op('GatherElements', [flat, places], { axis: int(2) });
    const seen = valid === undefined ? found : where(b, reshape(b, valid, [rows, 1, count]), found, scalarLike(b, 0, found));
    return weight === undefined ? seen : mul(b, seen, reshape(b, weight, [rows, 1, count]));
  });
  return parts.length === 1 ? parts[0]! : b.op('Sum', parts);
}

const tapsOf = (b: GraphBuilder, node: Node): ((at: Value) => Tap[]) => {
  const mode = stringAttribute(node, 'mode', 'linear');
  if (mode === 'nearest') return (at) => [{ at: b.op('Round', [at]) }];
  if (mode === 'linear') return (at) => linearTaps(b, at);
  if (mode === 'cubic') return (at) => cubicTaps(b, at);
  throw badOperands({ node }, `mode "${mode}"`, 'nearest, linear or cubic');
};

const gridSample: Composite = {
  expand: ({ b, node, inputs }) => {
    const [x, grid] = [inputs[0]!, inputs[1]!];
    const [rows = 0, channels = 0, ...space] = b.shape(x);
    const [gridRows, ...places] = b.shape(grid).slice(0, -1);
    if (gridRows !== rows || places.length !== space.length || b.shape(grid).at(-1) !== space.length || space.length < 2) {
      throw badOperands({ node }, `images ${showShape(b.shape(x))} and a grid ${showShape(b.shape(grid))}`,
        'images [N, C, ...space] and a grid [N, ...places, axes of space]');
    }
    const corners = intAttribute(node, 'align_corners', 0) !== 0;
    const outside = stringAttribute(node, 'padding_mode', 'zeros') as Outside;
    const count = sizeOf(places);
    const flat = reshape(b, grid, [rows, count, space.length]);
    const lines = space.map((size, i): Line => {
      // The grid names the last axis first.
      const k = space.length - 1 - i;
      const unit = reshape(b, slice(b, flat, [2], [k], [k + 1]), [rows, count]);
      const mirrors: Line['mirrors'] = corners ? [0, size - 1] : [-0.5, size - 0.5];
      const line: Line = { size, at: scale(b, shifted(b, unit, 1), (corners ? size - 1 : size) / 2), mirrors };
      const at = corners ? line.at : shifted(b, line.at, -0.5);
      return { ...line, at: mode(node) === 'cubic' ? at : inside(b, at, line, outside) };
    });
    return [reshape(b, sample(b, x, lines, tapsOf(b, node), outside), [rows, channels, ...places])];
  },
};

const mode = (node: Node): string => stringAttribute(node, 'mode', 'linear');

/** Places of each output element in units of half an image, moved by the matrix of each example. */
const affineGrid: Composite = {
  expand: (context) => {
    const { b, node, inputs } = context;
    const theta = inputs[0]!;
    const [rows = 0, , ...space] = knownIntegers(context, 1);
    const axes = space.length;
    if (b.shape(theta).join() !== [rows, axes, axes + 1].join() || axes < 2) {
      throw badOperands({ node }, `matrices ${showShape(b.shape(theta))} for sizes ${showShape([rows, ...space])}`, 'matrices [N, axes, axes + 1]');
    }
    const corners = intAttribute(node, 'align_corners', 0) !== 0;
    const along = (size: number, i: number): number => (corners ? (size === 1 ? -1 : (2 * i) / (size - 1) - 1) : (2 * i + 1) / size - 1);
    const count = sizeOf(space);
    requireTable(node, count * (axes + 1));
    const rowsOfBase = Array.from({ length: count }, (_, place) => [
      ...space.map((size, i) => along(size, Math.floor(place / sizeOf(space.slice(i + 1))) % size)).reverse(), 1,
    ]);
    const base = b.constant(float32(rowsOfBase.flat(), [count, axes + 1]));
    return [reshape(b, b.op('MatMul', [base, transpose(b, theta, [0, 2, 1])]), [rows, ...space, axes])];
  },
};

/** A convolution whose kernel reads the image at places that the data moves, and as strongly as the data says. */
const deformConv: Composite = {
  expand: ({ b, node, inputs }) => {
    const [x, weight, offset, bias, mask] = [inputs[0]!, inputs[1]!, inputs[2]!, inputs[3], inputs[4]];
    const [rows = 0, channels = 0, ...space] = b.shape(x);
    const [outputs = 0, perGroup = 0, ...kernel] = b.shape(weight);
    const [groups, offsetGroups] = [intAttribute(node, 'group', 1), intAttribute(node, 'offset_group', 1)];
    const ones = kernel.map(() => 1);
    const [strides, dilations] = [intsAttribute(node, 'strides', ones), intsAttribute(node, 'dilations', ones)];
    const pads = intsAttribute(node, 'pads', [...ones, ...ones].map(() => 0));
    const counts = space.map((n, i) =>
      Math.floor((n + pads[i]! + pads[kernel.length + i]! - dilations[i]! * (kernel[i]! - 1) - 1) / strides[i]!) + 1);
    const [taps, places] = [sizeOf(kernel), sizeOf(counts)];
    const [axes, share] = [space.length, channels / offsetGroups];
    const wanted = [rows, offsetGroups * taps * axes, ...counts];
    if (axes !== 2 || kernel.length !== 2 || b.shape(offset).join() !== wanted.join() || perGroup * groups !== channels
      || !Number.isInteger(share) || outputs % groups !== 0) {
      throw badOperands({ node }, `images ${showShape(b.shape(x))}, kernel ${showShape(b.shape(weight))}, offsets ${showShape(b.shape(offset))}`,
        `images [N, C, H, W], and offsets ${showShape(wanted)}`);
    }
    requireTable(node, taps * places);
    // One image for each example and offset group; its places are tap by tap.
    const images = reshape(b, x, [rows * offsetGroups, share, ...space]);
    const moved = reshape(b, offset, [rows * offsetGroups, taps, axes, places]);
    const lines = space.map((size, i): Line => {
      const still = Array.from({ length: taps * places }, (_, at) => {
        const [tap, place] = [Math.floor(at / places), at % places];
        const [k, o] = [placeOf(kernel, tap)[i]!, placeOf(counts, place)[i]!];
        return o * strides[i]! - pads[i]! + k * dilations[i]!;
      });
      const by = reshape(b, slice(b, moved, [2], [i], [i + 1]), [rows * offsetGroups, taps * places]);
      return { size, at: add(b, by, b.constant(float32(still, [1, taps * places]))), mirrors: [0, size - 1] };
    });
    const found = reshape(b, sample(b, images, lines, (at) => linearTaps(b, at), 'zeros'), [rows, offsetGroups, share, taps, places]);
    const strong = mask === undefined ? found : mul(b, found, reshape(b, mask, [rows, offsetGroups, 1, taps, places]));
    const product = groups === 1
      ? b.op('MatMul', [reshape(b, weight, [outputs, channels * taps]), reshape(b, strong, [rows, channels * taps, places])])
      : b.op('MatMul', [
        reshape(b, weight, [groups, outputs / groups, perGroup * taps]), reshape(b, strong, [rows, groups, perGroup * taps, places]),
      ]);
    const y = reshape(b, product, [rows, outputs, ...counts]);
    return [bias === undefined ? y : add(b, y, reshape(b, bias, [outputs, ...ones]))];
  },
};

/** The coordinates of the n-th place of a shape. */
const placeOf = (shape: Shape, n: number): number[] => shape.map((size, i) => Math.floor(n / sizeOf(shape.slice(i + 1))) % size);

/** Images looked at between their elements. */
export const sampling = {
  GridSample: gridSample, AffineGrid: affineGrid, DeformConv: deformConv,
} satisfies Record<string, Composite>;
