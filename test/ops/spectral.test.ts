import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int } from '../../src/graph/ir.ts';
import { float32, int64 } from '../../src/tensor/tensor.ts';
import { operandAt } from '../support/batched.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { checkTypes } from '../support/gradient-check.ts';
import { type Sample, build, buildNode, constantOperand, floats } from '../support/operator-sample.ts';

const some = (min: number, max: number) => fc.integer({ min, max });

describe('DFT', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    const samples = fc.record({
      rows: some(1, 3), n: some(1, 7), other: some(1, 2), complex: fc.boolean(), inverse: fc.boolean(), onesided: fc.boolean(),
      length: fc.option(some(1, 8), { nil: undefined }), axis: fc.constantFrom(1, 2, -2, -3),
    }).chain(({ rows, n, other, complex, inverse, onesided, length, axis }) =>
      floats([rows, n, other, complex ? 2 : 1]).map((value): Sample => ({
        op: 'DFT', inputs: [{ value }, length === undefined ? undefined : constantOperand(int64([length], [])), constantOperand(int64([axis], []))],
        attributes: { inverse: int(Number(inverse)), onesided: int(Number(onesided && !inverse && !complex)) },
      })));
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample, { tolerance: 1e-4 })), { numRuns: 50 });
  });

  it('refuses the last axis, and one side of complex numbers', () => {
    expect(() => buildNode({ op: 'DFT', inputs: [operandAt([2, 4, 1]), undefined, constantOperand(int64([-1], []))] })).toThrow(/another axis than the last/);
    expect(() => buildNode({ op: 'DFT', inputs: [operandAt([2, 4, 2])], attributes: { onesided: int(1) } })).toThrow(/onesided only of real ones/);
  });
});

describe('STFT', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    const samples = fc.record({
      rows: some(1, 2), length: some(2, 5), extra: some(0, 6), step: some(1, 3), windowed: fc.boolean(), onesided: fc.boolean(), constant: fc.boolean(),
    }).chain(({ rows, length, extra, step, windowed, onesided, constant }) => fc.tuple(floats([rows, length + extra, 1]), floats([length]))
      .map(([signal, window]): Sample => ({
        op: 'STFT', inputs: [
          { value: signal }, constantOperand(int64([step], [])), windowed ? { value: window, constant } : undefined, constantOperand(int64([length], [])),
        ],
        attributes: { onesided: int(Number(onesided)) },
      })));
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample, { tolerance: 1e-4 })), { numRuns: 40 });
  });
});

describe('windows and filters', () => {
  it.each(['HannWindow', 'HammingWindow', 'BlackmanWindow'])('%s has the type that ONNX Runtime computes', async (op) => {
    await checkTypes({ op, inputs: [constantOperand(int64([6], []))] });
    await checkTypes({ op, inputs: [constantOperand(int64([5], []))], attributes: { periodic: int(0), output_datatype: int(11) } });
    expect(() => build({ op, inputs: [{ value: int64([6], []) }] })).toThrow(/not known before the graph runs/);
  });

  it('MelWeightMatrix has the type that ONNX Runtime computes', async () => {
    await checkTypes({
      op: 'MelWeightMatrix', inputs: [...[8, 16, 8192].map((n) => constantOperand(int64([n], []))), ...[0, 4096].map((n) => constantOperand(float32([n], [])))],
    });
  });
});
