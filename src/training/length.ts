import { GhostgradError } from '../errors.ts';
import type { Recipe } from './recipe.ts';

/**
 * How long a run over `datasetSize` examples is, from public numbers alone: examples expected in a step, all of them where
 * the recipe says nothing else, and steps.
 *
 * @throws GhostgradError for a batch larger than the data, or smaller where every step takes all of it
 */
export function lengthOf(
  { batchSize = 0, fullBatch = false, steps, epochs = 0 }: Recipe['training'], datasetSize: number,
): { readonly batchSize: number; readonly plannedSteps: number } {
  const size = batchSize === 0 ? datasetSize : batchSize;
  if (fullBatch && size !== datasetSize) {
    throw new GhostgradError({
      what: 'a full batch is all of the data, and batchSize says otherwise', where: 'training.batchSize', found: String(size),
      expected: `all ${datasetSize} examples`, fix: 'remove batchSize, or fullBatch (and sampling: full-batch)',
    });
  }
  if (size > datasetSize) {
    throw new GhostgradError({
      what: 'batchSize is out of range', where: 'training.batchSize', found: String(size),
      expected: `more than 0 and at most the ${datasetSize} examples`, fix: 'choose a smaller batch',
    });
  }
  return { batchSize: size, plannedSteps: steps ?? Math.max(1, Math.floor((epochs * datasetSize) / size)) };
}
