import fc from 'fast-check';
import { type Attributes, ints, string } from '../../src/graph/ir.ts';
import { list } from './batched.ts';

/** Attributes of windows that slide over spatial axes, and the sizes of those. Many do not fit together. */
export interface WindowSample {
  readonly spatial: number[];
  readonly kernel: number[];
  readonly attributes: Attributes;
}

export const windows = (ranks: readonly number[] = [1, 2, 3]): fc.Arbitrary<WindowSample> =>
  fc.constantFrom(...ranks).chain((rank) => fc.record({
    spatial: list(rank, 2, rank === 3 ? 5 : 8), kernel: list(rank, 1, 3),
    strides: fc.oneof(fc.constant(Array<number>(rank).fill(1)), list(rank, 1, 3)),
    dilations: fc.oneof(fc.constant(Array<number>(rank).fill(1)), list(rank, 1, 2)),
    pads: list(2 * rank, 0, 2), mode: fc.constantFrom('NOTSET', 'NOTSET', 'VALID', 'SAME_UPPER', 'SAME_LOWER'),
  })).map(({ spatial, kernel, strides, dilations, pads, mode }) => ({
    spatial, kernel,
    attributes: {
      kernel_shape: ints(kernel), strides: ints(strides), dilations: ints(dilations),
      ...(mode === 'NOTSET' ? { pads: ints(pads) } : { auto_pad: string(mode) }),
    },
  }));
