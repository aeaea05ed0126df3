import { GhostgradError } from '../errors.ts';
import { unknownName } from '../suggest.ts';
import { checkDelta, checkEpsilon, checkSampleRate, checkSteps } from './check.ts';
import { type PrivacyEvent, gaussian, poissonSampled } from './events.ts';
import { gaussianDelta, gaussianEpsilon, gaussianMu, notPureGaussian } from './exact-gaussian.ts';
import { deltaFromRdp, epsilonFromRdp, leastOrder, rdpCurve } from './rdp.ts';

/** The accountants that a user may name; `auto` is the tightest valid one for the event. */
export type Accountant = 'auto' | 'pld' | 'rdp' | 'gdp' | 'exact-gaussian';

/** The accountants that compute. */
export type AccountantName = 'rdp' | 'exact-gaussian';

export interface PrivacySpent {
  readonly epsilon: number;
  readonly delta: number;
  /** The accountant used: never `auto`. */
  readonly accountant: AccountantName;
}

/** An event made ready for repeated questions about `count` repetitions of it. */
interface Prepared {
  epsilon(count: number, delta: number): number;
  delta(count: number, epsilon: number): number;
}

/**
 * How each accountant prepares an event; it throws GhostgradError for an event that it does not understand.
 * To add an accountant, give it an entry here.
 */
const accountants: { readonly [A in AccountantName]: (event: PrivacyEvent) => Prepared } = {
  'rdp': (event) => {
    const curve = rdpCurve(event);
    return {
      epsilon: (count, delta) => {
        const { epsilon, order } = epsilonFromRdp((a) => count * curve(a), delta);
        // Bounded but not resolved: better a large number than none while calibrating, refused at the end.
        return order <= leastOrder && epsilon > 0 ? Infinity : epsilon;
      },
      delta: (count, epsilon) => deltaFromRdp((a) => count * curve(a), epsilon).delta,
    };
  },
  'exact-gaussian': (event) => {
    const mu = gaussianMu(event);
    return {
      epsilon: (count, delta) => gaussianEpsilon(mu * Math.sqrt(count), delta),
      delta: (count, epsilon) => gaussianDelta(mu * Math.sqrt(count), epsilon),
    };
  },
};

/** Accountants that the contract names and that do not exist yet. */
const toCome: Readonly<Record<string, string>> = {
  pld: 'the privacy-loss-distribution accountant is not there yet',
  gdp: 'the Gaussian-DP accountant is not there yet (and its central-limit form claims less ε than is spent)',
};

/**
 * The accountant that `name` stands for, given `event`: `auto` is exact where all of the data take part in every
 * release, else RDP. Throws GhostgradError for `pld` and `gdp` and for unknown names.
 */
export function resolveAccountant(name: Accountant, event: PrivacyEvent): AccountantName {
  if (name === 'auto') return notPureGaussian(event) === undefined ? 'exact-gaussian' : 'rdp';
  if (Object.hasOwn(accountants, name)) return name as AccountantName;
  const reason = Object.hasOwn(toCome, name) ? toCome[name] : undefined;
  if (reason === undefined)
    throw unknownName('accountant', String(name), ['auto', ...Object.keys(accountants)], 'accountant');
  throw new GhostgradError({
    what: `accountant "${name}" cannot be used: ${reason}`,
    where: 'accountant',
    expected: `one of auto, ${Object.keys(accountants).join(', ')}`,
    fix: 'use "auto" or "rdp"',
  });
}

/**
 * ε and δ after any number of repetitions of `event`; what depends on the event alone is computed once.
 * Throws GhostgradError when the accountant cannot account for the event.
 */
export function prepareAccountant(
  event: PrivacyEvent,
  accountant: Accountant = 'auto',
): Prepared & { readonly name: AccountantName } {
  const name = resolveAccountant(accountant, event);
  const prepared = accountants[name](event);
  return {
    name,
    epsilon: (count, delta) => (count === 0 ? 0 : prepared.epsilon(count, delta)),
    delta: (count, epsilon) => (count === 0 ? 0 : prepared.delta(count, epsilon)),
  };
}

