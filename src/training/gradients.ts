import type { Dataset } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import { type UsableGradient, plainGradient } from '../optimizers/index.ts';
import {
  type Groups, type PrivacyPlan, type Privatised, clippedSum, hasFixedSize, nextGroups, privatise, privatiseGradually, privatiseInParallel,
  withMeasures,
} from '../privacy/index.ts';
import { checkAdditions } from '../privacy/lattice.ts';
import { type Ledger, type LedgerLine, digestOf } from '../privacy/ledger.ts';
import { type NoiseThreads, noiseThreads } from '../random/noise-threads.ts';
import { poissonSample } from '../random/poisson.ts';
import type { Ratchet } from '../random/ratchet.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { batchSource } from './examples.ts';
import { measuredIn } from './private-metrics.ts';
import { type Parameters, type StepProgram, type StepResult, smallerParts } from './step.ts';

/** The gradient of one logical step, and what was seen in computing it. */
export interface GradientStep extends Pick<StepResult, 'parameters' | 'losses' | 'norms'> {
  readonly gradient: UsableGradient;
  /** The same with more noise, for each smaller ε of the plan; none ordinarily. */
  readonly further: readonly Privatised[];
  /** What each clipping group was clipped to; none without privacy. */
  readonly thresholds: readonly number[];
  /** Noised means of the plan's measures; null where it has none. */
  readonly metrics?: Readonly<Record<string, number>> | null;
  /** Steps charged up to this one, it and repeated ones included; 0 without privacy. */
  readonly charged: number;
}

/** Draws a batch, computes the step and returns what an optimizer may follow, again and again. */
export interface GradientSource {
  /** Rejects with {@link BudgetSpent} when no further step may be charged. */
  next(parameters: Parameters): Promise<GradientStep>;
  /** What makes the next step. */
  readonly keys: Ratchet;
  /** With the thresholds of the next step; none without privacy. */
  readonly groups: Groups;
  /** Erases the key that further steps would come from. */
  close(): Promise<void>;
}

/** As many steps were charged as were planned, repeated ones included: one more would exceed ε. */
export class BudgetSpent extends Error {
  override readonly name = 'BudgetSpent';
}

/** Steps that were charged before the run was interrupted, and are computed again by a resumed one. */
export interface Replay {
  /** What was charged after the checkpoint, in order. */
  readonly charged: readonly LedgerLine[];
  /**
   * Called when a step does not come out as it was charged: with the parameters before it, and the groups.
   *
   * @returns keys that made no step yet, durable together with a checkpoint of the parameters and the ledger as it is
   */
  readonly afresh: (parameters: Parameters, groups: Groups) => Ratchet;
}

/**
 * The private gradient: the plan's draw, the clipped sum, the plan's noise, once. A step is charged to the ledger, and
 * the charge is durable, before its gradient is handed out and the next thresholds follow from it.
 *
 * A step that was charged before is not charged again if it comes out the same, by the digest of its noised sum. Else the
 * same noise would be on two sums: what came out is thrown away, unseen, and the step drawn with fresh keys and charged
 * again; and so are all that follow. Every step is the same event, so ε is kept exactly as long as no more are charged than
 * were planned.
 */
