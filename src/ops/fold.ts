import { type DType, type Shape, type Tensor, allocate, isFloat, sizeOf, tensor } from '../tensor/tensor.ts';
import type { FoldContext } from './operator.ts';
import { broadcastShapes } from './rules.ts';

/** A small evaluator for compile time: whatever the arithmetic of shapes is made of. */

/** The values of the outputs; undefined where they are left to the running graph. */
export type Fold = (context: FoldContext) => readonly Tensor[] | undefined;

/** An element as JavaScript sees it: bigint for 64-bit integers. */
export type Element = number | bigint;

const isWide = (dtype: DType): boolean => dtype === 'int64' || dtype === 'uint64';
const isHalf = (dtype: DType): boolean => dtype === 'float16' || dtype === 'bfloat16';

export const elements = (t: Tensor): ArrayLike<Element> => t.data;

/** A tensor of `dtype` from elements of any kind, rounded, truncated or wrapped as the typed array does. */
export function fromElements(dtype: DType, shape: Shape, values: Iterable<Element>): Tensor {
  const data = allocate(dtype, sizeOf(shape));
  let i = 0;
  for (const v of values) data[i++] = convert(v, dtype);
  return tensor(dtype, shape, data);
}

function convert(v: Element, dtype: DType): Element {
  if (isWide(dtype)) return typeof v === 'bigint' ? v : BigInt(Number.isFinite(v) ? Math.trunc(v) : 0);
  if (dtype === 'bool') return Number(v) !== 0 ? 1 : 0;
  return Number(typeof v === 'bigint' && !isFloat(dtype) ? BigInt.asIntN(32, v) : v);
}

/** Row-major strides. */
export const stridesOf = (shape: Shape): number[] => shape.map((_, i) => sizeOf(shape.slice(i + 1)));

/** Every coordinate of a shape in row-major order. The array is reused: read it before going on. */
export function* coordinates(shape: Shape): Iterable<number[]> {
  const at = shape.map(() => 0);
  const count = sizeOf(shape);
  for (let n = 0; n < count; n++) {
    yield at;
    for (let axis = shape.length - 1; axis >= 0 && ++at[axis]! === shape[axis]; axis--) at[axis] = 0;
  }
}

export const flatten = (at: readonly number[], strides: readonly number[]): number =>
  strides.reduce((flat, stride, i) => flat + stride * at[i]!, 0);

/** A tensor whose element at each place is what `f` says of the place. */
export function computed(dtype: DType, shape: Shape, f: (at: readonly number[]) => Element): Tensor {
  const values = function* (): Iterable<Element> {
    for (const at of coordinates(shape)) yield f(at);
  };
  return fromElements(dtype, shape, values());
}

/** A tensor of `shape` whose element at each place is the element of `t` at `source(place)`. */
export function pick(t: Tensor, shape: Shape, source: (at: readonly number[]) => readonly number[]): Tensor {
  const strides = stridesOf(t.shape);
  const values = elements(t);
  const chosen = function* (): Iterable<Element> {
    for (const at of coordinates(shape)) yield values[flatten(source(at), strides)]!;
  };
  return fromElements(t.dtype, shape, chosen());
}

/** The element at a place. */
export const elementAt = (t: Tensor, at: readonly number[]): Element => elements(t)[flatten(at, stridesOf(t.shape))]!;

/** The same elements with another shape. */
export const withShape = (t: Tensor, shape: Shape): Tensor => tensor(t.dtype, shape, t.data);

function* repeated(v: Element, count: number): Iterable<Element> {
  for (let i = 0; i < count; i++) yield v;
}

/** t broadcast to a shape. */
export function expandTo(t: Tensor, shape: Shape): Tensor {
  const [only] = t.data;
  if (t.data.length === 1 && only !== undefined) return fromElements(t.dtype, shape, repeated(only, sizeOf(shape)));
  const shift = shape.length - t.shape.length;
  return pick(t, shape, (at) => t.shape.map((n, i) => (n === 1 ? 0 : at[i + shift]!)));
}

type Scalar = (...xs: Element[]) => Element;
type Reals = (...xs: number[]) => number;
type Wholes = (...xs: bigint[]) => bigint;

/** How a function is computed on 64-bit integers and on everything else. Given one function, it serves floats only. */
export const onNumbers = (reals: Reals, wholes?: Wholes): Scalar => (...xs) =>
  (wholes !== undefined && xs.every((x) => typeof x === 'bigint') ? wholes(...xs) : reals(...xs.map(Number)));

/**
 * Applies a scalar function to broadcast constants.
 *
 * @param dtype of the result; by default that of the last operand (Where's condition comes first)
 */
export const foldElementwise = (f: Scalar, dtype?: DType): Fold => ({ constants }) => {
  const shape = broadcastShapes(constants.map((t) => t.shape));
  const result = dtype ?? constants.at(-1)?.dtype;
  if (shape === undefined || result === undefined || constants.some((t) => isHalf(t.dtype))) return undefined;
  const operands = constants.map((t) => elements(expandTo(t, shape)));
  try {
    return [fromElements(result, shape,
      Array.from({ length: sizeOf(shape) }, (_, i) => f(...operands.map((x) => x[i]!))))];
  } catch (error) {
    // A division of integers by zero is left to the running graph.
    if (error instanceof RangeError) return undefined;
    throw error;
  }
};

/** Combines the elements along some axes, in row-major order. */
export function reduceConstant(
  t: Tensor, axes: readonly number[], keepdims: boolean, combine: Scalar, start?: Element,
): Tensor | undefined {
  if (isHalf(t.dtype)) return undefined;
  const kept = t.shape.map((n, i) => (axes.includes(i) ? 1 : n));
  const strides = stridesOf(kept);
  const totals: (Element | undefined)[] = Array.from({ length: sizeOf(kept) }, () => start);
  const values = elements(t);
  let i = 0;
  for (const at of coordinates(t.shape)) {
    const slot = flatten(at.map((n, axis) => (axes.includes(axis) ? 0 : n)), strides);
    const so = totals[slot];
    const v = values[i++]!;
    totals[slot] = so === undefined ? v : combine(typeof v === 'bigint' ? BigInt(so) : so, v);
  }
  if (totals.some((v) => v === undefined)) return undefined;
  return fromElements(t.dtype, keepdims ? kept : t.shape.filter((_, axis) => !axes.includes(axis)),
    totals as Element[]);
}

/** Constants one after the other along an axis. */
export function concatConstants(ts: readonly Tensor[], axis: number): Tensor {
  const first = ts[0]!;
  const outer = sizeOf(first.shape.slice(0, axis));
  const parts = Array.from({ length: outer }, (_, o) => ts.map((t) => {
    const block = t.data.length / outer;
    return Array.from(elements(t)).slice(o * block, (o + 1) * block);
  })).flat(2);
  const size = ts.reduce((sum, t) => sum + t.shape[axis]!, 0);
  return fromElements(first.dtype, first.shape.map((n, i) => (i === axis ? size : n)), parts);
}
