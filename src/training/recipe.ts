import { z } from 'zod';
import { parseClipFunction } from '../clipping/clip-functions.ts';
import { type Mode, modes } from '../clipping/plan.ts';
import type { DataSpec } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import { headInits } from '../models/head.ts';
import { type ModelSpec, isModelName, modelNames } from '../models/index.ts';
import {
  type OptimizerSpec,
  type ScheduleName,
  type ScheduleOptions,
  buildOptimizer,
  buildSchedule,
  buildUpdate,
  denoisers,
} from '../optimizers/index.ts';
import { parseWith } from '../parse.ts';
import { defaultNeighbors, samplings, supportedNeighbors, supportedSampling } from '../privacy/index.ts';
import { showValue, unknownName } from '../suggest.ts';
import { checkClipping, clippingSchema } from './clipping.ts';
import { type LossName, isLoss, lossNames } from './loss.ts';
import { measuresOf, metricsSchema } from './private-metrics.ts';
import { trainableWords } from './trainable.ts';

/** A builder with its options, or an ONNX file and, where it has several, the output that the loss is taken of. */
export type ModelReference = ModelSpec | `${string}.onnx` | { readonly path: string; readonly output?: string };

type Mapping = Readonly<Record<string, unknown>>;
const isMapping = (value: unknown): value is Mapping =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const text = z.string().min(1);
const count = z.number().int().positive();
const named = <T>(expected: string) =>
  z.custom<T>((value) => isMapping(value) && typeof value['name'] === 'string', expected);
const source = z.custom<DataSpec>(
  (value) => (typeof value === 'string' && value !== '') || isMapping(value),
  'a named set, a path, or a mapping',
);

const privacySchema = z.strictObject({
  // A list: one full-batch step, released for each ε by gradual release.
  epsilon: z.union([z.number().positive(), z.array(z.number().positive()).min(1)]).optional(),
  noiseMultiplier: z.number().positive().optional(),
  delta: z.number().gt(0).lt(1),
  accountant: z.enum(['auto', 'pld', 'rdp', 'gdp', 'exact-gaussian']).default('auto'),
  // Default: poisson, or full-batch where training.fullBatch is true: {@link resolveRecipe}.
  sampling: z.enum(samplings).optional(),
  // The most examples of a step under truncated-poisson.
  maxBatchSize: count.optional(),
  // Where none is named, the sampling's own: {@link resolveRecipe}.
  neighbors: z.enum(['add-remove', 'zero-out', 'replace-one']).optional(),
  noise: z.enum(['discrete', 'float']).default('discrete'),
  unit: z.enum(['example']).default('example'),
  metrics: metricsSchema.optional(),
  // A file with the ε and δ that all runs on the same data may spend together.
  budget: text.optional(),
});

const trainingSchema = z.strictObject({
  batchSize: z.number().positive().optional(),
  // Every step takes all of the data: batchSize is N, and privacy.sampling full-batch.
  fullBatch: z.boolean().optional(),
  epochs: z.number().positive().optional(),
  steps: count.optional(),
  optimizer: named<OptimizerSpec>('a mapping with the name of an optimizer').prefault({
    name: 'adam',
    learningRate: 1e-3,
  }),
  schedule: z.union([text, named<ScheduleOptions>('a mapping with the name of a schedule')]).default('constant'),
  // What becomes of a noised gradient before the optimizer's step.
  denoise: z.enum(denoisers).optional(),
  // The parameters of the model: a moving average, or the mean of the last steps, in place of the last ones.
  average: z.union([z.strictObject({ ema: z.number().gt(0).lt(1) }), z.strictObject({ last: count })]).optional(),
  seed: z.union([z.number().int(), text]).optional(),
});

const performanceSchema = z.strictObject({
  mode: z.enum(modes).default('book-keeping'),
  // Of the plans that the mode leaves open: the fastest, the smallest, or the fastest within so many planned bytes.
  optimizeFor: z.union([z.enum(['time', 'memory']), z.strictObject({ budget: z.number().positive() })]).default('time'),
  memoryMiB: z.union([z.literal('auto'), z.number().positive()]).default('auto'),
  microBatch: z.union([z.literal('auto'), count]).default('auto'),
  threads: z.union([z.literal('auto'), count]).default('auto'),
  // Whether what a frozen part of the model computes is computed once: auto, on, off, or a file that it is kept in.
  features: text.default('auto'),
  // Steps from one checkpoint to the next; auto: a minute, or longer where writing one takes more than 1 % of the time.
  checkpointEvery: z.union([z.literal('auto'), count]).default('auto'),
});

