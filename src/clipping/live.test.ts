import { describe, expect, it } from 'vitest';
import { type TypedGraph, ints } from '../graph/ir.ts';
import { type GraphBuilder, type Value, graphBuilder, mul, reshape, where } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { float32 } from '../tensor/tensor.ts';
import { liveBytes } from './live.ts';

/** A value of 1024 bytes. */
const shape = [16, 16];
const unit = 4 * 256;

function graph(make: (b: GraphBuilder, x: Value) => readonly Value[]): TypedGraph {
  const b = graphBuilder(semantics);
  const x = b.input('x', { dtype: 'float32', shape });
  return b.build(make(b, x).map((value, i) => [`out${i}`, value]));
}
const units = (made: TypedGraph): number => liveBytes(made) / unit;

describe('live bytes', () => {
  it('counts a value from the node that makes it to the last that reads it', () => {
    expect(units(graph((b, x) => [b.op('Exp', [b.op('Sin', [b.op('Cos', [x])])])]))).toBe(2);
    // The first is read again at the end.
    expect(units(graph((b, x) => {
      const first = b.op('Cos', [x]);
      return [mul(b, first, b.op('Exp', [b.op('Sin', [first])]))];
    }))).toBe(3);
  });

  it('counts outputs to the end', () => {
    expect(units(graph((b, x) => [b.op('Cos', [x]), b.op('Sin', [x]), b.op('Exp', [x])]))).toBe(3);
  });

  it('does not count inputs, constants and what is computed from constants', () => {
    expect(units(graph((b, x) => [mul(b, x, b.op('Exp', [b.constant(float32(new Float32Array(256), shape))]))]))).toBe(1);
  });

  it('lets a kernel rename its input, and write over one that nothing else needs', () => {
    expect(units(graph((b, x) => [b.op('Exp', [reshape(b, b.op('Relu', [b.op('Cos', [x])]), [256])])]))).toBe(2);
    expect(units(graph((b, x) => {
      const kept = b.op('Cos', [x]);
      return [mul(b, kept, b.op('Relu', [kept]))];
    }))).toBe(3);
  });

  it('copies where an output is another under a new shape', () => {
    expect(units(graph((b, x) => [reshape(b, b.op('Cos', [x]), [256])]))).toBe(2);
  });

  it('knows what kernels need for themselves', () => {
    // Where masks either choice at its full size: two more, beside the output and both choices.
    expect(units(graph((b, x) => [where(b, b.op('Less', [x, b.scalar(0)]), b.op('Cos', [x]), b.op('Sin', [x]))]))).toBe(5.25);
  });

  it('knows that a buffer is kept for a later value of its shape', () => {
    const made = graph((b, x) => {
      const first = b.op('Sin', [b.op('Cos', [x])]);
      const wide = b.op('Expand', [reshape(b, first, [1, 256]), b.ints([4, 256])]);
      const sum = reshape(b, b.op('ReduceSum', [b.op('Exp', [wide]), b.ints([0])], { keepdims: { type: 'int', value: 0 } }), shape);
      return [b.op('Exp', [b.op('Transpose', [sum], { perm: ints([1, 0]) })])];
    });
    // While the wide ones are made, a narrow one waits for the transpose.
    expect(units(made)).toBe(9);
  });
});
