import { open } from 'node:fs/promises';
import { extname } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { computedColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { unreadable } from './files.ts';
import { type TableOptions, growing, openTable } from './table.ts';
import { type TextTokenizer, readTokenizer } from './tokens.ts';

/** The label of a position whose token no loss asks to be predicted. */
export const ignored = -100;

export interface SequenceOptions extends TableOptions {
  /** The column of the texts; of a `.txt` file, each line is one. */
  readonly text?: string | undefined;
  /** The columns of what a text begins with and of what the model is to write then, in place of `text`. */
  readonly prompt?: string | undefined;
  readonly completion?: string | undefined;
  /**
   * What stands between the two, and is seen as the end of the prompt. Lines of a `.txt` file are parted where it first
   * stands; a line without it is all completion. Default: nothing, and lines are not parted.
   */
  readonly separator?: string | undefined;
  /** Whether the tokens of prompts are to be predicted too; default false. */
  readonly promptLoss?: boolean | undefined;
  /** The path of a `tokenizer.json`. */
  readonly tokenizer: string;
  /** Tokens of an example, special ones included; default: as the tokenizer says. Longer texts are cut at their end. */
  readonly maxLength?: number | undefined;
  /** The tokens that each text begins and ends with, e.g. `<s>` and `</s>`; default: those that the tokenizer itself adds. */
  readonly bos?: string | undefined;
  readonly eos?: string | undefined;
}

/** A text, of which the model is to write `completion`. */
interface Text {
  readonly prompt: string;
  readonly completion: string;
}

/** Ids, of which those from `from` on are to be predicted: never the first, which follows nothing. */
interface Sequence {
  readonly ids: readonly number[];
  readonly from: number;
}

/**
 * Texts for a causal language model, one an example: inputs `input_ids`, `attention_mask` (1 for a token), `token_type_ids`
 * (0) and `position_ids` (0, 1, …), int64 [maxLength] each, of which a model takes those that it has; labels int64
 * [maxLength], the same ids, {@link ignored} where a token is not to be predicted. What is short is padded behind its end,
 * whatever the tokenizer says, since a causal model never sees what is behind a token. A text that is cut has no end: it gets
 * no `eos`. Every example is padded to one length, so that no shape tells of a text.
 *
 * @throws GhostgradError when a file cannot be read, a column or token is missing, no length is known, or none of the texts
 * has a token to predict
 */
export async function readSequences(path: string, options: SequenceOptions): Promise<Dataset> {
  const tokenizer = await readTokenizer(options.tokenizer);
  const { maxLength = tokenizer.maxLength } = options;
  if (maxLength === undefined) {
    throw new GhostgradError({
      what: 'no length to bring the texts to', where: `${path}, option maxLength`, found: 'a tokenizer that names none',
      expected: 'the number of tokens of an example', fix: 'e.g. maxLength: 64',
    });
  }
  const sequenceOf = sequencer(tokenizer, options, maxLength);
  const tokens = growing((length) => new Int32Array(length));
  const [froms, ends] = [growing((length) => new Int32Array(length)), growing((length) => new Int32Array(length))];
  let count = 0;
  for await (const text of textsOf(path, options)) {
    const { ids, from } = sequenceOf(text);
    for (let t = 0; t < maxLength; t++) tokens.push(ids[t] ?? tokenizer.padding.id);
    froms.push(from);
    ends.push(ids.length);
    count++;
  }
  const [ids, from, end] = [tokens.array(), froms.array(), ends.array()];
  if (count > 0 && from.every((start, row) => start >= end[row]!)) {
    throw new GhostgradError({
      what: 'no text has a token to predict', where: path, found: `maxLength ${maxLength}`,
      expected: 'room for a prompt and some of its completion', fix: 'choose a larger maxLength',
    });
  }
  const column = (valueOf: (row: number, t: number) => number) => computedColumn(count, [maxLength], valueOf);
  return datasetOf({
    name: path,
    features: new Map([
      ['input_ids', column((row, t) => ids[row * maxLength + t]!)],
      ['attention_mask', column((row, t) => (t < end[row]! ? 1 : 0))],
      ['token_type_ids', column(() => 0)],
      ['position_ids', column((_, t) => t)],
    ]),
    labels: column((row, t) => (t >= from[row]! && t < end[row]! ? ids[row * maxLength + t]! : ignored)),
  });
}

/** How a text becomes a sequence of at most `most` tokens. */
function sequencer(
  tokenizer: TextTokenizer, { separator = '', promptLoss = false, bos, eos, tokenizer: path }: SequenceOptions, most: number,
): (text: Text) => Sequence {
  const { special } = tokenizer;
  const named = (token: string | undefined, option: string): number[] | undefined => {
    if (token === undefined) return undefined;
    const id = tokenizer.idOf(token);
    if (id !== undefined) return [id];
    throw new GhostgradError({ what: `the tokenizer has no token "${token}"`, where: `${path}, option ${option}`, expected: 'a token of its vocabulary' });
  };
  const [first, last] = [named(bos, 'bos'), named(eos, 'eos')];
  return ({ prompt, completion }) => {
    const start = [...(first ?? special.before), ...(prompt === '' ? [] : tokenizer.plain(prompt + separator))];
    const text = [...start, ...tokenizer.plain(completion)];
    const whole = [...text, ...(last ?? special.after)];
    return { ids: whole.length > most ? text.slice(0, most) : whole, from: promptLoss ? 1 : Math.max(1, start.length) };
  };
}

async function* textsOf(path: string, options: SequenceOptions): AsyncGenerator<Text> {
  if (extname(path).toLowerCase() === '.txt') yield* linesOf(path, options);
  else yield* cellsOf(path, options);
}

/** Lines that hold more than spaces. */
async function* linesOf(path: string, { separator = '' }: SequenceOptions): AsyncGenerator<Text> {
  const file = await open(path).catch((error: unknown) => { throw unreadable(path, error); });
  for await (const line of file.readLines()) {
    const text = line.trim();
    const at = separator === '' ? -1 : text.indexOf(separator);
    if (text !== '') yield { prompt: at < 0 ? '' : text.slice(0, at), completion: at < 0 ? text : text.slice(at + separator.length) };
  }
}

async function* cellsOf(path: string, { text, prompt, completion, ...options }: SequenceOptions): AsyncGenerator<Text> {
  const table = await openTable(path, options);
  const [promptAt, completionAt] = text === undefined
    ? [table.at(prompt ?? '', 'prompt'), table.at(completion ?? '', 'completion')]
    : [undefined, table.at(text, 'text')];
  for await (const { cells } of table.rows()) {
    yield { prompt: promptAt === undefined ? '' : cells[promptAt] ?? '', completion: cells[completionAt] ?? '' };
  }
}