/** A builder's options stand beside its name, or under `options`. */
const modelSchema = z.preprocess(
  (value) => {
    if (!isMapping(value) || !isMapping(value['options'])) return value;
    const { options, ...rest } = value;
    return { ...rest, ...(options) };
  },
  z.custom<ModelReference>(
    (value) => (typeof value === 'string' && value !== '') || (isMapping(value) && ('name' in value || 'path' in value)),
    "a builder's name, a mapping with name or path, or a path to an .onnx file",
  ),
);

const loraSchema = z.strictObject({
  rank: count.default(8),
  alpha: z.number().positive().default(16),
  // All weights that can have an adapter.
  targets: z.array(text).min(1).default(['*']),
});

const adapters = z.strictObject({ lora: loraSchema });

const headSchema = z.strictObject({
  output: text.optional(),
  classes: z.number().int().min(1),
  init: z.enum(headInits).default('near-zero'),
  scale: z.number().positive().default(1e-4),
  bias: z.number().default(0),
});

const recipeSchema = z.strictObject({
  model: modelSchema,
  data: z.strictObject({ train: source, test: source.optional(), size: count.optional() }),
  // Whether BatchNorm is replaced by GroupNorm before training.
  convertBatchNorm: z.boolean().optional(),
  // Sizes of the model's inputs as in --shape; the data must agree.
  shapes: z.record(text, z.union([count.transform((size) => [size]), z.array(z.union([count, text])).min(1)])).optional(),
  loss: z.custom<LossName>(isLoss, [...lossNames, 'output:<name>'].join(', ')).default('cross-entropy'),
  trainable: z.union([z.enum(trainableWords), adapters, z.array(z.union([text, adapters])).min(1)]).default('all'),
  // Of these, what stays as it is: words and patterns.
  freeze: z.array(text).min(1).optional(),
  // A linear classifier in place of what stands behind a value of the model.
  head: headSchema.optional(),
  privacy: z.union([z.literal('none'), privacySchema]),
  clipping: clippingSchema.prefault({}),
  training: trainingSchema,
  performance: performanceSchema.prefault({}),
  output: text.optional(),
});

/** A recipe as a user writes it; what is left out has a default. */
export type RecipeInput = Omit<z.input<typeof recipeSchema>, 'training'> & {
  readonly training: Omit<z.input<typeof trainingSchema>, 'schedule' | 'optimizer'> & {
    /** Default: Adam at a learning rate of 0.001. */
    readonly optimizer?: OptimizerSpec;
    readonly schedule?: ScheduleName | ScheduleOptions;
  };
};

/** A complete recipe: every option has a value that was checked, apart from what only the data can tell. */
export type Recipe = Omit<z.output<typeof recipeSchema>, 'privacy'> & { readonly privacy: 'none' | PrivacyRecipe };

/** The privacy options of a recipe that has any. */
export type PrivacyRecipe = ReturnType<typeof withSampling>;

/** With the sampling, and the neighbours, that are meant where none are named. */
function withSampling(privacy: z.output<typeof privacySchema>, fullBatch: boolean) {
  const sampling = privacy.sampling ?? (fullBatch ? 'full-batch' : 'poisson');
  return { ...privacy, sampling, neighbors: supportedNeighbors(privacy.neighbors ?? defaultNeighbors(sampling), sampling) };
}

/**
 * The recipe with all defaults filled in.
 *
 * @param file what messages call it, e.g. its path
 * @throws GhostgradError for an unknown key (with the nearest valid one), a value out of range, options that exclude
 * each other, and, by name, for what is planned but not there yet
 */
