import { type DataSpec, type Dataset, loadData } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { specialise } from '../graph/specialise.ts';
import { withGroupNorm } from '../models/batchnorm.ts';
import { behindLastLayer, bodyOf, headParameters, withHead } from '../models/head.ts';
import { type SavedAdapters, adaptableWeights, mergedLora, savedAdapters, withLora } from '../models/lora.ts';
import { semantics } from '../ops/table.ts';
import { requireShapes, taskFor } from './examples.ts';
import { loadModel, prepareModel, recordedLoss } from './model.ts';
import type { ModelReference, Recipe, RecipeInput } from './recipe.ts';
import { namesOf, trainableOf, trainedNames } from './trainable.ts';

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
  /** The model with its head; and the output that the loss is taken of, where it is not the only one. */
  readonly source: ReturnType<typeof loadModel>;
  /** What is trained, by names and patterns. */
  readonly trainable: 'all' | readonly string[];
  /** The model to save, given that of `source` as trained: adapters are merged into the weights beside them. */
  readonly exported: (trained: Graph) => Graph;
  /** The adapters alone, of the model as trained; none where the recipe asks for none. */
  readonly adapters?: (trained: Graph) => SavedAdapters;
  readonly trainingSet: Dataset;
  readonly testSet: Dataset | undefined;
}

/**
 * Model and data of a recipe: those in memory as they are, the others loaded.
 *
 * @param initial what the initial weights of a builder's model, of a head and of adapters are drawn from
 * @throws GhostgradError for what cannot be read
 */
export async function loadMaterials(
  { model, data }: TrainingInput, recipe: Recipe, initial: number | string,
): Promise<Materials> {
  const load = async (set: DataSpec | Dataset): Promise<Dataset> => (isDataset(set) ? set : loadData(set));
  const source = isGraph(model) ? { model: prepareModel(model) } : loadModel(recipe.model, { seed: initial });
  const converted = recipe.convertBatchNorm === true ? { ...source, model: withGroupNorm(source.model) } : source;
  const trainingSet = await load(data.train);
  const headed: Materials['source'] = recipe.head === undefined ? converted : { model: headOn(converted, trainingSet, recipe, initial) };
  return {
    ...adapted(headed, recipe, initial),
    trainingSet,
    testSet: data.test === undefined ? undefined : await load(data.test),
  };
}

/** What is trained of a model, which gets adapters where the recipe says so; a head that was put on it is trained beside them. */
function adapted(
  headed: Materials['source'], { trainable, freeze, head }: Recipe, initial: number | string,
): Pick<Materials, 'source' | 'trainable' | 'exported' | 'adapters'> {
  const options = { output: headed.output, hasHead: head !== undefined, freeze };
  const items = Array.isArray(trainable) ? trainable : [trainable];
  const names = items.filter((item) => typeof item === 'string');
  const [lora, another] = items.flatMap((item) => (typeof item === 'string' ? [] : [item.lora]));
  if (another !== undefined) {
    throw new GhostgradError({
      what: 'adapters are asked for twice', where: 'trainable', expected: 'one lora, with all its targets', fix: 'put the targets together',
    });
  }
  if (lora === undefined) {
    const chosen = typeof trainable === 'string' ? trainable : names;
    return { source: headed, trainable: trainableOf(headed.model, chosen, options), exported: (trained) => trained };
  }
  const own = names.length > 0 ? trainedNames(headed.model, names, options) : [];
  const beside = [...new Set([...own, ...(head === undefined ? [] : headParameters)])];
  // What is trained itself needs no adapter.
  const except = [...beside, ...namesOf(headed.model, freeze ?? [], 'freeze', options, adaptableWeights(headed.model))];
  const { model, adapters } = withLora(headed.model, { ...lora, except }, initial);
  return {
    source: { ...headed, model },
    trainable: [...adapters.flatMap(({ a, b }) => [a, b]), ...beside],
    exported: (trained) => mergedLora(headed.model, trained, adapters),
    adapters: (trained) => savedAdapters(trained, adapters, lora),
  };
}

/** The model with the recipe's head, on features of the shape that the data gives them. */
function headOn(
  { model, output }: Materials['source'], data: Dataset, { head, shapes }: Recipe, initial: number | string,
): Graph {
  const options = { ...head!, output: head!.output ?? output };
  if (options.output === undefined && recordedLoss(model) !== undefined) throw notFeatures(model);
  const body = bodyOf(model, options.output);
  const rows = 2;
  // A loss by name of an output asks nothing else of the model than its value.
  const task = taskFor({ model: body, loss: `output:${body.outputs[0]!.name}` }, data, { bindings: shapes, where: 'shapes' });
  requireShapes(task, data);
  const sizes = Object.fromEntries(Object.entries(task.exampleShapes ?? {}).map(([name, shape]) => [name, [rows, ...shape]]));
  const [{ shape } = { shape: null }] = specialise(task.model, sizes, semantics).outputs;
  return withHead(model, options, (shape ?? []).slice(1) as readonly number[], initial);
}

/** A head on predictions would be trained without complaint, and see of the features what the old classes let through. */
const notFeatures = (model: Graph): GhostgradError => new GhostgradError({
  what: 'the output of the model is what it was trained to predict', where: 'head.output',
  found: `"${model.outputs.map(({ name }) => name).join(', ')}", of the loss ${recordedLoss(model)}`, expected: 'the name of a value in front of it',
  fix: behindLastLayer(model) ?? 'name the value that the head is to be put on',
});

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
