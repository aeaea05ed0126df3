import { GhostgradError } from '../errors.ts';
import type { StepKeys } from '../random/ratchet.ts';
import { noisedGradually } from '../random/gradual.ts';
import { type NoiseTarget, addNoise } from '../random/noise.ts';
import type { NoiseThreads } from '../random/noise-threads.ts';
import { noiseDeviations } from './allocation.ts';
import { type Group, type Groups, groupsOf, parametersOf, samePartition } from './groups.ts';
import { countLaw, gradientLaws, gradualNoises, measureLaw } from './lattice.ts';
import { type PrivacyPlan, assertPlan } from './plan.ts';
import { countsWithin, fractionWithin } from './quantiles.ts';
import { type Measure, meanOf, measured } from './measures.ts';

declare const clippedBrand: unique symbol;
declare const privatisedBrand: unique symbol;

/**
 * The sum over the drawn privacy units of their clipped gradients, with the bound that makes it safe to noise:
 * each unit contributes at most C_k·(1 + rho) in L2 norm to group k. The values are sealed in it, and with them, for
 * adaptive thresholds, the counts of units within the groups' estimates: the one way out is {@link privatise}, once.
 */
export interface ClippedSum {
  readonly [clippedBrand]: true;
  /** With the thresholds C_k that this very sum was clipped to. */
  readonly groups: Groups;
  /** How far rounding may take a unit's true norm past the threshold, relative. */
  readonly rho: number;
}

/** What one logical step releases, noised. Only {@link privatise} makes one. */
export interface Privatised {
  readonly [privatisedBrand]: true;
  /** The logical step whose noise it carries. */
  readonly step: number;
  /** Noised sum over the public normaliser, for each parameter, in the parameter's layout. */
  readonly gradients: ReadonlyMap<string, Float32Array>;
  /** Standard deviation of the noise on every number of a parameter's gradient: public, as what it follows from is. */
  readonly deviations: ReadonlyMap<string, number>;
  /** With the thresholds that the sum was clipped to. */
  readonly groups: Groups;
  /**
   * Under adaptive thresholds, for each group the noised fraction of the expected batch whose gradient was within the
   * estimate, in [0, 1]; null under fixed ones.
   */
  readonly fractions: readonly number[] | null;
  /** Where units are measured, the noised mean of each measure over the expected batch; null where they are not. */
  readonly metrics: Readonly<Record<string, number>> | null;
}

type Sums = ReadonlyMap<string, Float32Array | Float64Array>;
type Remainders = ReadonlyMap<string, Float32Array>;

interface Contents {
  readonly sums: Sums;
  readonly remainders: Remainders;
  readonly counts: Float64Array | null;
}

const contents = new WeakMap<ClippedSum, Contents>();
const genuine = new WeakSet<object>();
const measurements = new WeakMap<ClippedSum, Measured>();

/** Sums of measures, each moved by at most ½ by one unit. */
interface Measured {
  readonly measures: readonly Measure[];
  readonly sums: Float64Array;
}

/**
 * Seals per-parameter sums (float32 or float64) together with their bound. **Only the private step may call it**:
 * it takes the caller's word that every unit's part of `sums` was clipped to `groups` within `rho`. The arrays
 * belong to the result from here on and will be overwritten by the noised sum.
 *
 * @param norms for adaptive thresholds, the gradient norms [units · groups] of all units drawn, the groups of a unit next
 * to each other, of which only the counts within the estimates of `groups` are kept; none under fixed thresholds
 * @param remainders what rounding the sums to their type left over, where it is known; noise is added to both together
 * @throws GhostgradError unless `sums` holds exactly the parameters of `groups` in their size, and 0 ≤ rho < 1
 */
export function clippedSum(
  sums: Sums, groups: Groups, rho: number, norms?: Float32Array, remainders: Remainders = new Map(),
): ClippedSum {
  const checked = groupsOf(groups);
  const expected = new Set(parametersOf(checked));
  const odd = [...sums.keys()].find((name) => !expected.has(name)) ?? [...expected].find((name) => !sums.has(name));
  if (odd !== undefined) throw misfit(`parameter "${odd}"`, 'one sum for each parameter of each group');
  const unfit = [...remainders].find(([name, { length }]) => sums.get(name)?.length !== length)?.[0];
  if (unfit !== undefined) throw misfit(`the remainder of parameter "${unfit}"`, 'as many numbers as its sum has');
  const missized = checked.find((group) => sizeIn(sums, group) !== group.size);
  if (missized !== undefined) {
    throw misfit(
      `clipping group "${missized.name}"`, `${missized.size} numbers`, `${sizeIn(sums, missized)} numbers`,
    );
  }
  if (!(rho >= 0 && rho < 1))
    throw new GhostgradError({ what: 'rounding allowance out of range', found: String(rho), expected: '0 ≤ rho < 1' });
  const counts = norms === undefined ? null : countsWithin(norms, checked);
  const sum = Object.freeze({ groups: checked, rho }) as ClippedSum;
  contents.set(sum, { sums: new Map(sums), remainders: new Map(remainders), counts });
  return sum;
}

