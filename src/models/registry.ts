import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { showValue, unknownName } from '../suggest.ts';
import { type CnnTanhOptions, cnnTanh } from './cnn-tanh.ts';
import { type MlpOptions, mlp } from './mlp.ts';
import { type VggName, type VggOptions, vgg } from './vgg.ts';

export type ModelName = 'mlp' | 'cnn-tanh' | VggName;

/** A builder's name, or its name and options side by side, as a recipe writes them. */
export type ModelSpec =
  | ModelName
  | { readonly name: 'mlp' } & MlpOptions
  | { readonly name: 'cnn-tanh' } & CnnTanhOptions
  | { readonly name: VggName } & VggOptions;

/** Each builder reads and checks its own options. Adding a model: one entry here, one member of {@link ModelSpec}. */
const table: Readonly<Record<ModelName, (options: object, draws: InitialDraws) => Graph>> = {
  mlp,
  'cnn-tanh': cnnTanh,
  vgg11: (options, draws) => vgg('vgg11', options, draws),
  vgg13: (options, draws) => vgg('vgg13', options, draws),
  vgg16: (options, draws) => vgg('vgg16', options, draws),
  vgg19: (options, draws) => vgg('vgg19', options, draws),
};

export const modelNames = Object.keys(table) as readonly ModelName[];

export const isModelName = (name: string): name is ModelName => Object.hasOwn(table, name);

/**
 * The graph of a named model with freshly drawn weights: input `input`, float32 [batch, ...]; output `logits`,
 * [batch, classes].
 *
 * @param seed of the initial weights, which are public: it voids no guarantee. Without it they differ every time.
 * @throws GhostgradError for an unknown name or option, or sizes that do not fit
 */
export function buildModel(spec: ModelSpec, { seed }: { readonly seed?: number | string | undefined } = {}): Graph {
  const { name, ...options } = typeof spec === 'string' ? { name: spec } : spec;
  if (typeof name !== 'string') {
    throw new GhostgradError({
      what: 'a model needs a name', found: showValue(spec), expected: `one of ${modelNames.join(', ')}`,
    });
  }
  if (!isModelName(name)) throw unknownName('model', name, modelNames);
  return table[name](options, initialDraws(seed));
}
