import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/support/temp.ts';
import { toNumbers } from '../tensor/tensor.ts';
import { type Dataset, allRows, gatherColumn } from './dataset.ts';
import { loadData } from './spec.ts';
import { readTokenizer } from './tokens.ts';

const vocabulary = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'good', 'bad', 'film', 'a', 'very'];
/** A word-level tokenizer in BERT's manner. */
const tokenizer = (changes: object = {}): string => JSON.stringify({
  version: '1.0', truncation: null, padding: null,
  added_tokens: vocabulary.slice(0, 4).map((content, id) => ({
    id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true,
  })),
  normalizer: { type: 'Lowercase' }, pre_tokenizer: { type: 'Whitespace' },
  post_processor: {
    type: 'BertProcessing', sep: ['[SEP]', 3], cls: ['[CLS]', 2],
  },
  decoder: null,
  model: {
    type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100,
    vocab: Object.fromEntries(vocabulary.map((word, id) => [word, id])),
  },
  ...changes,
});

const rowsOf = (dataset: Dataset, name: string): number[][] => {
  const column = dataset.features.get(name)!;
  const [width = 1] = column.shape;
  const all = toNumbers(gatherColumn(column, allRows(column.size)));
  return Array.from({ length: column.size }, (_, i) => all.slice(i * width, (i + 1) * width));
};

describe('texts', () => {
  it('become tokens with their mask, padded and cut to one length', async () => {
    const { folder, write } = temporaryFolder();
    write('t.json', tokenizer());
    write('train.tsv', 'sentence\tlabel\nA good film\t1\nvery very very bad film\t0\n"\t0\n');
    const set = await loadData({ path: 'train.tsv', text: 'sentence', tokenizer: 't.json', maxLength: 6 }, { base: folder });
    expect(rowsOf(set, 'input_ids')).toEqual([[2, 7, 4, 6, 3, 0], [2, 8, 8, 8, 5, 3], [2, 1, 3, 0, 0, 0]]);
    expect(rowsOf(set, 'attention_mask')).toEqual([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]);
    expect(rowsOf(set, 'token_type_ids')).toEqual([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]);
    expect(toNumbers(gatherColumn(set.labels, allRows(3)))).toEqual([1, 0, 0]);
  });

  it('in pairs lose tokens of the longer one first, and tell the two apart', async () => {
    const { folder, write } = temporaryFolder();
    write('t.json', tokenizer({ truncation: { max_length: 7, strategy: 'LongestFirst', direction: 'Right', stride: 0 } }));
    write('p.csv', 'label,a,b\nyes,"good, film",bad\nno,very good film a,good film\n');
    const set = await loadData({ path: 'p.csv', text: ['a', 'b'], tokenizer: 't.json', classes: ['no', 'yes'] }, { base: folder });
    expect(rowsOf(set, 'input_ids')).toEqual([[2, 4, 1, 6, 3, 5, 3], [2, 8, 4, 3, 4, 6, 3]]);
    expect(rowsOf(set, 'token_type_ids')).toEqual([[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]]);
    expect(set.classNames).toEqual(['no', 'yes']);
  });

  it('are padded on the side and with the token that the tokenizer says', async () => {
    const { folder, write } = temporaryFolder();
    write('t.json', tokenizer({ padding: { strategy: 'BatchLongest', direction: 'Left', pad_id: 1, pad_type_id: 0, pad_token: '[UNK]' } }));
    write('a.tsv', 'text\tlabel\ngood\t1\n');
    const set = await loadData({ path: 'a.tsv', text: 'text', tokenizer: 't.json', maxLength: 5 }, { base: folder });
    expect(rowsOf(set, 'input_ids')).toEqual([[1, 1, 2, 4, 3]]);
    expect(rowsOf(set, 'attention_mask')).toEqual([[0, 0, 1, 1, 1]]);
  });

  it('are told by where they stand, never by what they say, when something is wrong', async () => {
    const { folder, write } = temporaryFolder();
    write('t.json', tokenizer());
    write('bad.json', '{');
    write('a.tsv', 'text\tlabel\nsecret words\tmore secret\n');
    const refused = (spec: object, message: RegExp): Promise<void> =>
      expect(loadData({ path: 'a.tsv', text: 'text', tokenizer: 't.json', maxLength: 4, ...spec }, { base: folder }))
        .rejects.toThrow(message);
    await refused({ maxLength: undefined }, /no length[^]*maxLength: 64/);
    await refused({ text: 'txet' }, /unknown column "txet"[^]*did you mean "text"/);
    await refused({ tokenizer: 'bad.json' }, /not a tokenizer/);
    await refused({ tokenizer: 'absent.json' }, /no such file/);
    await refused({}, /label is not a number[^]*line 2, column "label"/);
    await refused({}, /^(?![^]*secret)/);
  });

  it('are read back from their tokens', async () => {
    const { write } = temporaryFolder();
    const { encode, decode } = await readTokenizer(write('t.json', tokenizer({ decoder: { type: 'WordPiece', prefix: '##', cleanup: true } })));
    expect(decode(encode('a very good film', undefined, 8).ids)).toBe('a very good film');
  });
});
