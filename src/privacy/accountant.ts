import { GhostgradError } from '../errors.ts';
import { unknownName } from '../suggest.ts';
import { checkDelta, checkEpsilon } from './check.ts';
import type { PrivacyEvent } from './events.ts';
import { gaussianDelta, gaussianEpsilon, gaussianMu, notPureGaussian } from './exact-gaussian.ts';
import { centralLimitMu } from './gdp.ts';
import { type Settings, lossAccount } from './pld.ts';
import { deltaFromRdp, epsilonFromRdp, leastOrder, rdpCurve } from './rdp.ts';
import { untruncated } from './truncation.ts';

/** The accountants that a user may name; `auto` is the tightest valid one for the event. */
export type Accountant = 'auto' | 'pld' | 'rdp' | 'gdp' | 'exact-gaussian';

/** The accountants that compute. */
export type AccountantName = Exclude<Accountant, 'auto'>;

/** A number of ε or δ as an accountant gives it. */
export interface Bounded {
  /** What is claimed: never below the true value, unless the accountant is {@link isApproximate}. */
  readonly value: number;
  /** How far above the true value it is at most; null where that is not known. */
  readonly errorBound: number | null;
}

export interface PrivacySpent {
  readonly epsilon: number;
  readonly delta: number;
  /** The accountant used: never `auto`. */
  readonly accountant: AccountantName;
  /** How far what was asked for is above the true value at most; null under `rdp`, whose slack is unknown, and `gdp`. */
  readonly errorBound: number | null;
}

/** An event made ready for repeated questions about `count` repetitions of it. */
export interface Prepared {
  /** ε after `count` repetitions; cheap for fewer repetitions than were asked for before. */
  epsilon(count: number, delta: number): number;
  epsilonBounded(count: number, delta: number): Bounded;
  deltaBounded(count: number, epsilon: number): Bounded;
  /** How finely the last question was computed, for {@link prepareAccountant} of a similar event. */
  readonly settings?: Settings | undefined;
}

type Prepare = (event: PrivacyEvent, settings?: Settings) => Prepared;

/**
 * How each accountant prepares an event; it throws GhostgradError for an event that it does not understand.
 * To add an accountant, give it an entry here.
 */
const accountants: { readonly [A in AccountantName]: Prepare } = {
  'pld': (event, settings) => {
    const account = lossAccount(event, settings);
    const moments = once(() => attempt(() => accountants.rdp(event)));
    // Where losses cannot be resolved on any lattice, what Rényi divergences say holds as well: both are upper bounds.
    const finite = (value: number, count: number, delta: number): number =>
      Number.isFinite(value) ? value : (moments()?.epsilon(count, delta) ?? value);
    return {
      epsilon: (count, delta) => finite(account.epsilon(count, delta), count, delta),
      epsilonBounded: (count, delta) => {
        const { low, high } = account.epsilonBounds(count, delta);
        return between({ low, high: finite(high, count, delta) });
      },
      deltaBounded: (count, epsilon) => {
        const { low, high } = account.deltaBounds(count, epsilon);
        return between({ low, high: high < 1 ? high : (moments()?.deltaBounded(count, epsilon).value ?? high) });
      },
      get settings() {
        return account.grid;
      },
    };
  },
  'rdp': (event) => {
    const curve = rdpCurve(event);
    const epsilon = (count: number, delta: number): number => {
      const found = epsilonFromRdp((a) => count * curve(a), delta);
      // Bounded but not resolved: better a large number than none while calibrating, refused at the end.
      return found.order <= leastOrder && found.epsilon > 0 ? Infinity : found.epsilon;
    };
    return {
      epsilon,
      epsilonBounded: (count, delta) => ({ value: epsilon(count, delta), errorBound: null }),
      deltaBounded: (count, target) => ({
        value: deltaFromRdp((a) => count * curve(a), target).delta,
        errorBound: null,
      }),
    };
  },
  'gdp': (event) => gaussianWith(centralLimitMu(event), () => null),
  // Bisection stops within 1e-13 of ε, and δ is as exact as its special functions.
  'exact-gaussian': (event) => gaussianWith(gaussianMu(event), (value) => value * 1e-12),
};

const between = ({ low, high }: { readonly low: number; readonly high: number }): Bounded => ({
  value: high,
  errorBound: Math.max(0, high - low),
});

function once<T>(make: () => T): () => T {
  let made: { readonly value: T } | undefined;
  return () => (made ??= { value: make() }).value;
}

/** What `make` makes, or undefined where it refuses. */
function attempt<T>(make: () => T): T | undefined {
  try {
    return make();
  } catch (error) {
    if (error instanceof GhostgradError) return undefined;
    throw error;
  }
}

function gaussianWith(mu: number, error: (value: number) => number | null): Prepared {
  const epsilon = (count: number, delta: number): number => gaussianEpsilon(mu * Math.sqrt(count), delta);
  const bounded = (value: number): Bounded => ({ value, errorBound: error(value) });
  return {
    epsilon,
    epsilonBounded: (count, delta) => bounded(epsilon(count, delta)),
    deltaBounded: (count, target) => bounded(gaussianDelta(mu * Math.sqrt(count), target)),
  };
}

/** Whether what this accountant says is no guarantee: `gdp` takes finitely many steps for infinitely many. */
export const isApproximate = (name: AccountantName): boolean => name === 'gdp';

