import {
  type GraphBuilder, type Value, concat, filled, matmul, mul, reduceSum, reduceSumSquare, reshape, scale, slice, sumTo,
  transpose, where,
} from '../ops/builder.ts';
import { int, ints } from '../graph/ir.ts';
import type { ConvolutionGeometry, ParameterUse } from '../ops/operator.ts';
import { type Shape, sameShape, sizeOf } from '../tensor/tensor.ts';
import { gamma, largestSquare, smallestNormal } from './rounding.ts';
import { patchGram, shiftedRows, unfold } from './unfold.ts';

/** The sizes that costs are reckoned from: T positions, d inputs and p outputs, in all groups together. */
export interface ContractionSize {
  readonly T: number;
  readonly d: number;
  readonly p: number;
  readonly groups: number;
  /** Length of the vectors whose inner products make the input's Gram matrix (d, or a convolution's channels). */
  readonly gramDepth: number;
  /** How many such Gram matrices are added up: 1, or the elements of a convolution's kernel. */
  readonly gramTerms: number;
  /** Whether the input is unfolded into patches. */
  readonly unfolded: boolean;
}

/**
 * A squared per-example norm as float32 computes it, and what it may lack of the true one:
 * true ≤ (√squared + error)² + allowance. All are [U].
 */
export interface NormParts {
  readonly squared: Value;
  readonly error?: Value;
  readonly allowance?: Value;
}

/** Per-unit weights of the clipped sum. */
export interface Weights {
  /** [U] clip weights, 0 where the unit is dropped. */
  readonly weights: Value;
  /** [U] bool: false for padding and for units whose gradient is not finite. */
  readonly valid: Value;
}

/**
 * What can be done with a parameter's use. U is the number of privacy units in the batch; a unit's rows are
 * merged with the positions. Every function appends to the builder; the builder reuses what was appended before.
 */
export interface Contraction {
  readonly size: ContractionSize;
  /** The norm without forming per-example gradients, where the kind has one. */
  readonly ghost?: () => NormParts;
  /** The norm from {@link perExample}. */
  readonly instantiated: () => NormParts;
  /** Per-example gradients [U, ...parameter shape]; those of units whose operands are not finite may be anything. */
  readonly perExample: () => Value;
  /** Σ weight·gradient from {@link perExample}. */
  readonly weightedSum: (weights: Weights | undefined) => Value;
  /** Σ weight·gradient without forming per-example gradients; plain sum when no weights are given. */
  readonly product?: (weights: Weights | undefined) => Value;
}

/**
 * The contraction behind the uses of one parameter in a batch of `units` privacy units. Several uses (a tied
 * parameter) add up to one gradient, whose norm is not that of its parts: it is formed for each unit.
 */
export function contractionOf(
  b: GraphBuilder, uses: readonly ParameterUse[], parameterShape: Shape, units: number, guarded: boolean,
): Contraction {
  const context = { b, parameterShape, units, guarded };
  const parts = uses.map((use) => contractionOfUse(context, use));
  const [only] = parts;
  return parts.length === 1 && only !== undefined ? only : tied(context, parts);
}

function contractionOfUse(context: Context, use: ParameterUse): Contraction {
  switch (use.kind) {
    case 'outer': return outer(context, use);
    case 'convolution': return convolution(context, use);
    case 'gather': return gather(context, use);
    case 'broadcast': return broadcast(context, use.gradient, use.trailing ?? 0);
    case 'opaque': return broadcast(context, use.perExample, 0);
  }
}

interface Context {
  readonly b: GraphBuilder;
  readonly parameterShape: Shape;
  readonly units: number;
  /** Whether non-finite rows are to be kept out of products (private modes). */
  readonly guarded: boolean;
}

type Use<K extends ParameterUse['kind']> = Extract<ParameterUse, { kind: K }>;

/**
 * Squared length of each unit's part of x, [U], summed in two stages: a single sum of millions of squares in float32
 * would be wrong in the fourth digit, and its bound useless.
 */
export function squaredLength(b: GraphBuilder, x: Value, units: number): Value {
  const [outer, inner] = stages(b.shape(x), units);
  if (outer === 1) return reduceSumSquare(b, reshape(b, x, [units, inner]), [1]);
  return reduceSum(b, reduceSumSquare(b, reshape(b, x, [units, outer, inner]), [2]), [1]);
}

const squares = ({ b, units }: Context, x: Value): Value => squaredLength(b, x, units);

