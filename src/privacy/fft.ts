/**
 * Discrete Fourier transforms of real sequences whose length is a power of 2, in float64.
 */

/** cos and sin of 2πk/n for k = 0 … n − 1. */
export interface Circle {
  readonly n: number;
  readonly cos: Float64Array;
  readonly sin: Float64Array;
}

const circles = new Map<number, Circle>();

/** The n-th roots of unity, each to within a rounding or two; n a power of 2 and at least 8. */
export function circle(n: number): Circle {
  const known = circles.get(n);
  if (known !== undefined) return known;
  const cos = new Float64Array(n);
  const sin = new Float64Array(n);
  const eighth = n / 8;
  // One eighth is computed, the others are its mirror images.
  for (let k = 0; k <= eighth; k++) {
    const angle = (2 * Math.PI * k) / n;
    const c = Math.cos(angle);
    const s = Math.sin(angle);
    for (const [i, x, y] of [
      [k, c, s], [2 * eighth - k, s, c], [2 * eighth + k, -s, c], [4 * eighth - k, -c, s],
      [4 * eighth + k, -c, -s], [6 * eighth - k, -s, -c], [6 * eighth + k, s, -c],
    ] as const) {
      cos[i] = x;
      sin[i] = y;
    }
    if (k > 0) {
      cos[n - k] = c;
      sin[n - k] = -s;
    }
  }
  const made = { n, cos, sin };
  // Tables of a few sizes are in use at a time.
  if (circles.size >= 8) circles.clear();
  circles.set(n, made);
  return made;
}

/**
 * Bound on ‖computed − exact‖₂ / ‖exact‖₂ of {@link realTransform}. Each of log₂ n levels adds at most
 * η = μ + γ₄(√2 + μ) with γ₄ ≈ 4u and roots exact to μ ≤ 2u (Higham 2002, Theorem 24.2), that is < 8u; the level that
 * parts even from odd entries counts as two.
 */
export const transformError = (n: number): number => (Math.log2(n) + 2) * 8 * 2 ** -53 * 1.01;

/**
 * X_r = Σ_k x_k·exp(−2πirk/n) for r = 0 … n/2, of n = x.length real numbers; the others are conjugates. `n` is a power of
 * 2 and at least 16. Two real halves go through one complex transform of n/2.
 */
export function realTransform(x: Float64Array): { readonly re: Float64Array; readonly im: Float64Array } {
  const n = x.length;
  const half = n / 2;
  const re = new Float64Array(half + 1);
  const im = new Float64Array(half + 1);
  for (let k = 0; k < half; k++) {
    re[k] = x[2 * k]!;
    im[k] = x[2 * k + 1]!;
  }
  transform(re, im, half);
  const { cos, sin } = circle(n);
  re[half] = re[0]!;
  im[half] = im[0]!;
  // Z = E + iO of the transforms of even and odd entries: E_r = (Z_r + Z̄_{−r})/2, iO_r = (Z_r − Z̄_{−r})/2.
  for (let r = 0; r <= half / 2; r++) {
    const s = half - r;
    const [a, b, c, d] = [re[r]!, im[r]!, re[s]!, im[s]!];
    const [evenRe, evenIm, oddRe, oddIm] = [(a + c) / 2, (b - d) / 2, (b + d) / 2, (c - a) / 2];
    const turnedRe = oddRe * cos[r]! + oddIm * sin[r]!;
    const turnedIm = oddIm * cos[r]! - oddRe * sin[r]!;
    re[r] = evenRe + turnedRe;
    im[r] = evenIm + turnedIm;
    re[s] = evenRe - turnedRe;
    im[s] = turnedIm - evenIm;
  }
  return { re, im };
}

/** In place, over the first n entries: decimation in time, after the entries were put in the order of reversed bits. */
function transform(re: Float64Array, im: Float64Array, n: number): void {
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      const [a, b] = [re[i]!, im[i]!];
      re[i] = re[j]!;
      im[i] = im[j]!;
      re[j] = a;
      im[j] = b;
    }
  }
  const { cos, sin } = circle(n);
  for (let size = 2; size <= n; size *= 2) {
    const half = size / 2;
    const stride = n / size;
    for (let start = 0; start < n; start += size) {
      for (let k = 0, t = 0; k < half; k++, t += stride) {
        const p = start + k;
        const q = p + half;
        const c = cos[t]!;
        const s = sin[t]!;
        const x = re[q]! * c + im[q]! * s;
        const y = im[q]! * c - re[q]! * s;
        re[q] = re[p]! - x;
        im[q] = im[p]! - y;
        re[p] = re[p]! + x;
        im[p] = im[p]! + y;
      }
    }
  }
}
