import { GhostgradError } from '../errors.ts';
import { type PrivacyEvent, composed, poissonSampled, repeatAndSelect, sampledWithoutReplacement, selfComposed, showEvent } from './events.ts';

/**
 * Truncated Poisson sampling, accounted for as Poisson sampling that it seldom differs from (Chua et al. 2024): both runs
 * are one unless a draw exceeds the most that it may hold. With τ the probability of that in any of the draws, a total
 * variation between the two on either of the neighbours, (ε, δ) of the Poisson run gives (ε, δ + (1 + e^ε)·τ).
 */
export interface Untruncated {
  /** `event` with Poisson samples in the place of truncated ones. */
  readonly event: PrivacyEvent;
  /** τ, rounded up. */
  readonly variation: number;
}

/**
 * `event` without truncation. Throws GhostgradError where a truncated sample is within another sample or within a
 * selection, where variations do not add up so.
 */
export function untruncated(event: PrivacyEvent): Untruncated {
  switch (event.kind) {
    case 'truncated-poisson-sampled': {
      const { rate, most, datasetSize } = event;
      // Of two neighbours, the larger has at most one unit more than the public size.
      return { event: poissonSampled(rate, whole(event.event)), variation: binomialTail(datasetSize + 1, rate, most) };
    }
    case 'self-composed': {
      const inner = untruncated(event.event);
      return { event: selfComposed(inner.event, event.count), variation: event.count * inner.variation };
    }
    case 'composed': {
      const inner = event.events.map(untruncated);
      return { event: composed(inner.map((e) => e.event)), variation: inner.reduce((sum, e) => sum + e.variation, 0) };
    }
    case 'poisson-sampled':
      return { event: poissonSampled(event.rate, whole(event.event)), variation: 0 };
    case 'sampled-without-replacement':
      return { event: sampledWithoutReplacement(event, whole(event.event)), variation: 0 };
    case 'repeat-and-select':
      return { event: repeatAndSelect(whole(event.event), event.runs), variation: 0 };
    default:
      return { event, variation: 0 };
  }
}

function whole(event: PrivacyEvent): PrivacyEvent {
  const { event: same, variation } = untruncated(event);
  if (variation === 0) return same;
  throw new GhostgradError({
    what: 'truncated Poisson samples within another sample or a selection cannot be accounted for',
    found: showEvent(event),
    expected: 'truncated samples on their own, and compositions of these',
  });
}

/**
 * An upper bound of P(Binomial(n, p) > most), by Chernoff: exp(−n·KL(k/n ‖ p)) for k = most + 1 ≥ n·p, else 1;
 * 0 where n cannot exceed `most`.
 */
export function binomialTail(n: number, p: number, most: number): number {
  const k = most + 1;
  if (k > n) return 0;
  if (k <= n * p) return 1;
  const rest = k === n ? 0 : (n - k) * Math.log((n - k) / n / (1 - p));
  return Math.min(1, Math.exp(-(k * Math.log(k / n / p) + rest)) * (1 + 1e-9));
}