/** How {@link squaredLength} splits a unit's elements: the axes are cut where both parts are most alike. */
function stages(shape: Shape, units: number): [number, number] {
  const total = sizeOf(shape) / units;
  if (total <= 1024) return [1, total];
  const cuts = shape.map((_, i) => sizeOf(shape.slice(i))).filter((inner) => total % inner === 0 && inner <= total);
  const inner = cuts.reduce((best, n) => (Math.max(n, total / n) < Math.max(best, total / best) ? n : best), total);
  return [total / inner, inner];
}

/** Relative error of {@link squaredLength}. */
const squaresError = (c: Context, x: Value): number => {
  const [outer, inner] = stages(c.b.shape(x), c.units);
  return gamma(outer + inner + 2);
};

/** The norm of gradients formed for each unit, each entry of which is wrong as `error` says. */
function instantiatedNorm(c: Context, perExample: Value, error: Value | undefined): NormParts {
  const squared = squares(c, perExample);
  return { squared, allowance: scale(c.b, squared, squaresError(c, perExample)), ...(error && { error }) };
}

/** Units whose part of x has an ordinary squared length, [U] bool. */
const isOrdinary = (c: Context, x: Value): Value => c.b.op('Less', [squares(c, x), c.b.scalar(largestSquare)]);

/** x with the units removed whose squared length is not an ordinary number: selected, never multiplied. */
const finiteOnly = (c: Context, x: Value): Value => (c.guarded ? select(c, isOrdinary(c, x), x) : x);

/** Squared lengths, infinite where {@link finiteOnly} removes the unit: what a norm is made of must show it. */
const markedSquares = (c: Context, x: Value): Value =>
  where(c.b, isOrdinary(c, x), squares(c, x), c.b.scalar(Infinity));

/** x with the units for which `keep` [U] is false set to zero. Units are the outer factor of axis 0. */
function select({ b, units }: Context, keep: Value, x: Value): Value {
  const shape = b.shape(x);
  const flat = reshape(b, x, [units, sizeOf(shape) / units]);
  return reshape(b, where(b, reshape(b, keep, [units, 1]), flat, b.scalar(0)), shape);
}

/** weight·x, dropped units selected away. */
function weigh(c: Context, x: Value, weights: Weights | undefined): Value {
  if (weights === undefined) return x;
  const { b, units } = c;
  const kept = select(c, weights.valid, x);
  const flat = reshape(b, kept, [units, sizeOf(b.shape(x)) / units]);
  return reshape(b, mul(b, flat, reshape(b, weights.weights, [units, 1])), b.shape(x));
}

/**
 * weights · gradients, as one vector–matrix product. `finite` gradients need no selection: their operands were
 * selected, and are so bounded that no sum of products overflows.
 */
function weightedSum(c: Context, perExample: Value, finite: boolean, weights: Weights | undefined): Value {
  const { b, units, parameterShape } = c;
  if (weights === undefined) return reduceSum(b, perExample, [0]);
  const kept = finite ? perExample : select(c, weights.valid, perExample);
  const sums = matmul(b, reshape(b, weights.weights, [1, units]), reshape(b, kept, [units, sizeOf(parameterShape)]));
  return reshape(b, sums, parameterShape);
}

/** Bound on the error of the norm of sums over T positions: γ·Σ_t|x_t| ≤ γ·√T·‖x‖. */
const summationError = (c: Context, T: number, x: Value): Value =>
  scale(c.b, c.b.op('Sqrt', [squares(c, x)]), gamma(T) * Math.sqrt(T) * 1.01);

/** Several uses of one parameter: the gradient is their sum. */
function tied(c: Context, parts: readonly Contraction[]): Contraction {
  const { b } = c;
  const perExample = () => sum(b, parts.map((part) => part.perExample()));
  const products = parts.map((part) => part.product);
  const size = parts.map((part) => part.size).reduce((a, x) => ({ ...a, T: a.T + x.T, p: Math.max(a.p, x.p), d: Math.max(a.d, x.d) }));
  return {
    size,
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), false, weights),
    instantiated: () => {
      const errors = parts.flatMap((part) => part.instantiated().error ?? []);
      // Adding the parts rounds each entry by at most u·(parts − 1) of its parts' magnitudes.
      const adding = parts.map((part) => scale(b, b.op('Sqrt', [squares(c, part.perExample())]), gamma(parts.length)));
      return instantiatedNorm(c, perExample(), sum(b, [...errors, ...adding]));
    },
    ...(products.every((f) => f !== undefined) && {
      product: (weights: Weights | undefined) => sum(b, products.map((f) => f(weights))),
    }),
  };
}

