import { GhostgradError } from '../errors.ts';
import { type Ratchet, type StepKeys, ratchet } from '../random/ratchet.ts';
import { unknownName } from '../suggest.ts';
import { type Accountant, type AccountantName, isApproximate, prepareAccountant, resolved } from './accountant.ts';
import { type Allocation, type NoiseScale, checkAllocation } from './allocation.ts';
import { calibrateNoise } from './calibrate.ts';
import { checkDelta, checkEpsilon, checkNoiseMultiplier, checkSteps, outOfRange } from './check.ts';
import { type PrivacyEvent, gaussian, selfComposed } from './events.ts';
import { type FirstRelease, checkGradual } from './gradual.ts';
import { type Groups, groupsOf, sensitivity } from './groups.ts';
import { type Noise, accountedDelta, checkReserve, countLaw, gradientLaws, gradualNoises, measureLaw, noiseDistance, noises, roundingOf } from './lattice.ts';
import { type MeasuresPlan, checkMeasures, measureDeviationOf } from './measures.ts';
import { type AdaptiveThresholds, checkAdaptive, splitBudget, stepRelease } from './quantiles.ts';
import {
  type Draw, type Neighbors, type Sampling, checkDraw, checkTruncation, defaultNeighbors, drawn, leastMaxBatchSize, sampledEvent, supportedNeighbors,
  supportedSampling,
} from './sampling.ts';

export interface PrivacyPlanOptions {
  /** Number of examples, taken to be public: N of the sample rate and of the normaliser. */
  readonly datasetSize: number;
  /**
   * Expected number of examples in a step, at most N and not necessarily whole; N itself under `full-batch`, and whole under
   * `without-replacement`.
   */
  readonly batchSize: number;
  readonly steps: number;
  /** The ε not to be exceeded; give it or `noiseMultiplier`. */
  readonly epsilon?: number | undefined;
  /**
   * Further ε, falling from below `epsilon`, for each of which the one full-batch step is released once more, with more noise
   * on the release before ({@link checkGradual}). Default: none.
   */
  readonly furtherEpsilons?: readonly number[] | undefined;
  /** For a plan of such a further release, the first. */
  readonly first?: FirstRelease | undefined;
  /** σ of the step's release as a whole, see {@link PrivacyPlan.noiseMultiplier}; give it or `epsilon`. */
  readonly noiseMultiplier?: number | undefined;
  readonly delta: number;
  /** Default `auto`. */
  readonly accountant?: Accountant | undefined;
  /** Default `poisson`. */
  readonly sampling?: Sampling | undefined;
  /**
   * The most examples of a step, under `truncated-poisson` alone. Default: the least size at which cutting draws to it
   * costs at most a thousandth of δ.
   */
  readonly maxBatchSize?: number | undefined;
  /** Default `add-remove`; under `without-replacement`, `replace-one`. */
  readonly neighbors?: Neighbors | undefined;
  /** Default `discrete`: on a grid, so that no rounding of floats tells more than ε allows. */
  readonly noise?: Noise | undefined;
  /** The trainable parameters and their thresholds, the first ones where they adapt; {@link flatGroup} for flat clipping. */
  readonly groups: Groups;
  /** Which group the noise falls upon; default `global`, the same on every coordinate. */
  readonly allocation?: Allocation | undefined;
  /** Thresholds that follow a quantile of the norms; default: they stay as `groups` gives them. */
  readonly adaptive?: AdaptiveThresholds | undefined;
  /** Numbers of the units whose means are released with every step; default: none. */
  readonly metrics?: MeasuresPlan | undefined;
  /**
   * How far rounding may take an example's true norm past its threshold, relative; the noise grows by as much.
   * Default 1e-3.
   */
  readonly rho?: number | undefined;
  /** Makes the run reproducible and voids its guarantee. */
  readonly seed?: number | string | undefined;
}

declare const planBrand: unique symbol;

/**
 * Everything that a private run's guarantee rests on, derived together so that no two parts can disagree.
 * Immutable; only {@link privacyPlan} makes one.
 */
