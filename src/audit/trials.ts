import type { Dataset } from '../data/index.ts';
import { type Groups, type PrivacyPlan, noiseDeviations } from '../privacy/index.ts';
import type { Ratchet } from '../random/ratchet.ts';
import type { Stream } from '../random/stream.ts';
import { type GradientSource, privateGradients } from '../training/gradients.ts';
import type { StepProgram } from '../training/step.ts';
import { type Probe, type Row, probeData, quiet, weight } from './probe.ts';

/** Makes the source of gradients that is audited. */
export type SourceOf = (parts: {
  readonly plan: PrivacyPlan; readonly program: StepProgram; readonly data: Dataset; readonly keys: Ratchet;
}) => GradientSource;

/** What was seen of canaries that each were in the data or not. */
export interface Trials {
  /** By canary: log-likelihood ratio of all that was released, in the data against not. */
  readonly scores: Float64Array;
  /** By canary: 1 where it was in the data. */
  readonly present: Uint8Array;
}

/** Σ of squares of what should be N(0, 1). */
export interface Tally {
  numbers: number;
  squares: number;
}

/** What the noise looked like where it is seen by itself, over all steps; in units of the deviation that was claimed. */
export interface NoiseSeen {
  readonly gradients: Tally;
  readonly counts: Tally;
  /** Steps whose noise was that of an earlier one, number for number. */
  repeated: number;
  readonly fingerprints: Set<number>;
}

export const noNoiseYet = (): NoiseSeen =>
  ({ gradients: { numbers: 0, squares: 0 }, counts: { numbers: 0, squares: 0 }, repeated: 0, fingerprints: new Set() });

/**
 * One run of the claimed steps with as many canaries as the probe has, each in the data by a coin of `coins`. Their directions
 * are orthogonal, so each has draws and noise of its own, as in a run of its own.
 *
 * The data is what neighbours differ in, and nothing else: under `add-remove` a canary is there or not, under `zero-out` it
 * or a row of no gradient, under `replace-one` it or its negative.
 *
 * @param claim what is claimed of the source, under the probe's groups
 */
export async function runTrials(
  probe: Probe, claim: PrivacyPlan,
  { sourceOf = privateGradients, keys, coins, noise, onStep }: {
    readonly sourceOf?: SourceOf | undefined; readonly keys: Ratchet; readonly coins: Stream; readonly noise: NoiseSeen;
    readonly onStep?: ((step: number) => void) | undefined;
  },
): Promise<Trials> {
  const present = Uint8Array.from({ length: probe.canaries }, () => coins.word() & 1);
  const rows = Array.from(present).flatMap((isIn, canary): Row[] => {
    if (isIn === 1) return [{ canary, sign: 1 }];
    if (claim.neighbors === 'add-remove') return [];
    return [{ canary, sign: claim.neighbors === 'replace-one' ? -1 : 0 }];
  });
  let thresholds = probe.groups.map(({ norm }) => norm);
  const data = probeData(rows, {
    // A draw of fixed size is from all of the data; of independent ones, those without a gradient need not be there.
    size: claim.sampling === 'without-replacement' ? claim.datasetSize : rows.length,
    width: probe.canaries + quiet, thresholds: () => thresholds, strength: probe.strength,
  });
  const source = sourceOf({ plan: claim, program: probe.program, data, keys });
  const scores = new Float64Array(probe.canaries);
  let parameters = probe.parameters;
  for (let step = 0; step < claim.steps; step++) {
    thresholds = source.groups.map(({ norm }) => norm);
    const { groups } = source;
    const taken = await source.next(parameters);
    const { gradient, norms } = taken;
    ({ parameters } = taken);
    const seen = groups.map((_, k) => gradient.gradients.get(weight(k))!);
    addScores(scores, seen, groups, claim);
    lookAtNoise(noise, seen, groups, claim);
    if ('fractions' in gradient && gradient.fractions !== null) lookAtCounts(noise, gradient.fractions, norms, groups, claim);
    onStep?.(step + 1);
  }
  return { scores, present };
}

/**
 * Adds each canary's log-likelihood ratio of one step: with rate q its coordinates have the mean of a clipped canary, else of
 * none. Over noise of deviation s_k in group k, z = Σ_k C_k·y_k/s_k² / a² with a² = Σ_k (C_k/s_k)² is sufficient, and
 * N(1, a⁻²) or N(0, a⁻²).
 */
function addScores(scores: Float64Array, seen: readonly Float32Array[], groups: Groups, claim: PrivacyPlan): void {
  const { sampleRate: q, normaliser, neighbors } = claim;
  const deviations = noiseDeviations(groups, claim);
  const square = groups.reduce((sum, { norm }, k) => sum + (norm / deviations[k]!) ** 2, 0);
  const slopes = groups.map(({ norm }, k) => (normaliser * norm) / deviations[k]! ** 2);
  for (let i = 0; i < scores.length; i++) {
    let x = 0;
    for (let k = 0; k < slopes.length; k++) x += slopes[k]! * seen[k]![i]!;
    scores[i]! += evidence(q, x - square / 2) - (neighbors === 'replace-one' ? evidence(q, -x - square / 2) : 0);
  }
}

/** log(1 − q + q·e^x). */
const evidence = (q: number, x: number): number => (x > 500 ? x + Math.log(q) : Math.log1p(q * Math.expm1(x)));

function lookAtNoise(noise: NoiseSeen, seen: readonly Float32Array[], groups: Groups, claim: PrivacyPlan): void {
  const deviations = noiseDeviations(groups, claim);
  let fingerprint = 0;
  seen.forEach((values, k) => {
    const scale = claim.normaliser / deviations[k]!;
    for (let i = values.length - quiet; i < values.length; i++) {
      noise.gradients.squares += (values[i]! * scale) ** 2;
      fingerprint = fingerprint * Math.SQRT2 + values[i]! * scale;
    }
    noise.gradients.numbers += quiet;
  });
  if (noise.fingerprints.has(fingerprint)) noise.repeated += 1;
  noise.fingerprints.add(fingerprint);
}

/** Counts too carry noise, and what was counted is known here. */
function lookAtCounts(
  noise: NoiseSeen, fractions: readonly number[], norms: Float32Array, groups: Groups, { adaptive, normaliser }: PrivacyPlan,
): void {
  fractions.forEach((fraction, k) => {
    // At the ends the fraction was cut.
    if (fraction <= 0 || fraction >= 1) return;
    const { norm, estimate = norm } = groups[k]!;
    let count = 0;
    for (let i = k; i < norms.length; i += groups.length) count += norms[i]! <= estimate ? 0.5 : -0.5;
    noise.counts.squares += (((fraction - 0.5) * normaliser - count) / adaptive!.countDeviation) ** 2;
    noise.counts.numbers += 1;
  });
}
