import { type Node, int, ints, intAttribute, intsAttribute, stringAttribute } from '../graph/ir.ts';
import { pixelsMet } from '../graph/windows.ts';
import { type Shape, sizeOf } from '../tensor/tensor.ts';
import type { Emitter } from './emitter.ts';

/**
 * A kernel has to be laid out in blocks at every step. Where it has so many filters for each output position of all
 * images together, that takes as long as the convolution, and a product with the kernel as it stands less (BENCHMARKS.md).
 */
const filtersToPosition = 4;

/** Rows of a value [channels, rows, n], where the one behind the last, `zero`, is zero. */
export function pickRows(e: Emitter, value: string, rows: readonly number[], zero: number): string {
  const padded = rows.includes(zero) ? e.add('Pad', [value, e.ints([0, 0, 0, 0, 1, 0])]) : value;
  return e.add('Gather', [padded, e.indices(rows)], { axis: int(1) });
}

/**
 * A convolution over few positions, or the adjoint of one, as one product with the kernel [p, c·k] as it stands. Pixels
 * have the images last, [c, pixels, n], so that patches [c, k·positions, n] are picked from them by whole rows.
 *
 * @param plain makes an input be laid out as it is declared; the output is, too
 * @returns whether the node has been taken care of
 */
export function asProduct(e: Emitter, node: Node, plain: (value: string) => string, shape: (value: string) => Shape): boolean {
  const isAdjoint = node.op === 'ConvTranspose';
  const [input = '', kernel = '', bias = ''] = node.inputs;
  const [output = ''] = node.outputs;
  const [p, c, ...size] = shape(kernel) as [number, number, ...number[]];
  const [n, channels, ...from] = shape(input) as [number, number, ...number[]];
  const [, made, ...to] = shape(output) as [number, number, ...number[]];
  const [plane, out] = isAdjoint ? [to, from] : [from, to];
  const [offsets, positions, pixels] = [size, out, plane].map(sizeOf) as [number, number, number];
  const isPlain = intAttribute(node, 'group', 1) === 1 && stringAttribute(node, 'auto_pad', 'NOTSET') === 'NOTSET'
    && node.attributes['output_shape'] === undefined;
  if (!isPlain || n * positions * filtersToPosition > p) return false;

  const list = (name: string, fallback: number) => intsAttribute(node, name, size.map(() => fallback));
  const met = pixelsMet({
    kernel: size, strides: list('strides', 1), dilations: list('dilations', 1),
    pads: intsAttribute(node, 'pads', [...size, ...size].map(() => 0)),
  }, plane, out, pixels);
  const imagesLast = e.add('Transpose', [e.reshape(plain(input), [n, channels, sizeOf(from)])], { perm: ints([1, 2, 0]) });
  const weights = e.reshape(plain(kernel), [p, c * offsets]);
  const forward = (): string => {
    const patches = e.reshape(pickRows(e, imagesLast, met, pixels), [c * offsets, positions * n]);
    return e.reshape(e.add('MatMul', [weights, patches]), [p, positions, n]);
  };
  const adjoint = (): string => {
    const product = e.add('FusedMatMul', [weights, e.reshape(imagesLast, [p, positions * n])], { transA: int(1) }, 'com.microsoft');
    const zero = offsets * positions;
    const parts = Array.from({ length: pixels }, (_, pixel) => met.flatMap((place, i) => (place === pixel ? [i] : [])));
    const most = Math.max(1, ...parts.map(({ length }) => length));
    const order = parts.flatMap((found) => [...found, ...Array<number>(most - found.length).fill(zero)]);
    const picked = e.reshape(pickRows(e, e.reshape(product, [c, zero, n]), order, zero), [c, pixels, most, n]);
    return e.add('ReduceSum', [picked, e.ints([2])], { keepdims: int(0) });
  };
  const found = isAdjoint ? adjoint() : forward();
  const biased = bias === '' ? found : e.add('Add', [found, e.reshape(plain(bias), [made, 1, 1])]);
  e.reshape(e.add('Transpose', [biased], { perm: ints([2, 0, 1]) }), shape(output), output);
  return true;
}