export interface PrivacyPlan extends NoiseScale {
  readonly [planBrand]: true;
  readonly datasetSize: number;
  readonly batchSize: number;
  /** batchSize / datasetSize. */
  readonly sampleRate: number;
  readonly steps: number;
  /**
   * σ: noise over what one unit adds to all that a step releases, each part in units of its noise. Under fixed thresholds
   * that is the noise on the gradients alone, σ_g = σ; adaptive ones, and metrics, spend a part of σ⁻² ({@link splitBudget}).
   */
  readonly noiseMultiplier: number;
  readonly delta: number;
  /** What of δ the accountant may spend: all but a millionth, which discrete noise keeps for itself. */
  readonly accountedDelta: number;
  /** How far in statistical distance all noise is from what is accounted for, at most; 0 under float noise, where it is not known. */
  readonly noiseDistance: number;
  /** ε after all of `steps`. */
  readonly epsilon: number;
  /** How far above the true one it is at most; null where the accountant does not know. */
  readonly errorBound: number | null;
  readonly accountant: AccountantName;
  readonly sampling: Sampling;
  /** The most examples of a step; null where draws are not truncated. */
  readonly maxBatchSize: number | null;
  readonly neighbors: Neighbors;
  readonly noise: Noise;
  /** With the thresholds of the first step. */
  readonly groups: Groups;
  /** Null under fixed thresholds. */
  readonly adaptive: (AdaptiveThresholds & { /** σ_b: noise on each count. */ readonly countDeviation: number }) | null;
  /** Null where nothing is measured. */
  readonly metrics: (MeasuresPlan & { /** σ_m: noise on each sum, to which a unit adds ½ at most. */ readonly deviation: number }) | null;
  /** √Σ C_k² over the groups, in the first step. */
  readonly clippingNorm: number;
  /** The most by which the first step's clipped sum of two neighbours differs in L2 norm, rounding allowance included. */
  readonly sensitivity: number;
  /** What the noised sum is divided by: the expected batch size, public, whatever the draw. */
  readonly normaliser: number;
  /** What one step releases; with all further releases together, and of a further one by itself. */
  readonly event: PrivacyEvent;
  /** The plans of the same step's further releases, in the order in which noise is added; none ordinarily. */
  readonly further: readonly PrivacyPlan[];
  /** In the plan of a further release, the one that its noise comes on top of; else null. */
  readonly first: FirstRelease | null;
  readonly seeded: boolean;
  /** Doubts that do not stop the run, for the user to read. */
  readonly warnings: readonly string[];
  /**
   * A fresh source of step keys from `step` (0) on: seeded when the plan is, else secret.
   *
   * @param charged steps charged before, 0 at the start of a run: under a seed, tells apart the keys of a step that is drawn
   * afresh from those that it was charged with
   */
  startRatchet(step?: number, charged?: number): Ratchet;
  /**
   * The indices of the examples of a step, ascending, out of `rows` examples; may be empty. Uses up the sampling
   * key. `rows` is the number of examples there are, by default the public `datasetSize`.
   */
  draw(keys: StepKeys, rows?: number): Uint32Array;
  /** ε after `stepsDone` steps; cheap enough for every step. Throws GhostgradError when it exceeds the plan's steps. */
  spent(stepsDone: number): number;
}

const genuine = new WeakSet<object>();

/**
 * The plan of a private run. Throws GhostgradError for options out of range or at odds, and for mechanisms that
 * cannot be accounted for.
 *
 * The accounted event has the σ of noise over sensitivity. A replaced example moves the sum by up to twice the
 * clipping norm, and counts from +½ to −½, so under `replace-one` that is half of the noise multiplier, for gradients and
 * counts alike. Zeroing an example out (it then adds nothing to gradients and counts) moves both once, as adding or
 * removing does: with the normaliser public, the two neighbours' outputs are the same pair of distributions,
 * Poisson-sampled or not, hence the same ε. Gradients and counts of a step come from one draw: together they are one
 * Gaussian mechanism on it, which is sampled as one.
 */
