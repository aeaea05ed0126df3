import { createReadStream } from 'node:fs';
import { type CsvErrorCode, CsvError, parse } from 'csv-parse';
import { GhostgradError } from '../errors.ts';
import { unknownName } from '../suggest.ts';
import { type AnyColumn, floatColumn, integerColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { unreadable } from './files.ts';
import { showRow } from './messages.ts';
import { type Normalize, normaliseFloats } from './normalise.ts';

export interface CsvOptions {
  /** The column that holds the label; default `label`. */
  readonly label?: string | undefined;
  /** The columns that make the input, in this order; default: all but the label, in the file's order. */
  readonly features?: readonly string[] | undefined;
  /** Names of the classes, where labels are names and not numbers; label i is `classes[i]`. */
  readonly classes?: readonly string[] | undefined;
  /** Default `,`. */
  readonly delimiter?: string | undefined;
  /** Default `none`. */
  readonly normalize?: Normalize | undefined;
}

/**
 * A table of numbers with a header line: input `input`, float32 [features]; labels int64 when all are whole numbers or
 * `classes` names them, else float32.
 *
 * @throws GhostgradError when the file cannot be read, its header lacks a column, or a cell is no number; the message
 * names row, line and column, and never what a cell holds
 */
export async function readCsv(path: string, options: CsvOptions = {}): Promise<Dataset> {
  const { label = 'label', classes, delimiter = ',', normalize = 'none' } = options;
  const records = recordsOf(path, delimiter);
  const header = await records.next();
  if (header.done === true) {
    throw new GhostgradError({
      what: 'the table is empty', where: path, expected: 'a header line and rows',
    });
  }
  const names = checkedHeader(header.value.record, path);
  const labelAt = columnOf(label, names, path, 'label');
  const features = options.features ?? names.filter((name) => name !== label);
  const featuresAt = features.map((name) => columnOf(name, names, path, 'features'));
  if (featuresAt.includes(labelAt)) {
    throw new GhostgradError({
      what: 'the label is among the features', where: path, found: `column "${label}" in both`,
    });
  }
  if (features.length === 0) {
    throw new GhostgradError({
      what: 'the table has no features', where: path, expected: 'a column beside the label',
    });
  }

  const values = growing((length) => new Float32Array(length));
  const labels = growing((length) => new Float64Array(length));
  for (let row = 0; ; row++) {
    const next = await records.next();
    if (next.done === true) break;
    const { record, line } = next.value;
    const where = (column: string): string => `${path}, ${showRow(row)}, line ${line}, column "${column}"`;
    if (record.length !== names.length) {
      throw new GhostgradError({
        what: 'a row of another length than the header', where: `${path}, ${showRow(row)}, line ${line}`,
        found: `${record.length} cells`, expected: `${names.length} cells`,
      });
    }
    for (const at of featuresAt) values.push(numberIn(record[at] ?? '', () => where(names[at] ?? '')));
    const cell = record[labelAt] ?? '';
    labels.push(classes === undefined ? labelIn(cell, () => where(label)) : classIn(cell, classes, () => where(label)));
  }
  const data = values.array();
  normaliseFloats(data, normalize, [features.length], path);
  return datasetOf({
    name: path,
    features: new Map([['input', floatColumn(data, [features.length], features)]]),
    labels: labelColumn(labels.array()),
    classNames: classes,
  });
}

interface Row {
  readonly record: readonly string[];
  /** The line that the row ends on, from 1. */
  readonly line: number;
}

const faults: Partial<Readonly<Record<CsvErrorCode, string>>> = {
  CSV_QUOTE_NOT_CLOSED: 'a quotation mark that is not closed',
  CSV_INVALID_CLOSING_QUOTE: 'text after a closing quotation mark',
  CSV_NON_TRIMABLE_CHAR_AFTER_CLOSING_QUOTE: 'text after a closing quotation mark',
  INVALID_OPENING_QUOTE: 'a quotation mark inside an unquoted cell',
};

async function* recordsOf(path: string, delimiter: string): AsyncGenerator<Row> {
  const file = createReadStream(path);
  const parser = parse({
    bom: true, delimiter, trim: true, skip_empty_lines: true, relax_column_count: true, info: true,
  });
  file.on('error', (error) => parser.destroy(error));
  try {
    const parsed = file.pipe(parser) as AsyncIterable<{ record: string[]; info: { lines: number } }>;
    for await (const { record, info } of parsed) {
      yield { record, line: info.lines };
    }
  } catch (error) {
    if (!(error instanceof CsvError)) throw error instanceof GhostgradError ? error : unreadable(path, error);
    // The parser's own message may quote the cell: neither it nor the error as a cause may get out.
    throw new GhostgradError({
      what: 'the table is malformed', where: `${path}, line ${String(error['lines'])}`,
      found: faults[error.code] ?? error.code,
      expected: 'cells apart by the delimiter, quoted with "…" where they contain it',
    });
  } finally {
    file.destroy();
  }
}

const decimal = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

/** Column names; refuses a first line that is no header, whose cells would be data and must not be shown. */
function checkedHeader(names: readonly string[], path: string): readonly string[] {
  if (names.some((name) => name === '' || decimal.test(name))) {
    throw new GhostgradError({
      what: 'the first line is not a header', where: path, found: 'numbers or empty cells among the column names',
      expected: 'a name for each column', fix: 'put a line of column names first',
    });
  }
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) {
    throw new GhostgradError({
      what: 'two columns of one name', where: path, found: `"${twice}"`,
    });
  }
  return names;
}

