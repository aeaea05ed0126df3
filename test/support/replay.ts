import { replanned } from '../../src/audit/gradient-audit.ts';
import type { SourceOf } from '../../src/audit/trials.ts';
import type { Dataset } from '../../src/data/index.ts';
import type { PrivacyPlan, Privatised } from '../../src/privacy/index.ts';
import { countsWithin } from '../../src/privacy/quantiles.ts';
import { batchSource } from '../../src/training/examples.ts';
import type { Parameters, StepProgram, StepResult } from '../../src/training/step.ts';

/** Two data sets, the second with one row more, at its end; and what trains on them. */
export interface Neighbours {
  readonly data: readonly [Dataset, Dataset];
  readonly program: StepProgram;
  readonly plan: PrivacyPlan;
  readonly parameters: () => Parameters;
}

/**
 * Takes the steps of a plan on two neighbouring data sets with the very same randomness, always at the same parameters, and
 * says in what the releases differ that they must not: in anything but the noised sums, in these by more than what the row more
 * adds to the clipped sum, and in that by more than the sensitivity. Two steps must not have the same noise, and counts must have
 * some. Empty where all is right.
 */
export async function replayed({ data, program, plan: unseeded, parameters }: Neighbours, sourceOf: SourceOf, seed: number): Promise<string[]> {
  const plan = replanned(unseeded, { seed });
  const sources = data.map((set) => sourceOf({ plan, program, data: set, keys: plan.startRatchet() }));
  const truth = plan.startRatchet();
  const noises: Float64Array[] = [];
  const problems: string[] = [];
  for (let step = 0; step < plan.steps; step++) {
    const found: Privatised[] = [];
    for (const source of sources) found.push((await source.next(parameters())).gradient as Privatised);
    const [without, withRow] = found as [Privatised, Privatised];
    const keys = truth.advance();
    const rows = plan.draw(keys, data[1].size);
    const thresholds = without.groups.map(({ norm }) => norm);
    const sums: StepResult[] = [];
    for (const set of data) sums.push(await program.run(parameters(), batchSource(set, rows.filter((row) => row < set.size)), thresholds));
    const say = (what: string): void => void problems.push(`step ${step}: ${what}`);

    if (withRow.step !== without.step) say('the steps are numbered otherwise');
    if (plan.adaptive === null && JSON.stringify(withRow.groups) !== JSON.stringify(without.groups)) say('thresholds differ');
    without.groups.forEach(({ norm, parameters: names }, k) => {
      const difference = (of: (side: 0 | 1, name: string) => Float32Array, scale: number): Float64Array =>
        Float64Array.from(names.flatMap((name) => [...of(1, name)].map((x, i) => (x - of(0, name)[i]!) * scale)));
      const shown = difference((side, name) => (side === 0 ? without : withRow).gradients.get(name)!, plan.normaliser);
      const summed = difference((side, name) => sums[side]!.sums.get(name)!, 1);
      const bound = norm * (1 + plan.rho);
      // Sums are rounded to the grid, and releases are float32 numbers as large as the noise.
      const rounding = (1e-4 + plan.rounding) * norm;
      if (Math.hypot(...shown) > bound + rounding) say(`group ${k} differs by ${Math.hypot(...shown) / norm} thresholds`);
      if (Math.hypot(...shown.map((x, i) => x - summed[i]!)) > rounding) say(`group ${k} differs by something else than the row`);
    });
    const [first = ''] = without.groups[0]!.parameters;
    const noise = Float64Array.from(without.gradients.get(first)!, (x, i) => x * plan.normaliser - sums[0]!.sums.get(first)![i]!);
    const isOld = noises.some((other) => Math.hypot(...noise.map((x, i) => x - other[i]!)) < 1e-3 * Math.hypot(...noise));
    if (isOld) say('the noise is that of an earlier step');
    noises.push(noise);
    if (without.fractions !== null) {
      const counts = countsWithin(sums[0]!.norms, without.groups);
      without.fractions.forEach((fraction, k) => {
        if (Math.abs((fraction - 0.5) * plan.normaliser - counts[k]!) < 1e-9) say(`count ${k} has no noise`);
        // On a grid, by a point more.
        if (Math.abs(fraction - withRow.fractions![k]!) * plan.normaliser > 0.5 * (1 + plan.rounding) + 1e-9) say(`count ${k} differs by more than a half`);
      });
    }
    // Thresholds that followed other counts are another state.
    if (plan.adaptive !== null && rows.includes(data[1].size - 1)) break;
  }
  return problems;
}
