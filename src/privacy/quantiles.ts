import { GhostgradError } from '../errors.ts';
import { outOfRange } from './check.ts';
import { type PrivacyEvent, gaussian, gaussianWithCounts } from './events.ts';
import type { Groups } from './groups.ts';

/**
 * Clipping thresholds that follow a quantile of the gradient norms (Andrew et al. 2021 for one group, He et al. 2022 for
 * several): after every step, e_k ← e_k·exp(−η·(f_k − q)) with f_k the noised fraction of the step's units whose
 * gradient of group k was within e_k, and C_k = e_k, or all e_k scaled to a joint norm.
 */
export interface AdaptiveThresholds {
  /** q: the fraction of units that the thresholds shall be above, in (0, 1). */
  readonly quantile: number;
  /** η > 0: how fast the thresholds follow. */
  readonly learningRate: number;
  /** r: the share of the privacy budget (of σ⁻²) that the counts take, in (0, 1). */
  readonly budgetFraction: number;
  /** The thresholds are the estimates brought to √Σ C_k² = rescaleTo, which leaves them their ratios; null: the estimates. */
  readonly rescaleTo: number | null;
}

/** Thresholds stay between these: below, squares in float32 would underflow; above, nothing would be clipped. */
export const leastThreshold = 1e-6;
export const largestThreshold = 1e6;

/** Throws GhostgradError for options out of range, first thresholds included. */
export function checkAdaptive({ quantile, learningRate, budgetFraction, rescaleTo }: AdaptiveThresholds, groups: Groups): void {
  const fraction = 'more than 0 and less than 1';
  if (!(quantile > 0 && quantile < 1)) throw outOfRange('quantile', quantile, fraction);
  if (!(learningRate > 0 && Number.isFinite(learningRate)))
    throw outOfRange('learningRate of the thresholds', learningRate, 'a finite number above 0');
  if (!(budgetFraction > 0 && budgetFraction < 1)) {
    throw outOfRange(
      'budgetFraction', budgetFraction, fraction,
      'the counts that thresholds follow are a release of their own, and the gradients need the rest',
    );
  }
  const range = `from ${leastThreshold} to ${largestThreshold}`;
  if (rescaleTo !== null && !inRange(rescaleTo)) throw outOfRange('rescaleTo', rescaleTo, range);
  const odd = groups.find(({ norm }) => !inRange(norm));
  if (odd !== undefined) throw outOfRange(`first threshold of clipping group "${odd.name}"`, odd.norm, range);
}

const inRange = (threshold: number): boolean => threshold >= leastThreshold && threshold <= largestThreshold;

/**
 * What gradients and counts each get of a step's noise multiplier σ when `fraction` of σ⁻² goes to the counts of `groups`
 * groups. One unit moves the gradients by one sensitivity, and each of K counts by ½, which is √K/2 together; both
 * Gaussian mechanisms on the same draw are one, with σ⁻² = σ_g⁻² + K/(4σ_b²). Hence σ_g = σ/√(1 − r) and
 * σ_b = (σ/2)·√(K/r), and σ_g = σ/√(1 − r − r') where a share r' goes to other counts on the same draw (`measureDeviationOf`), each
 * share being what those counts add to σ⁻². For K = 1 that is Theorem 1 of Andrew et al. 2021, σ_g = (σ⁻² − (2σ_b)⁻²)^(−1/2).
 */
export const splitBudget = (
  sigma: number, fraction: number, groups: number, other = 0,
): { readonly gradientMultiplier: number; readonly countDeviation: number } => ({
  gradientMultiplier: sigma / Math.sqrt(1 - fraction - other),
  countDeviation: (sigma / 2) * Math.sqrt(groups / fraction),
});

/**
 * What a step of noise multiplier `sigma` releases of one draw: gradients, and the counts of `groups` groups beside them where
 * thresholds adapt. With measures too it is told as the one Gaussian mechanism that all of it is. `units` is how far one
 * neighbour moves everything, in units of what one record may: 2 where one is replaced.
 */
export function stepRelease(
  sigma: number, { fraction, measured }: { readonly fraction: number; readonly measured: number }, groups: number, units: number,
): PrivacyEvent {
  if (fraction === 0 || measured > 0) return gaussian(sigma / units);
  const { gradientMultiplier, countDeviation } = splitBudget(sigma, fraction, groups);
  return gaussianWithCounts(gradientMultiplier / units, groups, countDeviation / units);
}

/**
 * For each group Σ over the units of ½ where the unit's norm is within the group's estimate, else −½. Shifted so,
 * every unit moves each count by exactly ½, whatever its gradient: a norm that is not a number counts as −½, and without
 * units the counts are 0.
 *
 * @param norms [units · groups], the groups of a unit next to each other; a row for every unit that was drawn
 * @throws GhostgradError where `norms` are not whole rows
 */
export function countsWithin(norms: Float32Array, groups: Groups): Float64Array {
  if (norms.length % groups.length !== 0) {
    throw new GhostgradError({
      what: 'gradient norms and clipping groups do not match',
      found: `${norms.length} norms`,
      expected: `one for each unit and each of ${groups.length} groups`,
    });
  }
  const thresholds = groups.map(({ norm, estimate = norm }) => estimate);
  return Float64Array.from(thresholds, (threshold, k) => {
    let count = 0;
    for (let i = k; i < norms.length; i += thresholds.length) count += norms[i]! <= threshold ? 0.5 : -0.5;
    return count;
  });
}

/**
 * The fraction of units within the threshold, from their noised count of ±½: over the **expected** batch size, which is
 * public, as the number drawn is not; cut to [0, 1].
 */
export const fractionWithin = (count: number, expectedBatchSize: number): number =>
  Math.min(1, Math.max(0, count / expectedBatchSize + 0.5));