export function privacyPlan(options: PrivacyPlanOptions): PrivacyPlan {
  const { datasetSize, batchSize, steps, delta, accountant = 'auto', rho = 1e-3, seed } = options;
  if (!(Number.isSafeInteger(datasetSize) && datasetSize >= 1))
    throw outOfRange('datasetSize', datasetSize, 'a whole number of at least 1');
  checkSteps(steps);
  checkDelta(delta);
  if (!(rho >= 0 && rho < 1)) throw outOfRange('rho', rho, 'at least 0 and less than 1');
  const sampling = supportedSampling(options.sampling ?? 'poisson');
  const neighbors = supportedNeighbors(options.neighbors ?? defaultNeighbors(sampling), sampling);
  const noise = knownNoise(options.noise ?? 'discrete');
  const accounted = accountedDelta(noise, delta);
  const untruncated: Draw = { batchSize, datasetSize, maxBatchSize: options.maxBatchSize ?? null };
  checkDraw(sampling, untruncated);
  const groups = groupsOf(options.groups);
  const clippingNorm = sensitivity(groups);
  const { allocation = 'global', adaptive } = options;
  checkAllocation(allocation);
  if (adaptive !== undefined) checkAdaptive(adaptive, groups);
  const { metrics } = options;
  if (metrics !== undefined) checkMeasures(metrics, adaptive?.budgetFraction);
  const { furtherEpsilons = [], first = null } = options;
  if (options.furtherEpsilons !== undefined) checkGradual(furtherEpsilons, { ...options, sampling });

  const units = neighbors === 'replace-one' ? 2 : 1;
  const draw = truncatedWhere(sampling === 'truncated-poisson', untruncated, { ...options, units, delta: accounted });
  checkTruncation(draw, { steps, delta: accounted });
  const [fraction, measured] = [adaptive?.budgetFraction ?? 0, metrics?.budgetFraction ?? 0];
  const stepAt = (sigma: number): PrivacyEvent =>
    sampledEvent(sampling, draw, stepRelease(sigma, { fraction, measured }, groups.length, units));
  const noiseMultiplier = noiseMultiplierOf({ ...options, delta: accounted }, stepAt);
  const event = stepAt(noiseMultiplier);
  const prepared = prepareAccountant(event, accountant);
  const { value, errorBound } = prepared.epsilonBounded(steps, accounted);
  const epsilon = resolved(value);
  const distance = noiseDistance(noise, groups, steps, metrics?.measures.length, first !== null);
  checkReserve(distance, epsilon, delta);
  const seeded = seed !== undefined;
  const rounding = roundingOf(noise);
  const split = splitBudget(noiseMultiplier, fraction, groups.length, measured);
  const { gradientMultiplier } = split;
  const thresholds = adaptive === undefined ? null : Object.freeze({ ...adaptive, countDeviation: split.countDeviation });
  const measures = metrics === undefined ? null : Object.freeze({ ...metrics, deviation: measureDeviationOf(noiseMultiplier, metrics) });

  const plan: Omit<PrivacyPlan, typeof planBrand> = {
    datasetSize,
    batchSize,
    sampleRate: batchSize / datasetSize,
    steps,
    noiseMultiplier,
    delta,
    accountedDelta: accounted,
    noiseDistance: distance,
    epsilon,
    errorBound,
    accountant: prepared.name,
    sampling,
    maxBatchSize: draw.maxBatchSize,
    neighbors,
    noise,
    groups,
    allocation,
    gradientMultiplier,
    adaptive: thresholds,
    metrics: measures,
    rho,
    rounding,
    clippingNorm,
    sensitivity: units * clippingNorm * (1 + rho + rounding),
    normaliser: batchSize,
    event,
    first,
    further: furtherEpsilons.map((each) => privacyPlan({
      ...options, epsilon: each, furtherEpsilons: undefined, first: { noiseMultiplier, epsilon },
    })),
    seeded,
    warnings: warningsOf({ delta, datasetSize, batchSize, epsilon, seeded, adaptive: thresholds, accountant: prepared.name }),
    startRatchet: (step = 0, charged = 0) =>
      ratchet(seed === undefined || charged === 0 ? seed : `${JSON.stringify(seed)} after ${charged} steps charged`, step),
    draw: (keys, rows = datasetSize) => {
      if (keys.seeded !== seeded)
        throw new GhostgradError({ what: 'keys from another ratchet than the privacy plan started' });
      return keys.sampling.use((streamOf) => drawn(sampling, draw, rows, streamOf));
    },
    spent: (stepsDone) => {
      if (!(Number.isSafeInteger(stepsDone) && stepsDone >= 0 && stepsDone <= steps)) {
        throw outOfRange('stepsDone', stepsDone, `a whole number from 0 to the planned ${steps} steps`);
      }
      return prepared.epsilon(stepsDone, accounted);
    },
  };
  // Refuses noise that fits on no grid before a step is taken.
  gradientLaws(groups, plan);
  countLaw(plan);
  measureLaw(plan);
  gradualNoises(groups, plan);
  const frozen = Object.freeze({ ...plan, warnings: Object.freeze(plan.warnings) }) as PrivacyPlan;
  genuine.add(frozen);
  return frozen;
}

