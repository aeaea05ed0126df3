import { ratchet } from '../random/ratchet.ts';
import { addNoise } from '../random/noise.ts';
import { calibrate } from './calibrate.ts';
import { checkDelta, checkEpsilon, outOfRange } from './check.ts';
import { type PrivacyEvent, gaussian } from './events.ts';
import { epsilonOf } from './accountant.ts';
import { accountedDelta, checkReserve, latticeFor, noiseDistance, roundingOf } from './lattice.ts';
import { type Measure, meanOf, measured } from './measures.ts';

export interface MeansOptions {
  /** At least one, each with a number for every record. */
  readonly measured: readonly { readonly measure: Measure; readonly values: Float32Array }[];
  /** The number of records, taken to be public: what sums are divided by. */
  readonly size: number;
  /** Not to be exceeded, at `delta`, by all means together. */
  readonly epsilon: number;
  readonly delta: number;
}

/** Noised means over records, and what they cost each record. */
export interface Means {
  readonly means: Readonly<Record<string, number>>;
  /** Standard deviation of the noise on each mean. */
  readonly deviations: Readonly<Record<string, number>>;
  readonly event: PrivacyEvent;
  readonly epsilon: number;
  readonly delta: number;
}

/**
 * Releases means over all of the records once, with discrete Gaussian noise from keys of their own. One record, added or
 * removed, moves each of M sums by at most ½, hence all of them by √M/2: one Gaussian mechanism of σ = 2σ_m/√M.
 *
 * Throws GhostgradError for targets out of range or that no noise meets.
 */
export function privateMeans({ measured: given, size, epsilon: target, delta }: MeansOptions): Means {
  checkEpsilon(target);
  checkDelta(delta);
  if (!(Number.isSafeInteger(size) && size >= 1)) throw outOfRange('number of records', size, 'a whole number of at least 1');
  const M = given.length;
  const accounted = accountedDelta('discrete', delta);
  const { noiseMultiplier } = calibrate({ epsilon: target, delta: accounted, sampleRate: 1, steps: 1, accountant: 'exact-gaussian' });
  const event = gaussian(noiseMultiplier);
  const { epsilon } = epsilonOf(event, accounted, 'exact-gaussian');
  checkReserve(noiseDistance('discrete', [], 1, M), epsilon, delta);
  const deviation = (noiseMultiplier * Math.sqrt(M)) / 2;
  const noised = deviation * (1 + roundingOf('discrete'));
  const sums = Float64Array.from(given, ({ measure, values }) => measured(values, measure));
  const keys = ratchet();
  keys.advance().noise.use((streamOf) =>
    addNoise([{ label: 'means', values: sums, law: latticeFor({ norm: 0.5, size: 1 }, noised) }], 1, streamOf));
  keys.erase();
  const byName = (value: (measure: Measure, i: number) => number): Readonly<Record<string, number>> =>
    Object.fromEntries(given.map(({ measure }, i) => [measure.name, value(measure, i)]));
  return {
    means: byName((measure, i) => meanOf(sums[i]!, measure, size)),
    deviations: byName(({ low, high }) => ((high - low) * noised) / size),
    event, epsilon, delta,
  };
}
