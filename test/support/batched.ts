import fc from 'fast-check';
import { expect } from 'vitest';
import { GhostgradError } from '../../src/errors.ts';
import type { BatchAxis } from '../../src/ops/batch.ts';
import type { BatchResult } from '../../src/ops/operator.ts';
import { type Shape, zeros } from '../../src/tensor/tensor.ts';
import { type Operand, type Sample, batchResult, build } from './operator-sample.ts';

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

/** An operand of zeros, the whole of `axis` being the batch when given. */
export const operandAt = (shape: Shape, axis?: number): Operand =>
  ({ value: zeros('float32', shape), batch: axis === undefined ? undefined : { axis, before: 1, after: 1 } });

/** What the batch rule says of a sample. */
export const says = (sample: Sample): BatchResult => batchResult(build(sample), sample);

/** A refusal whose reason matches. */
export const refusal = (reason: RegExp) => ({ violation: expect.stringMatching(reason) as string });
