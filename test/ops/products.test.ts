import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int } from '../../src/graph/ir.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { float32, int64, toNumbers } from '../../src/tensor/tensor.ts';
import { operandAt } from '../support/batched.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { type Sample, buildNode, constantOperand, floats, withSession } from '../support/operator-sample.ts';

describe('Det', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    const samples = fc.tuple(fc.array(fc.integer({ min: 1, max: 2 }), { maxLength: 2 }), fc.integer({ min: 1, max: 4 }))
      .chain(([outer, n]) => floats([...outer, n, n])).map((value): Sample => ({ op: 'Det', inputs: [{ value }] }));
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample, { tolerance: 1e-4 })), { numRuns: 20 });
  });

  it('refuses what is not square, and what is too large', () => {
    expect(() => buildNode({ op: 'Det', inputs: [operandAt([2, 3])] })).toThrow(/square matrices/);
    expect(() => buildNode({ op: 'Det', inputs: [operandAt([6, 6])] })).toThrow(/at most 5 rows/);
  });
});

describe('CumProd', () => {
  const sample = (exclusive: number, reverse: number, x: number[]): Sample => ({
    op: 'CumProd', inputs: [{ value: float32(x, [1, x.length]) }, constantOperand(int64([1], []))],
    attributes: { exclusive: int(exclusive), reverse: int(reverse) },
  });

  it('multiplies what came before, or comes after, with its gradients', async () => {
    for (const [exclusive, reverse, expected] of [
      [0, 0, [2, 0, 0, 0]], [1, 0, [1, 2, 0, 0]], [0, 1, [0, 0, 15, 5]], [1, 1, [0, 15, 5, 1]],
    ] as const) {
      const s = sample(exclusive, reverse, [2, 0, 3, 5]);
      // The engine knows it in its own opset only.
      await checkExpansion(s, { kernel: false });
      const { b } = buildNode(s);
      const { y0 } = await withSession(expandComposites(b.build([['y0', 'y0']])), (run) => run({ x0: s.inputs[0]!.value }));
      expect(toNumbers(y0!)).toEqual(expected);
    }
  });
});
