import { int, ints } from '../graph/ir.ts';
import { pixelsMet } from '../graph/windows.ts';
import { type GraphBuilder, type Value, pad, reshape, slice, transpose } from '../ops/builder.ts';
import type { ConvolutionGeometry } from '../ops/operator.ts';
import { type Shape, float32, sizeOf, tensor } from '../tensor/tensor.ts';

/** Every kernel offset, row-major: for a 2×2 kernel [0,0], [0,1], [1,0], [1,1]. */
export function offsetsOf(kernel: Shape): number[][] {
  return kernel.reduce<number[][]>(
    (found, n) => found.flatMap((o) => Array.from({ length: n }, (_, i) => [...o, i])), [[]],
  );
}

/** Pads for the `spatial` axes of a value of rank `rank`, the first of them at `first`; other axes get none. */
export function spatialPads(pads: Shape, rank: number, first: number): number[] {
  const spatial = pads.length / 2;
  const side = (from: number) => Array.from({ length: rank }, (_, axis) =>
    (axis >= first && axis < first + spatial ? pads[from + axis - first]! : 0));
  return [...side(0), ...side(spatial)];
}

/** The part of (padded) x that kernel offset `offset` meets, one element for each output position. */
function shifted(
  b: GraphBuilder, x: Value, { strides, dilations }: ConvolutionGeometry, offset: Shape, out: Shape, firsts: readonly number[],
): Value {
  const along = (values: (axis: number) => number) => firsts.flatMap(() => offset.map((_, axis) => values(axis)));
  const axes = firsts.flatMap((first) => offset.map((_, axis) => first + axis));
  return slice(
    b, x, axes,
    along((i) => offset[i]! * dilations[i]!),
    along((i) => offset[i]! * dilations[i]! + (out[i]! - 1) * strides[i]! + 1),
    along((i) => strides[i]!),
  );
}

/**
 * The patches of x [N, C, ...spatial] that a convolution's kernel meets, as [N, C·∏kernel, T]: channel-major,
 * kernel offsets next, so that a product with it has the layout of the kernel. It is a convolution itself, with a
 * kernel for each channel and offset that picks one element: ONNX Runtime's unfolding inside Conv is faster than
 * any composition of Slice and Concat (BENCHMARKS.md), whatever the stride.
 */
export function unfold(b: GraphBuilder, x: Value, geometry: ConvolutionGeometry, out: Shape): Value {
  const [n, channels] = b.shape(x) as [number, number];
  const offsets = sizeOf(geometry.kernel);
  const picks = new Float32Array(channels * offsets * offsets);
  for (let c = 0; c < channels; c++) for (let o = 0; o < offsets; o++) picks[(c * offsets + o) * offsets + o] = 1;
  const { kernel, strides, dilations, pads } = geometry;
  const patches = b.op('Conv', [x, b.constant(float32(picks, [channels * offsets, 1, ...kernel]))], {
    kernel_shape: ints(kernel), strides: ints(strides), dilations: ints(dilations), pads: ints(pads), group: int(channels),
  });
  return reshape(b, patches, [n, channels * offsets, sizeOf(out)]);
}

/** The same patches with positions first: for each kernel offset a matrix [N·T, C]. Nothing is concatenated. */
export function shiftedRows(b: GraphBuilder, x: Value, geometry: ConvolutionGeometry, out: Shape): Value[] {
  const shape = b.shape(x);
  const last = shape.map((_, axis) => axis).filter((axis) => axis !== 1);
  const channelsLast = transpose(b, x, [...last, 1]);
  const padded = pad(b, channelsLast, spatialPads(geometry.pads, shape.length, 1));
  return offsetsOf(geometry.kernel).map((offset) =>
    reshape(b, shifted(b, padded, geometry, offset, out, [1]), [shape[0]! * sizeOf(out), shape[1]!]));
}

/** The same patches as [C·∏kernel, T·N], picked from pixels with the images last: cheap where these are many and T is small. */
export function imagesLast(b: GraphBuilder, x: Value, geometry: ConvolutionGeometry, out: Shape): Value {
  const [n, channels, ...spatial] = b.shape(x) as [number, number, ...number[]];
  const pixels = sizeOf(spatial);
  const met = pixelsMet(geometry, spatial, out, pixels);
  const rows = transpose(b, reshape(b, x, [n, channels, pixels]), [1, 2, 0]);
  const padded = met.includes(pixels) ? pad(b, rows, [0, 0, 0, 0, 1, 0]) : rows;
  const picked = b.op('Gather', [padded, b.constant(tensor('int32', [met.length], Int32Array.from(met)))], { axis: int(1) });
  return reshape(b, picked, [channels * sizeOf(geometry.kernel), sizeOf(out) * n]);
}

/**
 * The Gram matrices of the patches, [N, T, T] with T = images·∏out, from the Gram matrices of the pixels: an inner
 * product of two patches is the sum over kernel offsets of an inner product of two pixels, so the product with the
 * ∏kernel times longer patches is never formed (and fewer roundings add up).
 * `pixels` is [N, images·∏spatial, images·∏spatial].
 */
export function patchGram(
  b: GraphBuilder, pixels: Value, geometry: ConvolutionGeometry, images: number, spatial: Shape, out: Shape,
): Value {
  const n = b.shape(pixels)[0]!;
  const rank = spatial.length;
  const grid = reshape(b, pixels, [n, images, ...spatial, images, ...spatial]);
  const first = 2;
  const second = 3 + rank;
  const all = 3 + 2 * rank;
  const one = spatialPads(geometry.pads, all, first);
  const two = spatialPads(geometry.pads, all, second);
  const padded = pad(b, grid, one.map((p, i) => p + two[i]!));
  const parts = offsetsOf(geometry.kernel).map((offset) => shifted(b, padded, geometry, offset, out, [first, second]));
  const sum = parts.length === 1 ? parts[0]! : b.op('Sum', parts);
  const positions = images * sizeOf(out);
  return reshape(b, sum, [n, positions, positions]);
}
