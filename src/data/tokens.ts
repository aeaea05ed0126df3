import { readFile } from 'node:fs/promises';
import { GhostgradError } from '../errors.ts';
import { unreadable } from './files.ts';

/** A text, or a pair of them, as a model takes it: ids of tokens, and which of the two texts each is of. */
export interface Tokens {
  readonly ids: readonly number[];
  /** 0 for the first text and the special tokens about it, 1 for the second. */
  readonly types: readonly number[];
}

export interface TextTokenizer {
  /** What is fed in the place of a token that is not there. */
  readonly padding: { readonly id: number; readonly side: 'left' | 'right' };
  /** The length that the file cuts texts to; undefined where it does not say. */
  readonly maxLength: number | undefined;
  /**
   * Tokens of `text` (and `pair`) with the special tokens about them, at most `most`: what is too long loses tokens of the
   * longer of the two at its end, and no special one.
   */
  encode(text: string, pair: string | undefined, most: number): Tokens;
  /** Tokens of `text` without special ones about it. */
  plain(text: string): readonly number[];
  /** The special tokens that go before a text and after it. */
  readonly special: { readonly before: readonly number[]; readonly after: readonly number[] };
  /** The id of a token by name, e.g. `</s>`; undefined where there is none. */
  idOf(token: string): number | undefined;
  decode(ids: readonly number[]): string;
}

/** The tokenizer in a `tokenizer.json`. Throws GhostgradError when it cannot be read or is of a kind that is not known. */
export async function readTokenizer(path: string): Promise<TextTokenizer> {
  const text = await readFile(path, 'utf8').catch((error: unknown) => { throw unreadable(path, error); });
  const { Tokenizer: Library } = await import('@huggingface/tokenizers') as unknown as { readonly Tokenizer: EncoderClass };
  let file: TokenizerFile;
  let tokenizer: Encoder;
  try {
    file = JSON.parse(text) as TokenizerFile;
    tokenizer = new Library(file, {});
  } catch (cause) {
    throw new GhostgradError({
      what: 'not a tokenizer', where: path, found: cause instanceof Error ? cause.message : String(cause),
      expected: 'a tokenizer.json as the Hugging Face tokenizers write it',
    }, { cause });
  }
  const plain = (of: string): number[] => tokenizer.encode(of, { add_special_tokens: false }).ids;
  const probe = tokenizer.encode('a', {}).ids;
  const at = placeOf(plain('a'), probe) ?? 0;
  const names = ['[PAD]', '<pad>', '<|pad|>', '<|endoftext|>', '</s>'];
  const found = names.map((name) => tokenizer.token_to_id(name)).find((id) => id !== undefined);
  return {
    padding: { id: file.padding?.pad_id ?? found ?? 0, side: file.padding?.direction === 'Left' ? 'left' : 'right' },
    maxLength: file.truncation?.max_length,
    encode: (first, pair, most) => {
      const { ids, token_type_ids: types } = tokenizer.encode(first, { text_pair: pair ?? null, return_token_type_ids: true });
      const whole = { ids, types: types ?? ids.map(() => 0) };
      if (ids.length <= most) return whole;
      return cut(whole, plain(first), pair === undefined ? [] : plain(pair), most);
    },
    plain,
    special: { before: probe.slice(0, at), after: probe.slice(at + plain('a').length) },
    idOf: (token) => tokenizer.token_to_id(token),
    // As the tokens say, also where they put a space before a full stop.
    decode: (ids) => tokenizer.decode([...ids], { skip_special_tokens: true, clean_up_tokenization_spaces: false }),
  };
}

/** What is used of the library, whose own types do not resolve outside of it. */
interface Encoder {
  encode(text: string, options: { readonly text_pair?: string | null; readonly add_special_tokens?: boolean; readonly return_token_type_ids?: boolean }):
    { readonly ids: number[]; readonly token_type_ids?: number[] };
  token_to_id(token: string): number | undefined;
  decode(ids: number[], options: { readonly skip_special_tokens: boolean; readonly clean_up_tokenization_spaces: boolean }): string;
}
type EncoderClass = new (file: TokenizerFile, config: object) => Encoder;

/** What of a tokenizer.json is read here. */
interface TokenizerFile {
  readonly padding?: { readonly pad_id?: number; readonly direction?: 'Left' | 'Right' } | null;
  readonly truncation?: { readonly max_length?: number } | null;
}

/** Where `part` first stands in `whole`. */
function placeOf(part: readonly number[], whole: readonly number[]): number | undefined {
  return whole.map((_, at) => at).find((at) => part.every((id, i) => whole[at + i] === id));
}

/** The tokens of both texts are found among the whole's, and their last ones left out. */
function cut({ ids, types }: Tokens, first: readonly number[], second: readonly number[], most: number): Tokens {
  const startsAt = (part: readonly number[], at: number): boolean => part.every((id, i) => ids[at + i] === id);
  const a = placeOf(first, ids) ?? 0;
  const b = ids.map((_, i) => i).findLast((at) => at >= a + first.length && startsAt(second, at)) ?? ids.length;
  let [kept, keptOfSecond] = [first.length, second.length];
  for (let over = ids.length - most; over > 0 && kept + keptOfSecond > 0; over--) {
    if (kept > keptOfSecond) kept--;
    else keptOfSecond--;
  }
  const isKept = (at: number): boolean =>
    !(at >= a + kept && at < a + first.length) && !(at >= b + keptOfSecond && at < b + second.length);
  const keep = (list: readonly number[]): number[] => list.filter((_, at) => isKept(at)).slice(0, most);
  return { ids: keep(ids), types: keep(types) };
}