/** Bound on the error of the norm of a gradient summed over `terms` products of a and b: γ·‖a‖·‖b‖. */
function instantiationError(c: Context, terms: number, a: Value, bb: Value): Value {
  const { b } = c;
  const lengths = mul(b, b.op('Sqrt', [markedSquares(c, a)]), b.op('Sqrt', [markedSquares(c, bb)]));
  return scale(b, lengths, gamma(terms + 8) * 1.01);
}

/** Σ_t inputᵀ·outputGradient. */
function outer(c: Context, use: Use<'outer'>): Contraction {
  const { b, units, parameterShape } = c;
  const rows = (x: Value) => reshape(b, x, [units, sizeOf(b.shape(x)) / (units * b.shape(x).at(-1)!), b.shape(x).at(-1)!]);
  const raw = rows(use.input);
  const gradient = rows(use.outputGradient);
  const [, T, d] = b.shape(raw) as [number, number, number];
  const p = b.shape(gradient)[2]!;
  const alpha = use.scale ?? 1;
  const product = (x: Value, y: Value) => (use.transposed
    ? matmul(b, y, x, { transposeX: true, alpha })
    : matmul(b, x, y, { transposeX: true, alpha }));
  // A scale above 1 could make products of selected operands overflow after all.
  const selected = T <= d && Math.abs(alpha) <= 1;
  const perExample = () => reshape(
    b, product(finiteOnly(c, raw), selected ? finiteOnly(c, gradient) : gradient), [units, ...parameterShape],
  );
  return {
    size: { T, d, p, groups: 1, gramDepth: d, gramTerms: 1, unfolded: false },
    ghost: () => scaled(b, alpha, T === 1 ? rankOneNorm(c, raw, gradient) : gramNorm(c, {
      gramA: matmul(b, finiteOnly(c, raw), finiteOnly(c, raw), { transposeY: true }),
      gramB: matmul(b, gradient, gradient, { transposeY: true }),
      groups: 1, depth: d + p, rawSquares: markedSquares(c, raw),
    })),
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), selected, weights),
    instantiated: () => instantiatedNorm(
      c, perExample(), scale(b, instantiationError(c, T, raw, gradient), Math.abs(alpha)),
    ),
    product: (weights) => reshape(b, product(
      reshape(b, finiteOnly(c, raw), [units * T, d]), reshape(b, weigh(c, gradient, weights), [units * T, p]),
    ), parameterShape),
  };
}

/** ‖a‖²·‖b‖² for one position. What either square may have lost by underflow counts as if it were that much larger. */
function rankOneNorm(c: Context, a: Value, bb: Value): NormParts {
  const { b } = c;
  const [aa, bbSquared] = [markedSquares(c, a), markedSquares(c, bb)];
  const lost = (x: Value): Value => b.scalar((sizeOf(b.shape(x)) / c.units) * smallestNormal);
  const squared = mul(b, aa, bbSquared);
  const underflow = b.op('Sum', [mul(b, aa, lost(bb)), mul(b, bbSquared, lost(a)), b.scalar(2 * smallestNormal)]);
  const rounding = scale(b, squared, squaresError(c, a) + squaresError(c, bb) + gamma(8));
  return { squared, allowance: b.op('Add', [rounding, scale(b, underflow, 1.01)]) };
}

function scaled(b: GraphBuilder, alpha: number, { squared, error, allowance }: NormParts): NormParts {
  if (alpha === 1) return { squared, ...(error && { error }), ...(allowance && { allowance }) };
  return {
    squared: scale(b, squared, alpha ** 2),
    ...(error && { error: scale(b, error, Math.abs(alpha)) }),
    ...(allowance && { allowance: scale(b, allowance, alpha ** 2) }),
  };
}

/** T as a product of two factors as alike as can be; [T] where it has none. */
function split(T: number): number[] {
  for (let factor = Math.floor(Math.sqrt(T)); factor > 1; factor--) if (T % factor === 0) return [T / factor, factor];
  return [T];
}

/** Sums a unit's elements, laid out as `factors`, one factor at a time: as many roundings as the factors' sum. */
function stagedSum(b: GraphBuilder, x: Value, units: number, factors: readonly number[]): Value {
  const summed = factors.filter((factor) => factor > 1).reduceRight((value, factor) => {
    const rest = sizeOf(b.shape(value)) / (units * factor);
    return reduceSum(b, reshape(b, value, [units, rest, factor]), [2]);
  }, x);
  return reshape(b, summed, [units]);
}

