import { int, ints } from '../graph/ir.ts';
import { type GraphBuilder, type Value, concat, matmul, reduceSum, reshape, scale, slice, transpose } from '../ops/builder.ts';
import type { ConvolutionGeometry } from '../ops/operator.ts';
import { type Shape, sameShape, sizeOf } from '../tensor/tensor.ts';
import type { Context, Contraction, Use, Weights } from './contraction.ts';
import { gramNorm } from './gram.ts';
import { imagesLast, patchGram, shiftedRows, unfold } from './unfold.ts';
import { finiteOnly, instantiatedNorm, instantiationError, weighedProduct, weightedSum } from './unit.ts';

/** From so many channels on, shifting patches takes less time than unfolding them. */
const fewestShifted = 16;

/** With so many filters for each position of all images, patches take little beside the kernel (BENCHMARKS.md). */
const filtersToPosition = 4;

/** A convolution is an outer product over its output positions, of patches with output gradients, in each group. */
export function convolution(c: Context, use: Use<'convolution'>): Contraction {
  const { b, units, parameterShape } = c;
  const { geometry } = use;
  const { groups } = geometry;
  const [n, channels, ...spatial] = b.shape(use.input) as [number, number, ...number[]];
  const [, p, ...out] = b.shape(use.outputGradient) as [number, number, ...number[]];
  const images = n / units;
  const positions = sizeOf(out);
  const T = images * positions;
  const d = channels * sizeOf(geometry.kernel);
  /** [U·images, groups·k, positions] as [U·groups, k, images·positions]. */
  const byGroup = (x: Value): Value => {
    const [, k, at] = b.shape(x) as [number, number, number];
    const split = reshape(b, x, [units, images, groups, k / groups, at]);
    return reshape(b, transpose(b, split, [0, 2, 3, 1, 4]), [units * groups, k / groups, images * at]);
  };
  const gradients = (x: Value) => byGroup(reshape(b, x, [n, p, positions]));
  // Where the gradient is smaller than its operands, units are dropped from it, and not from them.
  const selected = T <= d / groups;
  const operand = (x: Value) => (selected ? finiteOnly(c, x) : x);
  // Patches of many channels are cheaper shifted than unfolded (BENCHMARKS.md), and take less memory.
  const perOffset = () => {
    const rows = gradients(operand(use.outputGradient));
    return shiftedRows(b, operand(use.input), geometry, out).map((patch) => matmul(b, rows, reshape(b, patch, [units, T, channels])));
  };
  const unfolded = () => reshape(
    b, matmul(b, gradients(operand(use.outputGradient)), byGroup(unfold(b, operand(use.input), geometry, out)), { transposeY: true }),
    [units, ...parameterShape],
  );
  /** Each unit's gradient: one piece, or [U, p, channels] for each kernel offset, which are joined only where they have to be. */
  const pieces = () => (channels === groups ? [depthwiseGradients(c, operand(use.input), operand(use.outputGradient), geometry)]
    : groups === 1 && channels >= fewestShifted ? perOffset() : [unfolded()]);
  const weightedSums = (weights: Weights | undefined) =>
    joined(b, pieces().map((piece) => weightedSum(c, piece, selected, weights)), parameterShape);
  const gram = (x: Value) => matmul(b, x, x, { transposeX: true });
  // With longer steps there are more pixels than patches, and the patches' own Gram matrix is the cheaper one.
  const fromPixels = geometry.strides.every((stride) => stride === 1);
  const gramDepth = fromPixels ? channels : d;
  const gramTerms = fromPixels ? sizeOf(geometry.kernel) : 1;
  return {
    size: { T, d, p, groups, gramDepth, gramTerms, unfolded: sizeOf(geometry.kernel) > 1 },
    ghost: () => gramNorm(c, {
      gramA: fromPixels
        ? patchGram(b, gram(byGroup(reshape(b, use.input, [n, channels, sizeOf(spatial)]))), geometry, images, spatial, out)
        : gram(byGroup(unfold(b, use.input, geometry, out))),
      gramB: gram(gradients(use.outputGradient)),
      groups, roundings: (gramDepth + p) / groups + gramTerms,
    }),
    perExample: () => joined(b, pieces(), [units, ...parameterShape]),
    weightedSum: weightedSums,
    // A pixel lies in at most ∏kernel patches.
    instantiated: () => instantiatedNorm(c, pieces(), scale(
      b, instantiationError(c, T, use.input, use.outputGradient), Math.sqrt(sizeOf(geometry.kernel)),
    )),
    ...(groups === 1 && {
      product: (weights: Weights | undefined) => {
        if (T >= channels && channels >= fewestShifted) return weightedSums(weights);
        const product = filtersToPosition * n * positions <= p ? fewPositionsProduct : shiftedProduct;
        return weighedProduct(c, use.input, use.outputGradient, weights, (x, dY) => product(c, x, dY, geometry));
      },
    }),
  };
}

