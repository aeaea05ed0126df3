import { sizeOf } from '../../src/tensor/tensor.ts';

/** An IDX file of bytes, built by hand. */
export function idxBytes(shape: readonly number[], values: readonly number[]): Uint8Array {
  if (values.length !== sizeOf(shape)) throw new RangeError('values do not fill the shape');
  const sizes = shape.flatMap((n) => [n >>> 24, (n >>> 16) & 255, (n >>> 8) & 255, n & 255]);
  return Uint8Array.from([0, 0, 8, shape.length, ...sizes, ...values]);
}