/**
 * The accountant that `name` stands for, given `event`: `auto` is exact where all of the data take part in every release of
 * Gaussian noise, else `pld`, or `rdp` where that does not know the event. Throws GhostgradError for unknown names.
 */
export function resolveAccountant(name: Accountant, event: PrivacyEvent): AccountantName {
  if (name === 'auto') {
    if (notPureGaussian(event) === undefined) return 'exact-gaussian';
    return attempt(() => lossAccount(untruncated(event).event)) === undefined ? 'rdp' : 'pld';
  }
  if (Object.hasOwn(accountants, name)) return name;
  throw unknownName('accountant', String(name), ['auto', ...Object.keys(accountants)], 'accountant');
}

/**
 * ε and δ after any number of repetitions of `event`; what depends on the event alone is computed once. With `like`, made
 * by the same accountant for a similar event, numbers are computed as finely as there, hence change smoothly between them.
 * Throws GhostgradError when the accountant cannot account for the event.
 */
export function prepareAccountant(
  event: PrivacyEvent, accountant: Accountant = 'auto', like?: Prepared,
): Prepared & { readonly name: AccountantName } {
  const { event: plain, variation } = untruncated(event);
  const name = resolveAccountant(accountant, plain);
  const prepared = accountants[name](plain, like?.settings);
  const nothing: Bounded = { value: 0, errorBound: 0 };
  let solved: { readonly count: number; readonly delta: number; readonly epsilon: number } | undefined;
  const truncated = (count: number, delta: number): number => {
    if (variation === 0) return prepared.epsilon(count, delta);
    // Fewer repetitions spend no more ε, hence have no less δ left than was left for more of them.
    if (solved !== undefined && solved.delta === delta && count < solved.count && Number.isFinite(solved.epsilon))
      return Math.min(solved.epsilon, prepared.epsilon(count, delta - (1 + Math.exp(solved.epsilon)) * (solved.count * variation)));
    const epsilon = withVariation(count * variation, delta, (d) => prepared.epsilon(count, d));
    solved = { count, delta, epsilon };
    return epsilon;
  };
  return {
    name,
    epsilon: (count, delta) => (count === 0 ? 0 : truncated(count, delta)),
    epsilonBounded: (count, delta) => {
      if (count === 0) return nothing;
      return variation === 0 ? prepared.epsilonBounded(count, delta) : { value: truncated(count, delta), errorBound: null };
    },
    deltaBounded: (count, epsilon) => {
      if (count === 0) return nothing;
      const { value, errorBound } = prepared.deltaBounded(count, epsilon);
      if (variation === 0) return { value, errorBound };
      return { value: Math.min(1, value + (1 + Math.exp(epsilon)) * count * variation), errorBound: null };
    },
    get settings() {
      return prepared.settings;
    },
  };
}

/** The ε with ε(δ − (1 + e^ε)·variation) ≤ ε, found from below; Infinity where there is none. */
function withVariation(variation: number, delta: number, epsilonAt: (delta: number) => number): number {
  if (variation === 0) return epsilonAt(delta);
  let epsilon = 0;
  for (let pass = 0; pass < 60; pass++) {
    const left = delta - (1 + Math.exp(epsilon)) * variation;
    if (!(left > 0)) return Infinity;
    const next = epsilonAt(left);
    if (next <= epsilon) return epsilon;
    // A little more than needed, so that it ends.
    epsilon = next * (1 + 1e-9);
  }
  return Infinity;
}

/**
 * The ε at which `event` is (ε, δ)-differentially private: an upper bound under `pld` and `rdp`, exact under
 * `exact-gaussian`, and under `gdp` an approximation that claims less than is spent. Throws GhostgradError for δ outside
 * of (0, 1), for an accountant that cannot account for the event, and where ε is too large to be resolved.
 */
export function epsilonOf(event: PrivacyEvent, delta: number, accountant: Accountant = 'auto'): PrivacySpent {
  checkDelta(delta);
  const { name, epsilonBounded } = prepareAccountant(event, accountant);
  const { value, errorBound } = epsilonBounded(1, delta);
  return { epsilon: resolved(value), delta, accountant: name, errorBound };
}

/** The δ at which `event` is (ε, δ)-differentially private. Throws GhostgradError as {@link epsilonOf} does. */
export function deltaOf(event: PrivacyEvent, epsilon: number, accountant: Accountant = 'auto'): PrivacySpent {
  return deltaCurve(event, [epsilon], accountant)[0]!;
}

/** δ at each of several ε: points of the whole privacy curve. Throws GhostgradError as {@link epsilonOf} does. */
export function deltaCurve(
  event: PrivacyEvent, epsilons: readonly number[], accountant: Accountant = 'auto',
): readonly PrivacySpent[] {
  for (const epsilon of epsilons) if (!(epsilon >= 0 && Number.isFinite(epsilon))) checkEpsilon(epsilon);
  const { name, deltaBounded } = prepareAccountant(event, accountant);
  return epsilons.map((epsilon) => {
    const { value, errorBound } = deltaBounded(1, epsilon);
    return { epsilon, delta: resolved(value), accountant: name, errorBound };
  });
}

/** `epsilon` itself; throws GhostgradError where the accountant gave no finite number. */
export function resolved(value: number): number {
  if (Number.isFinite(value) && value >= 0) return value;
  throw new GhostgradError({
    what: 'the noise is too small for a meaningful ε',
    found: 'an ε too large to be resolved',
    fix: 'raise the noise multiplier, or lower the sample rate or the number of steps',
  });
}
