import { sizeOf } from '../tensor/tensor.ts';
import { type BatchAxis, rowsOf } from './batch.ts';
import { type GraphBuilder, type Value, reshape, transpose } from './builder.ts';

/**
 * `x` with its rows in front and its other axes where they were, so that anything that broadcasts against `x`
 * from the right still lines up: [B, ...left, before·after, ...right].
 */
export function rowsAligned(b: GraphBuilder, x: Value, batch: BatchAxis): Value {
  const shape = b.shape(x);
  const rows = rowsOf(shape, batch);
  const left = shape.slice(0, batch.axis);
  const right = shape.slice(batch.axis + 1);
  const split = reshape(b, x, [...left, batch.before, rows, batch.after, ...right]);
  const at = left.length + 1;
  const order = Array.from({ length: shape.length + 2 }, (_, i) => i).filter((i) => i !== at);
  return reshape(b, transpose(b, split, [at, ...order]), [rows, ...left, batch.before * batch.after, ...right]);
}

/** `x` as [B, T, ...tail]: rows in front, the last `tail` axes (which must not carry the batch) kept, the others merged. */
export function rowsAndPositions(b: GraphBuilder, x: Value, batch: BatchAxis, tail: number): Value {
  const shape = b.shape(x);
  const kept = shape.slice(shape.length - tail);
  const rows = rowsOf(shape, batch);
  return reshape(b, rowsAligned(b, x, batch), [rows, sizeOf(shape) / (rows * sizeOf(kept)), ...kept]);
}
