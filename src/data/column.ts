import { type Shape, type TypedArrays, sizeOf } from '../tensor/tensor.ts';

/** Element types that a model is fed with: features as float32, class labels (and token ids) as int64. */
export type ColumnType = 'float32' | 'int64';

/** Where an element of a column lies. */
export interface Cell {
  /** Row, from 0. */
  readonly row: number;
  /** Position within the row's values, from 0. */
  readonly element: number;
}

/** One named value of every example, held in whatever form is small, handed out in the form the model takes. */
export interface Column<D extends ColumnType> {
  readonly dtype: D;
  /** Rows held. */
  readonly size: number;
  /** Shape of one example; `[]` for a number. */
  readonly shape: Shape;
  /** Names of the elements of a row where they have some (the columns of a table), for messages. */
  readonly elementNames?: readonly string[] | undefined;
  /**
   * Writes row `indices[i]` to the i-th row of `into` and zeros to the rows after the last.
   * Throws RangeError for an index that is no row, or when `into` is too small.
   */
  readonly gather: (indices: Uint32Array, into: TypedArrays[D]) => void;
  /** All that the rows follow from beside their type and shape, where that is less than the rows themselves: bytes to be digested. */
  readonly stored?: readonly ArrayBufferView[] | undefined;
  /** The first NaN or infinite element, if any. */
  readonly firstNonFinite: () => Cell | undefined;
}

/** A column of either type; `dtype` tells them apart. */
export type AnyColumn = Column<'float32'> | Column<'int64'>;

/**
 * Where the first NaN or infinity stands, -1 where there is none: all bits of its exponent are set. Whole numbers compare
 * many times as fast as a call for each element would.
 */
export function firstNonFinite({ buffer, byteOffset, length }: Float32Array): number {
  const exponent = 0x7f800000;
  const bits = new Int32Array(buffer, byteOffset, length);
  for (let i = 0; i < length; i++) if ((bits[i]! & exponent) === exponent) return i;
  return -1;
}

/** Checks the indices, copies row by row, and clears what is left of `into`. */
function gatherRows(
  size: number, width: number, indices: Uint32Array, into: Float32Array | BigInt64Array,
  copy: (row: number, offset: number) => void,
): void {
  if (indices.length * width > into.length) {
    throw new RangeError(`${indices.length} rows of ${width} elements do not fit into ${into.length} elements`);
  }
  for (let i = 0; i < indices.length; i++) {
    const row = indices[i]!;
    if (row >= size) throw new RangeError(`no row ${row} among ${size}`);
    copy(row, i * width);
  }
  if (into instanceof Float32Array) into.fill(0, indices.length * width);
  else into.fill(0n, indices.length * width);
}

/** Rows of float32 values, row-major. */
export function floatColumn(data: Float32Array, shape: Shape, elementNames?: readonly string[]): Column<'float32'> {
  const width = sizeOf(shape);
  const size = rowsOf(data.length, width);
  return {
    dtype: 'float32', size, shape, elementNames,
    gather: (indices, into) => gatherRows(size, width, indices, into, (row, offset) =>
      into.set(data.subarray(row * width, (row + 1) * width), offset)),
    firstNonFinite: () => {
      const at = firstNonFinite(data);
      return at < 0 ? undefined : { row: Math.floor(at / width), element: at % width };
    },
  };
}

/**
 * Rows of bytes, a quarter of the memory of float32, turned into float32 through tables of 256 entries as they are
 * gathered. One table serves all elements; several serve equal parts of a row (the channels of an image).
 */
export function byteColumn(data: Uint8Array, shape: Shape, tables: readonly Float32Array[]): Column<'float32'> {
  const width = sizeOf(shape);
  const size = rowsOf(data.length, width);
  const part = width / tables.length;
  if (!Number.isInteger(part)) throw new RangeError(`${tables.length} tables do not divide rows of ${width} elements`);
  return {
    dtype: 'float32', size, shape, stored: [...tables, data],
    gather: (indices, into) => gatherRows(size, width, indices, into, (row, offset) => {
      let from = row * width;
      let to = offset;
      for (const table of tables) {
        for (const end = to + part; to < end; to++, from++) into[to] = table[data[from]!]!;
      }
    }),
    firstNonFinite: () => undefined,
  };
}

/** Rows of whole numbers, such as class labels. */
export function integerColumn(data: BigInt64Array, shape: Shape = []): Column<'int64'> {
  const width = sizeOf(shape);
  const size = rowsOf(data.length, width);
  return {
    dtype: 'int64', size, shape,
    gather: (indices, into) => gatherRows(size, width, indices, into, (row, offset) =>
      into.set(data.subarray(row * width, (row + 1) * width), offset)),
    firstNonFinite: () => undefined,
  };
}

/** Rows of whole numbers of 32 bits, such as the ids of tokens: half the memory of int64, widened as they are gathered. */
export function narrowColumn(data: Int32Array, shape: Shape = []): Column<'int64'> {
  const width = sizeOf(shape);
  return computedColumn(rowsOf(data.length, width), shape, (row, element) => data[row * width + element]!);
}

/** Rows of whole numbers of 32 bits that are computed as they are gathered. */
export function computedColumn(size: number, shape: Shape, valueOf: (row: number, element: number) => number): Column<'int64'> {
  const width = sizeOf(shape);
  return {
    dtype: 'int64', size, shape,
    gather: (indices, into) => {
      // Both halves of each number by themselves: a BigInt for each would take ten times as long.
      const halves = new Int32Array(into.buffer, into.byteOffset, 2 * into.length);
      gatherRows(size, width, indices, into, (row, offset) => {
        for (let i = 0; i < width; i++) {
          const value = valueOf(row, i);
          halves[2 * (offset + i)] = value;
          halves[2 * (offset + i) + 1] = value < 0 ? -1 : 0;
        }
      });
    },
    firstNonFinite: () => undefined,
  };
}

function rowsOf(length: number, width: number): number {
  const rows = length / width;
  if (!Number.isInteger(rows)) throw new RangeError(`${length} elements are no whole number of rows of ${width}`);
  return rows;
}

/** The same rows with each example in another shape of as many elements. */
export function reshaped(column: AnyColumn, shape: Shape): AnyColumn {
  if (sizeOf(shape) !== sizeOf(column.shape)) {
    throw new RangeError(`examples of ${sizeOf(column.shape)} elements have no shape [${shape.join(', ')}]`);
  }
  return { ...column, shape };
}
