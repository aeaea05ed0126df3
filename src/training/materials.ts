import { type DataSpec, type Dataset, loadData } from '../data/index.ts';
import type { Graph } from '../graph/ir.ts';
import { withGroupNorm } from '../models/batchnorm.ts';
import { loadModel, prepareModel } from './model.ts';
import type { ModelReference, Recipe, RecipeInput } from './recipe.ts';

/** A recipe whose model and data may also be objects in memory. */
export type TrainingInput = Omit<RecipeInput, 'model' | 'data'> & {
  readonly model: ModelReference | Graph;
  readonly data: {
    readonly train: DataSpec | Dataset;
    readonly test?: DataSpec | Dataset | undefined;
    /** The number of training examples, declared public; default: as many as there are, taken to be public. */
    readonly size?: number | undefined;
  };
};

export interface Materials {
  readonly source: ReturnType<typeof loadModel>;
  readonly trainingSet: Dataset;
  readonly testSet: Dataset | undefined;
}

/**
 * Model and data of a recipe: those in memory as they are, the others loaded.
 *
 * @throws GhostgradError for what cannot be read
 */
export async function loadMaterials({ model, data }: TrainingInput, recipe: Recipe): Promise<Materials> {
  const load = async (set: DataSpec | Dataset): Promise<Dataset> => (isDataset(set) ? set : loadData(set));
  const source = isGraph(model) ? { model: prepareModel(model) } : loadModel(recipe.model, { seed: recipe.training.seed });
  return {
    source: recipe.convertBatchNorm === true ? { ...source, model: withGroupNorm(source.model) } : source,
    trainingSet: await load(data.train),
    testSet: data.test === undefined ? undefined : await load(data.test),
  };
}

/** The recipe as it is recorded: what is in memory goes by its name. What else it holds is not looked at. */
export function recordedAs({ model, data, ...rest }: TrainingInput): unknown {
  const name = (set: unknown): unknown => (isDataset(set) ? `(in memory: ${set.name})` : set);
  const sets = typeof data === 'object' && data !== null;
  return {
    ...rest,
    ...(model !== undefined && { model: isGraph(model) ? { path: `(in memory: ${model.name})` } : model }),
    ...(data !== undefined && {
      data: sets ? Object.fromEntries(Object.entries(data).map(([key, set]) => [key, name(set)])) : data,
    }),
  };
}

const isGraph = (model: unknown): model is Graph =>
  typeof model === 'object' && model !== null && 'initializers' in model && model.initializers instanceof Map;
const isDataset = (data: unknown): data is Dataset =>
  typeof data === 'object' && data !== null && 'gather' in data && typeof data.gather === 'function';
