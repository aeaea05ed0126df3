import { GhostgradError } from '../errors.ts';

/**
 * What was released, as far as privacy is concerned: an immutable tree that serialises to JSON as it is. The
 * meaning of a kind never changes; new mechanisms get new kinds, and an accountant refuses a kind that it does
 * not know. Noise is told in units of sensitivity: of how far one neighbour moves the value, whatever the neighbours are.
 */
export type PrivacyEvent =
  /** A value of L2 sensitivity 1 plus N(0, sigma²) in each coordinate. */
  | { readonly kind: 'gaussian'; readonly sigma: number }
  /**
   * On one draw: gradients, as `gaussian(sigma)`, and beside them `counts` numbers that one unit moves by ½ each, with
   * N(0, countSigma²) on each. What a step under adaptive clipping thresholds releases.
   */
  | {
      readonly kind: 'gaussian-with-counts';
      readonly sigma: number;
      readonly counts: number;
      readonly countSigma: number;
    }
  /** A number of sensitivity 1 plus noise of density exp(−|x|/scale)/(2·scale). */
  | { readonly kind: 'laplace'; readonly scale: number }
  /** `event` on a sample that takes each privacy unit independently with probability `rate`. */
  | { readonly kind: 'poisson-sampled'; readonly rate: number; readonly event: PrivacyEvent }
  /**
   * `event` on a Poisson sample that is cut to `most` units, chosen at random, where it has more; of `datasetSize`
   * units or one more.
   */
  | {
      readonly kind: 'truncated-poisson-sampled';
      readonly rate: number;
      readonly most: number;
      readonly datasetSize: number;
      readonly event: PrivacyEvent;
    }
  /**
   * `event` on `sampleSize` of `datasetSize` units, all such subsets equally likely; neighbours replace a unit, and
   * `event` tells its noise in units of what a replacement in the sample changes.
   */
  | {
      readonly kind: 'sampled-without-replacement';
      readonly sampleSize: number;
      readonly datasetSize: number;
      readonly event: PrivacyEvent;
    }
  /** `event` repeated `count` times, each repetition possibly chosen in view of the earlier results. */
  | { readonly kind: 'self-composed'; readonly event: PrivacyEvent; readonly count: number }
  /** All of `events`, each possibly chosen in view of the earlier results. None of them: nothing was released. */
  | { readonly kind: 'composed'; readonly events: readonly PrivacyEvent[] }
  /**
   * `event` run a random, secret number of times, of which only the best result is released: hyperparameter search
   * (Papernot & Steinke 2022).
   */
  | { readonly kind: 'repeat-and-select'; readonly event: PrivacyEvent; readonly runs: Runs };

/**
 * How the number of runs K is drawn. `truncated-negative-binomial`: P(K = k) ∝ (1 − γ)^k·Γ(k + η)/k! for k ≥ 1, with
 * `shape` η > −1 and `gamma` γ in (0, 1); η = 1 is the geometric, η = 0 the logarithmic distribution. `poisson`: K may be
 * 0, and then nothing is released.
 */
export type Runs =
  | { readonly distribution: 'truncated-negative-binomial'; readonly shape: number; readonly gamma: number }
  | { readonly distribution: 'poisson'; readonly mean: number };

/** The event of the kind K. */
export type EventOf<K extends PrivacyEvent['kind']> = Extract<PrivacyEvent, { readonly kind: K }>;

/**
 * Gaussian noise of standard deviation `sigma` times the sensitivity.
 * Throws GhostgradError unless `sigma` is finite and above 0.
 */
export function gaussian(sigma: number): EventOf<'gaussian'> {
  checkPositive('noise multiplier', sigma);
  return Object.freeze({ kind: 'gaussian', sigma });
}

/** Throws GhostgradError unless the deviations are finite and above 0, and `counts` is a whole number ≥ 1. */
export function gaussianWithCounts(
  sigma: number, counts: number, countSigma: number,
): EventOf<'gaussian-with-counts'> {
  checkPositive('noise multiplier', sigma);
  checkPositive('noise on counts', countSigma);
  if (!(Number.isSafeInteger(counts) && counts >= 1)) throw outOfRange('number of counts', counts, whole(1));
  return Object.freeze({ kind: 'gaussian-with-counts', sigma, counts, countSigma });
}

