import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/support/temp.ts';
import { wordTokenizer } from '../../test/support/word-tokenizer.ts';
import { toNumbers } from '../tensor/tensor.ts';
import type { AnyColumn } from './column.ts';
import { type Dataset, allRows, batchOf, gatherColumn } from './dataset.ts';
import { type DataSpec, loadData } from './spec.ts';

const x = -100;
const words = ['a', 'good', 'film', 'bad', '||', 'name', ':'];
const [A, good, film, bad, bar, name, colon] = words.map((_, i) => i + 4) as [number, number, number, number, number, number, number];

function folderOf(files: Readonly<Record<string, string>>, changes: object = {}) {
  const { folder, write } = temporaryFolder();
  write('t.json', wordTokenizer(words, changes));
  for (const [file, text] of Object.entries(files)) write(file, text);
  return (spec: object): Promise<Dataset> => loadData({ tokenizer: 't.json', maxLength: 6, ...spec } as DataSpec, { base: folder });
}

const rowsOf = (column: AnyColumn): number[][] => {
  const [width = 1] = column.shape;
  const all = toNumbers(gatherColumn(column, allRows(column.size)));
  return Array.from({ length: column.size }, (_, i) => all.slice(i * width, (i + 1) * width));
};
const seen = (set: Dataset) => ({ ids: rowsOf(set.features.get('input_ids')!), labels: rowsOf(set.labels) });

describe('texts for a language model', () => {
  it('are one a line, with the next token as the label of each and nothing to predict in the padding', async () => {
    const set = await folderOf({ 'a.txt': 'a good film\n\n  bad\r\na good good good good film' })({ path: 'a.txt' });
    expect(seen(set)).toEqual({
      ids: [[2, A, good, film, 0, 0], [2, bad, 0, 0, 0, 0], [2, A, good, good, good, good]],
      labels: [[x, A, good, film, x, x], [x, bad, x, x, x, x], [x, A, good, good, good, good]],
    });
    expect(rowsOf(set.features.get('attention_mask')!)[1]).toEqual([1, 1, 0, 0, 0, 0]);
    expect(rowsOf(set.features.get('position_ids')!)[1]).toEqual([0, 1, 2, 3, 4, 5]);
    expect(rowsOf(set.features.get('token_type_ids')!)[1]).toEqual([0, 0, 0, 0, 0, 0]);
    const { labels } = batchOf(set, Uint32Array.of(2, 1), 3);
    expect(toNumbers(labels)).toEqual([x, A, good, good, good, good, x, bad, x, x, x, x, 0, 0, 0, 0, 0, 0]);
  });

  it('end with the token that says so, unless they are cut', async () => {
    const read = folderOf({ 'a.txt': 'a good film\na good good good good film\n' });
    expect(seen(await read({ path: 'a.txt', eos: '</s>', bos: '<unk>' }))).toEqual({
      ids: [[1, A, good, film, 3, 0], [1, A, good, good, good, good]],
      labels: [[x, A, good, film, 3, x], [x, A, good, good, good, good]],
    });
  });

  it('are padded behind their end whatever the tokenizer says: nothing that a causal model sees comes later', async () => {
    const read = folderOf({ 'a.txt': 'a film' }, { padding: { strategy: 'BatchLongest', direction: 'Left', pad_id: 1, pad_type_id: 0, pad_token: '<unk>' } });
    expect(seen(await read({ path: 'a.txt' })).ids).toEqual([[2, A, film, 1, 1, 1]]);
  });

  it('part into a prompt and what is to be written then, of a line or of two columns', async () => {
    const read = folderOf({
      'a.txt': 'name : a || good film\nbad\n', 'a.tsv': 'mr\ttext\nname : a\tgood film\n', 'b.csv': 'mr,text\nname : a,good film\n',
    });
    const wanted = { ids: [2, name, colon, A, bar, good, film], labels: [x, x, x, x, x, good, film] };
    expect(seen(await read({ path: 'a.txt', separator: '||', maxLength: 7 }))).toEqual({
      ids: [wanted.ids, [2, bad, 0, 0, 0, 0, 0]], labels: [wanted.labels, [x, bad, x, x, x, x, x]],
    });
    for (const path of ['a.tsv', 'b.csv']) {
      const spec = { path, prompt: 'mr', completion: 'text', maxLength: 7 };
      expect(seen(await read({ ...spec, separator: ' ||' }))).toEqual({ ids: [wanted.ids], labels: [wanted.labels] });
      expect(seen(await read({ ...spec, separator: ' ||', promptLoss: true })).labels).toEqual([[x, ...wanted.ids.slice(1)]]);
      expect(seen(await read(spec)).ids).toEqual([[2, name, colon, A, good, film, 0]]);
    }
  });

  it('are a column of a table where it says so', async () => {
    const set = await folderOf({ 'a.tsv': 'id\ttext\n7\ta film\n' })({ path: 'a.tsv', text: 'text', target: 'next-token', size: 3 });
    expect(seen(set).labels).toEqual([[x, A, film, x, x, x]]);
    expect(set.declaredSize).toBe(3);
  });

  it('are not packed together, and the refusal says why', async () => {
    const read = folderOf({ 'a.txt': 'a film', 'a.tsv': 'text\na film\n' });
    for (const spec of [{ path: 'a.txt' }, { path: 'a.tsv', text: 'text', target: 'next-token' }, { path: 'a.tsv', text: 'text' }]) {
      await expect(read({ ...spec, packing: true })).rejects.toThrow(/not packed together[^]*option packing[^]*several people[^]*maxLength/);
    }
    expect((await read({ path: 'a.txt', packing: false })).size).toBe(1);
  });

  it('are told by where they stand, never by what they say, when something is wrong', async () => {
    const read = folderOf({ 'a.txt': 'secret || words\n', 'empty.txt': '\n', 'a.tsv': 'mr\ttext\nsecret\twords\n' });
    const refused = (spec: object, message: RegExp): Promise<void> => expect(read(spec)).rejects.toThrow(message);
    await refused({ path: 'a.txt', maxLength: undefined }, /no length[^]*maxLength: 64/);
    await refused({ path: 'a.txt', eos: '<end>' }, /no token "<end>"[^]*option eos/);
    await refused({ path: 'a.txt', separator: '||', maxLength: 3 }, /^(?![^]*secret)[^]*no text has a token to predict[^]*larger maxLength/);
    await refused({ path: 'a.txt', text: 'text' }, /no columns[^]*separator/);
    await refused({ path: 'a.tsv', target: 'next-token' }, /which columns[^]*text, or prompt and completion/);
    await refused({ path: 'a.tsv', prompt: 'mr' }, /which columns/);
    await refused({ path: 'a.tsv', prompt: 'mr', completion: 'txt' }, /unknown column "txt"[^]*did you mean "text"/);
    await refused({ path: 'a.txt', tokenizer: undefined }, /tokenizer/);
    await refused({ path: 'absent.txt' }, /no such file/);
    await refused({ path: 'empty.txt' }, /no rows/);
  });
});
