import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int, string } from '../../src/graph/ir.ts';
import type { bitwise } from '../../src/ops/bitwise.ts';
import { type DType, allocate, sizeOf, tensor } from '../../src/tensor/tensor.ts';
import { batchPlace, list, operandAt, withRows } from '../support/batched.ts';
import { checkFold } from '../support/gradient-check.ts';
import { type Sample, build } from '../support/operator-sample.ts';
import { type OperatorCase, describeOperators, dimensions } from '../support/operator-suite.ts';

type Name = Exclude<keyof typeof bitwise, 'BitCast'>;

const whole = (dtype: DType, shape: number[], values: readonly number[]) => {
  const data = allocate(dtype, sizeOf(shape));
  values.forEach((v, i) => { data[i] = typeof data[i] === 'bigint' ? BigInt(v) : v; });
  return tensor(dtype, shape, data);
};

/** One operand with the batch, and perhaps another of the same shape. */
const samples = (op: Name, dtypes: readonly DType[], count: number, [low, high]: readonly [number, number]): fc.Arbitrary<Sample> =>
  fc.record({ shape: dimensions({ min: 1, max: 3 }), dtype: fc.constantFrom(...dtypes), direction: fc.constantFrom('LEFT', 'RIGHT') })
    .chain(({ shape, dtype, direction }) => batchPlace(shape.map((_, i) => i)).chain((batch) => {
      const full = withRows(shape, batch);
      const start = dtype.startsWith('u') ? 0 : low;
      return fc.tuple(...Array.from({ length: count }, (_, i) => list(sizeOf(full), i === 1 && op === 'BitShift' ? 0 : start, i === 1 && op === 'BitShift' ? 7 : high)))
        .map((values): Sample => ({
          op, inputs: values.map((v) => ({ value: whole(dtype, full, v), batch })),
          ...(op === 'BitShift' ? { attributes: { direction: string(direction) } } : {}),
        }));
    }));

const types: readonly DType[] = ['int32', 'int64', 'uint8', 'int8'];
const range = [-100, 100] as const;

const arbitraries: Readonly<Record<Name, fc.Arbitrary<Sample>>> = {
  BitwiseAnd: samples('BitwiseAnd', types, 2, range), BitwiseOr: samples('BitwiseOr', types, 2, range),
  BitwiseXor: samples('BitwiseXor', types, 2, range), BitwiseNot: samples('BitwiseNot', types, 1, range),
  BitShift: samples('BitShift', ['uint8', 'uint32', 'uint64'], 2, range),
};

describeOperators(Object.fromEntries(Object.entries(arbitraries)
  .map(([op, s]): [string, OperatorCase] => [op, { samples: s, flows: false }])) as Record<Name, OperatorCase>);

describe('BitCast', () => {
  it('keeps the shape, and the width of an element', () => {
    const cast = (to: number) => build({ op: 'BitCast', inputs: [operandAt([2, 3])], attributes: { to: int(to) } });
    expect(cast(6).b.type('y0')).toEqual({ dtype: 'int32', shape: [2, 3] });
    expect(() => cast(7)).toThrow(/equal width/);
  });
});

describe.each(Object.entries(arbitraries))('%s', (op, arbitrary) => {
  it('folds into what ONNX Runtime computes', async () => {
    await fc.assert(fc.asyncProperty(arbitrary, (sample) => checkFold(sample)), { numRuns: 20 });
  });

  it('takes whole numbers only', () => {
    expect(() => build({ op, inputs: [operandAt([2]), operandAt([2])] })).toThrow(/whole numbers/);
  });
});
