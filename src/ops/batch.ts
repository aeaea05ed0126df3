import type { Shape } from '../tensor/tensor.ts';

/**
 * Where a value carries the batch: `axis` has the size before · B · after, the batch being the middle factor
 * of that axis in row-major order (before = after = 1 unless the batch is merged with another axis).
 */
export interface BatchAxis {
  readonly axis: number;
  readonly before: number;
  readonly after: number;
}

export const leading: BatchAxis = { axis: 0, before: 1, after: 1 };

export const sameBatch = (a: BatchAxis, b: BatchAxis): boolean =>
  a.axis === b.axis && a.before === b.before && a.after === b.after;

/** The number of rows that an axis of `shape` holds. */
export const rowsOf = (shape: Shape, { axis, before, after }: BatchAxis): number => (shape[axis] ?? 0) / (before * after);
