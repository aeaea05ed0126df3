import { GhostgradError } from '../errors.ts';
import { outOfRange } from './check.ts';

/**
 * A number of each privacy unit, such as its loss, whose mean over the units of a step is released with noise. What lies
 * outside of [low, high] is taken for the nearer end: that is what one unit's influence is bounded by.
 */
export interface Measure {
  readonly name: string;
  readonly low: number;
  readonly high: number;
}

/** What of a step is measured, and what that may cost. */
export interface MeasuresPlan {
  readonly measures: readonly Measure[];
  /** The share of the privacy budget (of σ⁻²) that all measures together take, in (0, 1). */
  readonly budgetFraction: number;
}

/**
 * Throws GhostgradError for ranges and a share that are none, no measure, or two of one name.
 *
 * @param counts the share that the counts of adaptive thresholds take
 */
export function checkMeasures({ measures, budgetFraction }: MeasuresPlan, counts = 0): void {
  if (!(budgetFraction > 0 && budgetFraction < 1)) throw outOfRange('budgetFraction of the metrics', budgetFraction, 'more than 0 and less than 1');
  if (!(budgetFraction + counts < 1)) throw outOfRange('budgetFraction of metrics and thresholds together', budgetFraction + counts, 'less than 1', 'leave most of the budget to the gradients');
  if (measures.length === 0 || new Set(measures.map(({ name }) => name)).size < measures.length)
    throw new GhostgradError({ what: 'not a list of measures', found: measures.map(({ name }) => name).join(', ') || 'none', expected: 'at least one, each of another name' });
  const odd = measures.find(({ low, high }) => !(Number.isFinite(low) && Number.isFinite(high) && low < high));
  if (odd !== undefined) throw outOfRange(`range of ${odd.name}`, `${odd.low} to ${odd.high}`, 'two finite numbers, the lower first');
}

/** σ_m of each of M measures: as counts of units, they are moved by at most ½ by one unit (`splitBudget`). */
export const measureDeviationOf = (sigma: number, { measures, budgetFraction }: MeasuresPlan): number =>
  (sigma / 2) * Math.sqrt(measures.length / budgetFraction);

/** Units' numbers are whole multiples of this share of the range, so that sums of them are exact whatever their order. */
const resolution = 2 ** 20;

/**
 * Σ over the units of (x − low)/(high − low) − ½, each cut to [−½, ½]: shifted so, a unit moves the sum by at most ½,
 * and no units sum to 0. What is no number counts as the upper end.
 *
 * @param values one for each unit that was drawn
 */
export function measured(values: Float32Array, { low, high }: Measure): number {
  let sum = 0;
  for (const value of values) {
    const share = (value - low) / (high - low);
    sum += share >= 0 && share <= 1 ? Math.round(share * resolution) - resolution / 2 : share < 0 ? -resolution / 2 : resolution / 2;
  }
  return sum / resolution;
}

/**
 * The mean of a measure, from its noised sum over the **expected** batch size, which is public, as the number drawn is not. May
 * lie a little outside of [low, high]: cut, it would be wrong on average.
 */
export const meanOf = (sum: number, { low, high }: Measure, expectedBatchSize: number): number =>
  low + (high - low) * (sum / expectedBatchSize + 0.5);
