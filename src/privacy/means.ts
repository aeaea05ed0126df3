import { ratchet } from '../random/ratchet.ts';
import { addNoise } from '../random/noise.ts';
import { calibrate } from './calibrate.ts';
import { checkDelta, checkEpsilon, outOfRange } from './check.ts';
import { type PrivacyEvent, gaussian } from './events.ts';
import { epsilonOf } from './accountant.ts';
import { accountedDelta, checkReserve, latticeFor, noiseDistance, roundingOf } from './lattice.ts';
import { type Measure, meanOf, measured } from './measures.ts';

export interface MeansOptions {
  /** At least one. */
  readonly measures: readonly Measure[];
  /** The number of records, taken to be public: what sums are divided by. */
  readonly size: number;
  /** Not to be exceeded, at `delta`, by all means together. */
  readonly epsilon: number;
  readonly delta: number;
}

/** A release of noised means over records, and what it costs each record; nothing of the data is in it. */
export interface MeansPlan {
  /** Standard deviation of the noise on each mean. */
  readonly deviations: Readonly<Record<string, number>>;
  readonly event: PrivacyEvent;
  readonly epsilon: number;
  readonly delta: number;
  /**
   * The means, with fresh noise. Each call is a release of its own, and costs as much.
   *
   * @param values for each measure, in their order, a number for every record
   */
  readonly release: (values: readonly Float32Array[]) => Readonly<Record<string, number>>;
}

/**
 * Plans means over all of the records, with discrete Gaussian noise from keys of their own. One record, added or
 * removed, moves each of M sums by at most ½, hence all of them by √M/2: one Gaussian mechanism of σ = 2σ_m/√M.
 *
 * Throws GhostgradError for targets out of range or that no noise meets.
 */
export function meansPlan({ measures, size, epsilon: target, delta }: MeansOptions): MeansPlan {
  checkEpsilon(target);
  checkDelta(delta);
  if (!(Number.isSafeInteger(size) && size >= 1)) throw outOfRange('number of records', size, 'a whole number of at least 1');
  const M = measures.length;
  const accounted = accountedDelta('discrete', delta);
  const { noiseMultiplier } = calibrate({ epsilon: target, delta: accounted, sampleRate: 1, steps: 1, accountant: 'exact-gaussian' });
  const event = gaussian(noiseMultiplier);
  const { epsilon } = epsilonOf(event, accounted, 'exact-gaussian');
  checkReserve(noiseDistance('discrete', [], 1, M), epsilon, delta);
  const deviation = (noiseMultiplier * Math.sqrt(M)) / 2;
  const noised = deviation * (1 + roundingOf('discrete'));
  const byName = (value: (measure: Measure, i: number) => number): Readonly<Record<string, number>> =>
    Object.fromEntries(measures.map((measure, i) => [measure.name, value(measure, i)]));
  return {
    deviations: byName(({ low, high }) => ((high - low) * noised) / size),
    event, epsilon, delta,
    release: (values) => {
      const sums = Float64Array.from(measures, (measure, i) => measured(values[i]!, measure));
      const keys = ratchet();
      keys.advance().noise.use((streamOf) =>
        addNoise([{ label: 'means', values: sums, law: latticeFor({ norm: 0.5, size: 1 }, noised) }], 1, streamOf));
      keys.erase();
      return byName((measure, i) => meanOf(sums[i]!, measure, size));
    },
  };
}
