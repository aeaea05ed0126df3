import { randomBytes } from 'node:crypto';
import type { Dataset } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import type { Measure, PrivacyEvent } from '../privacy/index.ts';
import { reserve } from '../privacy/budget.ts';
import { meansPlan } from '../privacy/means.ts';
import { type EvaluateOptions, evaluate } from './evaluate.ts';

export interface PrivateEvaluateOptions extends EvaluateOptions {
  /** Not to be exceeded by accuracy and loss together, at `delta`, for each record of the data. */
  readonly epsilon: number;
  readonly delta: number;
  /** What each record's loss is cut to; without it, no loss is released. */
  readonly lossBound?: number | undefined;
  /** A file with the ε and δ that all releases about the same records may spend together; this one is charged to it. */
  readonly budget?: string | undefined;
}

/** What may be shown to anyone. */
export interface PrivateEvaluation {
  /** With noise, hence possibly outside of 0..1; null where the loss does not classify. */
  readonly accuracy: number | null;
  /** Mean of the losses, each cut to the bound, with noise; null without a bound. */
  readonly loss: number | null;
  /** The number of records, taken to be public. */
  readonly examples: number;
  /** Standard deviations of the noise. */
  readonly deviations: { readonly accuracy: number | null; readonly loss: number | null };
  readonly epsilon: number;
  readonly delta: number;
  /** What was released about the data: to be composed with other releases about the same records. */
  readonly event: PrivacyEvent;
}

/**
 * A model's accuracy and loss on **private** data, with noise: (ε, δ)-differential privacy for each record of that data, one
 * added or removed. It is a release of its own, about records that the training did not touch: a record that is in one of
 * the two data sets alone has that one's ε; one that is in both has both ({@link PrivateEvaluation.event} composes), and
 * so has every further evaluation on the same data. A `budget` file that training shares adds them up, and refuses what
 * would overrun it.
 *
 * @throws GhostgradError as {@link evaluate} does, when there is nothing to release, and when the budget does not hold it
 */
export async function evaluatePrivately(
  model: Graph, dataset: Dataset, { epsilon, delta, lossBound, budget, ...options }: PrivateEvaluateOptions,
): Promise<PrivateEvaluation> {
  const losses: number[] = [];
  const right: number[] = [];
  await evaluate(model, dataset, { ...options, onLoss: (loss) => losses.push(loss), onRight: (isRight) => right.push(isRight) });
  const size = dataset.declaredSize ?? losses.length;
  const measured: { readonly measure: Measure; readonly values: Float32Array }[] = [
    ...(right.length === 0 ? [] : [{ measure: { name: 'accuracy', low: 0, high: 1 }, values: Float32Array.from(right) }]),
    ...(lossBound === undefined ? [] : [{ measure: { name: 'loss', low: 0, high: lossBound }, values: Float32Array.from(losses) }]),
  ];
  if (measured.length === 0) {
    throw new GhostgradError({
      what: 'nothing to release', where: '--loss-bound', found: 'a loss that does not classify, and no bound for it',
      expected: 'what each loss is cut to', fix: 'e.g. --loss-bound 5',
    });
  }
  if (lossBound !== undefined && !(lossBound > 0 && Number.isFinite(lossBound))) {
    throw new GhostgradError({ what: 'bound of the loss out of range', where: '--loss-bound', found: String(lossBound), expected: 'a finite number above 0' });
  }
  const plan = meansPlan({ measures: measured.map(({ measure }) => measure), size, epsilon, delta });
  const { deviations, event } = plan;
  if (budget !== undefined) {
    await reserve(budget, { id: randomBytes(16).toString('hex'), name: `evaluation of ${model.name}`, event, neighbors: 'add-remove' });
  }
  const means = plan.release(measured.map(({ values }) => values));
  return {
    accuracy: means['accuracy'] ?? null, loss: means['loss'] ?? null, examples: size,
    deviations: { accuracy: deviations['accuracy'] ?? null, loss: deviations['loss'] ?? null }, epsilon: plan.epsilon, delta, event,
  };
}
