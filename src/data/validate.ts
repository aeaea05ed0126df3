import { GhostgradError } from '../errors.ts';
import { sizeOf } from '../tensor/tensor.ts';
import type { AnyColumn } from './column.ts';
import { type Dataset, allRows, gatherColumn, rowsFrom } from './dataset.ts';
import { showRow } from './messages.ts';

export interface Expectations {
  /** Shape of one example as the model declares it; a name or null stands for any size. */
  readonly inputShape?: readonly (number | string | null)[] | undefined;
  /** Class labels must be 0 … classes − 1. */
  readonly classes?: number | undefined;
  /** Or one of these, by which data says that a place has no label. */
  readonly ignored?: readonly number[] | undefined;
}

/**
 * The pre-flight check of a dataset; it reads all of the data, outside ε. Passes when examples have the model's shape,
 * every number is finite and every label is a class.
 *
 * @throws GhostgradError for the first fault; the message names row and column, never a value
 */
export function validateDataset(dataset: Dataset, { inputShape, classes, ignored = [] }: Expectations = {}): void {
  for (const [name, column] of dataset.features) {
    if (inputShape !== undefined) requireShape(dataset, name, column, inputShape);
    requireFinite(dataset, `feature "${name}"`, column);
  }
  requireFinite(dataset, 'labels', dataset.labels);
  if (classes !== undefined) requireClasses(dataset, classes, ignored);
}

/** @throws GhostgradError where a feature's examples have another shape than the model declares */
export function requireShape(
  { name }: Dataset, feature: string, { shape }: AnyColumn, expected: readonly (number | string | null)[],
): void {
  const fits = expected.every((n, axis) => typeof n !== 'number' || n === shape[axis]);
  if (fits && shape.length === expected.length) return;
  const fixed = expected.filter((n) => typeof n === 'number');
  const sameSize = fixed.length === expected.length && sizeOf(fixed) === sizeOf(shape);
  throw new GhostgradError({
    what: 'the data has another shape than the model takes', where: `feature "${feature}" of ${name}`,
    found: `[${shape.join(', ')}] for each example`, expected: `[${expected.map((n) => n ?? '?').join(', ')}]`,
    fix: sameSize
      ? `add shape: [${fixed.join(', ')}] to the data spec`
      : `choose a model for this shape of data, e.g. {name: mlp, input: [${shape.join(', ')}]}`,
  });
}

function requireFinite({ name }: Dataset, what: string, column: AnyColumn): void {
  const cell = column.firstNonFinite();
  if (cell === undefined) return;
  const element = column.elementNames?.[cell.element];
  const at = element === undefined ? `element ${cell.element + 1} of the row` : `column "${element}"`;
  throw new GhostgradError({
    what: 'the data has a number that is not finite', where: `${name}, ${what}, ${showRow(cell.row)}, ${at}`,
    found: 'NaN or an infinity', expected: 'finite numbers', fix: 'fill in or leave out such rows before training',
  });
}

/**
 * @param rows of the table that the numbers choose from; negative ones count from its end
 * @throws GhostgradError where a feature numbers a row that there is not
 */
export function requireRows({ name }: Dataset, feature: string, column: AnyColumn, { table, rows }: { readonly table: string; readonly rows: number }): void {
  const width = sizeOf(column.shape);
  // In parts, so that memory does not grow with the data.
  const part = Math.max(1, Math.floor(2 ** 20 / Math.max(1, width)));
  for (let start = 0; start < column.size; start += part) {
    const { data } = gatherColumn(column, rowsFrom(start, Math.min(part, column.size - start)));
    for (let i = 0; i < data.length; i++) {
      const row = Number(data[i]);
      if (row >= -rows && row < rows) continue;
      throw new GhostgradError({
        what: `a number names no row of the table "${table}"`,
        where: `${name}, feature "${feature}", ${showRow(start + Math.floor(i / width))}, element ${(i % width) + 1} of the row`,
        expected: `whole numbers from 0 to ${rows - 1}, since the table has ${rows} rows`,
        fix: 'use the tokenizer or vocabulary that the model was made with, or a model with a larger table',
      });
    }
  }
}

function requireClasses({ name, labels }: Dataset, classes: number, ignored: readonly number[]): void {
  const { data } = gatherColumn(labels, allRows(labels.size));
  const width = sizeOf(labels.shape);
  for (let i = 0; i < data.length; i++) {
    const label = Number(data[i]);
    if (Number.isInteger(label) && ((label >= 0 && label < classes) || ignored.includes(label))) continue;
    throw new GhostgradError({
      what: 'a label is out of range', where: `${name}, labels, ${showRow(Math.floor(i / width))}`,
      expected: `whole numbers from 0 to ${classes - 1}, since the model has ${classes} outputs`,
      fix: 'number the classes from 0, or give the model more outputs (option classes of a builder)',
    });
  }
}
