import { type DType, type Shape, type Tensor, float32, isFloat, tensor, toNumbers } from '../../src/tensor/tensor.ts';
import { fromHalf, toHalf } from './half.ts';

/** Element types of which gradients are checked, with half the distance between neighbours at 1. */
export const precision = { float32: 2 ** -24, float64: 2 ** -53, float16: 2 ** -11 } as const;

export type Checked = keyof typeof precision;
export const isChecked = (dtype: DType): dtype is Checked => Object.hasOwn(precision, dtype);

/** The elements as numbers, whatever they are stored as; not to be changed. */
export const numbersOf = (t: Tensor): ArrayLike<number> =>
  (t.data instanceof Float32Array || t.data instanceof Float64Array ? t.data
    : t.dtype === 'float16' ? toNumbers(t).map(fromHalf) : toNumbers(t));

/** Numbers as a float tensor. */
export function floatsOf(dtype: DType, shape: Shape, values: ArrayLike<number>): Tensor {
  if (!isFloat(dtype)) throw new TypeError(`${dtype} is no floating-point type`);
  if (dtype === 'float64') return tensor('float64', shape, Float64Array.from(values));
  if (dtype === 'float16') return tensor('float16', shape, Uint16Array.from(Array.from(values), toHalf));
  return float32(values, shape);
}
