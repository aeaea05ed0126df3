import { GhostgradError } from '../errors.ts';

/**
 * What was released, as far as privacy is concerned: an immutable tree that serialises to JSON as it is. The
 * meaning of a kind never changes; new mechanisms get new kinds, and an accountant refuses a kind that it does
 * not know.
 */
export type PrivacyEvent =
  /** A value of L2 sensitivity 1 plus N(0, sigma²) in each coordinate. */
  | { readonly kind: 'gaussian'; readonly sigma: number }
  /** `event` on a sample that takes each privacy unit independently with probability `rate`. */
  | { readonly kind: 'poisson-sampled'; readonly rate: number; readonly event: PrivacyEvent }
  /** `event` repeated `count` times, each repetition possibly chosen in view of the earlier results. */
  | { readonly kind: 'self-composed'; readonly event: PrivacyEvent; readonly count: number }
  /** All of `events`, each possibly chosen in view of the earlier results. None of them: nothing was released. */
  | { readonly kind: 'composed'; readonly events: readonly PrivacyEvent[] };

/**
 * Gaussian noise of standard deviation `sigma` times the sensitivity.
 * Throws GhostgradError unless `sigma` is finite and above 0.
 */
export function gaussian(sigma: number): PrivacyEvent {
  if (!(sigma > 0 && Number.isFinite(sigma))) throw outOfRange('noise multiplier', sigma, 'a finite number above 0');
  return Object.freeze({ kind: 'gaussian', sigma });
}

/** Throws GhostgradError unless 0 < rate ≤ 1. */
export function poissonSampled(rate: number, event: PrivacyEvent): PrivacyEvent {
  if (!(rate > 0 && rate <= 1)) throw outOfRange('sample rate', rate, 'more than 0 and at most 1');
  return Object.freeze({ kind: 'poisson-sampled', rate, event });
}

/** Throws GhostgradError unless `count` is a whole number ≥ 0; 0 repetitions release nothing. */
export function selfComposed(event: PrivacyEvent, count: number): PrivacyEvent {
  if (!(Number.isSafeInteger(count) && count >= 0))
    throw outOfRange('number of steps', count, 'a whole number of at least 0');
  return Object.freeze({ kind: 'self-composed', event, count });
}

export const composed = (events: readonly PrivacyEvent[]): PrivacyEvent =>
  Object.freeze({ kind: 'composed', events: Object.freeze([...events]) });

/** `4687 × poisson-sampled(0.0085, gaussian(1.23))` */
export function showEvent(event: PrivacyEvent): string {
  switch (event.kind) {
    case 'gaussian':
      return `gaussian(${event.sigma})`;
    case 'poisson-sampled':
      return `poisson-sampled(${event.rate}, ${showEvent(event.event)})`;
    case 'self-composed':
      return `${event.count} × ${showEvent(event.event)}`;
    case 'composed':
      return `composed(${event.events.map(showEvent).join(', ')})`;
  }
}

/**
 * The event that `value` (parsed JSON) holds, every number checked.
 * Throws GhostgradError for an unknown kind or a value out of range.
 */
export function parseEvent(value: unknown, where = 'event'): PrivacyEvent {
  const fields = typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
  const { kind, sigma, rate, event, count, events } = fields;
  const number = (x: unknown): number => (typeof x === 'number' ? x : NaN);
  switch (kind) {
    case 'gaussian':
      return gaussian(number(sigma));
    case 'poisson-sampled':
      return poissonSampled(number(rate), parseEvent(event, `${where}.event`));
    case 'self-composed':
      return selfComposed(parseEvent(event, `${where}.event`), number(count));
    case 'composed':
      if (Array.isArray(events)) return composed(events.map((e, i) => parseEvent(e, `${where}.events.${i}`)));
  }
  throw new GhostgradError({
    what: 'unknown privacy event',
    where,
    found: typeof kind === 'string' ? `kind "${kind}"` : 'no kind',
    expected: 'gaussian, poisson-sampled, self-composed or composed',
    fix: 'read it with the version of ghostgrad that wrote it',
  });
}

const outOfRange = (what: string, found: number, expected: string): GhostgradError =>
  new GhostgradError({ what: `${what} out of range`, found: String(found), expected });
