import { describe, expect, it } from 'vitest';
import { leading } from '../ops/batch.ts';
import { graphBuilder } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import { type BatchTrace, traceBatch } from './batch-independence.ts';

const rows = 7;
const x = { dtype: 'float32', shape: [rows, 4] } as const;

/** Adds to x a value for each row, all of them equal, that is a literal of the program or a parameter. */
function addColumn(literal: boolean): BatchTrace {
  const b = graphBuilder(semantics);
  const column = b.constant(float32(Array<number>(rows).fill(2), [rows, 1]));
  const sum = b.op('Add', [b.input('x', x), column]);
  const graph = b.build([['y', sum]]);
  return traceBatch(literal ? graph : { ...graph, literals: new Set() }, new Map([['x', leading]]));
}

describe('traceBatch', () => {
  it('trusts equal rows of a literal, not those of a parameter, which training may change', () => {
    expect(addColumn(true).batch.get('y')).toEqual(leading);
    expect(addColumn(false).violations).toMatchObject([{ operator: 'Add', axis: 0 }]);
  });

  it('names each node that mixes examples, and nothing that follows it', () => {
    const b = graphBuilder(semantics);
    const mixed = b.op('ReduceSum', [b.input('x', x), b.ints([0])]);
    const { violations, batch } = traceBatch(b.build([['y', b.op('ReduceSum', [mixed, b.ints([0])])]]),
      new Map([['x', leading]]));
    expect(violations.map(({ node }) => node)).toEqual([mixed]);
    expect(batch.has('y')).toBe(false);
  });

  it('follows the batch through transposition and merging', () => {
    const b = graphBuilder(semantics);
    const turned = b.op('Transpose', [b.input('x', { dtype: 'float32', shape: [rows, 2, 3] })],
      { perm: { type: 'ints', value: [1, 0, 2] } });
    const merged = b.op('Reshape', [turned, b.constant(int64([-1, 3]))]);
    const { violations, batch } = traceBatch(b.build([[merged, merged]]), new Map([['x', leading]]));
    expect(violations).toEqual([]);
    expect(batch.get(merged)).toEqual({ axis: 0, before: 2, after: 1 });
  });
});
