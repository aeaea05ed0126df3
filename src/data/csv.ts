import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import { floatColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { type Normalize, normaliseFloats } from './normalise.ts';
import { type TableOptions, type TableRow, decimal, growing, labelReader, openTable } from './table.ts';

/** How one column of a table enters the input. Bounds and categories are **public**: never computed from the data. */
export const featureSchema = z.union([
  /** The number as it is. */
  z.literal('number'),
  /** A number, cut to the bounds and brought to [0, 1]. */
  z.strictObject({ min: z.number(), max: z.number() }).refine(({ min, max }) => min < max, 'min below max'),
  /** A text: 1 in the place of its category, 0 in the others'; all 0 where it is none of them. */
  z.strictObject({ categories: z.array(z.union([z.string(), z.number()]).transform(String)).min(1) }),
]);

export type Feature = z.input<typeof featureSchema>;

export interface CsvOptions extends TableOptions {
  /** The column that holds the label; default `label`. */
  readonly label?: string | undefined;
  /**
   * The columns that make the input, in this order: names of columns of numbers, or how each column enters it. Default: all
   * but the label, in the file's order, as numbers.
   */
  readonly features?: readonly string[] | Readonly<Record<string, Feature>> | undefined;
  /** Names of the classes, where labels are names and not numbers; label i is `classes[i]`. */
  readonly classes?: readonly string[] | undefined;
  /** Default `none`. */
  readonly normalize?: Normalize | undefined;
}

/**
 * A table with a header line: input `input`, float32 [elements], a number for each feature and one for each category of
 * a categorical one; labels int64 when all are whole numbers or `classes` names them, else float32.
 *
 * @throws GhostgradError when the file cannot be read, its header lacks a column, or a cell is no number; the message
 * names row, line and column, and never what a cell holds
 */
export async function readCsv(path: string, options: CsvOptions = {}): Promise<Dataset> {
  const { label = 'label', classes, normalize = 'none' } = options;
  const table = await openTable(path, options);
  const labels = labelReader(table, label, classes);
  const features = featuresOf(options.features ?? table.names.filter((name) => name !== label));
  const readers = features.map(([name, feature]) => {
    if (name === label) {
      throw new GhostgradError({
        what: 'the label is among the features', where: path, found: `column "${label}" in both`,
      });
    }
    return featureReader(name, table.at(name, 'features'), feature);
  });
  if (readers.length === 0) {
    throw new GhostgradError({
      what: 'the table has no features', where: path, expected: 'a column beside the label',
    });
  }

  const values = growing((length) => new Float32Array(length));
  for await (const row of table.rows()) {
    for (const { push } of readers) push(row, values.push);
    labels.push(row);
  }
  const elements = readers.flatMap((reader) => reader.elements);
  const data = values.array();
  normaliseFloats(data, normalize, [elements.length], path);
  return datasetOf({
    name: path,
    features: new Map([['input', floatColumn(data, [elements.length], elements)]]),
    labels: labels.labels(),
    classNames: classes,
  });
}

const isNames = (features: NonNullable<CsvOptions['features']>): features is readonly string[] => Array.isArray(features);

const featuresOf = (features: NonNullable<CsvOptions['features']>): readonly (readonly [string, Feature])[] =>
  isNames(features) ? features.map((name) => [name, 'number']) : Object.entries(features);

interface FeatureReader {
  /** Names of the elements that the column becomes. */
  readonly elements: readonly string[];
  readonly push: (row: TableRow, add: (x: number) => void) => void;
}

function featureReader(name: string, at: number, feature: Feature): FeatureReader {
  const read = ({ cells, where }: TableRow): number => numberIn(cells[at] ?? '', () => where(name));
  if (feature === 'number') return { elements: [name], push: (row, add) => { add(read(row)); } };
  if ('categories' in feature) {
    const categories = feature.categories.map(String);
    return {
      elements: categories.map((category) => `${name}=${category}`),
      push: ({ cells }, add) => { for (const category of categories) add(cells[at] === category ? 1 : 0); },
    };
  }
  const { min, max } = feature;
  return { elements: [name], push: (row, add) => { add((Math.min(max, Math.max(min, read(row))) - min) / (max - min)); } };
}

/** A cell's number that float32 can hold. `where` is asked only when there is none. */
function numberIn(cell: string, where: () => string): number {
  const x = decimal.test(cell) ? Math.fround(Number(cell)) : Number.NaN;
  if (Number.isFinite(x)) return x;
  throw new GhostgradError({
    what: 'a cell is not a number', where: where(),
    found: cell === '' ? 'an empty cell' : decimal.test(cell) ? "a number beyond float32's range" : 'text',
    expected: 'a finite decimal number',
    fix: 'fill in, encode as numbers, leave the column out with features: [names], or name its categories: ' +
      'features: { column: { categories: [...] } }',
  });
}
