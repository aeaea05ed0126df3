import { GhostgradError } from '../errors.ts';
import { type EventOf, type PrivacyEvent, showEvent } from './events.ts';
import { gaussianMu, notPureGaussian } from './exact-gaussian.ts';
import { withoutReplacementMoment } from './rdp-without-replacement.ts';
import { refusal, refuseMixedNeighbors } from './refusal.ts';
import { erfcx, logExpm1, logNormalCdf } from './special.ts';

/**
 * Rényi differential privacy: under add-or-remove-one neighbours (Mironov 2017; Mironov, Talwar & Zhang 2019), under
 * replacement for samples of fixed size, and of the best of a random number of runs. Every number here is an upper
 * bound: a truncated series is rounded up by its remainder.
 */

/** Rényi divergence by order. */
export type RdpCurve = (order: number) => number;

/**
 * The Rényi divergence of `event` at `order` > 1 (Infinity allowed), for the worse of the two directions.
 * Throws GhostgradError for an event that the accountant does not know, or when a value cannot be computed.
 */
export function rdp(event: PrivacyEvent, order: number): number {
  return curveOf(event)(checkedOrder(order));
}

function checkedOrder(order: number): number {
  if (order > 1) return order;
  throw new GhostgradError({ what: 'Rényi order out of range', found: String(order), expected: 'more than 1' });
}

function curveOf(event: PrivacyEvent): RdpCurve {
  refuseMixedNeighbors('rdp', event);
  return divergence(event);
}

function divergence(event: PrivacyEvent): RdpCurve {
  switch (event.kind) {
    case 'gaussian':
    case 'gaussian-with-counts': {
      const half = gaussianMu(event) ** 2 / 2;
      return (order) => order * half;
    }
    case 'laplace':
      return laplaceDivergence(event);
    case 'poisson-sampled':
    case 'sampled-without-replacement':
      return sampled(event);
    case 'self-composed': {
      if (event.count === 0) return () => 0;
      const once = divergence(event.event);
      return (order) => event.count * once(order);
    }
    case 'composed': {
      const curves = event.events.map(divergence);
      return (order) => curves.reduce((sum, curve) => sum + curve(order), 0);
    }
    case 'repeat-and-select':
      return selected(event);
    default:
      throw unsupported(event);
  }
}

function sampled(event: EventOf<'poisson-sampled' | 'sampled-without-replacement'>): RdpCurve {
  const rate = event.kind === 'poisson-sampled' ? event.rate : event.sampleSize / event.datasetSize;
  if (rate === 1) return divergence(event.event);
  if (notPureGaussian(event.event) !== undefined) throw unsupported(event);
  const mu = gaussianMu(event.event);
  if (mu === 0) return () => 0;
  const logMoment = event.kind === 'poisson-sampled' ? poissonMoment(rate, 1 / mu) : withoutReplacementMoment(rate, 1 / mu);
  return (order) => {
    if (order === Infinity) return Infinity;
    const moment = logMoment(order);
    if (moment >= 0) return moment / (order - 1);
    throw new GhostgradError({
      what: 'the Rényi divergence could not be computed',
      found: `${moment} at order ${order}`,
      where: showEvent(event),
      expected: 'a number of at least 0',
      fix: 'report this as a bug of ghostgrad',
    });
  };
}

const poissonMoment = (rate: number, sigma: number): RdpCurve => (order) =>
  Number.isInteger(order) ? logMomentInteger(rate, sigma, order) : logMomentFractional(rate, sigma, order);

const unsupported = (event: PrivacyEvent): GhostgradError =>
  refusal(
    'rdp', event,
    'Gaussian noise, Poisson-sampled, sampled without replacement or on all of the data, Laplace noise on all of the data, ' +
      'compositions of these, and the best of a random number of runs',
  );

/**
 * 1/(α − 1)·log(α/(2α − 1)·e^{(α−1)/b} + (α − 1)/(2α − 1)·e^{−α/b}) (Mironov 2017, Proposition 6), as a share of the first
 * term.
 */
function laplaceDivergence({ scale }: EventOf<'laplace'>): RdpCurve {
  return (order) => {
    if (order === Infinity) return 1 / scale;
    const over = order - 1;
    // α/(2α − 1) = 1 − (α − 1)/(2α − 1).
    const share = over / (2 * order - 1);
    return 1 / scale + Math.log1p(-share + share * Math.exp(-(2 * order - 1) / scale)) / over;
  };
}