/** Throws GhostgradError unless `scale` is finite and above 0. */
export function laplace(scale: number): EventOf<'laplace'> {
  checkPositive('scale of Laplace noise', scale);
  return Object.freeze({ kind: 'laplace', scale });
}

/** Throws GhostgradError unless 0 < rate ≤ 1. */
export function poissonSampled(rate: number, event: PrivacyEvent): EventOf<'poisson-sampled'> {
  checkRate(rate);
  return Object.freeze({ kind: 'poisson-sampled', rate, event });
}

/** Throws GhostgradError unless 0 < rate ≤ 1 and both sizes are whole numbers ≥ 1. */
export function truncatedPoissonSampled(
  { rate, most, datasetSize }: Pick<EventOf<'truncated-poisson-sampled'>, 'rate' | 'most' | 'datasetSize'>,
  event: PrivacyEvent,
): EventOf<'truncated-poisson-sampled'> {
  checkRate(rate);
  for (const size of [most, datasetSize])
    if (!(Number.isSafeInteger(size) && size >= 1)) throw outOfRange('size of a truncated sample', size, whole(1));
  return Object.freeze({ kind: 'truncated-poisson-sampled', rate, most, datasetSize, event });
}

/** Throws GhostgradError unless both are whole numbers with 1 ≤ sampleSize ≤ datasetSize. */
export function sampledWithoutReplacement(
  { sampleSize, datasetSize }: Pick<EventOf<'sampled-without-replacement'>, 'sampleSize' | 'datasetSize'>,
  event: PrivacyEvent,
): EventOf<'sampled-without-replacement'> {
  if (!(Number.isSafeInteger(datasetSize) && datasetSize >= 1))
    throw outOfRange('size of the data set', datasetSize, whole(1));
  if (!(Number.isSafeInteger(sampleSize) && sampleSize >= 1 && sampleSize <= datasetSize))
    throw outOfRange('size of the sample', sampleSize, `a whole number from 1 to ${datasetSize}`);
  return Object.freeze({ kind: 'sampled-without-replacement', sampleSize, datasetSize, event });
}

/** Throws GhostgradError unless `count` is a whole number ≥ 0; 0 repetitions release nothing. */
export function selfComposed(event: PrivacyEvent, count: number): EventOf<'self-composed'> {
  if (!(Number.isSafeInteger(count) && count >= 0)) throw outOfRange('number of steps', count, whole(0));
  return Object.freeze({ kind: 'self-composed', event, count });
}

export const composed = (events: readonly PrivacyEvent[]): EventOf<'composed'> =>
  Object.freeze({ kind: 'composed', events: Object.freeze([...events]) });

/** Throws GhostgradError for a distribution that is unknown or out of range. */
export function repeatAndSelect(event: PrivacyEvent, runs: Runs): EventOf<'repeat-and-select'> {
  return Object.freeze({ kind: 'repeat-and-select', event, runs: checkedRuns(runs) });
}

function checkedRuns(runs: Runs): Runs {
  switch (runs.distribution) {
    case 'poisson':
      if (!(runs.mean >= 1 && Number.isFinite(runs.mean)))
        throw outOfRange('mean number of runs', runs.mean, 'a finite number of at least 1');
      return Object.freeze({ distribution: 'poisson', mean: runs.mean });
    case 'truncated-negative-binomial': {
      const { shape, gamma } = runs;
      if (!(shape > -1 && Number.isFinite(shape))) throw outOfRange('shape of the number of runs', shape, 'above −1');
      if (!(gamma > 0 && gamma < 1)) throw outOfRange('gamma of the number of runs', gamma, 'between 0 and 1');
      return Object.freeze({ distribution: 'truncated-negative-binomial', shape, gamma });
    }
    default:
      throw new GhostgradError({
        what: 'unknown distribution of the number of runs',
        found: JSON.stringify((runs as { readonly distribution?: unknown }).distribution),
        expected: 'truncated-negative-binomial or poisson',
      });
  }
}

