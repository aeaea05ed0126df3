import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import { epsilonOf, isApproximate } from './accountant.ts';
import { allocations, noiseDeviations } from './allocation.ts';
import { type PrivacyEvent, composed, parseEvent } from './events.ts';
import { type Groups, samePartition } from './groups.ts';
import { type PrivacyPlan, eventOf } from './plan.ts';
import { samplingWords, samplings } from './sampling.ts';

const eventSchema = z.custom<PrivacyEvent>((value) => {
  try {
    parseEvent(value);
    return true;
  } catch {
    return false;
  }
}, 'a privacy event');

const positive = z.number().positive();
const digest = z.string().regex(/^[0-9a-f]{64}$/);

/** The shape of `privacy.json`, the certificate of what a run spent. */
export const certificateSchema = z.strictObject({
  format: z.literal('ghostgrad-certificate/1'),
  /** `(ε, δ)-differential privacy` in words, or why there is no guarantee. */
  guarantee: z.string(),
  /** False when nothing is guaranteed. */
  valid: z.boolean(),
  mechanism: z.string(),
  /** What one record of the data is, e.g. `example`. */
  unit: z.string(),
  neighbors: z.enum(['add-remove', 'zero-out', 'replace-one']),
  neighborsMeaning: z.string(),
  sampling: z.strictObject({
    name: z.enum(samplings),
    sampleRate: positive.max(1),
    expectedBatchSize: positive,
    datasetSize: z.int().positive(),
    /** What larger draws were cut to; null where none are cut. */
    maxBatchSize: z.int().positive().nullable(),
  }),
  clipping: z.strictObject({
    /** How the parameters were parted into groups, e.g. `per-layer`. */
    style: z.string(),
    function: z.string(),
    /** √Σ C_k² in the first step. */
    norm: positive,
    threshold: z.union([
      z.literal('fixed'),
      z.strictObject({
        adaptive: z.strictObject({
          quantile: positive.lt(1),
          learningRate: positive,
          /** Share of σ⁻² that the counts of norms within the thresholds spent. */
          budgetFraction: positive.lt(1),
          rescaleTo: positive.nullable(),
        }),
      }),
    ]),
    /** How the noise was shared out between the groups. */
    allocation: z.enum(allocations),
    groups: z.array(
      z.strictObject({
        name: z.string(),
        parameters: z.array(z.string()),
        /** Numbers in the parameters together. */
        size: z.int().positive(),
        /** Threshold C_k, and the standard deviation of the noise on each coordinate of the clipped sum, in the first step. */
        norm: positive,
        deviation: positive,
        /** The same after the last step; equal to the first under fixed thresholds. */
        finalNorm: positive,
        finalDeviation: positive,
      }),
    ),
    /** Rounding allowance: no example's true clipped norm exceeds its threshold times 1 + rho. */
    rho: z.number().min(0),
    /** L2 bound on what neighbours change in the first step's clipped sum. */
    sensitivity: positive,
  }),
  noise: z.strictObject({
    kind: z.literal('float'),
    /** σ of all that a step released. */
    multiplier: positive,
    /** σ_g: that of the gradients alone. */
    gradientMultiplier: positive,
    /** σ_b on each group's count of norms within its threshold, each unit ±½; null where nothing was counted. */
    countDeviation: positive.nullable(),
    source: z.string(),
  }),
  normaliser: positive,
  steps: z.int().min(0),
  plannedSteps: z.int().positive(),
  /** Everything that was released. */
  event: eventSchema,
  accountant: z.enum(['pld', 'rdp', 'gdp', 'exact-gaussian']),
  /** How far the planned ε is above the true one at most, under the accountant's own computation; null: not known. */
  errorBound: z.number().min(0).nullable(),
  epsilon: z.number().min(0),
  delta: positive.max(1),
  /** ε had all planned steps been taken. */
  plannedEpsilon: z.number().min(0),
  ledger: z.strictObject({ lines: z.int().min(0), head: digest }).nullable(),
  assumptions: z.array(z.string()),
  notCovered: z.array(z.string()),
  software: z.record(z.string(), z.string()),
});

/** The certificate of a run, as `privacy.json` holds it. */
export type Certificate = z.infer<typeof certificateSchema>;