/**
 * Seals measures of the units of `sum` beside it, each unit's number cut to its range: they are released with the sum, by
 * {@link privatise}, and in no other way.
 *
 * @param values for each measure, one number for each unit that was drawn
 * @throws GhostgradError where the sum was measured or noised before
 */
export function withMeasures(sum: ClippedSum, values: readonly { readonly measure: Measure; readonly values: Float32Array }[]): ClippedSum {
  if (!contents.has(sum) || measurements.has(sum))
    throw new GhostgradError({ what: 'a clipped sum was measured twice, or after it was noised', expected: 'all measures at once, before' });
  measurements.set(sum, {
    measures: values.map(({ measure }) => measure),
    sums: Float64Array.from(values, (one) => measured(one.values, one.measure)),
  });
  return sum;
}

const sizeIn = (sums: Sums, { parameters }: Group): number =>
  parameters.reduce((total, name) => total + (sums.get(name)?.length ?? 0), 0);

const misfit = (where: string, expected: string, found?: string): GhostgradError =>
  new GhostgradError({ what: 'the clipped sum does not match its groups', where, found, expected });

/**
 * Adds the plan's noise to `sum`, once, and divides by the plan's public normaliser: with {@link privatiseInParallel}
 * the only constructor of {@link Privatised}. Every coordinate gets independent noise from streams that are its parameter's
 * own, of a law that follows from the plan and the sum's own thresholds ({@link gradientLaws}); so does every count, in
 * float64, from a stream that is no parameter's. Consumes `sum` and the step's noise key, so that
 * neither one sum can be noised twice nor one noise be added to two sums. The sum's arrays are overwritten; float32 ones
 * become the result.
 *
 * Throws GhostgradError when the sum's groups, bound or counts are not the plan's, when it or the key was used before,
 * when seeded keys meet a plan that claims secret ones, or when a value is not finite.
 */
export function privatise(sum: ClippedSum, plan: PrivacyPlan, keys: StepKeys): Privatised {
  const taken = take(sum, plan, keys);
  keys.noise.use((streamOf) => {
    addNoise(taken.targets, 1 / plan.normaliser, streamOf);
    addNoise([...taken.counted, ...taken.measured], 1, streamOf);
  });
  return seal(taken, plan, keys);
}

/**
 * {@link privatise} on several threads, to the very same result; for sums whose arrays lie in shared memory.
 *
 * Rejects as {@link privatise} throws, and when a thread fails: the sum and the key are then used up.
 */
export async function privatiseInParallel(
  sum: ClippedSum, plan: PrivacyPlan, keys: StepKeys, threads: Pick<NoiseThreads, 'addNoise'>,
): Promise<Privatised> {
  const taken = take(sum, plan, keys);
  await keys.noise.use((streamOf, keyOf) => {
    addNoise([...taken.counted, ...taken.measured], 1, streamOf);
    return threads.addNoise(taken.targets, 1 / plan.normaliser, keyOf);
  });
  return seal(taken, plan, keys);
}

/**
 * {@link privatise} for a plan with further releases: the release of `plan`, to the very bits that {@link privatise} gives it,
 * and, for each plan of `plan.further`, the release before it with more noise, from streams of its own. All of them together
 * are post-processing of the first and cost what it costs; each by itself costs what its own plan says (docs/noise.md).
 *
 * Throws as {@link privatise} does.
 */
export function privatiseGradually(sum: ClippedSum, plan: PrivacyPlan, keys: StepKeys): readonly Privatised[] {
  const taken = take(sum, plan, keys);
  const noiseOf = new Map(gradualNoises(taken.groups, plan).flatMap((noise, k) =>
    taken.groups[k]!.parameters.map((name) => [name, noise])));
  const released = keys.noise.use((streamOf) => taken.targets.map((target) =>
    noisedGradually(target, noiseOf.get(target.parameter)!, 1 / plan.normaliser, streamOf)));
  for (const { values, remainder } of taken.targets) for (const each of [values, remainder]) each?.fill(0);
  return [plan, ...plan.further].map((each, k) =>
    seal({ ...taken, targets: taken.targets.map((target, i) => ({ ...target, values: released[i]![k]! })) }, each, keys));
}

/** A clipped sum out of its seal, about to be noised. */
interface Taken {
  readonly groups: Groups;
  readonly targets: readonly (NoiseTarget & { readonly parameter: string })[];
  /** The counts, of which there may be none. */
  readonly counted: readonly NoiseTarget[];
  /** The sums of measures, likewise. */
  readonly measured: readonly (NoiseTarget & Measured)[];
}