/**
 * The best of K runs (Papernot & Steinke 2022). Truncated negative binomial K (Theorem 2), for any order λ̂:
 * ε'(λ) = ε(λ) + (1 + η)·((1 − 1/λ̂)·ε(λ̂) + log(1/γ)/λ̂) + log E[K]/(λ − 1). Poisson K (Theorem 6), for a run that is
 * (ε̂, δ̂)-private with e^ε̂ = 1 + 1/(λ − 1): ε'(λ) = ε(λ) + E[K]·δ̂ + log E[K]/(λ − 1).
 */
function selected({ event, runs }: EventOf<'repeat-and-select'>): RdpCurve {
  const once = remembered(divergence(event));
  if (runs.distribution === 'poisson') {
    return (order) => {
      if (order === Infinity) return Infinity;
      const { delta } = deltaFromRdp(once, Math.log1p(1 / (order - 1)));
      return once(order) + runs.mean * delta + Math.log(runs.mean) / (order - 1);
    };
  }
  const { shape, gamma } = runs;
  const logMean = Math.log(meanRuns(shape, gamma));
  let least: number | undefined;
  return (order) => {
    // Any order is valid, and steps of 5 % find the least to second order.
    least ??= orders
      .filter((_, i) => i % 50 === 0)
      .reduce((best, o) => Math.min(best, (1 - 1 / o) * once(o) - Math.log(gamma) / o), Infinity);
    return once(order) + (1 + shape) * least + (order === Infinity ? 0 : logMean / (order - 1));
  };
}

/** E[K] = η·(1/γ − 1)/(1 − γ^η), and (1/γ − 1)/log(1/γ) for η = 0. */
function meanRuns(shape: number, gamma: number): number {
  const logGamma = Math.log(gamma);
  const odds = -Math.expm1(logGamma) / gamma;
  return Math.abs(shape * logGamma) < 1e-8 ? odds / -logGamma : (shape * odds) / -Math.expm1(shape * logGamma);
}

/** A sum of exponentials, scaled by the largest so far. */
interface ScaledSum {
  largest: number;
  sum: number;
}

function accumulate(total: ScaledSum, log: number, sign = 1): void {
  if (log <= total.largest) {
    // Below 2^-100 of the largest nothing changes, even a hundred thousand times.
    if (log > total.largest - 70) total.sum += sign * Math.exp(log - total.largest);
  } else {
    total.sum = total.sum * Math.exp(total.largest - log) + sign;
    total.largest = log;
  }
}

/**
 * log A_α for whole α, A_α = Σ_k C(α, k)(1 − q)^{α−k} q^k exp((k² − k)/2σ²) (Mironov et al. 2019, §3.3).
 * As the weights sum to 1 and the exponent vanishes for k = 0 and 1, A_α − 1 is the same sum from k = 2 with
 * expm1 for exp: all terms positive, so nothing is lost for tiny q.
 */
function logMomentInteger(q: number, sigma: number, alpha: number): number {
  const logQ = Math.log(q);
  const logRest = Math.log1p(-q);
  const total: ScaledSum = { largest: -Infinity, sum: 0 };
  let logChoose = Math.log(alpha);
  for (let k = 2; k <= alpha; k++) {
    logChoose += Math.log((alpha - k + 1) / k);
    accumulate(total, logChoose + k * logQ + (alpha - k) * logRest + logExpm1((k * k - k) / (2 * sigma ** 2)));
  }
  const logExcess = total.largest + Math.log(total.sum);
  return logExcess > 30 ? logExcess + Math.log1p(Math.exp(-logExcess)) : Math.log1p(Math.exp(logExcess));
}

/** Terms are summed until the remainder is below this share of A_α; and this much is allowed for rounding. */
const remainder = 1e-11;
const rounding = 2 ** -46;
const mostTerms = 100_000;

/**
 * log A_α for fractional α: the integral of A_α split at z₀ = σ²·log(1/q − 1) + ½, where the two components
 * of the mixture are equal, and each half expanded in a binomial series (Mironov et al. 2019, §3.3):
 *
 *   Σ_k C(α, k) [ (1 − q)^j q^k e^{(k² − k)/2σ²} Φ((z₀ − k)/σ)
 *               + (1 − q)^k q^j e^{(j² − j)/2σ²} Φ((j − z₀)/σ) ],   j = α − k.
 *
 * Where the argument of Φ is negative, the large exponents cancel exactly: both terms become
 * (1 − q)^α e^{−z₀²/2σ²}·½·erfcx(|·|/√2). For k > α the terms alternate and decrease, so that the remainder is
 * below the first term left out, which is added.
 */
