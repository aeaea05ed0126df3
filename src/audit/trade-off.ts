import { GhostgradError } from '../errors.ts';
import { type PrivacyEvent, deltaOf, epsilonOf, showEvent } from '../privacy/index.ts';
import { resolveAccountant } from '../privacy/accountant.ts';
import { normalQuantile } from './quantile.ts';

/** How well an attacker told two neighbouring data sets apart, on one side of a threshold. */
export interface Rates {
  /** Probability of saying "in the data" where that is so, from below. */
  readonly truePositive: number;
  /** Probability of saying so where it is not, from above. */
  readonly falsePositive: number;
}

/** Of both worlds one may be called the positive one. */
const bothWays = ({ truePositive: t, falsePositive: f }: Rates): readonly (readonly [hit: number, alarm: number])[] =>
  [[t, f], [1 - f, 1 - t]];

/**
 * The largest ε that the rates refute at this δ, whatever the mechanism: (ε, δ)-differential privacy says
 * P[hit] ≤ e^ε·P[alarm] + δ (Kairouz, Oh & Viswanath 2015). 0 where they refute none.
 */
export const epsilonOfRates = (rates: Rates, delta: number): number =>
  Math.max(0, ...bothWays(rates).map(([hit, alarm]) => (hit <= delta || alarm <= 0 ? 0 : Math.log((hit - delta) / alarm))));

/** That the privacy curve of the mechanism has δ(ε) ≥ `excess` at this ε. */
export interface CurvePoint {
  readonly epsilon: number;
  readonly excess: number;
}

/**
 * The ε that a point of the true privacy curve refutes at δ for every event that is `claimed` with another noise: the ε(δ) of
 * the least noise at which the event's own curve lies below the point. Where the claim holds, whatever its noise, that is no
 * more than its ε. Tighter by far than {@link epsilonOfRates}, because rates that are common say little of the one point of the
 * curve whose δ is 1e-5; the price is that the mechanism must be of the claimed kind (Nasr et al. 2023, "Tight Auditing of
 * Differentially Private Machine Learning", do so for the curves of Gaussian mechanisms).
 *
 * @throws GhostgradError for an event without Gaussian noise
 */
export function epsilonOfCurve({ epsilon: at, excess }: CurvePoint, claimed: PrivacyEvent, delta: number): number {
  if (!(excess > 0)) return 0;
  const noised = (logFactor: number): PrivacyEvent => withNoise(claimed, Math.exp(logFactor));
  const beyond = (logFactor: number): number =>
    Math.log(deltaOf(noised(logFactor), at, tightest(claimed)).delta) - Math.log(excess);
  const refuted = firstBelow(beyond);
  if (refuted === undefined) return 0;
  const { epsilon, errorBound } = epsilonOf(noised(refuted), delta, tightest(claimed));
  return Math.max(0, epsilon - (errorBound ?? 0));
}

/**
 * The point of the privacy curve that the rates say most of: at any ε ≥ 0 they show δ(ε) ≥ P[hit] − e^ε·P[alarm]. That holds
 * at whichever ε; taken is the one whose line e^ε touches the curve of N(0, 1) against N(μ, 1) at these rates.
 */
export function pointOfRates({ truePositive: t, falsePositive: f }: Rates): CurvePoint {
  const threshold = -normalQuantile(f);
  const mu = threshold + normalQuantile(t);
  const slope = mu * (threshold - mu / 2);
  const epsilon = Number.isFinite(slope) ? Math.abs(slope) : 0;
  const [hit, alarm] = bothWays({ truePositive: t, falsePositive: f })[slope < 0 ? 1 : 0]!;
  return { epsilon, excess: hit - Math.exp(epsilon) * alarm };
}

/** At ε = 0 the curve is what the best attacker has over a fair coin: twice the accuracy, less 1. */
export const pointOfAccuracy = (accuracy: number): CurvePoint => ({ epsilon: 0, excess: 2 * accuracy - 1 });

/** Noise is sought between these factors of the claimed one, as logarithms. */
const range = { least: -2, most: 4 };

/**
 * Where a falling function first is below 0 in {@link range}, to a thousandth and from above; undefined where it is nowhere.
 * By secants: one question about sampled steps takes tenths of a second.
 */
function firstBelow(f: (x: number) => number): number | undefined {
  const clamped = (x: number): number => Math.min(range.most, Math.max(range.least, x));
  let [x, value, slope] = [0, f(0), -1];
  for (let i = 0; i < 20; i++) {
    const next = clamped(x - value / slope);
    if (Math.abs(next - x) < 1e-3) break;
    const nextValue = f(next);
    const secant = (nextValue - value) / (next - x);
    if (secant < -1e-3) slope = secant;
    [x, value] = [next, nextValue];
  }
  for (let margin = 1e-3; !(value < 0); margin *= 2) {
    if (x === range.most) return undefined;
    x = clamped(x + margin);
    value = f(x);
  }
  return x;
}

const tightest = (event: PrivacyEvent): 'pld' | 'exact-gaussian' =>
  resolveAccountant('auto', event) === 'exact-gaussian' ? 'exact-gaussian' : 'pld';

/** The event with every standard deviation times `factor`. */
export function withNoise(event: PrivacyEvent, factor: number): PrivacyEvent {
  switch (event.kind) {
    case 'gaussian':
      return { ...event, sigma: event.sigma * factor };
    case 'gaussian-with-counts':
      return { ...event, sigma: event.sigma * factor, countSigma: event.countSigma * factor };
    case 'poisson-sampled':
    case 'truncated-poisson-sampled':
    case 'sampled-without-replacement':
    case 'self-composed':
      return { ...event, event: withNoise(event.event, factor) };
    case 'composed':
      return { ...event, events: event.events.map((inner) => withNoise(inner, factor)) };
    default:
      throw new GhostgradError({
        what: 'an event whose noise cannot be scaled', where: 'audit', found: showEvent(event), expected: 'Gaussian noise',
      });
  }
}
