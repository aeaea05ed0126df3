import { notFinite } from './gaussian.ts';
import { centre, columnBits, discreteTable, lowerWords, variance } from './discrete-table.ts';
import type { Stream } from './stream.ts';

/**
 * k: a draw of L levels is X_1 + k·(X_2 + k·(X_3 + …)) with L independent draws from the table. With s² = v/(1 + k²) the
 * sum over the integers of exp(−(x − c)²/2s²) is, for every c, within 2^-256 of its mean: all that discrete Gaussians of such
 * widths need to add up to one (docs/noise.md), and to pass for a continuous one that was rounded.
 */
const gain = 36;
/** Draws of so many levels stay below 2^50 by far, where float64 has all integers. */
export const mostLevels = 8;

/** V_L = v·(1 + k² + … + k^(2L−2)): σ² of a draw of L levels, in units of the grid. */
export const varianceOf = (levels: number): number => (levels === 0 ? 0 : variance + gain * gain * varianceOf(levels - 1));
/** s² of that sum, v/(1 + k²): what rounding a continuous Gaussian to a draw adds to its variance. */
export const smoothing = variance / (1 + gain * gain);

/**
 * √(V_L − v/(1 + k²)): the deviation, in units of the grid, of the continuous Gaussian that a draw of `levels` levels is
 * as private as. The draw is what some rounding, without regard to the data, makes of that Gaussian.
 */
export const continuousDeviation = (levels: number): number => Math.sqrt(varianceOf(levels) - smoothing);

/**
 * At least the statistical distance between a draw of `levels` levels and what some rounding makes of a draw from
 * N(c, continuousDeviation²), for every integer c: that of the table for every level, and twice ε = Σ_{m≠0} exp(−2π²s²m²)
 * for every time that two Gaussians are joined, the rounded one included.
 */
export const statisticalDistance = (levels: number): number =>
  levels * (discreteTable().distance + 2 * joint) * (1 + 2 ** -40);
const joint = 2 * Math.exp(-2 * Math.PI ** 2 * smoothing) * (1 + 2 ** -40);

/** Draws a chunk at a time, so that it stays in the processor's cache. */
const chunk = 4096;

/** Fills the first `count` numbers of `out` with independent integers, draws of `levels` levels. */
function fillChunk(out: Float64Array, count: number, levels: number, source: Stream): void {
  const { entries } = discreteTable();
  const mask = entries.length - 1;
  out.fill(0, 0, count);
  for (let level = 0; level < levels; level++) {
    const given = source.words(count);
    const words = new Int32Array(given.buffer, given.byteOffset, count);
    // Equal upper bits (one word in a million) ask for more of the stream, which would overwrite this view of it.
    let ties: number[] | undefined;
    for (let i = 0; i < count; i++) {
      const word = words[i]!;
      const column = word & mask;
      const entry = entries[column]!;
      const other = entry & mask;
      const above = (word >>> columnBits) - (entry >>> columnBits);
      // Below the column's own share: the column itself. No branch, since none could be predicted.
      out[i] = out[i]! * gain + ((other ^ ((other ^ column) & (above >> 31))) - centre);
      if (above === 0) (ties ??= []).push(i, column, other);
    }
    if (ties !== undefined) settle(ties, out, source);
  }
}

/** Draws whose upper bits equalled their column's share took the other value: where the lower bits are below, they do not. */
function settle(ties: readonly number[], out: Float64Array, source: Stream): void {
  for (let j = 0; j < ties.length; j += 3) {
    const [at, column, other] = [ties[j]!, ties[j + 1]!, ties[j + 2]!];
    if (isBelowShare(column, source)) out[at] = out[at]! + column - other;
  }
}

function isBelowShare(column: number, source: Stream): boolean {
  const { lower } = discreteTable();
  for (let i = 0; i < lowerWords; i++) {
    const word = source.word();
    const share = lower[column * lowerWords + i]!;
    if (word !== share) return word < share;
  }
  return false;
}

/** Fills `target` with independent integers, draws of `levels` levels. */
export function fillDiscrete(target: Float64Array, levels: number, source: Stream): void {
  const draws = new Float64Array(Math.min(chunk, target.length));
  for (let start = 0; start < target.length; start += chunk) {
    const count = Math.min(chunk, target.length - start);
    fillChunk(draws, count, levels, source);
    target.set(draws.subarray(0, count), start);
  }
}

/** points ← points + factor·Z, Z independent draws of `levels` levels; exact while all stays below 2^53. */
export function addDraws(points: Float64Array, levels: number, source: Stream, factor = 1): void {
  const draws = new Float64Array(Math.min(chunk, points.length));
  for (let start = 0; start < points.length; start += chunk) {
    const count = Math.min(chunk, points.length - start);
    fillChunk(draws, count, levels, source);
    for (let i = 0; i < count; i++) points[start + i]! += factor * draws[i]!;
  }
}

/** A grid, and how many levels the noise on it has. */
export interface Lattice {
  /** g: the distance of its points. */
  readonly grid: number;
  readonly levels: number;
}

/** Sums stay within ±2^50 points of the grid, where float64 has every integer and adding noise is exact. */
const farthest = 2 ** 50;
/** Where float64 has no fractions: adding it and taking it off again rounds to the nearest integer. */
const integers = 1.5 * 2 ** 52;

/** ⌊x/g⌉, up to ±2^50. */
const nearest = (x: number, grid: number): number => Math.min(farthest, Math.max(-farthest, x / grid)) + integers - integers;

/**
 * ⌊(values + remainder)/g⌉, the integers that {@link addDiscrete} adds its noise to. The arrays stay as they are.
 *
 * @throws GhostgradError when an element is not finite
 */
export function pointsOf(values: Float32Array | Float64Array, remainder: Float32Array | undefined, grid: number): Float64Array {
  const points = Float64Array.from(values, (x, i) => x + (remainder?.[i] ?? 0));
  if (!points.every(Number.isFinite)) throw notFinite();
  return points.map((x) => nearest(x, grid));
}

/**
 * target ← g·(⌊(target + remainder)/g⌉ + Z)·scale, element by element in one sweep, Z independent draws of `levels` levels;
 * ⌊·⌉ rounds to the nearest integer, up to ±2^50. Integers are exact; times g·scale they are rounded to float64 and once more
 * to the element type.
 *
 * @param remainder what `target` lacks, if it was rounded
 * @throws GhostgradError when an element is not finite: no noise hides a NaN
 */
export function addDiscrete(
  target: Float32Array | Float64Array, remainder: Float32Array | undefined, { grid, levels }: Lattice, source: Stream, scale = 1,
): void {
  const draws = new Float64Array(Math.min(chunk, target.length));
  const unit = grid * scale;
  // 0 · x is 0 for every finite x and NaN otherwise; one sum instead of a branch for each element.
  let check = 0;
  for (let start = 0; start < target.length; start += chunk) {
    const count = Math.min(chunk, target.length - start);
    fillChunk(draws, count, levels, source);
    for (let i = 0; i < count; i++) {
      const sum = target[start + i]! + (remainder === undefined ? 0 : remainder[start + i]!);
      check += 0 * sum;
      target[start + i] = (nearest(sum, grid) + draws[i]!) * unit;
    }
  }
  if (check !== 0) throw notFinite();
}
