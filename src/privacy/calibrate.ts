import { GhostgradError } from '../errors.ts';
import { type Accountant, type AccountantName, type Prepared, type PrivacySpent, prepareAccountant, resolveAccountant, resolved } from './accountant.ts';
import { checkDelta, checkEpsilon, checkNoiseMultiplier, checkSampleRate, checkSteps } from './check.ts';
import { type PrivacyEvent, gaussian, poissonSampled } from './events.ts';

interface Target {
  /** The ε not to be exceeded, at `delta`. */
  readonly epsilon: number;
  readonly delta: number;
  readonly accountant?: Accountant | undefined;
}

export interface CalibrationOptions extends Target {
  /** Expected batch size over number of examples; 1 for full-batch steps. */
  readonly sampleRate: number;
  readonly steps: number;
}

export interface Calibrated extends PrivacySpent {
  /** Noise standard deviation over sensitivity. */
  readonly noiseMultiplier: number;
  readonly sampleRate: number;
  readonly steps: number;
}

const stepOf = (sigma: number, rate: number): PrivacyEvent => poissonSampled(rate, gaussian(sigma));

/**
 * The least noise multiplier, to about 1e-5 (under `pld`: 5e-4), whose ε does not exceed the target. The ε returned is the
 * one that this multiplier spends: never above the target, and within as much of it.
 * Throws GhostgradError for options out of range and for targets that no multiplier meets.
 */
export function calibrate(options: CalibrationOptions): Calibrated {
  const { epsilon, delta, sampleRate, steps, accountant } = options;
  checkTarget(options);
  checkSampleRate(sampleRate);
  checkSteps(steps);
  const noiseMultiplier = calibrateNoise((sigma) => stepOf(sigma, sampleRate), steps, { epsilon, delta, accountant });
  return spentBy(noiseMultiplier, sampleRate, steps, { epsilon, delta, accountant });
}

/**
 * The most steps whose ε does not exceed the target. Throws GhostgradError where even one step does.
 */
export function calibrateSteps(
  options: Target & { readonly noiseMultiplier: number; readonly sampleRate: number },
): Calibrated {
  const { noiseMultiplier, sampleRate, epsilon: target, delta, accountant } = options;
  checkTarget(options);
  checkNoiseMultiplier(noiseMultiplier);
  checkSampleRate(sampleRate);
  const event = stepOf(noiseMultiplier, sampleRate);
  const fits = (steps: number): boolean => prepareAccountant(event, accountant).epsilonBounded(steps, delta).value <= target;
  if (!fits(1)) throw unreachable(options, 'more than one step spends');
  let high = 2;
  while (high <= 2 ** 40 && fits(high)) high *= 2;
  let low = high / 2;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return spentBy(noiseMultiplier, sampleRate, low, options);
}

