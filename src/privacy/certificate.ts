import { GhostgradError } from '../errors.ts';
import { epsilonOf } from './accountant.ts';
import { noiseDeviations } from './allocation.ts';
import { outOfRange } from './check.ts';
import { type Certificate, certificateFormat } from './certificate-schema.ts';
import { type Groups, samePartition } from './groups.ts';
import { countLaw, gradientLaws, gridOf, measureLaw } from './lattice.ts';
import { type PrivacyPlan, eventOf } from './plan.ts';
import {
  type Facts, assumptionsOf, exactSums, guaranteeOf, isValid, mechanismOf, neighborsMeaningOf, notCoveredOf, sourceOf,
} from './statement.ts';

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
  /** Steps charged again because a resumed run drew them afresh: the ledger has so many lines more than steps. Default 0. */
  readonly recharged?: number | undefined;
  /** The models of a run for several ε, see {@link Certificate}. Default: one model. */
  readonly releases?: Certificate['releases'] | undefined;
  /** For the certificate of one of them, the run. */
  readonly partOf?: Certificate['partOf'] | undefined;
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
  const { plan, steps, clipFunction, software, unit = 'example', recharged = 0 } = options;
  const { style = 'flat', finalGroups = plan.groups } = options;
  const event = eventOf(plan, steps + recharged);
  if (!(steps + recharged <= plan.steps))
    throw outOfRange('steps charged', steps + recharged, `at most the planned ${plan.steps} steps`);
  // As anyone recomputes it from the event.
  const { epsilon } = epsilonOf(event, plan.accountedDelta, plan.accountant);
  const facts: Facts = {
    unit,
    neighbors: plan.neighbors,
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
      countGrid: gridOf(countLaw(plan)),
      rounding: plan.rounding,
      statisticalDistance: plan.noise === 'float' ? null : plan.noiseDistance,
      accountedDelta: plan.accountedDelta,
      seeded: plan.seeded,
      source: sourceOf(plan.seeded),
    },
    metrics: metricsOf(plan),
    releases: options.releases ?? null,
    partOf: options.partOf ?? null,
    steps,
    plannedSteps: plan.steps,
    accountant: plan.accountant,
    epsilon,
    delta: plan.delta,
    plannedEpsilon: plan.epsilon,
  };
  return {
    format: certificateFormat,
    guarantee: guaranteeOf(facts),
    valid: isValid(facts),
    mechanism: mechanismOf(facts),
    unit,
    neighbors: facts.neighbors,
    neighborsMeaning: neighborsMeaningOf(facts),
    sampling: facts.sampling,
    clipping: facts.clipping,
    noise: facts.noise,
    metrics: facts.metrics,
    normaliser: plan.normaliser,
    steps,
    plannedSteps: plan.steps,
    event,
    releases: facts.releases,
    partOf: facts.partOf,
    accountant: plan.accountant,
    errorBound: plan.errorBound,
    epsilon,
    delta: plan.delta,
    plannedEpsilon: plan.epsilon,
    ledger: options.ledger ?? null,
    assumptions: [...assumptionsOf(facts), exactSums(unit, options.summationRounding), ...(options.assumptions ?? [])],
    notCovered: [...notCoveredOf(facts), ...(options.notCovered ?? [])],
    software: { ...software },
  };
}

function thresholdOf({ adaptive }: PrivacyPlan): Certificate['clipping']['threshold'] {
  if (adaptive === null) return 'fixed';
  const { quantile, learningRate, budgetFraction, rescaleTo } = adaptive;
  return { adaptive: { quantile, learningRate, budgetFraction, rescaleTo } };
}

function metricsOf(plan: PrivacyPlan): Certificate['metrics'] {
  if (plan.metrics === null) return null;
  const { budgetFraction, deviation, measures } = plan.metrics;
  return { budgetFraction, deviation, grid: gridOf(measureLaw(plan)), measures: measures.map(({ name, low, high }) => ({ name, low, high })) };
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
  const [grids, finalGrids] = [plan.groups, final].map((groups) => gradientLaws(groups, plan).map(gridOf));
  return plan.groups.map(({ name, parameters, size, norm }, k) => ({
    name,
    parameters: [...parameters],
    size,
    norm,
    deviation: deviations[k]!,
    grid: grids![k]!,
    finalNorm: final[k]!.norm,
    finalDeviation: finalDeviations[k]!,
    finalGrid: finalGrids![k]!,
  }));
}
