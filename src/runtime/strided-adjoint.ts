import { type Attributes, type Node, int, ints, intAttribute, intsAttribute } from '../graph/ir.ts';
import { type Shape, sizeOf } from '../tensor/tensor.ts';

/** Those elements of the output along one axis whose places leave one residue, a convolution of the input with some taps. */
interface Residue {
  /** How many elements these are. */
  readonly count: number;
  /** Places in the kernel, in the order in which the window meets them; none where the elements are zero. */
  readonly taps: readonly number[];
  readonly dilation: number;
  readonly pads: readonly [number, number];
}

/** One of the convolutions of steps of one that a strided one's adjoint is made of. */
export interface Phase {
  /** [residue along each axis] */
  readonly residue: readonly number[];
  /** Places in the kernel, row-major, as the window meets them. */
  readonly taps: readonly number[];
  /** Sizes of the window, and of what comes out. */
  readonly window: Shape;
  readonly counts: Shape;
  readonly attributes: Attributes;
}

export interface Phases {
  readonly phases: readonly Phase[];
  /**
   * For each element of the output, row-major, its row among those of all phases one after the other; elements that no
   * tap reaches have the row behind the last.
   */
  readonly rows: readonly number[];
}

const greatestDivisor = (a: number, b: number): number => (b === 0 ? a : greatestDivisor(b, a % b));

/**
 * Element s·q + r of an axis is Σ_k input[q + (r + pad − k·d)/s]·kernel[k] over the k for which that is whole: for each
 * residue r a convolution with steps of one.
 */
function residuesOf(stride: number, dilation: number, kernel: number, begin: number, from: number, to: number): readonly Residue[] {
  const reached = (residue: number, k: number): number => (residue + begin - k * dilation) / stride;
  const places = Array.from({ length: kernel }, (_, k) => k).reverse();
  return Array.from({ length: stride }, (_, residue) => {
    const count = Math.ceil((to - residue) / stride);
    const taps = places.filter((k) => Number.isInteger(reached(residue, k)));
    const offsets = taps.map((k) => reached(residue, k));
    return {
      count, taps, dilation: dilation / greatestDivisor(stride, dilation),
      pads: [-(offsets[0] ?? 0), count - 1 + (offsets.at(-1) ?? 0) - (from - 1)],
    };
  });
}

/**
 * The adjoint of a convolution with longer steps as convolutions with steps of one, for every residue of the steps one, whose
 * results are interleaved: ONNX Runtime's ConvTranspose takes two to three times as long (BENCHMARKS.md).
 *
 * @param from spatial sizes of its input
 * @param to spatial sizes of its output
 * @returns undefined where a window would begin or end inside of the input
 */
export function phasesOf(node: Node, size: Shape, from: Shape, to: Shape): Phases | undefined {
  const ones = size.map(() => 1);
  const [strides, dilations] = [intsAttribute(node, 'strides', ones), intsAttribute(node, 'dilations', ones)];
  const pads = intsAttribute(node, 'pads', [...ones, ...ones].map(() => 0));
  const axes = size.map((kernel, i) => residuesOf(strides[i]!, dilations[i]!, kernel, pads[i]!, from[i]!, to[i]!));
  const isPlain = intAttribute(node, 'group', 1) === 1 && node.attributes['output_shape'] === undefined && node.attributes['auto_pad'] === undefined;
  if (!isPlain || axes.flat().some(({ count, taps, pads: [begin, end] }) => count > 0 && taps.length > 0 && (begin < 0 || end < 0))) return undefined;

  const product = <T>(lists: readonly (readonly T[])[]): T[][] =>
    lists.reduce<T[][]>((found, list) => found.flatMap((some) => list.map((one) => [...some, one])), [[]]);
  const phases = product(axes.map((residues) => residues.map((_, residue) => residue))).flatMap((residue): Phase[] => {
    const parts = residue.map((r, i) => axes[i]![r]!);
    const [window, counts] = [parts.map(({ taps }) => taps.length), parts.map(({ count }) => count)];
    if (sizeOf(window) === 0 || sizeOf(counts) === 0) return [];
    return [{
      residue, window, counts, taps: product(parts.map(({ taps }) => taps)).map((places) => places.reduce((at, k, i) => at * size[i]! + k, 0)),
      attributes: {
        kernel_shape: ints(window), strides: ints(ones), dilations: ints(parts.map(({ dilation }) => dilation)), group: int(1),
        pads: ints([...parts.map(({ pads: [begin] }) => begin), ...parts.map(({ pads: [, end] }) => end)]),
      },
    }];
  });
  const starts = phases.map((_, i) => phases.slice(0, i).reduce((sum, { counts }) => sum + sizeOf(counts), 0));
  const zero = phases.reduce((sum, { counts }) => sum + sizeOf(counts), 0);
  const rows = product(to.map((n) => Array.from({ length: n }, (_, i) => i))).map((place) => {
    const found = phases.findIndex(({ residue }) => residue.every((r, i) => place[i]! % strides[i]! === r));
    const phase = phases[found];
    return phase === undefined ? zero : starts[found]! + place.reduce((at, x, i) => at * phase.counts[i]! + Math.floor(x / strides[i]!), 0);
  });
  return { phases, rows };
}