export interface CertificateOptions {
  readonly plan: PrivacyPlan;
  /** Steps whose noised sums were released. */
  readonly steps: number;
  /** Name of the clip function, e.g. `abadi`. */
  readonly clipFunction: string;
  /** How the groups came about. Default `flat`. */
  readonly style?: string | undefined;
  /** The groups as the last step left them. Default: the plan's. */
  readonly finalGroups?: Groups | undefined;
  /** Versions by name: ghostgrad, node, onnxruntime. */
  readonly software: Readonly<Record<string, string>>;
  /** What one record is. Default `example`. */
  readonly unit?: string | undefined;
  /** Steps charged more than once (a resumed run that drew afresh), with their events. */
  readonly recharged?: readonly PrivacyEvent[] | undefined;
  readonly ledger?: { readonly lines: number; readonly head: string } | undefined;
  /**
   * How far rounding of the float32 sums over units may set the sums of neighbours apart beyond what the one unit between
   * them adds, as a share of the sensitivity; told with the assumption that it is nothing.
   */
  readonly summationRounding?: number | undefined;
  /** Further assumptions or omissions of the caller's, e.g. a public pre-trained model. */
  readonly assumptions?: readonly string[] | undefined;
  readonly notCovered?: readonly string[] | undefined;
}

/**
 * The certificate of a run of `steps` steps under `plan`. Throws GhostgradError when the plan's accountant cannot
 * account for what was released, and for final groups that are not the plan's.
 */
export function certificate(options: CertificateOptions): Certificate {
  const { plan, steps, clipFunction, software, unit = 'example', recharged = [] } = options;
  const { style = 'flat', finalGroups = plan.groups } = options;
  const planned = eventOf(plan, steps);
  const event = recharged.length === 0 ? planned : composed([planned, ...recharged]);
  const epsilon = recharged.length === 0 ? plan.spent(steps) : epsilonOf(event, plan.delta, plan.accountant).epsilon;
  return {
    format: 'ghostgrad-certificate/1',
    guarantee: plan.seeded
      ? 'void: seeded randomness. Whoever knows the seed can remove the noise.'
      : isApproximate(plan.accountant)
        ? `none: the accountant ${plan.accountant} approximates ε, and claims less than is spent`
        : `(${epsilon}, ${plan.delta})-differential privacy for each ${unit}, under the assumptions listed`,
    valid: !plan.seeded && !isApproximate(plan.accountant),
    mechanism: mechanismOf(plan),
    unit,
    neighbors: plan.neighbors,
    neighborsMeaning: meaningOf(plan),
    sampling: {
      name: plan.sampling,
      sampleRate: plan.sampleRate,
      expectedBatchSize: plan.batchSize,
      datasetSize: plan.datasetSize,
      maxBatchSize: plan.maxBatchSize,
    },
    clipping: {
      style,
      function: clipFunction,
      norm: plan.clippingNorm,
      threshold: thresholdOf(plan),
      allocation: plan.allocation,
      groups: groupsIn(plan, finalGroups),
      rho: plan.rho,
      sensitivity: plan.sensitivity,
    },
    noise: {
      kind: plan.noise,
      multiplier: plan.noiseMultiplier,
      gradientMultiplier: plan.gradientMultiplier,
      countDeviation: plan.adaptive?.countDeviation ?? null,
      source: plan.seeded
        ? 'AES-256-CTR under keys derived from a seed'
        : 'AES-256-CTR under a forward-secure key ratchet started from the operating system; no past key is kept',
    },
    normaliser: plan.normaliser,
    steps,
    plannedSteps: plan.steps,
    event,
    accountant: plan.accountant,
    errorBound: plan.errorBound,
    epsilon,
    delta: plan.delta,
    plannedEpsilon: plan.epsilon,
    ledger: options.ledger ?? null,
    assumptions: [...assumptionsOf(plan, steps), exactSums(unit, options.summationRounding), ...(options.assumptions ?? [])],
    notCovered: [...notCovered, ...(plan.adaptive === null ? [] : [roundedNorms]), ...(options.notCovered ?? [])],
    software: { ...software },
  };
}

