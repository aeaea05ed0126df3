import { GhostgradError } from '../errors.ts';
import { type Lattice, continuousDeviation, mostLevels, statisticalDistance } from '../random/discrete-gaussian.ts';
import { type GradualNoise, gradualNoise } from '../random/gradual.ts';
import type { NoiseLaw } from '../random/noise.ts';
import { type NoiseScale, noiseDeviations } from './allocation.ts';
import { type FirstRelease, mostReleases } from './gradual.ts';
import type { Group, Groups } from './groups.ts';

/** Where the noise lives: real numbers rounded to floats, or the integers of a grid. */
export type Noise = 'float' | 'discrete';

export const noises: readonly Noise[] = ['discrete', 'float'];

/**
 * ν: how much further than the threshold apart, relative to it, rounding may take the sums of two neighbours (docs/noise.md
 * has the proof). Discrete noise grows by as much; of float noise, rounding is not accounted for.
 */
export const roundingOf = (noise: Noise): number => (noise === 'discrete' ? toGrid + additions : 0);

/** By rounding to the grid: each of a group's d numbers by half a point in either sum, √d·g together. */
const toGrid = 7 * 2 ** -13;
/** By adding up the micro-batches, see {@link checkAdditions}. */
const additions = 2 ** -13;

/**
 * A sum of float32 and float32 remainder is wrong by less than 2^-47.8 of the partial sum for every addition and for its
 * reading, and a partial sum over n units is at most n·C(1+ρ) in norm: for two neighbours, 2·n·parts·2^-47.8 of C(1+ρ).
 */
const mostAdditions = 2 ** 33;

/**
 * Throws GhostgradError where a sum over `units` units in `parts` micro-batches may be rounded by more than is accounted for.
 * Depends on the draw's size alone; docs/noise.md says how unlikely it is for batches of a size that is not refused at once.
 */
export function checkAdditions(units: number, parts: number): void {
  if (units * parts <= mostAdditions) return;
  throw new GhostgradError({
    what: 'a batch of so many micro-batches that rounding in adding them up is not covered by the noise',
    where: 'performance.microBatch',
    found: `${units} units in ${parts} micro-batches`,
    expected: `at most ${mostAdditions} as the product of the two`,
    fix: 'larger micro-batches',
  });
}

/**
 * The least power of two of units in a micro-batch at which {@link checkAdditions} takes all draws but those that are most
 * unlikely: batches of the size itself where it is `fixed`, else twice as large ones.
 */
export function leastMicroBatch(batchSize: number, fixed: boolean): number {
  const units = (fixed ? 1 : 2) * batchSize;
  // What is left of a batch makes a few smaller ones.
  const parts = Math.max(1, mostAdditions / units - 4);
  return 2 ** Math.ceil(Math.log2(Math.max(1, units / parts)));
}

/**
 * The grid and levels of noise of standard deviation `deviation` (of the continuous Gaussian that it is as private as) on
 * `size` numbers, of which one unit changes the sum by `norm`: the fewest levels at which √size·g ≤ 7·2^-13·norm. All of it
 * follows from public numbers.
 *
 * @throws GhostgradError where the noise is too large for any
 */
export function latticeFor({ norm, size }: Pick<Group, 'norm' | 'size'>, deviation: number): Lattice {
  for (let levels = 1; levels <= mostLevels; levels++) {
    const grid = deviation / continuousDeviation(levels);
    if (Math.sqrt(size) * grid <= toGrid * norm) return { grid, levels };
  }
  throw new GhostgradError({
    what: 'the noise is too large for discrete noise on a fine enough grid',
    where: 'privacy.noise',
    found: `a standard deviation of ${deviation} on ${size} numbers of threshold ${norm}`,
    fix: 'less noise (a larger epsilon), or noise: float',
  });
}

/** What of a plan the law of its noise follows from. */
export interface NoiseSettings extends NoiseScale {
  readonly noise: Noise;
  readonly adaptive: { readonly countDeviation: number } | null;
  readonly metrics?: { readonly deviation: number } | null | undefined;
  /** Of a further release, the first: what is under its noise. */
  readonly first?: FirstRelease | null | undefined;
}

/**
 * The noise that each group's coordinates of the clipped sum get, under the thresholds of `groups`. Of a further release that
 * is the noise of the first, on whose grid it lies too.
 */
