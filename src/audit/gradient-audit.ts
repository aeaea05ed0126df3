import type { ClippingOptions } from '../clipping/norm.ts';
import type { Mode } from '../clipping/plan.ts';
import { type PrivacyPlan, type PrivacyPlanOptions, eventOf, privacyPlan } from '../privacy/index.ts';
import { ratchet } from '../random/ratchet.ts';
import type { Engine } from '../runtime/engine.ts';
import { oneRunBest } from './one-run.ts';
import { probeOf } from './probe.ts';
import { bestPoint, bestRates } from './rates.ts';
import { epsilonOfCurve, epsilonOfRates } from './trade-off.ts';
import { type NoiseSeen, type SourceOf, type Tally, type Trials, noNoiseYet, runTrials } from './trials.ts';

export interface GradientAuditOptions {
  /** What a run claims. */
  readonly plan: PrivacyPlan;
  /** Default: the plan's. */
  readonly epsilonClaimed?: number | undefined;
  readonly clipping: Pick<ClippingOptions, 'function' | 'gamma'>;
  /** Default `book-keeping`. */
  readonly mode?: Mode | undefined;
  readonly engine: Engine;
  /** Canaries in all, half of them in the data. Default 20,000. */
  readonly trials?: number | undefined;
  /** Default: as many canaries share a run as make it cheapest. 1: a run for each. */
  readonly canariesPerRun?: number | undefined;
  /** Default 0.999. */
  readonly confidence?: number | undefined;
  /** Of coins, draws and noise. Default 0. */
  readonly seed?: number | string | undefined;
  /** Default: the private step of training. */
  readonly sourceOf?: SourceOf | undefined;
  readonly onStep?: ((step: number, steps: number) => void) | undefined;
}

/** What an audit in gradient space found. */
export interface GradientAudit {
  /** The mechanism's ε is above this, if it is of the claimed kind, with {@link confidence}; 0 where nothing could be said. */
  readonly epsilonLowerBound: number;
  readonly confidence: number;
  readonly epsilonClaimed: number;
  readonly delta: number;
  readonly trials: number;
  readonly runs: number;
  /** Lower bounds, each with the same confidence, that take nothing for granted of the mechanism's kind. */
  readonly anyMechanism: {
    /** From the rates alone. */
    readonly rates: number;
    /** From the guesses of one run by the theorem of Steinke et al., which do not have to be independent. */
    readonly oneRun: number;
  };
  /** What contradicts the claim; empty where nothing does. */
  readonly alarms: readonly string[];
}

/**
 * Audits the private step under a plan by canaries in gradient space: rows whose clipped gradient is as long as clipping
 * allows, in directions of their own, through the real draw, clipping and noise of all of the plan's steps. An attacker who
 * sees every noised sum says of each canary whether it was in the data; how often it is right bounds ε from below.
 */
export async function auditGradients(options: GradientAuditOptions): Promise<GradientAudit> {
  const { plan, trials = 20_000, confidence = 0.999, seed = 0 } = options;
  const canaries = Math.min(trials, options.canariesPerRun ?? Infinity, cheapest(plan));
  const runs = Math.ceil(trials / canaries);
  const perStep = plan.sampleRate * (plan.sampling === 'without-replacement' ? plan.datasetSize : canaries);
  const probe = await probeOf(plan.groups, {
    clipping: options.clipping, mode: options.mode ?? 'book-keeping', canaries, engine: options.engine,
    microBatch: Math.min(64, Math.max(4, 2 ** Math.ceil(Math.log2(perStep)))),
  });
  try {
    const claim = replanned(plan, { groups: probe.groups, seed });
    const noise = noNoiseYet();
    const seen: Trials[] = [];
    const coinKeys = ratchet(`coins ${JSON.stringify(seed)}`);
    for (let run = 0; run < runs; run++) {
      seen.push(await coinKeys.advance().noise.use((streamOf) =>
        runTrials(probe, claim, {
          sourceOf: options.sourceOf, keys: claim.startRatchet(0, run), coins: streamOf('coins'), noise,
          onStep: (step) => options.onStep?.(run * plan.steps + step, runs * plan.steps),
        })));
    }
    return concluded(seen, noise, { plan, epsilonClaimed: options.epsilonClaimed ?? plan.epsilon, confidence, canaries, runs });
  } finally {
    await probe.program.release();
  }
}

