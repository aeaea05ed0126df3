import { GhostgradError } from '../errors.ts';
import type { Graph, Node } from '../graph/ir.ts';
import { prune } from '../graph/prune.ts';
import { headParameters } from '../models/head.ts';
import { isParameter, lastLayer } from '../models/last-layer.ts';
import { entryOf, hasOperator } from '../ops/table.ts';
import { matching } from '../suggest.ts';
import { trainableParameters } from './compile.ts';
import { normParameters } from './norms.ts';

/** Words for sets of parameters: all, those of the last layer, the biases (BiTFiT), scales and shifts of normalisations. */
export const trainableWords = ['all', 'head', 'bias', 'norm'] as const;
type Word = (typeof trainableWords)[number];

/** What of a model is trained: a word, or a list of words and of names and patterns of names of parameters. */
export type Trainable = string | readonly string[];

interface TrainableOptions {
  /** The output that the loss is taken of, where it is not the only one. */
  readonly output?: string | undefined;
  /** Whether the recipe appended a head. */
  readonly hasHead?: boolean | undefined;
  /** Words and patterns of what stays as it is nevertheless. */
  readonly freeze?: readonly string[] | undefined;
}

/**
 * The parameters that are meant, as {@link trainableParameters} takes them.
 *
 * `head` is the classifier that the recipe appends, or the last layer: the parameters met first on the way back from the
 * output, up to a matrix. `bias` is what is added somewhere by the meaning of its operator (Zaken et al. 2022), `norm` what
 * normalised values are multiplied by and shifted with ({@link normParameters}; Frankle et al. 2021), and both are the head's
 * parameters, too, where the recipe appends one.
 *
 * @throws GhostgradError where there is no such parameter, nothing is left, or a word is a parameter's name as well
 */
export const trainableOf = (model: Graph, trainable: Trainable, options: TrainableOptions = {}): 'all' | readonly string[] =>
  (options.freeze === undefined ? expanded(model, trainable, 'trainable', options) : trainedNames(model, trainable, options));

/** {@link trainableOf} by names alone. */
export function trainedNames(model: Graph, trainable: Trainable, options: TrainableOptions): readonly string[] {
  const { freeze = [] } = options;
  const frozen = new Set(namesOf(model, freeze, 'freeze', options));
  const left = namesOf(model, trainable, 'trainable', options).filter((name) => !frozen.has(name));
  if (left.length > 0) return left;
  throw new GhostgradError({
    what: 'everything is frozen', where: 'freeze', found: freeze.join(', '), expected: 'less than what is trained', fix: 'freeze less',
  });
}

/**
 * The names that words and patterns stand for; constants that are named outright are meant, too.
 *
 * @param others names that patterns may match beside those of parameters
 */
export function namesOf(
  model: Graph, items: Trainable, where: string, options: TrainableOptions = {}, others: readonly string[] = [],
): readonly string[] {
  const names = [...new Set([...trainableParameters(model, 'all'), ...others])];
  const patterns = expanded(model, items, where, options);
  if (patterns === 'all') return names;
  return [...new Set(patterns.flatMap((item) => (model.literals?.has(item) === true ? [item] : matching(item, names, where))))];
}

/** With words in the place of what they stand for, and patterns as they are. */
function expanded(model: Graph, items: Trainable, where: string, options: TrainableOptions): 'all' | readonly string[] {
  const list = typeof items === 'string' ? [items] : items;
  const clash = typeof items === 'string' ? undefined : list.find((item) => isWord(item) && isParameter(model, item));
  if (clash !== undefined) {
    throw new GhostgradError({
      what: `"${clash}" is a word and the name of a parameter`, where, expected: 'one or the other', fix: `write "*${clash}" for the parameter`,
    });
  }
  return list.includes('all') ? 'all' : [...new Set(list.flatMap((item) => (isWord(item) ? ofWord(model, item, where, options) : [item])))];
}

const isWord = (item: string): item is Word => (trainableWords as readonly string[]).includes(item);

const lacks: Readonly<Record<Exclude<Word, 'all'>, string>> = {
  head: 'the model has no last layer that can be told', bias: 'the model has no biases', norm: 'the model has no normalisation with scale or shift',
};

function ofWord(model: Graph, word: Word, where: string, { output, hasHead = false }: TrainableOptions): readonly string[] {
  if (word === 'all') return [...trainableParameters(model, 'all')];
  const own = hasHead ? headParameters : [];
  // Who freezes biases does not mean the head's.
  const beside = where === 'trainable' ? own : [];
  const part = output === undefined ? model : prune(model, [output]);
  const found = {
    head: () => (own.length > 0 ? own : lastLayer(part)?.parameters ?? []),
    bias: () => [...biasesOf(part), ...beside],
    norm: () => [...normParameters(part, (name) => isParameter(part, name)), ...beside],
  }[word]();
  if (found.length > 0) return [...new Set(found)];
  throw new GhostgradError({
    what: lacks[word], where, found: word, expected: 'names or patterns of names of parameters',
    fix: '`ghostgrad explain MODEL` lists the parameters',
  });
}

const biasPlaces = (node: Node): readonly number[] => (hasOperator(node) ? entryOf(node).biases ?? [] : []);

function biasesOf(model: Graph): readonly string[] {
  const isByChannel = (name: string): boolean => model.initializers.get(name)!.shape.filter((n) => n !== 1).length <= 1;
  return model.nodes.flatMap((node) => biasPlaces(node).map((i) => node.inputs[i] ?? ''))
    .filter((name) => isParameter(model, name) && isByChannel(name));
}
