import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import type { Measure, MeasuresPlan } from '../privacy/index.ts';
import { type LossName, classifies } from './loss.ts';
import type { StepResult } from './step.ts';

/** The section `privacy.metrics` of a recipe: what of the training is released with noise, beside the gradients. */
export const metricsSchema = z.strictObject({
  // The mean loss over a step's examples, each cut to this: the smaller, the less noise.
  trainingLoss: z.number().positive().optional(),
  // The fraction of them that is classified right.
  trainingAccuracy: z.boolean().default(false),
  budgetFraction: z.number().gt(0).lt(1).default(0.01),
});

export type MetricsRecipe = z.output<typeof metricsSchema>;

/** What a measure is taken of. */
const sources: { readonly [name: string]: (seen: Pick<StepResult, 'losses' | 'right'>) => Float32Array | undefined } = {
  trainingLoss: ({ losses }) => losses,
  trainingAccuracy: ({ right }) => right,
};

/**
 * The measures of a recipe; undefined where it has none.
 *
 * @throws GhostgradError for a section that measures nothing, and for the accuracy of a loss that does not classify
 */
export function measuresOf(recipe: MetricsRecipe | undefined, loss: LossName): MeasuresPlan | undefined {
  if (recipe === undefined) return undefined;
  const { trainingLoss, trainingAccuracy, budgetFraction } = recipe;
  if (trainingAccuracy && !classifies(loss)) {
    throw new GhostgradError({
      what: 'the loss does not tell right from wrong', where: 'privacy.metrics.trainingAccuracy', found: `loss ${loss}`,
      expected: 'cross-entropy, sigmoid-cross-entropy or binary-cross-entropy', fix: 'remove trainingAccuracy',
    });
  }
  const measures: Measure[] = [
    ...(trainingLoss === undefined ? [] : [{ name: 'trainingLoss', low: 0, high: trainingLoss }]),
    ...(trainingAccuracy ? [{ name: 'trainingAccuracy', low: 0, high: 1 }] : []),
  ];
  if (measures.length > 0) return { measures, budgetFraction };
  throw new GhostgradError({
    what: 'private metrics of nothing', where: 'privacy.metrics', expected: 'trainingLoss, trainingAccuracy, or both',
    fix: 'e.g. metrics: { trainingLoss: 5, trainingAccuracy: true }',
  });
}

/** The numbers of the units of a step, by measure. */
export const measuredIn = (
  { measures }: MeasuresPlan, seen: Pick<StepResult, 'losses' | 'right'>,
): { readonly measure: Measure; readonly values: Float32Array }[] =>
  measures.map((measure) => {
    const values = sources[measure.name]?.(seen);
    if (values === undefined) throw new GhostgradError({ what: `the step does not tell ${measure.name}`, fix: 'compile it so that it does' });
    return { measure, values };
  });