/** γ of a ghost norm whose Gram entries took `depth` roundings each. */
export const gramBound = ({ T, groups }: Pick<ContractionSize, 'T' | 'groups'>, depth: number): number =>
  gamma(depth + 2 * split(T).reduce((sum, factor) => sum + factor, 0) + groups + 16);

interface Grams {
  /** [U·groups, T, T] */
  readonly gramA: Value;
  readonly gramB: Value;
  readonly groups: number;
  /** Roundings that went into an entry of either. */
  readonly depth: number;
  /** [U] squared length of the input, infinite for the units whose input is not ordinary. */
  readonly rawSquares: Value;
}

/**
 * Σ_{s,t} A_{st}·B_{st} and a rigorous allowance for its rounding. An entry of a Gram matrix is wrong by at most
 * γ·‖a_s‖‖a_t‖, so the sum is wrong by at most γ·(Σ_s ‖a_s‖‖b_s‖)², and those lengths stand on the diagonals.
 */
function gramNorm(c: Context, { gramA, gramB, groups, depth, rawSquares }: Grams): NormParts {
  const { b, units } = c;
  const T = b.shape(gramA)[1]!;
  const bound = gramBound({ T, groups }, depth);
  const squared = stagedSum(b, mul(b, gramA, gramB), units, [groups, ...split(T), ...split(T)]);
  // What products may have lost by underflow counts as if the diagonal were this much larger.
  const floor = (depth * smallestNormal) / bound;
  const diagonal = (gram: Value) => b.op('Add', [
    slice(b, reshape(b, gram, [units * groups, T * T]), [1], [0], [T * T], [T + 1]), b.scalar(floor),
  ]);
  const lengths = b.op('Sqrt', [mul(b, diagonal(gramA), diagonal(gramB))]);
  const total = reduceSum(b, reshape(b, lengths, [units, groups * T]), [1]);
  const allowance = scale(b, mul(b, total, total), bound * 1.01);
  // Adding 0·finite changes nothing; an input that was removed makes the allowance NaN, which drops the unit.
  return { squared, allowance: b.op('Add', [allowance, scale(b, rawSquares, 0)]) };
}

/** A convolution is an outer product over its output positions, of patches with output gradients, in each group. */
function convolution(c: Context, use: Use<'convolution'>): Contraction {
  const { b, units, parameterShape } = c;
  const { geometry } = use;
  const { groups } = geometry;
  const [n, channels, ...spatial] = b.shape(use.input) as [number, number, ...number[]];
  const [, p, ...out] = b.shape(use.outputGradient) as [number, number, ...number[]];
  const images = n / units;
  const positions = sizeOf(out);
  const T = images * positions;
  const d = channels * sizeOf(geometry.kernel);
  const input = () => finiteOnly(c, use.input);

  /** [U·images, groups·k, positions] as [U·groups, k, images·positions]. */
  const byGroup = (x: Value): Value => {
    const [, k, at] = b.shape(x) as [number, number, number];
    const split = reshape(b, x, [units, images, groups, k / groups, at]);
    return reshape(b, transpose(b, split, [0, 2, 3, 1, 4]), [units * groups, k / groups, images * at]);
  };
  const selected = T <= d / groups;
  const gradients = (x: Value) => byGroup(reshape(b, x, [n, p, positions]));
  const outputGradient = () => (selected ? finiteOnly(c, use.outputGradient) : use.outputGradient);
  const perExample = () => (channels === groups
    ? depthwiseGradients(c, input(), outputGradient(), geometry)
    : reshape(
      b, matmul(b, gradients(outputGradient()), byGroup(unfold(b, input(), geometry, out)), { transposeY: true }),
      [units, ...parameterShape],
    ));
  const gram = (x: Value) => matmul(b, x, x, { transposeX: true });
  // With longer steps there are more pixels than patches, and the patches' own Gram matrix is the cheaper one.
  const fromPixels = geometry.strides.every((stride) => stride === 1);
  const gramDepth = fromPixels ? channels : d;
  const gramTerms = fromPixels ? sizeOf(geometry.kernel) : 1;
  return {
    size: { T, d, p, groups, gramDepth, gramTerms, unfolded: sizeOf(geometry.kernel) > 1 },
    ghost: () => gramNorm(c, {
      gramA: fromPixels
        ? patchGram(b, gram(byGroup(reshape(b, input(), [n, channels, sizeOf(spatial)]))), geometry, images, spatial, out)
        : gram(byGroup(unfold(b, input(), geometry, out))),
      gramB: gram(gradients(use.outputGradient)),
      groups, depth: (gramDepth + p) / groups + gramTerms, rawSquares: markedSquares(c, use.input),
    }),
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), selected, weights),
    // A pixel lies in at most ∏kernel patches.
    instantiated: () => instantiatedNorm(c, perExample(), scale(
      b, instantiationError(c, T, use.input, use.outputGradient), Math.sqrt(sizeOf(geometry.kernel)),
    )),
    ...(groups === 1 && {
      product: (weights: Weights | undefined) => {
        const weighed = weigh(c, use.outputGradient, weights);
        const order = [0, ...out.map((_, i) => i + 2), 1];
        const rows = reshape(b, transpose(b, weighed, order), [n * positions, p]);
        const parts = shiftedRows(b, input(), geometry, out).map((patch) =>
          reshape(b, matmul(b, rows, patch, { transposeX: true }), [p, channels, 1]));
        return reshape(b, concat(b, parts, 2), parameterShape);
      },
    }),
  };
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