export function privateGradients({
  plan,
  program,
  data,
  ledger,
  keys = plan.startRatchet(),
  groups = plan.groups,
  replay,
  threads = noiseThreads(defaultThreads()),
}: {
  readonly plan: PrivacyPlan;
  readonly program: StepProgram;
  readonly data: Dataset;
  readonly ledger?: Ledger | undefined;
  /** Where the keys of the steps come from; the source's own from here on. By default the plan's, from step 0. */
  readonly keys?: Ratchet | undefined;
  /** With the thresholds of the next step. Default: the plan's. */
  readonly groups?: Groups | undefined;
  readonly replay?: Replay | undefined;
  /** Add the noise of large sums, while the engine rests; by default one for each core. */
  readonly threads?: NoiseThreads | undefined;
}): GradientSource {
  requireClips(program, plan);
  // A draw is never twice as large as expected where that would matter.
  const most = (hasFixedSize(plan.sampling) ? 1 : 2) * plan.batchSize;
  if (plan.noise === 'discrete') checkAdditions(most, Math.ceil(most / program.microBatch) + smallerParts);
  let awaited = replay?.charged ?? [];
  let charged = (ledger?.length ?? 0) - awaited.length;

  /** One step with the next keys: noised, and seen by nobody yet. */
  async function noised(current: Parameters) {
    const stepKeys = keys.advance();
    const rows = plan.draw(stepKeys, data.size);
    const thresholds = groups.map(({ norm }) => norm);
    // They start while the engine computes.
    if (program.sharesSums) threads.start();
    const { sums, remainders, parts, ...seen } = await program.run(current, batchSource(data, rows), thresholds);
    if (plan.noise === 'discrete') checkAdditions(rows.length, parts);
    // A step without privacy has no norms: its sums are bounded by nothing.
    if (seen.norms.length !== rows.length * groups.length) {
      throw notClipped('other gradient norms', 'one for each unit and group');
    }
    const counted = plan.adaptive === null ? undefined : seen.norms;
    const clipped = clippedSum(sums, groups, program.rho, counted, remainders);
    if (plan.metrics !== null) withMeasures(clipped, measuredIn(plan.metrics, seen));
    const [gradient, ...further] = plan.further.length > 0 ? privatiseGradually(clipped, plan, stepKeys)
      : [program.sharesSums ? await privatiseInParallel(clipped, plan, stepKeys, threads) : privatise(clipped, plan, stepKeys)];
    return { ...seen, gradient: gradient!, further, thresholds };
  }

  const next = async (current: Parameters): Promise<GradientStep> => {
    const [expected, ...rest] = awaited;
    if (expected === undefined && charged >= plan.steps) throw new BudgetSpent('the budget is spent');
    const step = await noised(current);
    const line: LedgerLine = {
      step: step.gradient.step, event: plan.event, digest: digestOf(step.gradient),
      ...(plan.further.length > 0 && {
        further: step.further.map((each, k) => ({ multiplier: plan.further[k]!.noiseMultiplier, digest: digestOf(each) })),
      }),
    };
    if (expected === undefined) {
      await ledger?.charge(line.step, line.event, line.digest, line.further);
    } else if (isSame(expected, line)) {
      awaited = rest;
    } else {
      const fresh = replay!.afresh(step.parameters, groups);
      keys.erase();
      keys = fresh;
      charged += awaited.length;
      awaited = [];
      return next(step.parameters);
    }
    charged += 1;
    groups = nextGroups(step.gradient, plan);
    return { ...step, metrics: step.gradient.metrics, charged };
  };

  return {
    get groups() {
      return groups;
    },
    get keys() {
      return keys;
    },
    next,
    close: async () => {
      keys.erase();
      await threads.close();
    },
  };
}

/** Whether two lines are of the very same release, further ones included. */
const isSame = (a: LedgerLine, b: LedgerLine): boolean => {
  const text = ({ step, digest, further = [] }: LedgerLine): string =>
    JSON.stringify([step, digest, ...further.map((one) => [one.multiplier, one.digest])]);
  return text(a) === text(b);
};

/** Throws GhostgradError unless the step clips to the groups that the plan's noise is scaled to, in their order. */
function requireClips({ groups }: StepProgram, plan: PrivacyPlan): void {
  const text = (all: StepProgram['groups']): string => JSON.stringify(all.map(({ name, parameters }) => [name, parameters]));
  if (text(groups) !== text(plan.groups)) throw notClipped(text(groups), text(plan.groups));
}

const notClipped = (found: string, expected: string): GhostgradError => new GhostgradError({
  what: 'the step does not clip as the privacy plan says', found, expected, fix: 'compile the step with the groups of the plan, in a mode that clips',
});

/** The plain mean gradient of Poisson draws, for runs whose recipe says `privacy: none`. */
export function plainGradients({
  sampleRate,
  batchSize,
  keys,
  program,
  data,
}: {
  readonly sampleRate: number;
  readonly batchSize: number;
  readonly keys: Ratchet;
  readonly program: StepProgram;
  readonly data: Dataset;
}): GradientSource {
  return {
    groups: [],
    keys,
    next: async (current) => {
      const rows = keys.advance().sampling.use((streamOf) => poissonSample(data.size, sampleRate, streamOf('poisson')));
      const { sums, remainders: _, parts: __, ...seen } = await program.run(current, batchSource(data, rows), []);
      for (const sum of sums.values()) for (let i = 0; i < sum.length; i++) sum[i]! /= batchSize;
      return { ...seen, gradient: plainGradient(sums), further: [], thresholds: [], charged: 0 };
    },
    close: async () => keys.erase(),
  };
}
