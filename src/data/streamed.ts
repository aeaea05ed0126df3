import { closeSync, openSync, readSync } from 'node:fs';
import { type Column, firstNonFinite } from './column.ts';
import { GhostgradError } from '../errors.ts';
import { type DType, type Shape, bytesPerElement, sizeOf } from '../tensor/tensor.ts';

/** An array [rows, ...shape] within a file. */
export interface StoredArray {
  readonly path: string;
  /** Where it begins, in bytes. */
  readonly offset: number;
  readonly dtype: DType;
  readonly rows: number;
  /** Of one row. */
  readonly shape: Shape;
}

/** Turns the stored bytes of whole rows into float32, in place of what `into` held. */
export type Decode = (bytes: Uint8Array, into: Float32Array) => void;

/** A column that holds its file open. */
export interface StreamedColumn extends Column<'float32'> {
  /** Nothing can be read from here on. Whoever ends with the process need not call it. */
  close(): void;
}

/** Bytes read at once. */
const block = 1 << 20;

/**
 * A column of rows that stay in their file: a batch's are read as they are gathered, neighbours together, so that memory does
 * not grow with the data. The file must not change while the column is used.
 *
 * @param decode none where what is stored is float32 as it is handed out, which is then read to where it is wanted
 * @throws GhostgradError when the file cannot be read, then or later
 */
export function streamedColumn(array: StoredArray, decode?: Decode): StreamedColumn {
  const { path, offset, dtype, rows, shape } = array;
  const width = sizeOf(shape);
  const rowBytes = width * bytesPerElement(dtype);
  const file = openSync(path, 'r');
  const atOnce = Math.max(1, Math.floor(block / rowBytes));
  const scratch = new Uint8Array(decode === undefined ? 0 : atOnce * rowBytes);
  const read = (row: number, count: number, into: Float32Array): void => {
    const bytes = decode === undefined
      ? new Uint8Array(into.buffer, into.byteOffset, into.byteLength) : scratch.subarray(0, count * rowBytes);
    for (let done = 0; done < bytes.length;) {
      const got = readSync(file, bytes, done, bytes.length - done, offset + row * rowBytes + done);
      if (got === 0) {
        throw new GhostgradError({
          what: 'the data changed while it was used', where: path, found: 'a file that ends sooner than it did',
          expected: 'the same file for the whole run', fix: 'put the file back, and start again',
        });
      }
      done += got;
    }
    decode?.(bytes, into);
  };
  let isOpen = true;
  return {
    dtype: 'float32', size: rows, shape,
    close: () => {
      if (isOpen) closeSync(file);
      isOpen = false;
    },
    gather: (indices, into) => {
      if (indices.length * width > into.length) {
        throw new RangeError(`${indices.length} rows of ${width} elements do not fit into ${into.length} elements`);
      }
      for (let i = 0; i < indices.length;) {
        const row = indices[i]!;
        if (row >= rows) throw new RangeError(`no row ${row} among ${rows}`);
        let count = 1;
        while (count < atOnce && i + count < indices.length && indices[i + count] === row + count && row + count < rows) count++;
        read(row, count, into.subarray(i * width, (i + count) * width));
        i += count;
      }
      into.fill(0, indices.length * width);
    },
    firstNonFinite: () => {
      const values = new Float32Array(atOnce * width);
      for (let row = 0; row < rows; row += atOnce) {
        const count = Math.min(atOnce, rows - row);
        read(row, count, values.subarray(0, count * width));
        const at = firstNonFinite(values.subarray(0, count * width));
        if (at >= 0) return { row: row + Math.floor(at / width), element: at % width };
      }
      return undefined;
    },
  };
}