export function resolveRecipe(raw: unknown, file = 'recipe'): Recipe {
  if (!isMapping(raw)) {
    throw new GhostgradError({
      what: 'a recipe is a mapping',
      where: file,
      found: showValue(raw),
      expected: 'keys model, data, privacy, training, …',
    });
  }
  refuseLater(raw, file);
  const { privacy: raws } = raw;
  if (isMapping(raws) && typeof raws['sampling'] === 'string') supportedSampling(raws['sampling'], `${file}: privacy.sampling`);
  const recipe = parseWith(recipeSchema, raw, file, fixOf);
  const { optimizer, schedule } = recipe.training;
  checkModel(recipe.model, `${file}: model`);
  const fullBatch = takesAll(recipe, file);
  checkLength(recipe.training, fullBatch, file);
  checkClipping(recipe.clipping, `${file}: clipping`);
  if (typeof recipe.clipping.function !== 'string') parseClipFunction(recipe.clipping.function, `${file}: clipping.function`);
  if (recipe.privacy !== 'none') checkPrivacy(recipe.privacy, recipe.performance.mode, file);
  if (recipe.privacy !== 'none') checkMode(recipe, file);
  if (recipe.privacy !== 'none') measuresOf(recipe.privacy.metrics, recipe.loss);
  checkBudget(recipe, file);
  buildSchedule(schedule as ScheduleName, 100);
  buildUpdate(recipe.training, 100);
  return {
    ...recipe,
    privacy: recipe.privacy === 'none' ? 'none' : withSampling(recipe.privacy, fullBatch),
    training: { ...recipe.training, ...(fullBatch && { fullBatch }), optimizer: { ...optimizer, ...buildOptimizer(optimizer).options } },
    // Without clipping there are no norms to compute.
    performance: { ...recipe.performance, mode: recipe.privacy === 'none' ? 'non-private' : recipe.performance.mode },
  };
}

/**
 * A model as a recipe or a command line writes it.
 *
 * @throws GhostgradError unless it is a builder's name, a path to an .onnx file, or a mapping with either
 */
export function asModel(value: unknown, where: string): ModelReference {
  const model = parseWith(modelSchema, value, where);
  checkModel(model, where);
  return model;
}

function checkModel(model: ModelReference, where: string): void {
  if (typeof model === 'string') {
    if (isModelName(model) || isModelFile(model)) return;
    const { parts } = unknownName('model', model, modelNames, where);
    throw new GhostgradError({ ...parts, expected: `${parts.expected}, or a path to an .onnx file` });
  }
  if ('path' in model) parseWith(z.strictObject({ path: text, output: text.optional() }), model, where);
}

/** Whether a model's text is a path and not the name of a builder. */
export const isModelFile = (model: string): model is `${string}.onnx` => model.toLowerCase().endsWith('.onnx');

/** Whether every step takes all of the data, which training.fullBatch and privacy.sampling both can say, alike. */
function takesAll({ training: { fullBatch }, privacy }: z.output<typeof recipeSchema>, file: string): boolean {
  const sampling = privacy === 'none' ? undefined : privacy.sampling;
  if (fullBatch === undefined || sampling === undefined || fullBatch === (sampling === 'full-batch'))
    return fullBatch ?? sampling === 'full-batch';
  throw new GhostgradError({
    what: 'training.fullBatch and privacy.sampling contradict each other', where: `${file}: training.fullBatch`,
    found: `fullBatch ${fullBatch}, sampling ${sampling}`, expected: 'one of them, or both alike',
    fix: 'remove privacy.sampling, or training.fullBatch',
  });
}

function checkLength({ epochs, steps, batchSize }: z.output<typeof trainingSchema>, fullBatch: boolean, file: string): void {
  if ((epochs === undefined) === (steps === undefined)) {
    throw new GhostgradError({
      what: epochs === undefined ? 'neither epochs nor steps is given' : 'epochs and steps are both given',
      where: `${file}: training`,
      expected: 'one of them',
      fix: epochs === undefined ? 'e.g. epochs: 10' : 'remove one',
    });
  }
  if (batchSize === undefined && !fullBatch) {
    throw new GhostgradError({
      what: 'missing option',
      where: `${file}: training.batchSize`,
      expected: 'the expected number of examples in a step, or fullBatch: true',
      fix: fixOf('training.batchSize'),
    });
  }
}

