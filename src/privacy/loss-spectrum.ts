import { circle, realTransform, transformError } from './fft.ts';

/** A tilted distribution on a lattice: each entry's place and probability; they add up to 1. */
export interface Weights {
  readonly index: Int32Array;
  readonly x: Float64Array;
}

/**
 * The transform f(r) of a distribution at the frequencies r = 0 … n/2, turned so that its largest probability is at 0, and
 * log f in two parts. `blur` bounds the error of log f but for that of the transform, which is `transformed` as an L2 norm
 * over the points.
 */
export interface Spectrum {
  readonly n: number;
  readonly logAbs: Float64Array;
  readonly arg: Float64Array;
  readonly blur: Float64Array;
  readonly at: number;
  readonly transformed: number;
  /** Which frequencies were summed up one by one, and are not of the transform. */
  readonly sharp: Uint8Array;
  readonly weights: Weights;
}

const ulp = 2 ** -53;

/**
 * The largest probability is set apart: what is transformed is the rest, and its error is relative to that, which is
 * little where most draws have one loss.
 */
export function spectrum(weights: Weights, n: number): Spectrum {
  const x = new Float64Array(n);
  weights.index.forEach((k, i) => void (x[k & (n - 1)]! += weights.x[i]!));
  let at = 0;
  for (let k = 1; k < n; k++) if (x[k]! > x[at]!) at = k;
  x[at] = 0;
  let square = 0;
  for (let k = 0; k < n; k++) square += x[k]! * x[k]!;
  const { re, im } = realTransform(x);
  const rest = re[0]!;
  const { cos, sin } = circle(n);
  const made: Spectrum = {
    n, at, weights,
    logAbs: new Float64Array(re.length),
    arg: new Float64Array(re.length),
    blur: new Float64Array(re.length),
    sharp: new Uint8Array(re.length),
    transformed: Math.sqrt(square) * transformError(n),
  };
  for (let r = 0; r < re.length; r++) {
    const k = Math.imul(r, at) & (n - 1);
    const u = re[r]! * cos[k]! - im[r]! * sin[k]! - rest;
    const v = re[r]! * sin[k]! + im[r]! * cos[k]!;
    set(made, r, u, v, 4 * rest);
  }
  return made;
}

/** log f for f = 1 + u + iv, u and v made of numbers that add up to `size`. */
function set({ logAbs, arg, blur }: Spectrum, r: number, u: number, v: number, size: number): void {
  const square = 2 * u + u * u + v * v;
  const abs = Math.hypot(1 + u, v);
  // Near 1 the logarithm asks for the difference from 1, and near 0 the difference is lost in rounding.
  logAbs[r] = square > -0.5 ? 0.5 * Math.log1p(square) : Math.log(abs);
  arg[r] = Math.atan2(v, 1 + u);
  blur[r] = (16 * ulp * (2 * Math.abs(u) + u * u + v * v + size)) / abs;
}

/**
 * Sums f up anew at the frequencies `kept`, as 1 + Σ x·(e^{−iφ} − 1) = 1 − Σ x·(2·sin²(φ/2) + 2i·sin(φ/2)·cos(φ/2)) with
 * compensated sums: low frequencies, all that is left of thousands of draws, are then exact relative to what draws vary by.
 */
export function sharpen(spectrum: Spectrum, kept: Int32Array): void {
  const { n, at, weights, sharp } = spectrum;
  const wanted = kept.filter((r) => sharp[r] === 0);
  if (wanted.length === 0) return;
  const { cos, sin } = circle(2 * n);
  const mask = 2 * n - 1;
  const [u, v, size] = [new Float64Array(wanted.length), new Float64Array(wanted.length), new Float64Array(wanted.length)];
  const [lostU, lostV] = [new Float64Array(wanted.length), new Float64Array(wanted.length)];
  for (let i = 0; i < weights.x.length; i++) {
    const x = weights.x[i]!;
    const d = (weights.index[i]! - at) & (n - 1);
    if (x === 0 || d === 0) continue;
    for (let j = 0; j < wanted.length; j++) {
      const half = Math.imul(wanted[j]!, d) & mask;
      const s = 2 * x * sin[half]!;
      const addU = s * sin[half]! - lostU[j]!;
      const sumU = u[j]! + addU;
      lostU[j] = sumU - u[j]! - addU;
      u[j] = sumU;
      const term = s * cos[half]!;
      const addV = term - lostV[j]!;
      const sumV = v[j]! + addV;
      lostV[j] = sumV - v[j]! - addV;
      v[j] = sumV;
      size[j]! += Math.abs(term);
    }
  }
  wanted.forEach((r, j) => {
    set(spectrum, r, -u[j]!, -v[j]!, size[j]!);
    sharp[r] = 1;
  });
}

/** A product of powers of transforms, at the frequencies where it counts. */
export interface Product {
  readonly length: number;
  readonly r: Int32Array;
  readonly re: Float64Array;
  readonly im: Float64Array;
  /** Bound of its error as an L2 norm over the points, not the frequencies. */
  readonly error: number;
}

/** What is below e^−60 of the first frequency is left out. */
const least = -60;
/** As many products at most are worth summing frequencies up anew. */
const mostSharpened = 2 ** 22;

/**
 * Π f_i^{count_i} over the parts with a count above 0. `within` are the frequencies that counted for fewer draws of each,
 * where that is known.
 */
export function product(
  parts: readonly { readonly count: number; readonly spectrum: Spectrum }[], n: number, within?: Int32Array,
): Product {
  const used = parts.filter(({ count }) => count > 0);
  const size = within?.length ?? n / 2 + 1;
  const all = new Int32Array(size);
  let length = 0;
  for (let i = 0; i < size; i++) {
    const r = within === undefined ? i : within[i]!;
    let logAbs = 0;
    for (const { count, spectrum } of used) logAbs += count * spectrum.logAbs[r]!;
    if (logAbs > least) all[length++] = r;
  }
  const kept = all.slice(0, length);
  let transforms = 0;
  for (const { count, spectrum } of used) {
    const fine = length * spectrum.weights.x.length <= mostSharpened && n <= 2 ** 20;
    if (fine && count > 16) sharpen(spectrum, kept);
    else transforms += count * spectrum.transformed;
  }
  const shift = used.reduce((sum, { count, spectrum }) => (sum + (count % n) * spectrum.at) % n, 0);
  const [re, im] = [new Float64Array(length), new Float64Array(length)];
  let square = 0;
  for (let i = 0; i < length; i++) {
    const r = kept[i]!;
    let [logAbs, arg, blur] = [0, -2 * Math.PI * ((Math.imul(r, shift) & (n - 1)) / n), 0];
    for (const { count, spectrum } of used) {
      logAbs += count * spectrum.logAbs[r]!;
      arg += count * spectrum.arg[r]!;
      blur += count * spectrum.blur[r]! + 4 * ulp * count * (Math.abs(spectrum.logAbs[r]!) + Math.abs(spectrum.arg[r]!));
    }
    const abs = Math.exp(logAbs);
    const error = abs * (blur + 32 * ulp);
    square += 2 * error * error;
    re[i] = abs * Math.cos(arg);
    im[i] = abs * Math.sin(arg);
  }
  return { length, r: kept, re, im, error: transforms + Math.sqrt(square / n) + Math.exp(least) };
}
