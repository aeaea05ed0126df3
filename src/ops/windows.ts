import { type Node, intAttribute, intsAttribute, showShape, stringAttribute } from '../graph/ir.ts';
import type { Shape } from '../tensor/tensor.ts';
import { badOperands, requireUnrolled } from './operands.ts';
import type { ConvolutionGeometry } from './operator.ts';

/** How windows slide over the spatial axes, every default and `auto_pad` resolved. */
export interface Windows extends Omit<ConvolutionGeometry, 'groups'> {
  /** How many windows fit along each axis. */
  readonly counts: Shape;
}

/** The distance from a window's first element to its last, for each axis. */
export const reachOf = ({ kernel, dilations }: Pick<Windows, 'kernel' | 'dilations'>): Shape =>
  kernel.map((k, i) => (k - 1) * (dilations[i] ?? 1));

/**
 * The windows of a convolution or pooling node over axes of sizes `spatial`.
 * Throws GhostgradError when the attributes do not fit the operands, leave no window, or are such that ONNX Runtime
 * refuses them or disagrees with itself (SAME with dilations; SAME in pooling with a stride beyond the kernel).
 */
export function slidingWindows(node: Node, spatial: Shape, kernel: Shape, use: 'convolution' | 'pooling'): Windows {
  const rank = spatial.length;
  const strides = intsAttribute(node, 'strides', kernel.map(() => 1));
  const dilations = intsAttribute(node, 'dilations', kernel.map(() => 1));
  const declared = intsAttribute(node, 'pads', Array<number>(2 * rank).fill(0));
  const shown = `kernel ${showShape(kernel)}, strides ${showShape(strides)}, dilations ${showShape(dilations)}`;
  const fits = rank > 0 && [kernel, strides, dilations].every((xs) => xs.length === rank && xs.every((n) => n >= 1))
    && declared.length === 2 * rank && declared.every((n) => n >= 0);
  if (!fits) {
    throw badOperands({ node }, `${shown}, pads ${showShape(declared)} over spatial axes ${showShape(spatial)}`,
      'one positive entry for each spatial axis, no negative pads');
  }
  // Gradients are written out element by element of a window.
  requireUnrolled({ node }, Math.max(...kernel, ...strides), 'a window or a step');
  const reach = reachOf({ kernel, dilations });
  const mode = stringAttribute(node, 'auto_pad', 'NOTSET');
  const isGapped = use === 'pooling' && kernel.some((k, i) => k < strides[i]!);
  if (mode.startsWith('SAME') && (isGapped || dilations.some((d) => d !== 1))) {
    throw badOperands({ node }, `auto_pad ${mode}, ${shown}`, 'explicit pads in place of auto_pad');
  }
  const pads = resolvePads(mode, declared, spatial, strides, kernel);
  if (use === 'pooling' && pads.some((n, i) => n >= kernel[i % rank]!)) {
    throw badOperands({ node }, `pads ${showShape(pads)}`, `pads smaller than the kernel ${showShape(kernel)}`);
  }
  const ceil = intAttribute(node, 'ceil_mode', 0) !== 0;
  const counts = spatial.map((size, i) => {
    const [begin, end, stride] = [pads[i]!, pads[rank + i]!, strides[i]!];
    const last = (size + begin + end - reach[i]! - 1) / stride;
    if (last < 0) return 0;
    const count = (ceil ? Math.ceil(last) : Math.floor(last)) + 1;
    // ONNX Runtime's shape inference opens a window that begins behind the input, its kernels do not.
    return ceil && (count - 1) * stride >= size + begin ? 0 : count;
  });
  if (counts.some((n) => n < 1)) {
    throw badOperands({ node }, `spatial axes ${showShape(spatial)}`,
      `axes no smaller than the kernel ${showShape(kernel)}, pads included, and no window that begins behind the input`);
  }
  return { kernel, strides, dilations, pads, counts };
}

function resolvePads(mode: string, declared: Shape, spatial: Shape, strides: Shape, kernel: Shape): Shape {
  if (mode === 'NOTSET') return declared;
  if (mode === 'VALID') return declared.map(() => 0);
  const totals = spatial.map((size, i) => {
    const stride = strides[i]!;
    return Math.max(0, (Math.ceil(size / stride) - 1) * stride + kernel[i]! - size);
  });
  return splitPads(totals, mode === 'SAME_LOWER');
}

/** Halves of a padding, the odd element in front or behind. */
export const splitPads = (totals: Shape, oddInFront: boolean): Shape => {
  const front = totals.map((n) => (oddInFront ? Math.ceil(n / 2) : Math.floor(n / 2)));
  return [...front, ...totals.map((n, i) => n - front[i]!)];
};
