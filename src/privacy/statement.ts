import { isApproximate } from './accountant.ts';
import type { Certificate } from './certificate-schema.ts';
import { samplingWords } from './sampling.ts';

/**
 * What a certificate says in words is a function of what it says in numbers, so that the one can be checked against the
 * other.
 */
export type Facts = Pick<
  Certificate,
  | 'unit' | 'neighbors' | 'sampling' | 'clipping' | 'noise' | 'steps' | 'plannedSteps' | 'accountant' | 'epsilon' | 'delta'
  | 'plannedEpsilon' | 'metrics' | 'releases' | 'partOf'
>;

/** Whether anything is guaranteed. */
export const isValid = ({ noise, accountant }: Pick<Facts, 'noise' | 'accountant'>): boolean =>
  !noise.seeded && !isApproximate(accountant);

export function guaranteeOf({ unit, noise, accountant, epsilon, delta, releases, partOf }: Facts): string {
  if (noise.seeded) return 'void: seeded randomness. Whoever knows the seed can remove the noise.';
  if (isApproximate(accountant)) return `none: the accountant ${accountant} approximates ε, and claims less than is spent`;
  const of = releases !== null ? ` of all ${releases.length} models of the run together,`
    : partOf !== null ? ` of this model alone; (${partOf.epsilon}, ${delta}) of all ${partOf.models} models of its run together;` : '';
  return `(${epsilon}, ${delta})-differential privacy for each ${unit},${of} under the assumptions listed`;
}

export function mechanismOf({ sampling, clipping: { threshold, groups }, noise: { kind }, metrics, releases, partOf }: Facts): string {
  const gradients =
    `${sampling.name === 'full-batch' ? 'noisy gradient descent' : 'DP-SGD'}: ${samplingWords(sampling.name)} Gaussian mechanism on ` +
    `sums of clipped per-example gradients${kind === 'discrete' ? ', rounded to a grid, with discrete noise on it' : ''}`;
  const K = groups.length;
  const counted = `on ${K === 1 ? 'the count' : `${K} counts`} of gradients within the clipping thresholds, from which the next thresholds follow`;
  const measured = `on sums of ${metrics?.measures.map(({ name }) => name).join(' and ')}`;
  const [counts, measures] = [threshold !== 'fixed', metrics !== null];
  if (releases !== null || partOf !== null)
    return `${gradients}; one sum, noised for the largest ε, and with more noise on top of that for each smaller ε (gradual release)`;
  if (!counts && !measures) return gradients;
  return (
    `${gradients}, and ${listed([...(counts ? [counted] : []), ...(measures ? [measured] : [])])}. ε covers all of it: ` +
    `${listed(['gradients', ...(counts ? ['counts'] : []), ...(measures ? ['measures'] : [])])} of a step are one Gaussian mechanism on ` +
    `one draw, σ⁻² = σ_g⁻²${counts ? ' + K/(4σ_b²)' : ''}${measures ? ' + M/(4σ_m²)' : ''} with σ the multiplier, σ_g the gradientMultiplier` +
    `${counts ? `, σ_b the countDeviation and K = ${K}` : ''}${measures ? `, σ_m the metrics’ deviation and M = ${metrics?.measures.length}` : ''}`
  );
}

const listed = (parts: readonly string[]): string =>
  parts.length < 2 ? parts.join('') : `${parts.slice(0, -1).join(', ')} and ${parts.at(-1)}`;

const meanings: { readonly [N in Facts['neighbors']]: string } = {
  'add-remove': 'the data with and without any one record',
  'zero-out': 'the data with any one record and with that record replaced by one whose gradient is zero',
  'replace-one': 'the data with any one record and with that record replaced by any other',
};

/** A gradient of zero is within every threshold: to be nothing, the record that stands in must not be counted either. */
export const neighborsMeaningOf = ({ neighbors, clipping: { threshold }, metrics }: Facts): string =>
  meanings[neighbors] + (neighbors === 'zero-out' && (threshold !== 'fixed' || metrics !== null) ? ' and that is not counted' : '');

export const sourceOf = (seeded: boolean): string =>
  seeded
    ? 'AES-256-CTR under keys derived from a seed'
    : 'AES-256-CTR under a forward-secure key ratchet started from the operating system; no past key is kept';

export function assumptionsOf({ sampling, steps, plannedSteps, epsilon, plannedEpsilon, partOf }: Facts): string[] {
  const assumptions = [
    `the number of records, ${sampling.datasetSize}, is public`,
    'batch size, steps, δ and all other settings were chosen without looking at the data',
    'each person owns at most one record; whoever owns k of them has a weaker guarantee',
    'initial parameters, pre-processing and the model were not derived from the private data',
    'memory of the training process and its private folder were seen by nobody',
  ];
  if (partOf !== null && partOf.models > 1) {
    assumptions.push(
      `nobody who sees this model sees another of the ${partOf.models} models of its run, nor the ledger of the run itself; whoever does ` +
        `sees what has ε = ${partOf.epsilon}`,
    );
  }
  // Where steps were charged again, fewer may have spent it all.
  if (steps < plannedSteps && epsilon < plannedEpsilon) {
    assumptions.push(
      `the run ended after ${steps} of ${plannedSteps} planned steps for a reason that depended neither on the data nor on ` +
        `numbers that ε does not cover, such as the training loss shown meanwhile; if it did, ε is the planned ${plannedEpsilon}`,
    );
  }
  return assumptions;
}

/** How the assumption that {@link exactSums} states begins. */
export const exactSumsStart = (unit: string): string => `sums over ${unit}s are exact: `;

/** What a plan's sensitivity does not hold: it bounds what float32 makes of each unit's own part of the sum. */
export const exactSums = (unit: string, rounding: number | undefined): string =>
  `${exactSumsStart(unit)}what each ${unit} adds is bounded as float32 computes it, but not that the additions of all ` +
  `others round otherwise with it than without it` +
  (rounding === undefined ? '' : `, which for gradients whose positions do not cancel comes to at most ${rounding.toPrecision(2)} ` +
    'of the sensitivity in a batch of the expected size, were all gradients and all roundings aligned');

export const notCoveredOf = ({ clipping: { threshold }, noise: { kind }, metrics }: Facts): string[] => [
  'hyperparameter search: other runs on the same data, with other settings, spend budgets of their own',
  'training losses, gradient norms, clip fractions and drawn batch sizes, shown while training or kept in private/',
  'choosing a model, a checkpoint or a stopping time by looking at private data',
  ...(kind === 'float' ? [floatNoise] : []),
  'timing and other side channels of the computer',
  ...(threshold === 'fixed' ? [] : [roundedNorms]),
  ...(metrics === null ? [] : [roundedMeasures]),
];

const floatNoise = 'attacks on floating-point noise: the Gaussian noise is rounded to float32, whose gaps can reveal more than ε allows';

/** A unit's norm may round otherwise in another place of a micro-batch, and its indicator flip with it. */
const roundedNorms =
  'rounding of gradient norms: one that lies within float32 precision of a threshold may be counted on its other side ' +
  'because another record came or went';

const roundedMeasures =
  'rounding of measures: the loss of a record may come out otherwise, within float32 precision, because another record came or went';