/** The plan with other options; what it was made from is told by what it is. */
export const replanned = (plan: PrivacyPlan, changes: Partial<PrivacyPlanOptions>): PrivacyPlan => {
  const { datasetSize, batchSize, steps, noiseMultiplier, delta, accountant, sampling, neighbors, noise, groups, allocation, rho } = plan;
  return privacyPlan({
    datasetSize, batchSize, steps, noiseMultiplier, delta, accountant, sampling, neighbors, noise, groups, allocation, rho,
    adaptive: plan.adaptive ?? undefined, ...(plan.maxBatchSize !== null && { maxBatchSize: plan.maxBatchSize }), ...changes,
  });
};

function concluded(
  seen: readonly Trials[], noise: NoiseSeen,
  { plan, epsilonClaimed, confidence, canaries, runs }: {
    readonly plan: PrivacyPlan; readonly epsilonClaimed: number; readonly confidence: number; readonly canaries: number;
    readonly runs: number;
  },
): GradientAudit {
  const { delta } = plan;
  const scores = Float64Array.from(seen.flatMap((trials) => Array.from(trials.scores)));
  const present = Uint8Array.from(seen.flatMap((trials) => Array.from(trials.present)));
  const claimed = eventOf(plan, plan.steps);
  const all = { scores, present };
  const epsilonLowerBound = epsilonOfCurve(bestPoint(all, confidence), claimed, delta);
  const rates = epsilonOfRates(bestRates(all, confidence, (found) => epsilonOfRates(found, delta)), delta);
  const first = seen[0]!;
  const numbers = [canaries / 50, canaries / 10, canaries / 2].map(Math.ceil);
  const oneRun = oneRunBest(first.scores, first.present, { numbers, delta, confidence }).epsilon;
  const alarms = [
    ...([['the lower bound', epsilonLowerBound], ['the lower bound for any mechanism', rates], ['the one-run bound', oneRun]] as const)
      .filter(([, bound]) => bound > epsilonClaimed)
      .map(([name, bound]) => `${name} ${bound.toPrecision(4)} is above the claimed ε of ${epsilonClaimed.toPrecision(4)}`),
    ...noiseAlarms(noise),
  ];
  return {
    epsilonLowerBound, confidence, epsilonClaimed, delta, trials: scores.length, runs,
    anyMechanism: { rates, oneRun }, alarms,
  };
}

function noiseAlarms({ gradients, counts, repeated }: NoiseSeen): readonly string[] {
  const off = ({ numbers, squares }: Tally, what: string): readonly string[] => {
    const ratio = squares / numbers;
    // χ² is nearly normal for so many numbers; beyond six deviations by a chance of 2e-9.
    const isOff = numbers > 0 && !(Math.abs(squares - numbers) < 6 * Math.sqrt(2 * numbers) + 20);
    return isOff ? [`the noise on ${what} has ${Math.sqrt(ratio).toPrecision(3)} times the deviation that is claimed`] : [];
  };
  return [
    ...off(gradients, 'gradients'),
    ...off(counts, 'counts'),
    ...(repeated > 0 ? [`${repeated} steps had the noise of an earlier step`] : []),
  ];
}

/**
 * How many canaries share a run: a step costs about as much as 3e5 numbers, and gradients of q·m/2 rows of m numbers in
 * each group. Where a draw depends on how many rows there are, there are no more than the claim says.
 */
function cheapest({ sampleRate, datasetSize, sampling, groups }: PrivacyPlan): number {
  const isFree = sampling === 'poisson' || sampling === 'full-batch';
  const numbers = 6e5 / groups.length;
  const fit = sampling === 'without-replacement' ? numbers / (sampleRate * datasetSize) : Math.sqrt(numbers / sampleRate);
  const most = Math.min(isFree ? Infinity : datasetSize, Math.max(16, Math.floor(2 ** 18 / groups.length)));
  return Math.min(most, Math.max(16, Math.round(fit)));
}