/**
 * The ε at which `event` is (ε, δ)-differentially private: an upper bound under `rdp`, exact under
 * `exact-gaussian`. Throws GhostgradError for δ outside of (0, 1), for an accountant that cannot account for
 * the event, and where ε is too large to be resolved (in the thousands).
 */
export function epsilonOf(event: PrivacyEvent, delta: number, accountant: Accountant = 'auto'): PrivacySpent {
  checkDelta(delta);
  const { name, epsilon } = prepareAccountant(event, accountant);
  return { epsilon: resolved(epsilon(1, delta)), delta, accountant: name };
}

/** The δ at which `event` is (ε, δ)-differentially private. Throws GhostgradError as {@link epsilonOf} does. */
export function deltaOf(event: PrivacyEvent, epsilon: number, accountant: Accountant = 'auto'): PrivacySpent {
  if (!(epsilon >= 0 && Number.isFinite(epsilon))) checkEpsilon(epsilon);
  const { name, delta } = prepareAccountant(event, accountant);
  return { epsilon, delta: resolved(delta(1, epsilon)), accountant: name };
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

export interface CalibrationOptions {
  readonly epsilon: number;
  readonly delta: number;
  /** Expected batch size over number of examples; 1 for full-batch steps. */
  readonly sampleRate: number;
  readonly steps: number;
  readonly accountant?: Accountant | undefined;
}

export interface Calibrated extends PrivacySpent {
  /** Noise standard deviation over sensitivity. */
  readonly noiseMultiplier: number;
}

/**
 * The least noise multiplier, to about 1e-5, whose ε does not exceed the target. The ε returned is the one that
 * this multiplier spends: never above the target, and within 1e-4 of it.
 * Throws GhostgradError for options out of range and for targets that no multiplier meets.
 */
export function calibrate(options: CalibrationOptions): Calibrated {
  const { epsilon: target, delta, sampleRate, steps, accountant = 'auto' } = options;
  checkEpsilon(target);
  checkDelta(delta);
  checkSampleRate(sampleRate);
  checkSteps(steps);
  const stepOf = (sigma: number): PrivacyEvent => poissonSampled(sampleRate, gaussian(sigma));
  const name = resolveAccountant(accountant, stepOf(1));
  const epsilonAt = (sigma: number): number => prepareAccountant(stepOf(sigma), name).epsilon(steps, delta);

  let high = 1;
  while (!(epsilonAt(high) <= target)) {
    high *= 2;
    // Orders are finite, so there is an ε that no noise gets below; worth a look once much noise is needed.
    if (high === 1024 && !(epsilonAt(mostNoise) <= target))
      throw unreachable(target, delta, name, 'more noise than can be added');
  }
  let low = high / 2;
  while (epsilonAt(low) <= target) {
    high = low;
    low /= 2;
    if (low < 1 / mostNoise) throw unreachable(target, delta, name, 'hardly any noise at all');
  }
  // ε(high) ≤ target < ε(low) throughout: the end that is kept never exceeds the target.
  while (high - low > 1e-12 * high && !(epsilonAt(high) >= target * (1 - 1e-5))) {
    const middle = (low + high) / 2;
    if (epsilonAt(middle) <= target) high = middle;
    else low = middle;
  }
  const epsilon = epsilonAt(high);
  // ε is continuous in the noise up to where it grows too large to be resolved.
  if (epsilon < target * (1 - 1e-4)) throw unreachable(target, delta, name, 'hardly any noise at all');
  return { noiseMultiplier: high, epsilon, delta, accountant: name };
}

const mostNoise = 2 ** 40;

const unreachable = (target: number, delta: number, accountant: string, needs: string): GhostgradError =>
  new GhostgradError({
    what: 'no noise multiplier meets this target',
    where: `epsilon ${target}, delta ${delta}`,
    found: `${needs} under ${accountant}`,
    fix: 'choose ε between 0.01 and 100, or a larger δ',
  });