export function gradientLaws(groups: Groups, settings: NoiseSettings): readonly NoiseLaw[] {
  const deviations = noiseDeviations(groups, { ...settings, gradientMultiplier: settings.first?.noiseMultiplier ?? settings.gradientMultiplier });
  return groups.map((group, k) => lawOf(settings.noise, group, deviations[k]!));
}

/**
 * The noise of all releases of a plan on each group's coordinates, each on top of the one before.
 *
 * @throws GhostgradError where the last one is too large for the grid of the first
 */
export function gradualNoises(
  groups: Groups, settings: NoiseSettings & { readonly further: readonly NoiseScale[] },
): readonly GradualNoise[] {
  const { gradientMultiplier, further } = settings;
  const ratios = further.map((each) => each.gradientMultiplier / gradientMultiplier);
  return gradientLaws(groups, settings).map((law) => {
    const noise = gradualNoise(law, ratios);
    const draws = 'grid' in noise ? noise.draws.flat().reduce((sum, { levels }) => sum + levels, 0) : 0;
    if (draws > mostDraws) throw new GhostgradError({ what: 'a number takes more draws than their distance is accounted for', found: `${draws}`, expected: `at most ${mostDraws}` });
    return noise;
  });
}

/**
 * The noise on each count, null where nothing is counted. A unit moves a count by ½; what rounding to the grid adds to that
 * is in ν as for a gradient of one number.
 */
export const countLaw = ({ noise, adaptive, rounding }: NoiseSettings): NoiseLaw | null =>
  adaptive && lawOf(noise, { norm: 0.5, size: 1 }, adaptive.countDeviation * (1 + rounding));

/** The noise on each sum of measures, which a unit moves by ½ at most, like a count; null where nothing is measured. */
export const measureLaw = ({ noise, metrics = null, rounding }: NoiseSettings): NoiseLaw | null =>
  metrics && lawOf(noise, { norm: 0.5, size: 1 }, metrics.deviation * (1 + rounding));

const lawOf = (noise: Noise, group: Pick<Group, 'norm' | 'size'>, deviation: number): NoiseLaw =>
  (noise === 'float' ? { deviation } : latticeFor(group, deviation));

/** The grid of a law; null where it has none. */
export const gridOf = (law: NoiseLaw | null): number | null => (law !== null && 'grid' in law ? law.grid : null);

/** Of δ, what is kept for the distance between drawn noise and the noise that is accounted for. */
const reserve = 2 ** -20;

/** The δ that an accountant may spend. */
export const accountedDelta = (noise: Noise, delta: number): number =>
  noise === 'float' ? delta : delta * (1 - reserve);

/** The most draws that one number of a release is made of: of the levels of the first, and 16 for every further one. */
export const mostDraws = mostLevels + 16 * mostReleases;

/**
 * At least the statistical distance between all noise that `steps` steps draw for `groups`, their counts and `measures` more
 * numbers, and what some rounding without regard to the data makes of the continuous Gaussian noise that is accounted for; 0
 * for float noise, of which none is known.
 *
 * @param isFurther whether it is noise on top of that of an earlier release
 */
export const noiseDistance = (noise: Noise, groups: Groups, steps: number, measures = 0, isFurther = false): number =>
  noise === 'float' ? 0
    : steps * groups.reduce((sum, { size }) => sum + size + 1, measures) * statisticalDistance(isFurther ? mostDraws : mostLevels);

/**
 * Throws GhostgradError unless (1 + e^ε)·`distance` is within what {@link accountedDelta} keeps: two neighbours' outputs each
 * are `distance` from ones that are (ε, accounted δ)-indistinguishable.
 */
export function checkReserve(distance: number, epsilon: number, delta: number): void {
  if (distance === 0 || (1 + Math.exp(epsilon)) * distance <= delta * reserve) return;
  throw new GhostgradError({
    what: 'delta does not hold what discrete noise takes of it',
    where: 'privacy',
    found: `delta ${delta} at epsilon ${epsilon.toPrecision(3)}`,
    expected: `(1 + e^epsilon)·${distance.toPrecision(2)}, the distance of the noise drawn from the noise accounted for, within ${reserve} of delta`,
    fix: 'more noise, a larger delta, or noise: float',
  });
}
