import { GhostgradError } from '../errors.ts';
import { type Groups, withNorms } from './groups.ts';
import { type PrivacyPlan, assertPlan } from './plan.ts';
import { largestThreshold, leastThreshold } from './quantiles.ts';
import { type Privatised, assertPrivatised } from './sum.ts';

/**
 * The groups, with thresholds, that the step after `privatised` clips to: its own under fixed thresholds; under adaptive
 * ones the estimates e_k·exp(−η·(fraction_k − q)), and C_k = e_k or, where the plan says so, all e_k scaled to a joint norm;
 * within bounds that float32 can square. The fractions are those within the estimates: a joint norm below or above all
 * gradients would else tell nothing about the groups, and leave them the thresholds that they began with.
 * A function of released numbers alone, hence free of further privacy cost.
 *
 * Throws GhostgradError unless `privatised` was made under thresholds of the plan's kind.
 */
export function nextGroups(privatised: Privatised, plan: PrivacyPlan): Groups {
  assertPlan(plan);
  assertPrivatised(privatised);
  const { groups, fractions } = privatised;
  const { adaptive } = plan;
  if ((adaptive === null) !== (fractions === null)) {
    throw new GhostgradError({
      what: 'a privatised sum of another plan',
      found: `${fractions === null ? 'fixed' : 'adaptive'} thresholds`,
      expected: `${adaptive === null ? 'fixed' : 'adaptive'} thresholds`,
    });
  }
  if (adaptive === null || fractions === null) return groups;
  const { learningRate, quantile, rescaleTo } = adaptive;
  const followed = groups.map(({ norm, estimate = norm }, k) =>
    bounded(estimate * Math.exp(-learningRate * ((fractions[k] ?? NaN) - quantile))),
  );
  if (rescaleTo === null) return withNorms(groups, followed);
  const scale = rescaleTo / Math.hypot(...followed);
  return withNorms(groups, followed.map((estimate) => bounded(estimate * scale)), followed);
}

const bounded = (threshold: number): number => Math.min(largestThreshold, Math.max(leastThreshold, threshold));
