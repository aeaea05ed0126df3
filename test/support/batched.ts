import fc from 'fast-check';
import { GhostgradError } from '../../src/errors.ts';
import type { BatchAxis } from '../../src/ops/batch.ts';
import type { Shape } from '../../src/tensor/tensor.ts';
import { type Sample, build } from './operator-sample.ts';

/** A place for the batch in one of `axes`, alone there or merged with others. */
export const batchPlace = (axes: readonly number[]): fc.Arbitrary<BatchAxis> => fc.record({
  axis: fc.constantFrom(...axes), before: fc.constantFrom(1, 1, 2), after: fc.constantFrom(1, 1, 2),
});

/** `shape` with a batch of `rows` rows where `at` says. */
export const withRows = (shape: Shape, { axis, before, after }: BatchAxis, rows = 3): number[] =>
  shape.map((n, i) => (i === axis ? before * rows * after : n));

/** Samples that the shape rule takes. */
export const accepted = (samples: fc.Arbitrary<Sample>): fc.Arbitrary<Sample> => samples.filter((sample) => {
  try {
    build(sample);
    return true;
  } catch (error) {
    if (error instanceof GhostgradError) return false;
    throw error;
  }
});

/** As many numbers as asked for. */
export const list = (length: number, min: number, max: number): fc.Arbitrary<number[]> =>
  fc.array(fc.integer({ min, max }), { minLength: length, maxLength: length });