/** Gradients [..., p, channels] for each kernel offset as one of `shape`, [..., p, channels, ...kernel]; a single one may have that shape. */
function joined(b: GraphBuilder, pieces: readonly Value[], shape: Shape): Value {
  const [only, ...others] = pieces;
  if (others.length === 0) return reshape(b, only!, shape);
  const columns = pieces.map((piece) => reshape(b, piece, [...b.shape(piece), 1]));
  return reshape(b, concat(b, columns, b.shape(columns[0]!).length - 1), shape);
}

/**
 * Per-example gradients of a convolution with one input channel to a group: one convolution of all images, in which
 * each image's channels are groups of their own and its output gradients are the kernels. Nothing is unfolded.
 */
function depthwiseGradients(c: Context, x: Value, dY: Value, { kernel, strides, dilations, pads }: ConvolutionGeometry): Value {
  const { b, units, parameterShape } = c;
  const [n, channels, ...spatial] = b.shape(x) as [number, number, ...number[]];
  const [, p, ...out] = b.shape(dY) as [number, number, ...number[]];
  const found = b.op('Conv', [reshape(b, x, [1, n * channels, ...spatial]), reshape(b, dY, [n * p, 1, ...out])], {
    kernel_shape: ints(out), strides: ints(dilations), dilations: ints(strides), pads: ints(pads), group: int(n * channels),
  });
  // Longer steps may leave room for more offsets than the kernel has.
  const axes = kernel.map((_, i) => i + 2);
  const kept = sameShape(b.shape(found).slice(2), kernel) ? found : slice(b, found, axes, kernel.map(() => 0), kernel);
  return reshape(b, reduceSum(b, reshape(b, kept, [units, n / units, ...parameterShape]), [1]), [units, ...parameterShape]);
}

/** The gradient summed over images, from one product for each kernel offset: nothing is unfolded. */
function shiftedProduct({ b, parameterShape }: Context, x: Value, dY: Value, geometry: ConvolutionGeometry): Value {
  const [n, p, ...out] = b.shape(dY) as [number, number, ...number[]];
  const order = [0, ...out.map((_, i) => i + 2), 1];
  const rows = reshape(b, transpose(b, dY, order), [n * sizeOf(out), p]);
  const parts = shiftedRows(b, x, geometry, out).map((patch) =>
    matmul(b, rows, patch, { transposeX: true }));
  return joined(b, parts, parameterShape);
}

/**
 * The same from one product in the kernel's own layout. Over few positions patches are smaller than the kernel, and there is
 * nothing to join.
 */
function fewPositionsProduct({ b, parameterShape }: Context, x: Value, dY: Value, geometry: ConvolutionGeometry): Value {
  const [n, p, ...out] = b.shape(dY) as [number, number, ...number[]];
  const rows = transpose(b, reshape(b, dY, [n, p, sizeOf(out)]), [1, 2, 0]);
  const patches = imagesLast(b, x, geometry, out);
  const gradient = matmul(b, reshape(b, rows, [p, n * sizeOf(out)]), patches, { transposeY: true });
  return reshape(b, gradient, parameterShape);
}