/** Rows of a table. Two positions meet in the Gram matrix of the "inputs" where their indices are equal. */
function gather(c: Context, use: Use<'gather'>): Contraction {
  const { b, units, parameterShape } = c;
  const p = b.shape(use.outputGradient).at(-1)!;
  const T = sizeOf(b.shape(use.indices)) / units;
  const indices = reshape(b, use.indices, [units, T]);
  const gradient = reshape(b, use.outputGradient, [units, T, p]);
  const table = parameterShape[0]!;
  const scatter = (shape: Shape, at: Value, updates: Value) =>
    b.op('ScatterND', [filled(b, 0, shape), at, updates], { reduction: { type: 'string', value: 'add' } });
  const perExample = () => {
    const unit = b.op('Expand', [
      b.constant({ dtype: 'int64', shape: [units, 1], data: BigInt64Array.from({ length: units }, (_, i) => BigInt(i)) }),
      b.ints([units, T]),
    ]);
    const at = concat(b, [reshape(b, unit, [units * T, 1]), reshape(b, indices, [units * T, 1])], 1);
    return reshape(b, scatter([units, table, p], at, reshape(b, gradient, [units * T, p])), [units, ...parameterShape]);
  };
  return {
    size: { T, d: table, p, groups: 1, gramDepth: 1, gramTerms: 1, unfolded: false },
    ghost: () => {
      const same = b.op('Equal', [reshape(b, indices, [units, T, 1]), reshape(b, indices, [units, 1, T])]);
      return gramNorm(c, {
        gramA: b.op('Cast', [same], { to: { type: 'int', value: 1 } }),
        gramB: matmul(b, gradient, gradient, { transposeY: true }),
        groups: 1, depth: p, rawSquares: squares(c, gradient),
      });
    },
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), false, weights),
    instantiated: () => instantiatedNorm(c, perExample(), summationError(c, T, gradient)),
    product: (weights) => reshape(b, scatter(
      [table, p], reshape(b, indices, [units * T, 1]), reshape(b, weigh(c, gradient, weights), [units * T, p]),
    ), parameterShape),
  };
}

/** Sums over the axes of broadcasting; cheap enough to be formed for each unit always. */
export const sum = (b: GraphBuilder, xs: readonly Value[]): Value => (xs.length === 1 ? xs[0]! : b.op('Sum', xs));

function broadcast(c: Context, gradient: Value, trailing: number): Contraction {
  const { b, units, parameterShape } = c;
  const [rows, ...full] = b.shape(gradient) as [number, ...number[]];
  const perUnit = [units, rows / units, ...full];
  // The parameter's shape from the right, with the trailing axes it does not have.
  const target = [...parameterShape, ...Array.from({ length: trailing }, () => 1)];
  const aligned = [units, ...Array.from({ length: perUnit.length - 1 - target.length }, () => 1), ...target];
  const perExample = () => reshape(b, sumTo(b, reshape(b, gradient, perUnit), aligned), [units, ...parameterShape]);
  const size = sizeOf(parameterShape);
  const T = sizeOf(b.shape(gradient)) / (units * size);
  return {
    size: { T, d: 1, p: size, groups: 1, gramDepth: 1, gramTerms: 1, unfolded: false },
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), false, weights),
    instantiated: () => instantiatedNorm(c, perExample(), T > 1 ? summationError(c, T, gradient) : undefined),
  };
}