/** A seeded run is no private release: a budget could not cover it. */
function checkBudget({ privacy, training: { seed } }: Pick<z.output<typeof recipeSchema>, 'privacy' | 'training'>, file: string): void {
  if (privacy === 'none' || privacy.budget === undefined || seed === undefined) return;
  throw new GhostgradError({
    what: 'a seeded run has no guarantee, and cannot be within a budget', where: `${file}: training.seed`, found: showValue(seed),
    expected: 'no seed', fix: 'remove the seed, or privacy.budget',
  });
}

/** Sums that are formed layer by layer cannot wait for a norm over several layers. */
function checkMode({ performance: { mode }, clipping: { style } }: z.output<typeof recipeSchema>, file: string): void {
  if (mode !== 'per-layer' || style === 'per-layer' || style === 'per-parameter') return;
  throw new GhostgradError({
    what: 'mode per-layer clips each layer by itself', where: `${file}: performance.mode`, found: `clipping.style ${style}`,
    expected: 'groups within layers', fix: 'say clipping.style: per-layer or per-parameter, or take another mode',
  });
}

function checkPrivacy({ epsilon, noiseMultiplier }: z.output<typeof privacySchema>, mode: Mode, file: string): void {
  if (mode === 'non-private') {
    throw new GhostgradError({
      what: 'mode non-private in a private run',
      where: `${file}: performance.mode`,
      expected: 'a mode that clips: performance cannot change privacy',
      fix: 'remove it, or say privacy: none',
    });
  }
  if ((epsilon === undefined) !== (noiseMultiplier === undefined)) return;
  throw new GhostgradError(
    epsilon === undefined
      ? {
          what: 'neither epsilon nor noiseMultiplier is given',
          where: `${file}: privacy`,
          expected: 'one of them',
          fix: 'e.g. epsilon: 3',
        }
      : {
          what: 'epsilon and noiseMultiplier are both given',
          where: `${file}: privacy`,
          found: `epsilon ${showValue(epsilon)}, noiseMultiplier ${noiseMultiplier}`,
          expected: 'one of them; the other follows',
          fix: 'remove one',
        },
  );
}

const examples: Readonly<Record<string, string>> = {
  'model': 'model: cnn-tanh',
  'data': 'data: { train: mnist:train, test: mnist:test }',
  'data.train': 'train: mnist:train',
  'privacy': 'privacy: { epsilon: 3, delta: 1e-5 }, or privacy: none for training without privacy',
  'privacy.epsilon': 'epsilon: 3; values from 1 to 8 are common',
  'privacy.delta': 'delta: 1e-5; choose it well below 1 / (number of examples)',
  'privacy.noiseMultiplier': 'noiseMultiplier: 1.1; to train without privacy, say privacy: none',
  'clipping.norm': 'norm: 1',
  'clipping.function': 'function: abadi, or function: { expression: "min(1, R / (n + 0.1))" }',
  'training': 'training: { batchSize: 512, epochs: 10 }',
  'training.batchSize': 'batchSize: 512',
  'training.epochs': 'epochs: 10',
  'training.optimizer': 'optimizer: { name: sgd, learningRate: 0.5, momentum: 0.9 }',
};

function fixOf(path: string): string | undefined {
  const example = examples[path];
  return example === undefined ? undefined : `e.g. ${example}`;
}

/** What recipes have words for already, but ghostgrad cannot do yet: path, values, what to write instead. */
const later: readonly (readonly [path: string, later: (value: unknown) => boolean, instead: string])[] = [
  ['privacy.unit', (value) => typeof value === 'string' && value !== 'example', 'example'],
];

function refuseLater(raw: Mapping, file: string): void {
  for (const [path, isLater, instead] of later) {
    const value = path
      .split('.')
      .reduce<unknown>((v, key) => (isMapping(v) && Object.hasOwn(v, key) ? v[key] : undefined), raw);
    if (value === undefined || !isLater(value)) continue;
    throw new GhostgradError({
      what: 'not available yet',
      where: `${file}: ${path}`,
      found: showValue(value),
      expected: instead,
      fix: 'a later version will take it',
    });
  }
}