function logMomentFractional(q: number, sigma: number, alpha: number): number {
  const logQ = Math.log(q);
  const logRest = Math.log1p(-q);
  const z0 = sigma ** 2 * (logRest - logQ) + 0.5;
  const logTailFactor = alpha * logRest - 0.5 * (z0 / sigma) ** 2;
  const half = (power: number, distance: number, logWeight: number): number =>
    distance < 0
      ? logTailFactor + Math.log(0.5 * erfcx(-distance / Math.SQRT2))
      : logWeight + (power * power - power) / (2 * sigma ** 2) + logNormalCdf(distance);
  const total: ScaledSum = { largest: -Infinity, sum: 0 };
  let logChoose = 0;
  let sign = 1;
  for (let k = 0; k < mostTerms; k++) {
    const j = alpha - k;
    const below = logChoose + half(k, (z0 - k) / sigma, k * logQ + j * logRest);
    const above = logChoose + half(j, (j - z0) / sigma, k * logRest + j * logQ);
    const logTerm = Math.max(below, above) + Math.log1p(Math.exp(-Math.abs(below - above)));
    // A_α ≥ 1, hence the share is of the larger of 1 and the sum so far.
    if (k > alpha + 1 && logTerm < Math.log(remainder) + Math.max(0, total.largest)) {
      accumulate(total, logTerm);
      return Math.max(0, total.largest + Math.log(total.sum)) + rounding;
    }
    accumulate(total, logTerm, sign);
    if (j < 0) sign = -sign;
    logChoose += Math.log(Math.abs(j) / (k + 1));
  }
  throw new GhostgradError({
    what: 'the series of the Rényi divergence did not converge',
    where: `order ${alpha}`,
    found: `${mostTerms} terms, q = ${q}, σ = ${sigma}`,
  });
}

/**
 * The orders tried: α − 1 from 1e-3 to 1e5 in steps of 0.1 %, whole from 1024 on. Any order gives a valid ε; the
 * best of this lattice is within 1e-4 of the best of all between its ends, or 2e-5 where ε is small.
 */
const orders: readonly number[] = latticeOfOrders();

/** At this order ε is only bounded: its best order lies below, where ε is in the thousands. */
export const leastOrder = 1 + 1e-3;

function latticeOfOrders(): number[] {
  const count = Math.ceil(Math.log(1e8) / Math.log(1.001));
  const all = Array.from({ length: count + 1 }, (_, i) => 1 + 1e-3 * 1.001 ** i).map((a) =>
    a < 1024 ? a : Math.round(a),
  );
  return [...new Set(all)];
}

/** The divergences of `event`, each order computed once. Throws GhostgradError as {@link rdp} does. */
export const rdpCurve = (event: PrivacyEvent): RdpCurve => remembered(curveOf(event));

function remembered(curve: RdpCurve): RdpCurve {
  const known = new Map<number, number>();
  return (order) => {
    const found = known.get(order);
    if (found !== undefined) return found;
    const value = curve(checkedOrder(order));
    known.set(order, value);
    return value;
  };
}

/**
 * The least ε ≥ 0 over the orders, by the conversion of Canonne, Kamath & Steinke (2020), Proposition 12:
 * ε = D_α + log((α − 1)/α) − (log δ + log α)/(α − 1). A negative value is a stronger claim than ε = 0, hence the 0.
 */
export function epsilonFromRdp(curve: RdpCurve, delta: number): { readonly epsilon: number; readonly order: number } {
  const { value, order } = leastOverOrders(
    (a) => curve(a) + Math.log1p(-1 / a) - (Math.log(delta) + Math.log(a)) / (a - 1),
  );
  return { epsilon: Math.max(0, value), order };
}

/** The least δ ≤ 1 over the orders: the same conversion solved for log δ. */
export function deltaFromRdp(curve: RdpCurve, epsilon: number): { readonly delta: number; readonly order: number } {
  const { value, order } = leastOverOrders((a) => (a - 1) * (curve(a) - epsilon + Math.log1p(-1 / a)) - Math.log(a));
  return { delta: Math.min(1, Math.exp(value)), order };
}

/**
 * The minimum over the lattice. (α − 1)·D_α is convex in α, and so is (α − 1)·log(α − 1) − α·log α: thus log δ is
 * convex and ε, a convex function over α − 1, quasiconvex. Bisection on the sign of the difference finds the least.
 */
function leastOverOrders(objective: (order: number) => number): { value: number; order: number } {
  const at = (i: number): number => {
    const value = objective(orders[i] ?? NaN);
    if (Number.isNaN(value))
      throw new GhostgradError({
        what: 'the Rényi accountant met a value that is not a number',
        where: `order ${orders[i]}`,
      });
    return value;
  };
  let low = 0;
  let high = orders.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (at(middle) <= at(middle + 1)) high = middle;
    else low = middle + 1;
  }
  return { value: at(low), order: orders[low] ?? NaN };
}
