import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { showValue, unknownName } from '../suggest.ts';
import { type BeitOptions, beit } from './beit.ts';
import { type BertOptions, bert } from './bert.ts';
import { type CnnTanhOptions, cnnTanh } from './cnn-tanh.ts';
import { type Gpt2Options, gpt2 } from './gpt2.ts';
import { type LstmOptions, lstm } from './lstm.ts';
import { type MlpOptions, mlp } from './mlp.ts';
import { type ResnetName, type ResnetOptions, resnet } from './resnet.ts';
import { type VggName, type VggOptions, vgg } from './vgg.ts';
import { type VitName, type VitOptions, vit } from './vit.ts';
import { type WideResnetOptions, wideResnet } from './wide-resnet.ts';

/** The builders and their options. */
interface Options extends Record<VggName, VggOptions>, Record<ResnetName, ResnetOptions>, Record<VitName, VitOptions> {
  readonly 'mlp': MlpOptions;
  readonly 'cnn-tanh': CnnTanhOptions;
  readonly 'wrn-16-4-gn': WideResnetOptions;
  readonly 'beit-base-224': BeitOptions;
  readonly 'bert-base': BertOptions;
  readonly 'gpt2-small': Gpt2Options;
  readonly 'lstm': LstmOptions;
}

export type ModelName = keyof Options;

/** A builder's name, or its name and options side by side, as a recipe writes them. */
export type ModelSpec = ModelName | { readonly [N in ModelName]: { readonly name: N } & Options[N] }[ModelName];

/** Each builder reads and checks its own options. Adding a model: one entry here, one member of {@link Options}. */
const table: Readonly<Record<ModelName, (options: object, draws: InitialDraws) => Graph>> = {
  'mlp': mlp,
  'cnn-tanh': cnnTanh,
  'vgg11': (options, draws) => vgg('vgg11', options, draws),
  'vgg13': (options, draws) => vgg('vgg13', options, draws),
  'vgg16': (options, draws) => vgg('vgg16', options, draws),
  'vgg19': (options, draws) => vgg('vgg19', options, draws),
  'resnet18-gn': (options, draws) => resnet('resnet18-gn', options, draws),
  'resnet50-gn': (options, draws) => resnet('resnet50-gn', options, draws),
  'wrn-16-4-gn': wideResnet,
  'vit-tiny': (options, draws) => vit('vit-tiny', options, draws),
  'vit-small': (options, draws) => vit('vit-small', options, draws),
  'vit-tiny-224': (options, draws) => vit('vit-tiny-224', options, draws),
  'vit-small-224': (options, draws) => vit('vit-small-224', options, draws),
  'beit-base-224': beit,
  'bert-base': bert,
  'gpt2-small': gpt2,
  lstm,
};

export const modelNames = Object.keys(table) as readonly ModelName[];

export const isModelName = (name: string): name is ModelName => Object.hasOwn(table, name);

/**
 * The graph of a named model with freshly drawn weights; its output is `logits`. Models of images take `input`, float32
 * [batch, channels, height, width]; models of text take `input_ids`, int64 [batch, sequence].
 *
 * @param seed of the initial weights, which are public: it voids no guarantee. Without it they differ every time.
 * @param draws in place of a seed; `noDraws` where the shapes alone matter
 * @throws GhostgradError for an unknown name or option, or sizes that do not fit
 */
export function buildModel(
  spec: ModelSpec,
  { seed, draws = initialDraws(seed) }: { readonly seed?: number | string | undefined; readonly draws?: InitialDraws } = {},
): Graph {
  const { name, ...options } = typeof spec === 'string' ? { name: spec } : spec;
  if (typeof name !== 'string') {
    throw new GhostgradError({
      what: 'a model needs a name', found: showValue(spec), expected: `one of ${modelNames.join(', ')}`,
    });
  }
  if (!isModelName(name)) throw unknownName('model', name, modelNames);
  return table[name](options, draws);
}
