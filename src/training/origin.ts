import type { Graph } from '../graph/ir.ts';
import { type ModelReference, isModelFile } from './recipe.ts';

/** What there is to say of a model that was trained before: nothing of one that a builder has drawn anew. */
export interface Origin {
  /** For the certificate: it speaks for the records of the run, and for none before. */
  readonly assumptions: readonly string[];
  readonly notCovered: readonly string[];
  /** For the trained model's file, whose own statement takes the place of the earlier one. */
  readonly metadata: Graph['metadata'];
}

/** What a model's file says of its privacy, and of that of the models that it came from. */
const statement = 'ghostgrad.privacy';
const earlier = 'ghostgrad.startedFrom';

/**
 * @param reference how the recipe names the model
 * @param model the model as it was read
 */
export function originOf(reference: ModelReference, { metadata }: Graph): Origin {
  const path = typeof reference === 'string' ? (isModelFile(reference) ? reference : undefined) : 'path' in reference ? reference.path : undefined;
  if (path === undefined) return { assumptions: [], notCovered: [], metadata: {} };
  const history = [metadata[statement], metadata[earlier]].filter((text) => text !== undefined);
  const said = history.length === 0 ? 'its file says nothing of their privacy' : `its file says of their privacy: ${history.join('; and before: ')}`;
  return {
    assumptions: [`the starting model, ${path}, is public, and no number in it was computed from the records that it was then trained on`],
    notCovered: [`records that the starting model was trained on before: ${said}`],
    metadata: history.length === 0 ? {} : { [earlier]: history.join('; and before: ') },
  };
}
