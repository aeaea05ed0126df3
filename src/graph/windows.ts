import { type Shape, sizeOf } from '../tensor/tensor.ts';

/** Where a kernel is put; all lists have an entry for each spatial axis, `pads` all begins and then all ends. */
export interface WindowPlaces {
  readonly kernel: Shape;
  readonly strides: Shape;
  readonly dilations: Shape;
  readonly pads: Shape;
}

/**
 * The pixel that each kernel offset meets at each output position, row-major as [offset, position]: its place in the
 * plane `spatial`, or `outside` for padding.
 */
export function pixelsMet({ kernel, strides, dilations, pads }: WindowPlaces, spatial: Shape, out: Shape, outside: number): number[] {
  const at = (index: number, shape: Shape): number[] =>
    shape.map((size, axis) => Math.floor(index / sizeOf(shape.slice(axis + 1))) % size);
  const count = (n: number) => Array.from({ length: n }, (_, i) => i);
  return count(sizeOf(kernel)).flatMap((k) => count(sizeOf(out)).map((o) => {
    const [offset, position] = [at(k, kernel), at(o, out)];
    const pixel = position.map((i, axis) => i * strides[axis]! + offset[axis]! * dilations[axis]! - pads[axis]!);
    const isInside = pixel.every((i, axis) => i >= 0 && i < spatial[axis]!);
    return isInside ? pixel.reduce((place, i, axis) => place * spatial[axis]! + i, 0) : outside;
  }));
}
