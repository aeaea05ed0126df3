import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { traceBatch } from '../../src/autodiff/batch-independence.ts';
import { string } from '../../src/graph/ir.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { type Sample, buildNode, floats } from '../support/operator-sample.ts';
import { operandAt } from '../support/batched.ts';

const sizes: Readonly<Record<string, number>> = { a: 2, b: 3, c: 4, d: 1, e: 2, f: 3 };

const sample = (equation: string, shapes: readonly (readonly number[])[], seed = 5): Sample => ({
  op: 'Einsum', attributes: { equation: string(equation) },
  inputs: shapes.map((shape, i) => ({ value: fc.sample(floats(shape), { seed: seed + i, numRuns: 1 })[0]! })),
});

const shapesOf = (equation: string): number[][] =>
  equation.split('->')[0]!.split(',').map((term) => [...term].map((label) => sizes[label]!));

/** One to three operands of random axes, and an output of some of them, written out or implied. */
const equations: fc.Arbitrary<string> = fc.tuple(
  fc.array(fc.array(fc.constantFrom(...Object.keys(sizes)), { minLength: 0, maxLength: 4 }), { minLength: 1, maxLength: 3 }),
  fc.boolean(), fc.integer(),
).map(([terms, implied, seed]) => {
  const left = terms.map((term) => term.join('')).join(',');
  if (implied) return left;
  const labels = [...new Set(terms.flat())];
  const kept = labels.filter((_, i) => ((seed >> i) & 1) === 1);
  return `${left}->${(seed & 64 ? kept.reverse() : kept).join('')}`;
});

describe('Einsum', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(equations, (equation) => checkExpansion(sample(equation, shapesOf(equation)))), { numRuns: 150 });
  });

  it.each([
    ['...ij,...jk->...ik', [[2, 3, 4, 2], [2, 3, 2, 5]]], ['...ij,...jk->...ik', [[2, 1, 4, 2], [1, 3, 2, 5]]], ['i...->...', [[3, 2, 4]]], ['...ii->...i', [[2, 3, 3]]],
    ['b...d, ...d', [[2, 3, 4], [3, 4]]], ['...,...', [[2, 1, 3], [1, 4, 1]]], ['ij,jk', [[2, 3], [3, 4]]], ['ba', [[2, 3]]],
    ['ij,ij->i', [[2, 3], [2, 1]]], ['bd,bd->d', [[4, 3], [1, 3]]], ['->', [[]]], ['iii', [[3, 3, 3]]],
    ['bhqd,bhkd->bhqk', [[2, 2, 3, 4], [2, 2, 5, 4]]], ['btd,dhk->bhtk', [[2, 3, 4], [4, 2, 3]]],
  ])('takes %s', async (equation, shapes) => {
    await checkExpansion(sample(equation, shapes));
  });

  it('makes a weight an operand of one matrix product', () => {
    const { b } = buildNode(sample('btd,dhk->bthk', [[2, 3, 4], [4, 2, 3]]));
    const core = expandComposites(b.build([['y0', 'y0']]));
    const product = core.nodes.find(({ op }) => op === 'MatMul')!;
    expect(product.inputs.map((v) => core.types.get(v)?.shape)).toEqual([[6, 4], [4, 6]]);
  });

  it.each([
    ['bi,bj->bij', 0, 0, true], ['bi,bj->ij', 0, 0, false], ['bi,bj->bij', 0, undefined, false], ['bi,ij->bj', 0, undefined, true],
    ['ib,ij->bj', 1, undefined, true], ['bb->b', 0, undefined, false], ['bi->i', 0, undefined, false],
  ])('%s with the batch in axes %s and %s', (equation, first, second, proved) => {
    const operands = [operandAt([7, 7], first), ...(equation.includes(',') ? [operandAt([7, 7], second)] : [])];
    const { b } = buildNode({ op: 'Einsum', attributes: { equation: string(equation) }, inputs: operands });
    const core = expandComposites(b.build([['y0', 'y0']]));
    const places = new Map(operands.flatMap(({ batch }, i) => (batch === undefined ? [] : [[`x${i}`, batch] as const])));
    expect(traceBatch(core, places).violations.length === 0).toBe(proved);
  });

  it.each([
    ['ij', [[2]]], ['i1', [[2, 2]]], ['ij->k', [[2, 2]]], ['i->ii', [[2]]], ['ij,jk', [[2, 3], [4, 2]]], ['ii', [[2, 3]]],
    ['i->i->i', [[2]]], ['......i', [[2]]], ['i', [[2], [2]]], ['...i,...i->...', [[2, 3], [3]]],
  ])('refuses %s', (equation, shapes) => {
    expect(() => buildNode(sample(equation, shapes))).toThrow(/Einsum cannot take these operands/);
  });
});
