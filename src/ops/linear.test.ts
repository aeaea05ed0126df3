import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { checkBatchRule } from '../../test/support/batch-check.ts';
import { accepted, batchPlace, list, withRows } from '../../test/support/batched.ts';
import { checkGradient, checkTypes } from '../../test/support/gradient-check.ts';
import { type Operand, type Sample, batchResult, build, floatOperand } from '../../test/support/operator-sample.ts';
import { checkParameterUse } from '../../test/support/parameter-check.ts';
import { type Attributes, float, int } from '../graph/ir.ts';
import { zeros } from '../tensor/tensor.ts';
import type { BatchAxis } from './batch.ts';

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

  const operand = (shape: number[], axis?: number): Operand =>
    ({ value: zeros('float32', shape), batch: axis === undefined ? undefined : { axis, before: 1, after: 1 } });
  const says = (op: string, inputs: Operand[], attributes: Attributes = {}) => {
    const sample = { op, inputs, attributes };
    return batchResult(build(sample), sample);
  };

  it('refuse to sum over the batch, to cross two batches and to tell examples apart by position', () => {
    expect(says('MatMul', [operand([4, 5], 1), operand([5, 2])])).toMatchObject({ violation: expect.stringMatching(/sums over the batch/) as string });
    expect(says('MatMul', [operand([5], 0), operand([5, 2])])).toMatchObject({ violation: expect.stringMatching(/sums over the batch/) as string });
    expect(says('MatMul', [operand([5, 4], 0), operand([4, 5], 1)])).toMatchObject({ violation: expect.stringMatching(/different examples/) as string });
    expect(says('MatMul', [operand([5, 2, 4], 0), operand([5, 4, 3])])).toMatchObject({ violation: expect.stringMatching(/position/) as string });
    expect(says('Gemm', [operand([5, 4], 0), operand([4, 3]), operand([5, 3])])).toMatchObject({ violation: expect.stringMatching(/position/) as string });
    expect(says('Gemm', [operand([4, 5], 0), operand([4, 3])], { transA: int(1) }))
      .toMatchObject({ violation: expect.stringMatching(/sums over the batch/) as string });
  });

  it('prove the layers of a network, the batch alone or merged with time', () => {
    expect(says('Gemm', [operand([5, 4], 0), operand([3, 4]), operand([3])], { transB: int(1) }))
      .toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(says('MatMul', [operand([5, 7, 4], 0), operand([4, 3])])).toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(says('MatMul', [operand([2, 5, 7, 4], 1), operand([2, 5, 4, 7], 1)])).toEqual([{ axis: 1, before: 1, after: 1 }]);
  });

  it('name the node and both shapes when they do not fit', () => {
    const sample = { op: 'MatMul', inputs: [operand([2, 3]), operand([4, 5])] };
    expect(() => build(sample)).toThrow(/MatMul node "node"[^]*\[2, 3\][^]*\[4, 5\]/);
    expect(() => build({ op: 'com.microsoft:FusedMatMul', inputs: [operand([2, 3]), operand([3, 5])], attributes: { transBatchA: int(1) } }))
      .toThrow(/transBatchA/);
  });
});