/** `4687 × poisson-sampled(0.0085, gaussian(1.23))` */
export function showEvent(event: PrivacyEvent): string {
  switch (event.kind) {
    case 'gaussian':
      return `gaussian(${event.sigma})`;
    case 'gaussian-with-counts':
      return `gaussian-with-counts(${event.sigma}, ${event.counts} × ${event.countSigma})`;
    case 'laplace':
      return `laplace(${event.scale})`;
    case 'poisson-sampled':
      return `poisson-sampled(${event.rate}, ${showEvent(event.event)})`;
    case 'truncated-poisson-sampled':
      return `truncated-poisson-sampled(${event.rate}, ${event.most} of ${event.datasetSize}, ${showEvent(event.event)})`;
    case 'sampled-without-replacement':
      return `sampled-without-replacement(${event.sampleSize} of ${event.datasetSize}, ${showEvent(event.event)})`;
    case 'self-composed':
      return `${event.count} × ${showEvent(event.event)}`;
    case 'composed':
      return `composed(${event.events.map(showEvent).join(', ')})`;
    case 'repeat-and-select':
      return `repeat-and-select(${showRuns(event.runs)}, ${showEvent(event.event)})`;
  }
}

const showRuns = (runs: Runs): string =>
  runs.distribution === 'poisson' ? `poisson ${runs.mean}` : `negative binomial ${runs.shape}, ${runs.gamma}`;

type Fields = Readonly<Record<string, unknown>>;

/** How each kind is read; `inner` reads the event within. */
const readers: {
  readonly [K in PrivacyEvent['kind']]: (fields: Fields, inner: () => PrivacyEvent, where: string) => PrivacyEvent;
} = {
  'gaussian': (f) => gaussian(number(f['sigma'])),
  'gaussian-with-counts': (f) =>
    gaussianWithCounts(number(f['sigma']), number(f['counts']), number(f['countSigma'])),
  'laplace': (f) => laplace(number(f['scale'])),
  'poisson-sampled': (f, inner) => poissonSampled(number(f['rate']), inner()),
  'truncated-poisson-sampled': (f, inner) =>
    truncatedPoissonSampled(
      { rate: number(f['rate']), most: number(f['most']), datasetSize: number(f['datasetSize']) },
      inner(),
    ),
  'sampled-without-replacement': (f, inner) =>
    sampledWithoutReplacement(
      { sampleSize: number(f['sampleSize']), datasetSize: number(f['datasetSize']) },
      inner(),
    ),
  'self-composed': (f, inner) => selfComposed(inner(), number(f['count'])),
  'composed': (f, _, where) => {
    const { events } = f;
    if (!Array.isArray(events)) throw unreadable(where, 'composed without a list of events');
    return composed(events.map((event, i) => parseEvent(event, `${where}.events.${i}`)));
  },
  'repeat-and-select': (f, inner) => {
    const { distribution, shape, gamma, mean } = fieldsOf(f['runs']);
    return repeatAndSelect(inner(), {
      distribution, shape: number(shape), gamma: number(gamma), mean: number(mean),
    } as Runs);
  },
};

/**
 * The event that `value` (parsed JSON) holds, every number checked.
 * Throws GhostgradError for an unknown kind or a value out of range.
 */
export function parseEvent(value: unknown, where = 'event'): PrivacyEvent {
  const fields = fieldsOf(value);
  const { kind } = fields;
  if (typeof kind !== 'string' || !Object.hasOwn(readers, kind))
    throw unreadable(where, typeof kind === 'string' ? `kind "${kind}"` : 'no kind');
  return readers[kind as PrivacyEvent['kind']](fields, () => parseEvent(fields['event'], `${where}.event`), where);
}

const fieldsOf = (value: unknown): Fields => (typeof value === 'object' && value !== null ? (value as Fields) : {});
const number = (x: unknown): number => (typeof x === 'number' ? x : NaN);

const unreadable = (where: string, found: string): GhostgradError =>
  new GhostgradError({
    what: 'unknown privacy event',
    where,
    found,
    expected: Object.keys(readers).join(', '),
    fix: 'read it with the version of ghostgrad that wrote it',
  });

function checkPositive(what: string, value: number): void {
  if (!(value > 0 && Number.isFinite(value))) throw outOfRange(what, value, 'a finite number above 0');
}

function checkRate(rate: number): void {
  if (!(rate > 0 && rate <= 1)) throw outOfRange('sample rate', rate, 'more than 0 and at most 1');
}

const whole = (least: number): string => `a whole number of at least ${least}`;

const outOfRange = (what: string, found: number, expected: string): GhostgradError =>
  new GhostgradError({ what: `${what} out of range`, found: String(found), expected });