function mechanismOf({ sampling, adaptive, groups }: PrivacyPlan): string {
  const gradients =
    `${sampling === 'full-batch' ? 'noisy gradient descent' : 'DP-SGD'}: ${samplingWords(sampling)} Gaussian mechanism on ` +
    'sums of clipped per-example gradients';
  if (adaptive === null) return gradients;
  return (
    `${gradients}, and on ${groups.length === 1 ? 'the count' : `${groups.length} counts`} of gradients within the ` +
    'clipping thresholds, from which the next thresholds follow. ε covers both: gradients and counts of a step are one ' +
    'Gaussian mechanism on one draw, σ⁻² = σ_g⁻² + K/(4σ_b²) with σ the multiplier, σ_g the gradientMultiplier, σ_b the ' +
    `countDeviation and K = ${groups.length}`
  );
}

function thresholdOf({ adaptive }: PrivacyPlan): Certificate['clipping']['threshold'] {
  if (adaptive === null) return 'fixed';
  const { quantile, learningRate, budgetFraction, rescaleTo } = adaptive;
  return { adaptive: { quantile, learningRate, budgetFraction, rescaleTo } };
}

function groupsIn(plan: PrivacyPlan, final: Groups): Certificate['clipping']['groups'] {
  if (!samePartition(plan.groups, final)) {
    throw new GhostgradError({
      what: 'a certificate of other clipping groups than the plan has',
      expected: "the plan's groups, with the thresholds of the last step",
    });
  }
  const deviations = noiseDeviations(plan.groups, plan);
  const finalDeviations = noiseDeviations(final, plan);
  return plan.groups.map(({ name, parameters, size, norm }, k) => ({
    name,
    parameters: [...parameters],
    size,
    norm,
    deviation: deviations[k]!,
    finalNorm: final[k]!.norm,
    finalDeviation: finalDeviations[k]!,
  }));
}

const meanings: { readonly [N in PrivacyPlan['neighbors']]: string } = {
  'add-remove': 'the data with and without any one record',
  'zero-out': 'the data with any one record and with that record replaced by one whose gradient is zero',
  'replace-one': 'the data with any one record and with that record replaced by any other',
};

/** A gradient of zero is within every threshold: to be nothing, the record that stands in must not be counted either. */
const meaningOf = ({ neighbors, adaptive }: PrivacyPlan): string =>
  meanings[neighbors] + (neighbors === 'zero-out' && adaptive !== null ? ' and that is not counted' : '');

function assumptionsOf(plan: PrivacyPlan, steps: number): string[] {
  const assumptions = [
    `the number of records, ${plan.datasetSize}, is public`,
    'batch size, steps, δ and all other settings were chosen without looking at the data',
    'each person owns at most one record; whoever owns k of them has a weaker guarantee',
    'initial parameters, pre-processing and the model were not derived from the private data',
    'memory of the training process and its private folder were seen by nobody',
  ];
  if (steps < plan.steps) {
    assumptions.push(
      `the run ended after ${steps} of ${plan.steps} planned steps for a reason that did not depend on the data; ` +
        `if it did, ε is the planned ${plan.epsilon}`,
    );
  }
  return assumptions;
}

/** What {@link PrivacyPlan.sensitivity} does not hold: it bounds what float32 makes of each unit's own part of the sum. */
const exactSums = (unit: string, rounding: number | undefined): string =>
  `sums over ${unit}s are exact: what each ${unit} adds is bounded as float32 computes it, but not that the additions of all ` +
  `others round otherwise with it than without it` +
  (rounding === undefined ? '' : `, which for gradients whose positions do not cancel comes to at most ${rounding.toPrecision(2)} ` +
    'of the sensitivity in a batch of the expected size, were all gradients and all roundings aligned');

const notCovered: readonly string[] = [
  'hyperparameter search: other runs on the same data, with other settings, spend budgets of their own',
  'training losses, gradient norms, clip fractions and drawn batch sizes, shown while training or kept in private/',
  'choosing a model, a checkpoint or a stopping time by looking at private data',
  'attacks on floating-point noise: the Gaussian noise is rounded to float32, whose gaps can reveal more than ε allows',
  'timing and other side channels of the computer',
];

/** A unit's norm may round otherwise in another place of a micro-batch, and its indicator flip with it. */
const roundedNorms =
  'rounding of gradient norms: one that lies within float32 precision of a threshold may be counted on its other side ' +
  'because another record came or went';
