import { logNormalCdf, logNormalDensity } from './special.ts';

/**
 * A pair of distributions on a line that dominates a mechanism: Q, what is released without a unit, and
 * P = (1 − rate)·Q + rate·N1, what is released with it, where Q is noise about 0 and N1 the same noise about 1. The
 * privacy loss log(P/Q) at x grows with x. A dominating pair stays one under sampling and composition (Zhu, Dong & Wang
 * 2022, Theorems 10 and 11).
 */
export interface LossPair {
  /** All but a tail of both distributions, and all of the line between the atoms. */
  readonly from: number;
  readonly to: number;
  /** Bound on the mass of P, and of Q, beyond `from` and `to` together that is in no atom. */
  readonly outside: number;
  /** log density of Q within. */
  logDensity(x: number): number;
  /** log(P/Q) at x. */
  loss(x: number): number;
  /** The x in [from, to] of this loss, or the end next to it. */
  at(loss: number): number;
  /** log Q-mass of all x ≤ from, where the loss is that of `from`, and of all x ≥ to; −Infinity where there is none. */
  readonly atoms: { readonly below: number; readonly above: number };
  /** How far apart places are whose losses differ much: the deviation of the noise. */
  readonly spread: number;
  /** Widest stretch over which {@link integrals} take one panel. */
  readonly panel: number;
}

/** Noise of deviation `sigma` on a Poisson sample of `rate`; a `tail` of that mass is cut off at either end. */
export function gaussianPair(sigma: number, rate: number, tail: number): LossPair {
  const log = Math.log(tail);
  const mixture = (x: number): number =>
    Math.max(Math.log1p(-rate) + logNormalCdf(-x / sigma), Math.log(rate) + logNormalCdf((1 - x) / sigma)) + Math.LN2;
  const reach = sigma * farthest((z) => logNormalCdf(-z), log);
  const to = sigma * farthest((z) => mixture(z * sigma), log);
  const logScale = Math.log(sigma);
  return {
    from: -reach,
    to,
    outside: 2 * tail,
    logDensity: (x) => logNormalDensity(x / sigma) - logScale,
    ...mixed(rate, (x) => (x - 0.5) / sigma ** 2, (y) => y * sigma ** 2 + 0.5, -reach, to),
    atoms: { below: -Infinity, above: -Infinity },
    spread: sigma,
    panel: Math.min(sigma / 3, 3 * sigma ** 2),
  };
}

/** Laplace noise of this scale on a Poisson sample of `rate`: the loss is constant below 0 and above 1. */
export function laplacePair(scale: number, rate: number): LossPair {
  const logTwice = Math.log(2 * scale);
  return {
    from: 0,
    to: 1,
    outside: 0,
    logDensity: (x) => -x / scale - logTwice,
    ...mixed(rate, (x) => (2 * x - 1) / scale, (y) => (y * scale + 1) / 2, 0, 1),
    atoms: { below: -Math.LN2, above: -Math.LN2 - 1 / scale },
    spread: Math.min(1, scale),
    panel: scale,
  };
}

/** The least z ≥ 0 with f(z) ≤ bound, rounded up by less than 1e-9 relative; f falls. */
function farthest(f: (z: number) => number, bound: number): number {
  let high = 1;
  while (!(f(high) <= bound)) high *= 2;
  let low = 0;
  while (high - low > 1e-9 * high) {
    const middle = (low + high) / 2;
    if (f(middle) <= bound) high = middle;
    else low = middle;
  }
  return high;
}

/** The loss log(1 − rate + rate·e^y) where y = log(N1/Q), and its inverse. */
function mixed(
  rate: number, ratio: (x: number) => number, place: (y: number) => number, from: number, to: number,
): Pick<LossPair, 'loss' | 'at'> {
  const clamped = (x: number): number => (x > from ? Math.min(x, to) : from);
  if (rate === 1) return { loss: ratio, at: (loss) => clamped(place(loss)) };
  const logRate = Math.log(rate);
  return {
    loss: (x) => {
      const y = ratio(x);
      // Where hardly anything is left of the first part, 1 − rate is not to be lost beside 1.
      if (rate > 0.5 && y < -0.5) return Math.log(1 - rate + rate * Math.exp(y));
      return y > 30 ? y + logRate + Math.log1p(((1 - rate) / rate) * Math.exp(-y)) : Math.log1p(rate * Math.expm1(y));
    },
    at: (loss) =>
      clamped(
        place(
          loss > 30
            ? loss - logRate + Math.log1p(-(1 - rate) * Math.exp(-loss))
            : Math.log1p(Math.max(-1, Math.expm1(loss) / rate)),
        ),
      ),
  };
}

/** Nodes and weights of Gauss–Legendre quadrature of eight points on [−1, 1], found by Newton's method. */
const points = new Float64Array(8);
const weights = new Float64Array(8);
for (let i = 0; i < 8; i++) {
  let x = Math.cos((Math.PI * (i + 0.75)) / 8.5);
  let slope = 0;
  for (let pass = 0; pass < 20; pass++) {
    let [previous, value] = [1, x];
    for (let n = 2; n <= 8; n++) [previous, value] = [value, ((2 * n - 1) * x * value - (n - 1) * previous) / n];
    slope = (8 * (x * value - previous)) / (x * x - 1);
    x -= value / slope;
  }
  points[i] = x;
  weights[i] = 2 / ((1 - x * x) * slope ** 2);
}

/** Integrals over one stretch of the line, both times e^{logScale}. */
export interface Integrals {
  readonly logScale: number;
  /** ∫ q. */
  readonly mass: number;
  /** ∫ q·f. */
  readonly weighted: number;
}

/**
 * ∫ q(x) dx and ∫ q(x)·f(loss(x)) dx from u to v, q the density of Q; to about 1e-13 of ∫ q·|f| for smooth f that grows no
 * faster than P/Q. Panels are so narrow that the density is a polynomial to within rounding.
 */
export function integrals(pair: LossPair, u: number, v: number, f: (loss: number) => number): Integrals {
  // The density is largest next to 0.
  const logScale = pair.logDensity(Math.min(Math.max(u, v), Math.max(Math.min(u, v), 0)));
  if (u === v) return { logScale, mass: 0, weighted: 0 };
  const panels = Math.ceil(Math.abs(v - u) / pair.panel);
  const half = (v - u) / panels / 2;
  let [mass, weighted] = [0, 0];
  for (let p = 0; p < panels; p++) {
    const middle = u + (2 * p + 1) * half;
    for (let i = 0; i < 8; i++) {
      const x = middle + half * points[i]!;
      const part = weights[i]! * Math.exp(pair.logDensity(x) - logScale);
      mass += part;
      weighted += part * f(pair.loss(x));
    }
  }
  return { logScale, mass: mass * half, weighted: weighted * half };
}