/** The largest sample rate, to about 1e-4, whose ε does not exceed the target. Throws GhostgradError where none is found. */
export function calibrateSampleRate(
  options: Target & { readonly noiseMultiplier: number; readonly steps: number },
): Calibrated {
  const { noiseMultiplier, steps, epsilon: target, delta, accountant } = options;
  checkTarget(options);
  checkNoiseMultiplier(noiseMultiplier);
  checkSteps(steps);
  const fits = (rate: number): boolean =>
    prepareAccountant(stepOf(noiseMultiplier, rate), accountant).epsilonBounded(steps, delta).value <= target;
  let [low, high] = [1, 1];
  while (!fits(low)) {
    [low, high] = [low / 4, low];
    if (low < 1e-12) throw unreachable(options, 'hardly any sampling');
  }
  while (high > low * (1 + 1e-4)) {
    const middle = Math.sqrt(low * high);
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return spentBy(noiseMultiplier, low, steps, options);
}

function checkTarget({ epsilon, delta }: Target): void {
  checkEpsilon(epsilon);
  checkDelta(delta);
}

function spentBy(noiseMultiplier: number, sampleRate: number, steps: number, { delta, accountant }: Target): Calibrated {
  const prepared = prepareAccountant(stepOf(noiseMultiplier, sampleRate), accountant);
  const { value, errorBound } = prepared.epsilonBounded(steps, delta);
  return {
    noiseMultiplier, sampleRate, steps, epsilon: resolved(value), delta, accountant: prepared.name, errorBound,
  };
}

/**
 * The least σ at which `steps` of `eventAt(σ)` stay within the target, for events that grow safer with σ.
 * Throws GhostgradError for targets that no σ meets.
 */
export function calibrateNoise(eventAt: (sigma: number) => PrivacyEvent, steps: number, target: Target): number {
  const { epsilon: most, delta, accountant = 'auto' } = target;
  const name = resolveAccountant(accountant, eventAt(1));
  const fresh = (sigma: number): number => prepareAccountant(eventAt(sigma), name).epsilonBounded(steps, delta).value;
  const answers = new Map<number, number>();
  let like: Prepared | undefined = undefined;
  const epsilonAt = (sigma: number): number => {
    const known = answers.get(sigma);
    if (known !== undefined) return known;
    const value = prepareAccountant(eventAt(sigma), name, like).epsilon(steps, delta);
    answers.set(sigma, value);
    return value;
  };
  let [low, high] = startAt(eventAt, steps, target, name) ?? bracket(epsilonAt, most, target, name);
  // As finely as the end of the bracket asks for, from here on: differences between lattices would not be monotone.
  const fine = prepareAccountant(eventAt(high), name);
  // A lattice for much more noise than is needed does not hold the losses of less.
  if (name === 'pld' && fine.epsilon(steps, delta) < 0.7 * most) return calibratedAfresh(high, fresh, target, name);
  like = fine;
  answers.clear();
  [low, high] = around(low, high, epsilonAt, target, name);
  // ε(high) ≤ target < ε(low) throughout: the end that is kept never exceeds the target.
  for (let pass = 0; high - low > 1e-7 * high && !(epsilonAt(high) >= most * (1 - 1e-5)); pass++) {
    const middle = pass % 3 === 2 ? (low + high) / 2 : between(low, high, epsilonAt, most);
    if (epsilonAt(middle) <= most) high = middle;
    else low = middle;
  }
  // ε is continuous in the noise up to where it grows too large to be resolved.
  if (epsilonAt(high) < most * (1 - 1e-3)) throw unreachable(target, `hardly any noise at all under ${name}`, tooMuch);
  // Asked for afresh, another lattice may say a little more.
  let sigma = high;
  for (let excess = fresh(sigma) / most - 1; excess > 0; excess = fresh(sigma) / most - 1)
    sigma *= 1 + (Number.isFinite(excess) ? excess : 0.1) + 1e-7;
  return sigma;
}

/**
 * As {@link calibrateNoise}, each ε by a lattice of its own, which may differ by some 1e-4 from one σ to the next.
 *
 * @param high a σ that spends less than the target
 */
function calibratedAfresh(high: number, epsilonAt: (sigma: number) => number, target: Target, name: string): number {
  const most = target.epsilon;
  const answers = new Map<number, number>();
  const known = (sigma: number): number => {
    const value = answers.get(sigma) ?? epsilonAt(sigma);
    answers.set(sigma, value);
    return value;
  };
  let low = high;
  while (known(low) <= most) {
    [low, high] = [0.7 * low, low];
    if (low < 1 / mostNoise) throw unreachable(target, `hardly any noise at all under ${name}`, tooMuch);
  }
  for (let pass = 0; high > low * (1 + 1e-5) && known(high) < most * (1 - 5e-5); pass++) {
    const middle = pass % 3 === 2 ? Math.sqrt(low * high) : between(low, high, known, most);
    if (known(middle) <= most) high = middle;
    else low = middle;
  }
  return high;
}

/**
 * Two multipliers close to the answer, where the quicker accountant `rdp` knows the event: its own answer is a little above.
 * Undefined where it does not, or is the one that is asked.
 */
function startAt(
  eventAt: (sigma: number) => PrivacyEvent, steps: number, target: Target, name: AccountantName,
): readonly [number, number] | undefined {
  if (name !== 'pld') return undefined;
  try {
    const sigma = calibrateNoise(eventAt, steps, { ...target, accountant: 'rdp' });
    return [sigma * 0.9, sigma];
  } catch (error) {
    if (error instanceof GhostgradError) return undefined;
    throw error;
  }
}

/** low and high, moved apart or along until ε(high) ≤ most < ε(low), a little further each time. */
function around(
  low: number, high: number, epsilonAt: (sigma: number) => number, target: Target, name: string,
): readonly [number, number] {
  const most = target.epsilon;
  let factor = 1.001;
  while (!(epsilonAt(high) <= most)) {
    [low, high] = [high, high * factor];
    factor **= 2;
    if (high > mostNoise) throw unreachable(target, `more noise than can be added under ${name}`);
  }
  for (factor = 1.001; epsilonAt(low) <= most; factor **= 2) {
    [low, high] = [low / factor, low];
    if (low < 1 / mostNoise) throw unreachable(target, `hardly any noise at all under ${name}`, tooMuch);
  }
  return [low, high];
}

/** Where a line through both ends, in logarithms, meets the target; a little to the safe side, and within. */
function between(low: number, high: number, epsilonAt: (sigma: number) => number, most: number): number {
  const [above, below] = [Math.log(epsilonAt(low) / most), Math.log(epsilonAt(high) / most)];
  if (!(Number.isFinite(above) && Number.isFinite(below) && above > below)) return (low + high) / 2;
  const share = Math.min(0.99, Math.max(0.01, above / (above - below) + 2e-6 / (above - below)));
  return low * (high / low) ** share;
}

/** low and high with ε(high) ≤ target < ε(low), at most a factor of 2 apart. */
function bracket(
  epsilonAt: (sigma: number) => number, most: number, target: Target, name: string,
): readonly [number, number] {
  let high = 1;
  while (!(epsilonAt(high) <= most)) {
    high *= 2;
    // Where orders are finite there is an ε that no noise gets below; worth a look once much noise is needed.
    if (high === 1024 && !(epsilonAt(mostNoise) <= most))
      throw unreachable(target, `more noise than can be added under ${name}`);
  }
  let low = high / 2;
  while (epsilonAt(low) <= most) {
    high = low;
    low /= 2;
    if (low < 1 / mostNoise) throw unreachable(target, `hardly any noise at all under ${name}`, tooMuch);
  }
  return [low, high];
}

const mostNoise = 2 ** 40;

const tooMuch = 'choose a smaller δ: at this one ε may be met without noise, as units are hardly ever sampled; or a smaller ε';

const unreachable = (
  { epsilon, delta }: Target, needs: string, fix = 'choose ε between 0.01 and 100, or a larger δ',
): GhostgradError =>
  new GhostgradError({
    what: 'no noise multiplier meets this target',
    where: `epsilon ${epsilon}, delta ${delta}`,
    found: needs,
    fix,
  });
