import { intAttribute, showShape } from '../graph/ir.ts';
import { tensor } from '../tensor/tensor.ts';
import { knownIntegers, requireTable } from './arranging.ts';
import { type GraphBuilder, type Value, add, mul, reshape, slice, sub, transpose, where } from './builder.ts';
import type { Composite } from './composite.ts';
import { badOperands } from './operands.ts';
import { fromFront, scalarLike } from './rules.ts';

/** Largest matrices whose determinant is written out. */
const largest = 5;

/** Expansion along the first of the rows left. */
function minor(b: GraphBuilder, entries: readonly (readonly Value[])[], row: number, columns: readonly number[]): Value {
  const terms = columns.map((column) => {
    const entry = entries[row]![column]!;
    return columns.length === 1 ? entry : mul(b, entry, minor(b, entries, row + 1, columns.filter((c) => c !== column)));
  });
  return terms.slice(1).reduce((sum, term, i) => (i % 2 === 0 ? sub(b, sum, term) : add(b, sum, term)), terms[0]!);
}

const determinant: Composite = {
  expand: ({ b, node, inputs }) => {
    const x = inputs[0]!;
    const shape = b.shape(x);
    const [n = 0, m] = shape.slice(-2);
    if (shape.length < 2 || n !== m || n < 1 || n > largest) {
      throw badOperands({ node }, `matrices ${showShape(shape)}`, `square matrices of at most ${largest} rows`);
    }
    const [outer, rank] = [shape.slice(0, -2), shape.length];
    const indices = Array.from({ length: n }, (_, i) => i);
    const entries = indices.map((i) => indices.map((j) =>
      reshape(b, slice(b, x, [rank - 2, rank - 1], [i, j], [i + 1, j + 1]), outer)));
    return [minor(b, entries, 0, indices)];
  },
};

/** Running products, each the product of its own factors: exact where a factor is 0. */
const cumProd: Composite = {
  expand: (context) => {
    const { b, node, inputs } = context;
    const x = inputs[0]!;
    const shape = b.shape(x);
    const axis = fromFront(node, knownIntegers(context, 1)[0] ?? 0, shape.length);
    const [exclusive, reverse] = ['exclusive', 'reverse'].map((name) => intAttribute(node, name, 0) !== 0);
    const n = shape[axis]!;
    requireTable(node, n * n);
    const takes = (place: number, factor: number): boolean => {
      const ahead = reverse === true ? factor - place : place - factor;
      return exclusive === true ? ahead > 0 : ahead >= 0;
    };
    const mask = Uint8Array.from({ length: n * n }, (_, i) => Number(takes(Math.floor(i / n), i % n)));
    const order = [...shape.map((_, i) => i).filter((i) => i !== axis), axis];
    const last = transpose(b, x, order);
    const rows = reshape(b, last, [...b.shape(last).slice(0, -1), 1, n]);
    const factors = where(b, b.constant(tensor('bool', [n, n], mask)), rows, scalarLike(b, 1, rows));
    const products = b.op('ReduceProd', [factors, b.ints([shape.length])], { keepdims: { type: 'int', value: 0 } });
    return [transpose(b, products, shape.map((_, i) => order.indexOf(i)))];
  },
};

/** Products of many factors. */
export const products = { Det: determinant, CumProd: cumProd } satisfies Record<string, Composite>;
