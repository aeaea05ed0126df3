/**
 * Rigorous bounds on float32 rounding (Higham, Accuracy and Stability of Numerical Algorithms, §3.1; Jeannerod and
 * Rump 2013). They hold for every order of summation, so they do not depend on how a kernel blocks its loops.
 */

/** Unit roundoff of float32. */
export const unitRoundoff = 2 ** -24;

/** γ_n = n·u / (1 − n·u): bounds the relative error of a sum of n products against Σ|x·y|. */
export function gamma(n: number): number {
  const nu = n * unitRoundoff;
  if (nu >= 0.5) return Infinity;
  return nu / (1 - nu);
}

/** Smallest normal float32; products below it may be flushed to zero. */
export const smallestNormal = 2 ** -126;

/** Rows whose squared Euclidean length is not below this are dropped: their products could overflow. */
export const largestSquare = 1e38;

/** The largest number that float32 holds. */
export const largestFloat = 3.4028234663852886e38;
