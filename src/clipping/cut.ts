import { int } from '../graph/ir.ts';
import { type GraphBuilder, type Value, add, matmul, reduceSum, reshape } from '../ops/builder.ts';
import { int64 } from '../tensor/tensor.ts';

/**
 * How a Gram matrix of vectors of `depth` numbers is added up: as one product, or as a sum of products of pieces of the
 * vectors, which rounds less. An entry that is one sum of n products takes n roundings in the worst order of summation,
 * and the order is the kernel's; a sum over m pieces of w takes w + m of them, whatever the order within each.
 */
export interface Cut {
  readonly depth: number;
  /** Length of a piece; the last may be shorter. */
  readonly width: number;
  /** A divisor of depth and of width: what is copied in one go. */
  readonly granule: number;
}

/** Roundings that go into an entry. */
export const roundingsOf = ({ depth, width }: Cut): number => (width === depth ? depth : width + Math.ceil(depth / width));

/** Products and sums that go into an entry. */
export const operationsOf = ({ depth, width }: Cut): number => depth + Math.ceil(depth / width);

export const uncut = (depth: number): Cut => ({ depth, width: depth, granule: depth });

/** Shorter runs of numbers cost more to copy than what they save. */
const leastGranule = 16;

/** The cut into fewest pieces that takes at most `most` roundings, or the one of least roundings when none does. */
export function cutTo(depth: number, most: number): Cut {
  const divisors = Array.from({ length: depth }, (_, i) => i + 1).filter((n) => depth % n === 0 && n >= leastGranule);
  const even = divisors.map((width): Cut => ({ depth, width, granule: width }));
  const uneven = divisors.flatMap((granule) =>
    Array.from({ length: Math.floor(depth / granule) }, (_, k): Cut => ({ depth, width: (k + 1) * granule, granule })));
  const fits = (cut: Cut): boolean => roundingsOf(cut) <= most;
  const widest = (cuts: readonly Cut[]) => cuts.filter(fits).reduce<Cut | undefined>((a, b) => (a === undefined || b.width > a.width ? b : a), undefined);
  return widest(even) ?? widest(uneven)
    ?? [uncut(depth), ...even, ...uneven].reduce((a, b) => (roundingsOf(b) < roundingsOf(a) ? b : a));
}

/** Cuts of the two sides' vectors that take at most `most` roundings together, or as few as can be; no more cuts than that needs. */
export function cutBoth(depths: readonly [number, number], most: number): readonly [Cut, Cut] {
  const [a, b] = depths;
  if (a + b <= most) return [uncut(a), uncut(b)];
  const deeperFirst = a >= b;
  const [deep, shallow] = deeperFirst ? [a, b] : [b, a];
  const alone = cutTo(deep, most - shallow);
  const [first, second] = roundingsOf(alone) + shallow <= most
    ? [alone, uncut(shallow)]
    : (() => {
      const half = cutTo(deep, most / 2);
      return [half, cutTo(shallow, most - roundingsOf(half))] as const;
    })();
  return deeperFirst ? [first, second] : [second, first];
}

/** The Gram matrices [N, T, T] of x [N, T, depth]. */
export function cutGram(b: GraphBuilder, x: Value, cut: Cut): Value {
  const { depth, width } = cut;
  if (width === depth) return matmul(b, x, x, { transposeY: true });
  const even = Math.floor(depth / width);
  const pieces = piecesGram(b, x, cut, 0, even, width);
  const rest = depth - even * width;
  return rest === 0 ? pieces : add(b, pieces, piecesGram(b, x, cut, even * width, 1, rest));
}

/**
 * The sum of the Gram matrices of `count` pieces of x from place `first` on. Gather copies them next to one another at
 * the speed of memory, from several threads; Split, Slice and Transpose take several times as long.
 */
function piecesGram(b: GraphBuilder, x: Value, { depth, granule }: Cut, first: number, count: number, width: number): Value {
  const [n, T] = b.shape(x) as [number, number];
  const [perRow, perPiece] = [depth / granule, width / granule];
  const counted = (length: number, step: number, start: number, shape: readonly number[]) =>
    b.constant(int64(Array.from({ length }, (_, i) => start + i * step), shape));
  const places = [
    counted(n, T * perRow, first / granule, [n, 1, 1, 1]), counted(count, perPiece, 0, [count, 1, 1]),
    counted(T, perRow, 0, [T, 1]), counted(perPiece, 1, 0, [perPiece]),
  ].reduce((sum, part) => add(b, sum, part));
  const pieces = b.op('Gather', [reshape(b, x, [n * T * perRow, granule]), places], { axis: int(0) });
  const rows = reshape(b, pieces, [n * count, T, width]);
  const grams = matmul(b, rows, rows, { transposeY: true });
  return count === 1 ? grams : reduceSum(b, reshape(b, grams, [n, count, T, T]), [1]);
}
