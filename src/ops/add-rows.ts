import { int, string } from '../graph/ir.ts';
import { sizeOf } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, filled, reshape } from './builder.ts';

/**
 * A table [size, p] of zeros to which each of `rows` [n, p] was added at its place; `places` holds n int64, at least 0.
 *
 * ScatterND would say the same with an index for each row, but ONNX Runtime adds from several threads at once without
 * care for rows that meet in one place, and loses some; its ScatterElements goes element by element, in order.
 */
export function addRows(b: GraphBuilder, size: number, places: Value, rows: Value): Value {
  const [n, p] = b.shape(rows) as [number, number];
  const at = b.op('Expand', [reshape(b, places, [n, 1]), b.ints([n, p])]);
  return b.op('ScatterElements', [filled(b, 0, [size, p], b.type(rows).dtype), at, rows], { axis: int(0), reduction: string('add') });
}

/** The same for places of several coordinates, [n, r] int64, of a block with the given dimensions: [∏ dimensions, p]. */
export function addRowsAt(b: GraphBuilder, dimensions: readonly number[], places: Value, rows: Value): Value {
  const strides = dimensions.map((_, i) => sizeOf(dimensions.slice(i + 1)));
  // Mod takes the sign of the divisor: coordinates from the back become coordinates from the front.
  const fromFront = b.op('Mod', [places, b.ints(dimensions)]);
  const flat = b.op('ReduceSum', [b.op('Mul', [fromFront, b.ints(strides)]), b.ints([1])], { keepdims: int(0) });
  return addRows(b, sizeOf(dimensions), flat, rows);
}
