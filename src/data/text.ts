import { type Column, narrowColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { GhostgradError } from '../errors.ts';
import { type TableOptions, labelReader, openTable } from './table.ts';
import { readTokenizer } from './tokens.ts';

export interface TextOptions extends TableOptions {
  /** The column of the text, or the two columns of a pair. */
  readonly text: string | readonly [string, string];
  /** The path of a `tokenizer.json`. */
  readonly tokenizer: string;
  /** Tokens of an example, special ones included; default: as the tokenizer says. Longer texts are cut, shorter ones padded. */
  readonly maxLength?: number | undefined;
  /** The column that holds the label; default `label`. */
  readonly label?: string | undefined;
  /** Names of the classes, where labels are names and not numbers; label i is `classes[i]`. */
  readonly classes?: readonly string[] | undefined;
}

/**
 * Texts of a table, as tokens: inputs `input_ids`, `attention_mask` (1 for a token, 0 for padding) and `token_type_ids`
 * (1 for the second text of a pair), int64 [maxLength] each, of which a model takes those that it has; labels as
 * {@link readCsv} reads them.
 *
 * @throws GhostgradError when a file cannot be read, a column is missing, a label is none, or no length is known
 */
export async function readText(path: string, options: TextOptions): Promise<Dataset> {
  const tokenizer = await readTokenizer(options.tokenizer);
  const { label = 'label', classes, maxLength = tokenizer.maxLength } = options;
  if (maxLength === undefined) {
    throw new GhostgradError({
      what: 'no length to bring the texts to', where: `${path}, option maxLength`, found: 'a tokenizer that names none',
      expected: 'the number of tokens of an example', fix: 'e.g. maxLength: 64',
    });
  }
  const table = await openTable(path, options);
  const labels = labelReader(table, label, classes);
  const [first, second] = typeof options.text === 'string' ? [options.text] : options.text;
  const firstAt = table.at(first, 'text');
  const secondAt = second === undefined ? undefined : table.at(second, 'text');

  const { id, side } = tokenizer.padding;
  const rows: Row[] = [];
  for await (const row of table.rows()) {
    const { ids, types } = tokenizer.encode(row.cells[firstAt] ?? '', secondAt === undefined ? undefined : row.cells[secondAt], maxLength);
    rows.push({ ids: Int32Array.from(ids), types: types.some((t) => t !== 0) ? Int32Array.from(types) : undefined });
    labels.push(row);
  }
  const start = ({ ids }: Row): number => (side === 'left' ? maxLength - ids.length : 0);
  const column = (padding: number, of: (row: Row) => Int32Array | number | undefined): Column<'int64'> => {
    const data = new Int32Array(rows.length * maxLength).fill(padding);
    rows.forEach((row, i) => {
      const [values, at] = [of(row), i * maxLength + start(row)];
      if (typeof values === 'number') data.fill(values, at, at + row.ids.length);
      else if (values !== undefined) data.set(values, at);
    });
    return narrowColumn(data, [maxLength]);
  };
  return datasetOf({
    name: path,
    features: new Map([
      ['input_ids', column(id, ({ ids }) => ids)],
      ['attention_mask', column(0, () => 1)],
      ['token_type_ids', column(0, ({ types }) => types)],
    ]),
    labels: labels.labels(),
    classNames: classes,
  });
}

interface Row {
  readonly ids: Int32Array;
  /** Undefined where all are 0. */
  readonly types: Int32Array | undefined;
}