function columnOf(name: string, names: readonly string[], path: string, option: string): number {
  const at = names.indexOf(name);
  if (at < 0) throw unknownName('column', name, names, `${path}, option ${option}`);
  return at;
}

/** A cell's number that float32 can hold. `where` is asked only when there is none. */
function numberIn(cell: string, where: () => string): number {
  const x = decimal.test(cell) ? Math.fround(Number(cell)) : Number.NaN;
  if (Number.isFinite(x)) return x;
  throw new GhostgradError({
    what: 'a cell is not a number', where: where(),
    found: cell === '' ? 'an empty cell' : decimal.test(cell) ? "a number beyond float32's range" : 'text',
    expected: 'a finite decimal number',
    fix: 'fill in, encode as numbers, or leave the column out with features: [names]',
  });
}

function labelIn(cell: string, where: () => string): number {
  if (decimal.test(cell) && Number.isFinite(Number(cell))) return Number(cell);
  throw new GhostgradError({
    what: 'a label is not a number', where: where(), found: cell === '' ? 'an empty cell' : 'text',
    expected: 'a class number 0, 1, …, or a target',
    fix: 'for names of classes, list them all in the data spec: classes: [name, name]',
  });
}

function classIn(cell: string, classes: readonly string[], where: () => string): number {
  const at = classes.indexOf(cell);
  if (at >= 0) return at;
  throw new GhostgradError({
    what: 'a label is not a known class', where: where(),
    found: cell === '' ? 'an empty cell' : 'text that is not among the classes',
    expected: `one of ${classes.join(', ')}`,
  });
}

/** Classes when all are whole numbers, else targets. */
const labelColumn = (values: Float64Array): AnyColumn =>
  values.every((x) => Number.isSafeInteger(x))
    ? integerColumn(BigInt64Array.from(values, BigInt))
    : floatColumn(Float32Array.from(values), []);

/** A list of numbers that grows by doubling; an array of boxed numbers would take several times the memory. */
function growing<A extends Float32Array | Float64Array>(
  make: (length: number) => A,
): { readonly push: (x: number) => void; readonly array: () => A } {
  let held = make(1024);
  let count = 0;
  return {
    push: (x) => {
      if (count === held.length) {
        const larger = make(2 * count);
        larger.set(held);
        held = larger;
      }
      held[count++] = x;
    },
    array: () => {
      const exact = make(count);
      exact.set(held.subarray(0, count));
      return exact;
    },
  };
}
