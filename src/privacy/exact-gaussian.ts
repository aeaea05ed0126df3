import { GhostgradError } from '../errors.ts';
import { type PrivacyEvent, showEvent } from './events.ts';
import { log1mExp, logNormalCdf, logNormalDensity, millsRatio } from './special.ts';

/**
 * The first part of `event` that is not Gaussian noise on all of the data, or undefined when there is none. A sample
 * of all of the data samples nothing.
 */
export function notPureGaussian(event: PrivacyEvent): PrivacyEvent | undefined {
  switch (event.kind) {
    case 'gaussian':
    case 'gaussian-with-counts':
      return undefined;
    case 'poisson-sampled':
      return event.rate === 1 ? notPureGaussian(event.event) : event;
    case 'sampled-without-replacement':
      return event.sampleSize === event.datasetSize ? notPureGaussian(event.event) : event;
    case 'self-composed':
      return notPureGaussian(event.event);
    case 'composed':
      return event.events.map(notPureGaussian).find((part) => part !== undefined);
    default:
      return event;
  }
}

/**
 * The μ of the one Gaussian mechanism, N(0, 1) against N(μ, 1), that `event` is exactly equivalent to:
 * √Σ 1/σ², since composing Gaussian mechanisms is one in more dimensions (Balle & Wang 2018).
 * Throws GhostgradError when `event` samples.
 */
export function gaussianMu(event: PrivacyEvent): number {
  const part = notPureGaussian(event);
  if (part !== undefined) {
    throw new GhostgradError({
      what: 'the exact-gaussian accountant cannot account for this event',
      found: showEvent(part),
      expected: 'Gaussian noise on all of the data (sample rate 1)',
      fix: 'use the accountant "pld", or "auto"',
    });
  }
  return Math.sqrt(sumOfSquares(event));
}

function sumOfSquares(event: PrivacyEvent): number {
  switch (event.kind) {
    case 'gaussian':
      return event.sigma ** -2;
    case 'gaussian-with-counts':
      return event.sigma ** -2 + event.counts / (4 * event.countSigma ** 2);
    case 'poisson-sampled':
    case 'sampled-without-replacement':
      return sumOfSquares(event.event);
    case 'self-composed':
      return event.count * sumOfSquares(event.event);
    case 'composed':
      return event.events.reduce((sum, e) => sum + sumOfSquares(e), 0);
    default:
      return NaN;
  }
}

/**
 * log δ(ε) of the Gaussian mechanism: δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle & Wang 2018, Theorem 8), where
 * the two terms nearly cancel for small δ. As e^ε·φ(b) = φ(a) for b = ε/μ + μ/2, a = ε/μ − μ/2, it is
 * φ(a)·(M(a) − M(b)) with the Mills ratio M, which keeps relative precision.
 */
export function gaussianLogDelta(mu: number, epsilon: number): number {
  if (mu === 0) return -Infinity;
  const a = epsilon / mu - mu / 2;
  const b = epsilon / mu + mu / 2;
  // Here δ is below 1e-200000, and the first term, a bound, says enough.
  if (a > 1000) return logNormalDensity(a) + Math.log(millsRatio(a));
  // For tiny μ even the ratios nearly cancel: by the midpoint rule, with M'(x) = x·M(x) − 1.
  if (mu < 1e-5) return logNormalDensity(a) + Math.log(mu * (1 - (epsilon / mu) * millsRatio(epsilon / mu)));
  if (a > 0 || mu < 1) return logNormalDensity(a) + Math.log(millsRatio(a) - millsRatio(b));
  return logNormalCdf(-a) + log1mExp(logNormalDensity(a) + Math.log(millsRatio(b)) - logNormalCdf(-a));
}

/** δ(ε) of the Gaussian mechanism. */
export const gaussianDelta = (mu: number, epsilon: number): number => Math.exp(gaussianLogDelta(mu, epsilon));

/**
 * The least ε ≥ 0 at which the Gaussian mechanism is (ε, δ)-differentially private, rounded up by less than 1e-12
 * relative. 0 when δ is at least the total variation 2Φ(μ/2) − 1.
 */
export function gaussianEpsilon(mu: number, delta: number): number {
  const target = Math.log(delta);
  if (gaussianLogDelta(mu, 0) <= target) return 0;
  let high = 1;
  // Written so that NaN counts as too large a δ, never as small enough.
  while (!(gaussianLogDelta(mu, high) <= target) && Number.isFinite(high)) high *= 2;
  let low = high === 1 ? 0 : high / 2;
  while (high - low > 1e-13 * high) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) break;
    if (gaussianLogDelta(mu, middle) <= target) high = middle;
    else low = middle;
  }
  if (!Number.isFinite(high)) {
    throw new GhostgradError({ what: 'ε is not finite', found: `μ = ${mu}, δ = ${delta}`, fix: 'use more noise' });
  }
  return high;
}
