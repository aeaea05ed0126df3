import { GhostgradError } from '../errors.ts';
import { unknownName } from '../suggest.ts';
import { type AdamOptions, adam, adamw } from './adam.ts';
import { type AdagradOptions, type LionOptions, type RmspropOptions, adagrad, lion, rmsprop } from './adaptive.ts';
import { type AverageSpec, averaged } from './average.ts';
import { type LambOptions, type LarsOptions, lamb, lars } from './layerwise.ts';
import type { Optimizer } from './optimizer.ts';
import { type SgdOptions, sgd } from './sgd.ts';
import { shrunk } from './shrinkage.ts';

/** An optimizer as a recipe writes it: its name and its options side by side. */
export type OptimizerSpec =
  | { readonly name: 'sgd' } & SgdOptions
  | { readonly name: 'adam' | 'adamw' } & AdamOptions
  | { readonly name: 'lamb' } & LambOptions
  | { readonly name: 'lars' } & LarsOptions
  | { readonly name: 'adagrad' } & AdagradOptions
  | { readonly name: 'rmsprop' } & RmspropOptions
  | { readonly name: 'lion' } & LionOptions;

export type OptimizerName = OptimizerSpec['name'];

/** Each reads and checks its own options. Adding an optimizer: one entry here, one member of {@link OptimizerSpec}. */
const table: Readonly<Record<OptimizerName, (options: object) => Optimizer>> = {
  sgd: (options) => sgd(options as SgdOptions),
  adam,
  adamw,
  lamb,
  lars: (options) => lars(options as LarsOptions),
  adagrad,
  rmsprop,
  lion,
};

export const optimizerNames = Object.keys(table) as readonly OptimizerName[];

const isOptimizerName = (name: string): name is OptimizerName => Object.hasOwn(table, name);

/**
 * The optimizer that a recipe's mapping describes, e.g. `{ name: 'sgd', learningRate: 0.5, momentum: 0.9 }`.
 *
 * @throws GhostgradError for an unknown name, or an unknown, missing or invalid option
 */
export function buildOptimizer(spec: OptimizerSpec): Optimizer {
  const { name, ...options } = spec;
  if (!isOptimizerName(name)) throw unknownName('optimizer', String(name), optimizerNames);
  return table[name](options);
}

/** How a recipe goes from noised gradients to a model; all of it is post-processing, and costs no privacy. */
export interface UpdateSpec {
  readonly optimizer: OptimizerSpec;
  /** What becomes of a gradient first; by default nothing. */
  readonly denoise?: Denoise | undefined;
  /** What the model is made of; by default the parameters of the last step. */
  readonly average?: AverageSpec | undefined;
}

export const denoisers = ['james-stein'] as const;
export type Denoise = (typeof denoisers)[number];

/**
 * The optimizer of a run, with what it does to gradients before its step, and to parameters after it.
 *
 * @param steps that the run takes
 * @throws GhostgradError as {@link buildOptimizer}, and for parts that exclude each other
 */
export function buildUpdate({ optimizer, denoise, average }: UpdateSpec, steps: number): Optimizer {
  const built = buildOptimizer(optimizer);
  if (denoise !== undefined && built.options['noiseCorrection'] === true) {
    throw new GhostgradError({
      what: 'noiseCorrection needs gradients with their noise as it was added', where: 'training.denoise', found: denoise,
      expected: 'one of the two', fix: 'leave out denoise, or noiseCorrection',
    });
  }
  const following = denoise === undefined ? built : shrunk(built);
  return average === undefined ? following : averaged(following, average, steps);
}
