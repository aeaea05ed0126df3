import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, float, int } from '../../src/graph/ir.ts';
import type { BatchAxis } from '../../src/ops/batch.ts';
import { checkBatchRule } from '../support/batch-check.ts';
import { accepted, batchPlace, list, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkGradient, checkTypes } from '../support/gradient-check.ts';
import { type Operand, type Sample, build, floatOperand } from '../support/operator-sample.ts';
import { checkParameterUse } from '../support/parameter-check.ts';

const numRuns = 40;

const operands = (a: number[], b: number[]): fc.Arbitrary<Operand[]> => fc.tuple(floatOperand(a), floatOperand(b));
const flags = (c: { ta: boolean; tb: boolean; alpha: number }): Attributes =>
  ({ transA: int(c.ta ? 1 : 0), transB: int(c.tb ? 1 : 0), alpha: float(c.alpha) });
const settings = { ta: fc.boolean(), tb: fc.boolean(), alpha: fc.constantFrom(1, 0.5, -2) };

/** Vectors, matrices and stacks of matrices of any rank, broadcast against one another. */
const products = fc.record({
  sizes: list(3, 1, 4), stack: list(2, 1, 3), ranks: list(2, 1, 4), ones: fc.nat(15), fused: fc.boolean(), ...settings,
}).chain((c): fc.Arbitrary<Sample> => {
  const [m, k, n] = c.sizes as [number, number, number];
  const stack = (rank: number, bit: number) =>
    c.stack.slice(4 - rank).map((size, i) => ((c.ones >> (bit + i)) & 1 ? 1 : size));
  const fused = c.fused && c.ranks.every((rank) => rank > 1);
  const a = c.ranks[0] === 1 ? [k] : [...stack(c.ranks[0]!, 0), ...(fused && c.ta ? [k, m] : [m, k])];
  const b = c.ranks[1] === 1 ? [k] : [...stack(c.ranks[1]!, 2), ...(fused && c.tb ? [n, k] : [k, n])];
  return operands(a, b).map((inputs) =>
    (fused ? { op: 'com.microsoft:FusedMatMul', inputs, attributes: flags(c) } : { op: 'MatMul', inputs }));
});

const gemms = fc.record({ sizes: list(3, 1, 4), bias: fc.nat(5), beta: fc.constantFrom(1, 0.5), ...settings })
  .chain((c): fc.Arbitrary<Sample> => {
    const [m, k, n] = c.sizes as [number, number, number];
    const bias = [undefined, [n], [1, n], [m, 1], [m, n], []][c.bias];
    const pair = operands(c.ta ? [k, m] : [m, k], c.tb ? [n, k] : [k, n]);
    const attributes = { ...flags(c), beta: float(c.beta) };
    return bias === undefined ? pair.map((inputs) => ({ op: 'Gemm', inputs, attributes }))
      : fc.tuple(pair, floatOperand(bias)).map(([inputs, C]) => ({ op: 'Gemm', inputs: [...inputs, C], attributes }));
  });

/** The batch anywhere in the left operand, the right one, or the same stack axis of both. */
const batchedProducts = fc.record({
  at: batchPlace([0, 1, 2]), side: fc.constantFrom('left', 'right', 'both'), left: fc.integer({ min: 2, max: 3 }),
  right: fc.integer({ min: 2, max: 3 }), sizes: list(3, 1, 3), stack: fc.constantFrom(1, 2), ...settings,
}).chain((c): fc.Arbitrary<Sample> => {
  const [m, k, n] = c.sizes as [number, number, number];
  const wide = (rank: number, matrix: number[]) => (rank === 3 ? [c.stack, ...matrix] : matrix);
  const place = (shape: number[]): BatchAxis => ({ ...c.at, axis: c.at.axis % shape.length });
  const a = wide(c.left, c.ta ? [k, m] : [m, k]);
  const b = wide(c.right, c.tb ? [n, k] : [k, n]);
  const [atA, atB] = [c.side === 'right' ? undefined : place(a), c.side === 'left' ? undefined : place(b)];
  const attributes = flags(c);
  return fc.tuple(
    floatOperand(atA ? withRows(a, atA) : a, {}, atA), floatOperand(atB ? withRows(b, atB) : b, {}, atB),
  ).map((inputs) => ({ op: 'com.microsoft:FusedMatMul', inputs, attributes }));
});

