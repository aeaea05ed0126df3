import { createReadStream } from 'node:fs';
import { type CsvErrorCode, CsvError, parse } from 'csv-parse';
import { GhostgradError } from '../errors.ts';
import { unknownName } from '../suggest.ts';
import { type AnyColumn, floatColumn, integerColumn } from './column.ts';
import { unreadable } from './files.ts';
import { showRow } from './messages.ts';

export interface TableOptions {
  /** Default `,`. */
  readonly delimiter?: string | undefined;
  /** Whether `"…"` encloses cells; default true. */
  readonly quotes?: boolean | undefined;
}

/** A table with a header line, read row by row. */
export interface Table {
  readonly path: string;
  readonly names: readonly string[];
  /** Where a column stands in a row. Throws GhostgradError for a name that there is none of; `option` asked for it. */
  at(name: string, option: string): number;
  /** The rows, once. Throws GhostgradError at a row that is malformed or has another length than the header. */
  rows(): AsyncGenerator<TableRow>;
}

export interface TableRow {
  readonly cells: readonly string[];
  /** What messages call the cell of a column of this row. */
  where(column: string): string;
}

/**
 * Opens a table.
 *
 * @throws GhostgradError when it cannot be read, is empty, or has no header
 */
export async function openTable(path: string, { delimiter = ',', quotes = true }: TableOptions = {}): Promise<Table> {
  const records = recordsOf(path, delimiter, quotes);
  const header = await records.next();
  if (header.done === true) {
    throw new GhostgradError({ what: 'the table is empty', where: path, expected: 'a header line and rows' });
  }
  const names = checkedHeader(header.value.record, path);
  return {
    path, names,
    at: (name, option) => {
      const found = names.indexOf(name);
      if (found < 0) throw unknownName('column', name, names, `${path}, option ${option}`);
      return found;
    },
    async *rows() {
      let row = 0;
      for await (const { record, line } of records) {
        const place = `${path}, ${showRow(row)}, line ${line}`;
        if (record.length !== names.length) {
          throw new GhostgradError({
            what: 'a row of another length than the header', where: place,
            found: `${record.length} cells`, expected: `${names.length} cells`,
          });
        }
        yield { cells: record, where: (column) => `${place}, column "${column}"` };
        row++;
      }
    },
  };
}

interface Record {
  readonly record: readonly string[];
  /** The line that the row ends on, from 1. */
  readonly line: number;
}

const faults: Partial<Readonly<{ [C in CsvErrorCode]: string }>> = {
  CSV_QUOTE_NOT_CLOSED: 'a quotation mark that is not closed',
  CSV_INVALID_CLOSING_QUOTE: 'text after a closing quotation mark',
  CSV_NON_TRIMABLE_CHAR_AFTER_CLOSING_QUOTE: 'text after a closing quotation mark',
  INVALID_OPENING_QUOTE: 'a quotation mark inside an unquoted cell',
};

async function* recordsOf(path: string, delimiter: string, quotes: boolean): AsyncGenerator<Record> {
  const file = createReadStream(path);
  const parser = parse({
    bom: true, delimiter, trim: true, skip_empty_lines: true, relax_column_count: true, info: true, ...(quotes ? {} : { quote: null }),
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

export const decimal = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

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

/** Reads the labels of a table, row by row. */
export interface LabelReader {
  readonly column: string;
  readonly at: number;
  /** Throws GhostgradError for a cell that is no label. */
  push(row: TableRow): void;
  /** int64 when all are whole numbers or `classes` names them, else float32. */
  labels(): AnyColumn;
}

export function labelReader(table: Table, label: string, classes: readonly string[] | undefined): LabelReader {
  const at = table.at(label, 'label');
  const values = growing((length) => new Float64Array(length));
  return {
    column: label, at,
    push: ({ cells, where }) => {
      const cell = cells[at] ?? '';
      values.push(classes === undefined ? labelIn(cell, () => where(label)) : classIn(cell, classes, () => where(label)));
    },
    labels: () => {
      const all = values.array();
      return all.every((x) => Number.isSafeInteger(x))
        ? integerColumn(BigInt64Array.from(all, BigInt))
        : floatColumn(Float32Array.from(all), []);
    },
  };
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

/** A list of numbers that grows by doubling; an array of boxed numbers would take several times the memory. */
export function growing<A extends Float32Array | Float64Array | Int32Array>(
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
