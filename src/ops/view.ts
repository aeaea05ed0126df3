import type { Shape } from '../tensor/tensor.ts';
import { sizeOf } from '../tensor/tensor.ts';

/**
 * A value whose elements are elements of another, each a different one: element [i, j, …] is number
 * offset + i·strides[0] + j·strides[1] + … of the other in row-major order. Transposing, reshaping and slicing
 * keep it so; whatever is used through a view has a gradient of the same length as it has itself.
 */
export interface View {
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
}

/** Row-major strides. */
const stridesOf = (shape: Shape): Shape => shape.map((_, i) => sizeOf(shape.slice(i + 1)));

export const wholeView = (shape: Shape): View => ({ shape, strides: stridesOf(shape), offset: 0 });

export const transposedView = ({ shape, strides, offset }: View, permutation: readonly number[]): View => ({
  shape: permutation.map((axis) => shape[axis]!), strides: permutation.map((axis) => strides[axis]!), offset,
});

/** The entries start, start + step, …, `count` of them, along an axis. */
export const slicedView = (view: View, axis: number, start: number, step: number, count: number): View => ({
  shape: view.shape.with(axis, count),
  strides: view.strides.with(axis, view.strides[axis]! * step),
  offset: view.offset + start * view.strides[axis]!,
});

/** The same elements in row-major order under another shape; undefined where no strides describe that. */
export function reshapedView(view: View, shape: Shape): View | undefined {
  if (sizeOf(shape) === 0 || sizeOf(shape) !== sizeOf(view.shape)) return undefined;
  // Runs of axes that lie in memory as one axis would.
  const runs: { size: number; stride: number }[] = [];
  view.shape.forEach((size, i) => {
    if (size === 1) return;
    const last = runs.at(-1);
    const stride = view.strides[i]!;
    if (last !== undefined && last.stride === stride * size) runs[runs.length - 1] = { size: last.size * size, stride };
    else runs.push({ size, stride });
  });
  const strides: number[] = [];
  let [run, left] = [-1, 1];
  for (const size of shape) {
    if (size === 1) {
      strides.push(0);
      continue;
    }
    if (left === 1) left = runs[++run]?.size ?? 1;
    if (left % size !== 0) return undefined;
    left /= size;
    strides.push(runs[run]!.stride * left);
  }
  return { shape, strides, offset: view.offset };
}

/** The axes that matter: those with more than one entry. */
const axesOf = ({ shape, strides }: View) => shape.flatMap((size, i) => (size === 1 ? [] : [{ size, stride: strides[i]! }]));

export const sameView = (a: View, b: View): boolean => a.offset === b.offset && a.shape.length === b.shape.length
  && a.shape.every((size, i) => size === b.shape[i] && (size === 1 || a.strides[i] === b.strides[i]));

/** Whether two views certainly share no element. */
export function disjoint(a: View, b: View): boolean {
  const axes = [...axesOf(a), ...axesOf(b)];
  if (axes.some(({ stride }) => stride < 0)) return false;
  // Take places modulo a period that all longer strides are multiples of: what is left are two intervals.
  const periods = [...new Set(axes.map(({ stride }) => stride)), Infinity];
  return periods.some((period) => axes.every(({ stride }) => stride < period || stride % period === 0)
    && apart(a, b, period));
}

function apart(a: View, b: View, period: number): boolean {
  const within = (view: View) => {
    const length = axesOf(view).filter(({ stride }) => stride < period).reduce((n, { size, stride }) => n + (size - 1) * stride, 1);
    const start = period === Infinity ? view.offset : view.offset % period;
    return { start, end: start + length };
  };
  const [x, y] = [within(a), within(b)];
  return x.end <= period && y.end <= period && (x.end <= y.start || y.end <= x.start);
}