const batchedGemms = fc.record({
  at: batchPlace([0, 1]), left: fc.boolean(), sizes: list(3, 1, 3), bias: fc.nat(5), both: fc.boolean(), ...settings,
}).chain((c): fc.Arbitrary<Sample> => {
  const [m, k, n] = c.sizes as [number, number, number];
  let [a, b] = [c.ta ? [k, m] : [m, k], c.tb ? [n, k] : [k, n]];
  if (c.left) a = withRows(a, c.at);
  else b = withRows(b, c.at);
  const [M, N] = [a[c.ta ? 1 : 0]!, b[c.tb ? 0 : 1]!];
  const full = [M, N];
  const axis = c.left ? 0 : 1;
  const C = [undefined, c.left ? [N] : [1], c.left ? [1, N] : [M, 1], [1, 1], full, []][c.bias];
  const atC = c.bias === 4 && c.both ? { ...c.at, axis } : undefined;
  return fc.tuple(
    floatOperand(a, {}, c.left ? c.at : undefined), floatOperand(b, {}, c.left ? undefined : c.at),
    ...(C === undefined ? [] : [floatOperand(C, {}, atC)]),
  ).map((inputs) => ({ op: 'Gemm', inputs, attributes: { ...flags(c), beta: float(0.5) } }));
});

async function checkUses(sample: Sample): Promise<void> {
  const said = await checkBatchRule(sample);
  if (said === 'refused') return;
  for (const [index, o] of sample.inputs.entries()) if (o?.batch === undefined) await checkParameterUse(sample, index);
}

describe('matrix products', () => {
  it('have the type that ONNX Runtime computes, and the gradient of finite differences', async () => {
    await fc.assert(fc.asyncProperty(fc.oneof(products, gemms), async (sample) => {
      await checkTypes(sample);
      await checkGradient(sample);
    }), { numRuns: 2 * numRuns });
  });

  it('keep examples apart wherever the batch lies, and say the per-example gradients of parameters', async () => {
    await fc.assert(fc.asyncProperty(accepted(batchedProducts), checkUses), { numRuns: 2 * numRuns });
    await fc.assert(fc.asyncProperty(accepted(batchedGemms), checkUses), { numRuns });
  });

  const product = (op: string, inputs: Operand[], attributes: Attributes = {}) => says({ op, inputs, attributes });

  it('refuse to sum over the batch, to cross two batches and to tell examples apart by position', () => {
    expect(product('MatMul', [operandAt([4, 5], 1), operandAt([5, 2])])).toMatchObject(refusal(/sums over the batch/));
    expect(product('MatMul', [operandAt([5], 0), operandAt([5, 2])])).toMatchObject(refusal(/sums over the batch/));
    expect(product('MatMul', [operandAt([5, 4], 0), operandAt([4, 5], 1)])).toMatchObject(refusal(/different examples/));
    expect(product('MatMul', [operandAt([5, 2, 4], 0), operandAt([5, 4, 3])])).toMatchObject(refusal(/position/));
    expect(product('Gemm', [operandAt([5, 4], 0), operandAt([4, 3]), operandAt([5, 3])])).toMatchObject(refusal(/position/));
    expect(product('Gemm', [operandAt([4, 5], 0), operandAt([4, 3])], { transA: int(1) }))
      .toMatchObject(refusal(/sums over the batch/));
  });

  it('prove the layers of a network, the batch alone or merged with time', () => {
    expect(product('Gemm', [operandAt([5, 4], 0), operandAt([3, 4]), operandAt([3])], { transB: int(1) }))
      .toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(product('MatMul', [operandAt([5, 7, 4], 0), operandAt([4, 3])])).toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(product('MatMul', [operandAt([2, 5, 7, 4], 1), operandAt([2, 5, 4, 7], 1)]))
      .toEqual([{ axis: 1, before: 1, after: 1 }]);
  });

  it('name the node and both shapes when they do not fit', () => {
    const sample = { op: 'MatMul', inputs: [operandAt([2, 3]), operandAt([4, 5])] };
    expect(() => build(sample)).toThrow(/MatMul node "node"[^]*\[2, 3\][^]*\[4, 5\]/);
    const inputs = [operandAt([2, 3]), operandAt([3, 5])];
    expect(() => build({ op: 'com.microsoft:FusedMatMul', inputs, attributes: { transBatchA: int(1) } }))
      .toThrow(/transBatchA/);
  });
});
