import { createHash } from 'node:crypto';
import { type AnyColumn, type ColumnType, type Dataset } from '../data/index.ts';
import { encodeChunks } from '../graph/encode.ts';
import type { Graph } from '../graph/ir.ts';
import { allocate, sizeOf } from '../tensor/tensor.ts';

/** About so many numbers are read at once. */
const chunk = 1 << 18;

/** A hash takes less than 2 GiB at once. */
const mostBytes = 2 ** 30;

/** Digests of data sets, none of which is read twice for it. */
const known = new WeakMap<Dataset, string>();

/** SHA-256 (hex) of all examples in their order. **Private**: see `RunNotes`. */
export function dataDigest(data: Dataset): string {
  const digest = known.get(data) ?? digestOf(data);
  known.set(data, digest);
  return digest;
}

function digestOf({ size, features, labels }: Dataset): string {
  const hash = createHash('sha256');
  for (const [name, column] of [...features, ['', labels] as const]) {
    hash.update(JSON.stringify([name, column.dtype, column.shape, size]));
    if (column.stored !== undefined) {
      for (const { buffer, byteOffset, byteLength } of column.stored) {
        for (let at = 0; at < byteLength; at += mostBytes) hash.update(new Uint8Array(buffer, byteOffset + at, Math.min(mostBytes, byteLength - at)));
      }
      continue;
    }
    const width = sizeOf(column.shape);
    const rows = Math.max(1, Math.floor(chunk / Math.max(1, width)));
    const into = allocate<ColumnType>(column.dtype, rows * width);
    for (let start = 0; start < size; start += rows) {
      const count = Math.min(rows, size - start);
      gather(column, Uint32Array.from({ length: count }, (_, i) => start + i), into);
      hash.update(new Uint8Array(into.buffer, into.byteOffset, count * width * into.BYTES_PER_ELEMENT));
    }
  }
  return hash.digest('hex');
}

function gather(column: AnyColumn, rows: Uint32Array, into: Float32Array | BigInt64Array): void {
  if (column.dtype === 'float32') column.gather(rows, into as Float32Array);
  else column.gather(rows, into as BigInt64Array);
}

/** SHA-256 (hex) of a model without the values of `trained`, which a checkpoint holds. */
export function modelDigest(model: Graph, trained: readonly string[]): string {
  const hash = createHash('sha256');
  for (const bytes of encodeChunks({ ...model, initializers: new Map() })) hash.update(bytes);
  for (const [name, { dtype, shape, data }] of model.initializers) {
    hash.update(JSON.stringify([name, dtype, shape]));
    if (!trained.includes(name)) hash.update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  return hash.digest('hex');
}
