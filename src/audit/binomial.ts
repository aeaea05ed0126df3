/**
 * log(n!) by Stirling's series from n = 32 on, whose error is then below 1e-16 of it.
 */
export function logFactorial(n: number): number {
  if (n < small.length) return small[n]!;
  const x = n + 1;
  const series = 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5) - 1 / (1680 * x ** 7);
  return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series;
}

const small = Float64Array.from({ length: 32 }, (_, n) => Array.from({ length: n }, (__, i) => Math.log(i + 1)).reduce((a, b) => a + b, 0));

/** P[X = k] for X ~ Binomial(n, p), 0 ≤ p ≤ 1. */
export function binomialMass(n: number, k: number, p: number): number {
  if (k < 0 || k > n) return 0;
  if (p === 0 || p === 1) return k === n * p ? 1 : 0;
  return Math.exp(logFactorial(n) - logFactorial(k) - logFactorial(n - k) + k * Math.log(p) + (n - k) * Math.log1p(-p));
}

/**
 * P[X ≥ k] for X ~ Binomial(n, p), to about 1e-11 relative: a sum of its terms, from the largest on until they no longer
 * count, so the work grows with √n.
 */
export function binomialTail(n: number, k: number, p: number): number {
  if (k <= 0) return 1;
  if (k > n || p === 0) return 0;
  if (p === 1) return 1;
  // The shorter way to 0: above the mean the tail itself, below it what is left of 1.
  return k > n * p ? sumFrom(n, k, p, 1) : Math.max(0, 1 - sumFrom(n, k - 1, p, -1));
}

/** Σ P[X = i] over i = k, k + step, …, away from the mean, where each term is smaller than the last. */
function sumFrom(n: number, k: number, p: number, step: 1 | -1): number {
  const odds = p / (1 - p);
  let term = binomialMass(n, k, p);
  let sum = 0;
  for (let i = k; term > 1e-17 * sum && i >= 0 && i <= n; i += step) {
    sum += term;
    term *= step === 1 ? (odds * (n - i)) / (i + 1) : i / (odds * (n - i + 1));
  }
  return sum;
}

/**
 * The Clopper–Pearson bounds of a probability that showed itself in `k` of `n` independent trials: each is on the wrong
 * side with probability at most `miss`, whatever the probability is.
 */
export function clopperPearson(k: number, n: number, miss: number): { readonly low: number; readonly high: number } {
  return {
    // The p at which k or more are as rare as `miss`; below it rarer still.
    low: k === 0 ? 0 : leastAbove(0, k / n, (p) => binomialTail(n, k, p) >= miss).low,
    high: k === n ? 1 : leastAbove(k / n, 1, (p) => 1 - binomialTail(n, k + 1, p) <= miss).high,
  };
}

/**
 * The place in [low, high] from which on `holds`, between two doubles; `holds` must be false, then true.
 */
export function leastAbove(
  low: number, high: number, holds: (x: number) => boolean,
): { readonly low: number; readonly high: number } {
  for (let i = 0; i < 100; i++) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) break;
    if (holds(middle)) high = middle;
    else low = middle;
  }
  return { low, high };
}
