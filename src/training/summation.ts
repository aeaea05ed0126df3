import type { StepLayer } from '../clipping/step-graph.ts';
import { gamma } from '../clipping/rounding.ts';
import { additionRounding } from './accumulate.ts';

export interface Summed {
  /** Units that are expected in a logical batch. */
  readonly batchSize: number;
  /** Units that are summed at once. */
  readonly microBatch: number;
}

/**
 * How far the float32 sums of two neighbouring draws may differ beyond what the one unit between them adds, relative to the
 * bound C(1+ρ) on that. Each unit's own part is bounded as float32 computes it (ARCHITECTURE.md, "What is proved of
 * rounding"); this is the rest, which the sensitivity does not hold: one unit more or less, and the additions of all others
 * round otherwise.
 *
 * An element of a micro-batch's sum adds up n numbers (the units' gradients, or their products at every position), in an
 * order that is the kernel's, and is wrong by at most γ_n of their magnitudes (Higham 2002, §3.1). Those are at most C(1+ρ)
 * in norm for each unit **whose positions do not cancel**; of a unit whose do, they are more. Totals of micro-batches add what
 * {@link accumulator} says (which discrete noise has in its sensitivity already). Each of the two draws may be wrong by so much, and all batchSize units' magnitudes may align,
 * which real gradients are far from: so this is a worst case, and grows with the batch.
 */
export function summationRounding(layers: readonly Pick<StepLayer, 'contraction' | 'plan'>[], { batchSize, microBatch }: Summed): number {
  const terms = layers.map(({ contraction, plan }) => microBatch * (plan.sum === 'product' ? contraction.T : 1));
  // A gradient's weight and scale round each of the numbers as well.
  const within = gamma(Math.max(...terms) + 4);
  const parts = Math.ceil(batchSize / microBatch);
  const across = (parts - 1) * additionRounding;
  return 2 * batchSize * (within + across);
}