/** Throws GhostgradError unless {@link privacyPlan} made `plan`: a copy with other noise is not a plan. */
export function assertPlan(plan: PrivacyPlan): void {
  if (!genuine.has(plan)) throw new GhostgradError({ what: 'a privacy plan that privacyPlan() did not make' });
}

/** The event of `steps` steps under `plan`. */
export const eventOf = (plan: PrivacyPlan, steps: number): PrivacyEvent => selfComposed(plan.event, steps);

function noiseMultiplierOf(
  { epsilon, noiseMultiplier, delta, steps, accountant }: PrivacyPlanOptions, stepAt: (sigma: number) => PrivacyEvent,
): number {
  if (noiseMultiplier !== undefined && epsilon !== undefined) {
    throw new GhostgradError({
      what: 'epsilon and noiseMultiplier are both given',
      where: 'privacy',
      found: `epsilon ${epsilon}, noiseMultiplier ${noiseMultiplier}`,
      expected: 'one of them; the other follows',
      fix: 'remove one',
    });
  }
  if (noiseMultiplier !== undefined) {
    checkNoiseMultiplier(noiseMultiplier);
    return noiseMultiplier;
  }
  if (epsilon === undefined) {
    throw new GhostgradError({
      what: 'neither epsilon nor noiseMultiplier is given',
      where: 'privacy',
      expected: 'one of them',
      fix: 'e.g. epsilon: 3',
    });
  }
  checkEpsilon(epsilon);
  return calibrateNoise(stepAt, steps, { epsilon, delta, accountant });
}

/** `draw`, with the default size to cut it to where it is to be cut and names none. */
function truncatedWhere(
  isTruncated: boolean, draw: Draw,
  { steps, delta, epsilon, noiseMultiplier, accountant, units }: PrivacyPlanOptions & { readonly units: number },
): Draw {
  if (!isTruncated || draw.maxBatchSize !== null) return draw;
  const spent = epsilon ?? prepareAccountant(
    sampledEvent('poisson', draw, gaussian((noiseMultiplier ?? 1) / units)), accountant).epsilon(steps, delta);
  return { ...draw, maxBatchSize: leastMaxBatchSize(draw, { steps, delta, epsilon: spent }) };
}

function knownNoise(noise: Noise): Noise {
  if (!noises.includes(noise)) throw unknownName('noise', String(noise), noises, 'privacy.noise');
  return noise;
}

function warningsOf({
  delta,
  datasetSize,
  batchSize,
  epsilon,
  seeded,
  adaptive,
  accountant,
}: Pick<PrivacyPlan, 'delta' | 'datasetSize' | 'batchSize' | 'epsilon' | 'seeded' | 'adaptive' | 'accountant'>): string[] {
  const warnings: string[] = [];
  if (isApproximate(accountant))
    warnings.push(`the accountant ${accountant} claims less ε than is spent: no guarantee; use "auto" for one`);
  if (delta >= 1 / datasetSize) {
    warnings.push(
      `delta ${delta} is not below 1/${datasetSize}: a mechanism that publishes one example outright would satisfy it`,
    );
  }
  if (epsilon > 10)
    warnings.push(`epsilon ${epsilon.toPrecision(3)} is a weak guarantee: odds may change by a factor of e^epsilon`);
  if (adaptive !== null && adaptive.countDeviation > batchSize / 4) {
    warnings.push(
      `the noise on the counts that thresholds follow, ±${adaptive.countDeviation.toPrecision(3)}, drowns them in a batch ` +
        `of ${batchSize}: thresholds will wander; take fewer groups, larger batches or a larger budgetFraction`,
    );
  }
  if (seeded) warnings.push('a seed makes the noise reproducible: the privacy guarantee is void');
  return warnings;
}
