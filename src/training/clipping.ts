import { z } from 'zod';
import { clipFunctionNames } from '../clipping/clip-functions.ts';
import { type Partition, groupStyles, stylesOfNames } from '../clipping/groups.ts';
import { GhostgradError } from '../errors.ts';
import { type AdaptiveThresholds, type Groups, allocations, groupsOf } from '../privacy/index.ts';
import { largestThreshold, leastThreshold } from '../privacy/quantiles.ts';

// Far below any useful threshold, squares in float32 would underflow.
const threshold = z.number().min(1e-6);
const followed = z.number().min(leastThreshold).max(largestThreshold).nullable().default(null);
const fraction = z.number().gt(0).lt(1);
const patterns = z.array(z.string().min(1)).min(1);

const adaptiveSchema = z.strictObject({
  quantile: fraction.default(0.6),
  learningRate: z.number().positive().default(0.2),
  budgetFraction: fraction.default(0.01),
  // null: those that would be fixed.
  initial: followed,
  rescaleTo: followed,
});

/** The section `clipping` of a recipe. */
export const clippingSchema = z.strictObject({
  style: z.enum(groupStyles).default('flat'),
  groups: z
    .record(z.string().min(1), z.union([patterns, z.strictObject({ patterns, norm: threshold.optional() })]))
    .default({}),
  norm: threshold.default(1),
  function: z.union([z.enum(clipFunctionNames), z.strictObject({ expression: z.string().min(1) })]).default('abadi'),
  gamma: z.number().min(1e-6).default(0.01),
  threshold: z.union([z.literal('fixed'), z.strictObject({ adaptive: adaptiveSchema.prefault({}) })]).default('fixed'),
  allocation: z.enum(allocations).default('global'),
});

export type ClippingRecipe = z.output<typeof clippingSchema>;

/**
 * What the schema cannot tell of a clipping section.
 *
 * @param where what messages call the section
 * @throws GhostgradError for a style of named groups without groups, and for groups of another style
 */
export function checkClipping({ style, groups }: ClippingRecipe, where: string): void {
  const names = Object.keys(groups);
  if (stylesOfNames.has(style) && names.length === 0) {
    throw new GhostgradError({
      what: style === 'groups' ? 'clipping by named groups without groups' : 'clipping per device without devices',
      where: `${where}.groups`,
      expected: 'names with patterns of parameter names, which together match every trainable parameter once',
      fix: 'e.g. groups: { encoder: ["encoder.*"], head: ["head.*"] }, or another style',
    });
  }
  if (!stylesOfNames.has(style) && names.length > 0) {
    throw new GhostgradError({
      what: 'clipping groups are named, and the style makes others',
      where: `${where}.style`,
      found: `style ${style}, groups ${names.join(', ')}`,
      expected: 'style: groups, or per-device',
      fix: 'say style: groups, or remove the groups',
    });
  }
}

/** The patterns of each named group. */
export const patternsOf = ({ groups }: Pick<ClippingRecipe, 'groups'>): Readonly<Record<string, readonly string[]>> =>
  Object.fromEntries(Object.entries(groups).map(([name, group]) => [name, Array.isArray(group) ? group : group.patterns]));

/** How thresholds follow the gradient norms; undefined where they are fixed. */
export function adaptiveOf({ threshold: given }: Pick<ClippingRecipe, 'threshold'>): AdaptiveThresholds | undefined {
  if (given === 'fixed') return undefined;
  const { quantile, learningRate, budgetFraction, rescaleTo } = given.adaptive;
  return { quantile, learningRate, budgetFraction, rescaleTo };
}

/**
 * The groups with their first thresholds: a group's own norm, else the `initial` of adaptive thresholds, else C/√K for
 * the nominal norm C and K groups, so that √Σ C_k² = C.
 *
 * @param sizeOf numbers in a parameter
 */
export function clippingGroups(
  partition: Partition, sizeOf: (parameter: string) => number, clipping: Pick<ClippingRecipe, 'groups' | 'norm' | 'threshold'>,
): Groups {
  const initial = clipping.threshold === 'fixed' ? null : clipping.threshold.adaptive.initial;
  return groupsOf(
    partition.map(({ name, parameters }) => {
      const own = Object.hasOwn(clipping.groups, name) ? clipping.groups[name] : undefined;
      return {
        name,
        parameters,
        norm: (Array.isArray(own) ? undefined : own?.norm) ?? initial ?? clipping.norm / Math.sqrt(partition.length),
        size: parameters.reduce((sum, parameter) => sum + sizeOf(parameter), 0),
      };
    }),
  );
}