/** Breaks the seal of `sum`, for good; only once all is checked. */
function take(sum: ClippedSum, plan: PrivacyPlan, keys: StepKeys): Taken {
  assertPlan(plan);
  if (plan.first !== null) {
    throw new GhostgradError({
      what: 'a clipped sum was to be noised as a further release', expected: 'the plan of the first release, whose noise is under all others',
    });
  }
  const sealed = contents.get(sum);
  if (sealed === undefined) {
    throw new GhostgradError({
      what: 'a clipped sum was noised twice',
      expected: 'one addition of noise for each logical step',
    });
  }
  const { sums, remainders, counts } = sealed;
  const { groups } = sum;
  assertBounded(sum, plan);
  assertCounted(counts, plan);
  const measured = measurements.get(sum) ?? null;
  assertMeasured(measured, plan);
  if (keys.seeded !== plan.seeded) {
    throw new GhostgradError({
      what: `${keys.seeded ? 'seeded' : 'secret'} keys under a plan for ${plan.seeded ? 'seeded' : 'secret'} ones`,
      fix: 'take the ratchet from the plan',
    });
  }
  contents.delete(sum);
  measurements.delete(sum);
  const laws = gradientLaws(groups, plan);
  const lawOf = new Map(groups.flatMap(({ parameters }, k) => parameters.map((name) => [name, laws[k]!])));
  const targets = [...sums].map(([parameter, values]) =>
    ({ parameter, label: `noise:${parameter}`, values, remainder: remainders.get(parameter), law: lawOf.get(parameter)! }));
  const law = countLaw(plan);
  const counted = counts === null || law === null ? [] : [{ label: 'counts', values: counts, law }];
  const ofMeasures = measureLaw(plan);
  return {
    groups, targets, counted,
    measured: measured === null || ofMeasures === null ? [] : [{ ...measured, label: 'measures', values: measured.sums, law: ofMeasures }],
  };
}

function seal(
  { groups, targets, counted: [counts], measured: [measured] }: Taken, plan: PrivacyPlan, { step }: StepKeys,
): Privatised {
  const { normaliser } = plan;
  const gradients: ReadonlyMap<string, Float32Array> = new Map(targets.map(({ parameter, values }) =>
    [parameter, values instanceof Float32Array ? values : Float32Array.from(values)]));
  const fractions = counts === undefined ? null
    : Object.freeze(Array.from(counts.values, (count) => fractionWithin(count, normaliser)));
  const metrics = measured === undefined ? null : Object.freeze(Object.fromEntries(measured.measures.map((measure, i) =>
    [measure.name, meanOf(measured.sums[i]!, measure, normaliser)])));
  const noise = noiseDeviations(groups, plan);
  const deviations: ReadonlyMap<string, number> = new Map(groups.flatMap(({ parameters }, k) => parameters.map((name) => [name, noise[k]! / normaliser] as const)));
  const result = Object.freeze({ step, gradients, deviations, groups, fractions, metrics }) as Privatised;
  genuine.add(result);
  return result;
}

/** Throws GhostgradError unless {@link privatise} made `value`; optimizers call it before they use a gradient. */
export function assertPrivatised(value: Privatised): void {
  if (!genuine.has(value)) {
    throw new GhostgradError({ what: 'a gradient that was not privatised', expected: 'the result of privatise()' });
  }
}

/** The sum must have the plan's groups, and, where the plan fixes them, its thresholds. */
function assertBounded({ groups, rho }: ClippedSum, plan: PrivacyPlan): void {
  const bounded =
    samePartition(groups, plan.groups) &&
    (plan.adaptive !== null || groups.every(({ norm }, k) => norm === plan.groups[k]?.norm));
  if (!bounded) {
    throw new GhostgradError({
      what: 'the clipped sum was not clipped as the privacy plan says',
      expected: `the same groups${plan.adaptive === null ? ' and thresholds' : ''} in both`,
    });
  }
  if (rho > plan.rho) {
    throw new GhostgradError({
      what: "the clipped sum's rounding allowance exceeds the plan's",
      found: String(rho),
      expected: `at most ${plan.rho}`,
    });
  }
}

/** Counts are released where the plan pays for them, and only there. */
function assertCounted(counts: Float64Array | null, { adaptive }: PrivacyPlan): void {
  if ((counts === null) === (adaptive === null)) return;
  throw new GhostgradError(
    counts === null
      ? {
          what: 'a clipped sum without counts under a plan of adaptive thresholds',
          expected: 'the gradient norms of the units drawn, from which they are counted',
        }
      : {
          what: 'counts of gradient norms under a plan of fixed thresholds',
          expected: 'a plan of adaptive thresholds, whose ε covers them',
        },
  );
}

/** Measures are released where the plan pays for them, in the ranges that it pays for. */
function assertMeasured(measured: Measured | null, { metrics }: PrivacyPlan): void {
  const text = (measures: readonly Measure[] | undefined): string =>
    measures?.map(({ name, low, high }) => `${name} from ${low} to ${high}`).join(', ') ?? 'none';
  const [found, expected] = [text(measured?.measures), text(metrics?.measures)];
  if (found !== expected) throw new GhostgradError({ what: 'a clipped sum with other measures than the privacy plan has', found, expected });
}
