import { GhostgradError } from '../errors.ts';
import type { Stream } from './stream.ts';

// Ziggurat of 256 layers of equal area v under f(x) = exp(-x²/2) (Marsaglia & Tsang 2000). Layer index, sign and
// the 53-bit magnitude come from different bits of a 64-bit word (Doornik 2005): the layers and the values
// within them are independent, and the tail beyond r is sampled exactly.
const layers = 256;
/** The right edge of the base layer: the root at which 256 layers of equal area close at f(0) = 1. */
const r = 3.6541528853610088;
const f = (x: number): number => Math.exp(-0.5 * x * x);
/** The area of each layer: r·f(r) + ∫_r^∞ f. */
export const layerArea = r * f(r) + f(r) * millsRatio(r);

const edges = layerEdges();
const heights = edges.map(f);
/** Layer i's width over 2^53. */
const widths = Float64Array.from({ length: layers }, (_, i) => (edges[i] ?? 0) * 2 ** -53);
/** Magnitudes below this lie in the layer above too, hence under the curve whatever the height. */
const inside = Float64Array.from({ length: layers }, (_, i) => ((edges[i + 1] ?? 0) / (edges[i] ?? 1)) * 2 ** 53);

/** ∫_x^∞ exp((x² − t²)/2) dt by its continued fraction; 60 terms are exact to a double for x ≥ 3. */
function millsRatio(x: number): number {
  let tail = x;
  for (let n = 60; n > 0; n--) tail = x + n / tail;
  return 1 / tail;
}

/** x_0 = v/f(r) (the base layer as a rectangle with its tail), x_1 = r, …, x_256 = 0. */
function layerEdges(): Float64Array {
  const x = new Float64Array(layers + 1);
  x[0] = layerArea / f(r);
  x[1] = r;
  for (let i = 2, last = r; i < layers; i++) {
    last = Math.sqrt(-2 * Math.log(layerArea / last + f(last)));
    x[i] = last;
  }
  return x;
}

/** Samples a chunk at a time, so that it stays in the processor's cache. */
const chunk = 4096;

/** Fills `target` with independent N(0, σ²) draws, computed in float64 and rounded once to the element type. */
export function fillGaussian(target: Float32Array | Float64Array, sigma: number, source: Stream): void {
  const normals = new Float64Array(Math.min(chunk, target.length));
  for (let start = 0; start < target.length; start += chunk) {
    const count = Math.min(chunk, target.length - start);
    standardNormals(normals, count, source);
    for (let i = 0; i < count; i++) target[start + i] = sigma * (normals[i] ?? 0);
  }
}

/**
 * target ← (target + remainder + N(0, σ²))·scale, element by element in one sweep, computed in float64 and rounded once.
 *
 * @param remainder what `target` lacks, if it was rounded
 * @throws GhostgradError when an element is not finite: no noise hides a NaN
 */
export function addGaussian(
  target: Float32Array | Float64Array, remainder: Float32Array | undefined, sigma: number, source: Stream, scale = 1,
): void {
  const normals = new Float64Array(Math.min(chunk, target.length));
  // 0 · x is 0 for every finite x and NaN otherwise; one sum instead of a branch for each element.
  let check = 0;
  for (let start = 0; start < target.length; start += chunk) {
    const count = Math.min(chunk, target.length - start);
    standardNormals(normals, count, source);
    for (let i = 0; i < count; i++) {
      const sum = target[start + i]! + (remainder === undefined ? 0 : remainder[start + i]!);
      const noised = sum + sigma * normals[i]!;
      check += 0 * noised;
      target[start + i] = noised * scale;
    }
  }
  if (check !== 0) throw notFinite();
}

export const notFinite = (): GhostgradError => new GhostgradError({
  what: 'noise was to be added to a value that is not finite',
  expected: 'finite sums: rows with non-finite gradients are removed before summation',
  fix: 'report this as a bug of ghostgrad; the step was discarded',
});

function standardNormals(out: Float64Array, count: number, source: Stream): void {
  const words = source.words(2 * count);
  // Rejections (1 %) read on in the stream, which would overwrite this view of it: they are settled afterwards.
  let rejected: number[] | undefined;
  for (let i = 0; i < count; i++) {
    const high = words[2 * i]!;
    const low = words[2 * i + 1]!;
    const layer = low & 255;
    const magnitude = high * 2097152 + (low >>> 11);
    const x = magnitude * widths[layer]!;
    out[i] = (low & 256) === 0 ? x : -x;
    if (magnitude >= inside[layer]!) (rejected ??= []).push(i, layer);
  }
  if (rejected === undefined) return;
  for (let j = 0; j < rejected.length; j += 2) {
    const i = rejected[j]!;
    out[i] = settle(out[i]!, rejected[j + 1]!, source);
  }
}

/** Decides on a point outside the sure part of its layer; draws anew while it lies above the curve. */
function settle(point: number, layer: number, source: Stream): number {
  for (;;) {
    if (layer === 0) return Math.sign(point) * tail(source);
    const bottom = heights[layer]!;
    const top = heights[layer + 1]!;
    if (bottom + source.uniform() * (top - bottom) < f(point)) return point;
    const high = source.word();
    const low = source.word();
    layer = low & 255;
    const magnitude = high * 2097152 + (low >>> 11);
    point = ((low & 256) === 0 ? 1 : -1) * magnitude * widths[layer]!;
    if (magnitude < inside[layer]!) return point;
  }
}

/** A normal draw given that it exceeds r (Marsaglia 1964): exact rejection from an exponential. */
function tail(source: Stream): number {
  for (;;) {
    const x = -Math.log(source.preciseUniform()) / r;
    const y = -Math.log(source.preciseUniform());
    if (2 * y > x * x) return r + x;
  }
}
