import { GhostgradError } from '../errors.ts';
import type { StepKeys } from '../random/ratchet.ts';
import { addGaussian } from '../random/gaussian.ts';
import { type Groups, groupsOf, parametersOf } from './groups.ts';
import { type PrivacyPlan, assertPlan } from './plan.ts';

declare const clippedBrand: unique symbol;
declare const privatisedBrand: unique symbol;

/**
 * The sum over the drawn privacy units of their clipped gradients, with the bound that makes it safe to noise:
 * each unit contributes at most C_k·(1 + rho) in L2 norm to group k. The values are sealed in it: the one way out
 * is {@link privatise}, once.
 */
export interface ClippedSum {
  readonly [clippedBrand]: true;
  readonly groups: Groups;
  /** How far rounding may take a unit's true norm past the threshold, relative. */
  readonly rho: number;
}

/** The private mean gradient of one logical step. Only {@link privatise} makes one. */
export interface Privatised {
  readonly [privatisedBrand]: true;
  /** The logical step whose noise it carries. */
  readonly step: number;
  /** Noised sum over the public normaliser, for each parameter, in the parameter's layout. */
  readonly gradients: ReadonlyMap<string, Float32Array>;
}

type Sums = ReadonlyMap<string, Float32Array | Float64Array>;

const contents = new WeakMap<ClippedSum, Sums>();
const genuine = new WeakSet<object>();

/**
 * Seals per-parameter sums (float32 or float64) together with their bound. **Only the private step may call it**:
 * it takes the caller's word that every unit's part of `sums` was clipped to `groups` within `rho`. The arrays
 * belong to the result from here on and will be overwritten by the noised sum.
 *
 * Throws GhostgradError unless `sums` holds exactly the parameters of `groups` and 0 ≤ rho < 1.
 */
export function clippedSum(sums: Sums, groups: Groups, rho: number): ClippedSum {
  const checked = groupsOf(groups);
  const expected = new Set(parametersOf(checked));
  const odd = [...sums.keys()].find((name) => !expected.has(name)) ?? [...expected].find((name) => !sums.has(name));
  if (odd !== undefined) {
    throw new GhostgradError({
      what: 'the clipped sum does not match its groups',
      where: `parameter "${odd}"`,
      expected: 'one sum for each parameter of each group',
    });
  }
  if (!(rho >= 0 && rho < 1))
    throw new GhostgradError({ what: 'rounding allowance out of range', found: String(rho), expected: '0 ≤ rho < 1' });
  const sum = Object.freeze({ groups: checked, rho }) as ClippedSum;
  contents.set(sum, new Map(sums));
  return sum;
}

/**
 * Adds the plan's noise to `sum`, once, and divides by the plan's public normaliser: the only constructor of
 * {@link Privatised}. Every coordinate gets independent N(0, plan.noiseDeviation²) from a stream of its own for
 * each parameter. Consumes `sum` and the step's noise key, so that neither one sum can be noised twice nor one
 * noise be added to two sums. The sum's arrays are overwritten; float32 ones become the result.
 *
 * Throws GhostgradError when the sum's bound is not the plan's, when it or the key was used before, when seeded
 * keys meet a plan that claims secret ones, or when a value is not finite.
 */
export function privatise(sum: ClippedSum, plan: PrivacyPlan, keys: StepKeys): Privatised {
  assertPlan(plan);
  const sums = contents.get(sum);
  if (sums === undefined) {
    throw new GhostgradError({
      what: 'a clipped sum was noised twice',
      expected: 'one addition of noise for each logical step',
    });
  }
  assertBounded(sum, plan);
  if (keys.seeded !== plan.seeded) {
    throw new GhostgradError({
      what: `${keys.seeded ? 'seeded' : 'secret'} keys under a plan for ${plan.seeded ? 'seeded' : 'secret'} ones`,
      fix: 'take the ratchet from the plan',
    });
  }
  contents.delete(sum);
  keys.noise.use((streamOf) => {
    for (const [name, values] of sums)
      addGaussian(values, plan.noiseDeviation, streamOf(`noise:${name}`), 1 / plan.normaliser);
  });
  const gradients: ReadonlyMap<string, Float32Array> = new Map(
    [...sums].map(([name, values]) => [name, values instanceof Float32Array ? values : Float32Array.from(values)]),
  );
  const result = Object.freeze({ step: keys.step, gradients }) as Privatised;
  genuine.add(result);
  return result;
}

/** Throws GhostgradError unless {@link privatise} made `value`; optimizers call it before they use a gradient. */
export function assertPrivatised(value: Privatised): void {
  if (!genuine.has(value)) {
    throw new GhostgradError({ what: 'a gradient that was not privatised', expected: 'the result of privatise()' });
  }
}

/** The sum's bound must be what the noise was scaled to, group by group. */
function assertBounded(sum: ClippedSum, plan: PrivacyPlan): void {
  const same =
    sum.groups.length === plan.groups.length &&
    sum.groups.every((group, k) => {
      const planned = plan.groups[k];
      return (
        planned !== undefined &&
        group.norm === planned.norm &&
        group.parameters.length === planned.parameters.length &&
        group.parameters.every((name, i) => name === planned.parameters[i])
      );
    });
  if (!same) {
    throw new GhostgradError({
      what: 'the clipped sum was not clipped as the privacy plan says',
      expected: 'the same groups and thresholds in both',
    });
  }
  if (sum.rho > plan.rho) {
    throw new GhostgradError({
      what: "the clipped sum's rounding allowance exceeds the plan's",
      found: String(sum.rho),
      expected: `at most ${plan.rho}`,
    });
  }
}
