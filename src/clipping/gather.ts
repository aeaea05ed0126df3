import { int } from '../graph/ir.ts';
import { addRows } from '../ops/add-rows.ts';
import { type GraphBuilder, type Value, concat, filled, reshape, slice } from '../ops/builder.ts';
import { int64, sizeOf } from '../tensor/tensor.ts';
import type { Context, Contraction, Use, Weights } from './contraction.ts';
import { instantiatedNorm, summationError, weigh, weightedSum } from './unit.ts';

/** Rows of a table, picked by integers. */
export function gather(c: Context, use: Use<'gather'>): Contraction {
  const { b, units, parameterShape } = c;
  const { indices, gradient } = pickedRows(c, use);
  const [, T, p] = b.shape(gradient) as [number, number, number];
  const table = parameterShape[0]!;
  const flat = (x: Value) => reshape(b, x, [units * T, p]);
  const perExample = () => reshape(
    b, addRows(b, units * table, byUnit(b, indices, table), flat(gradient)), [units, ...parameterShape],
  );
  const error = () => summationError(c, T, gradient);
  return {
    size: { T, d: table, p, groups: 1, gramDepth: 1, gramTerms: 1, unfolded: false, picked: true },
    // A unit reads at most T different rows, so that it needs no table of its own, nor T² comparisons.
    ghost: () => instantiatedNorm(
      c, T === 1 ? gradient : addRows(b, units * T, byUnit(b, ranks(b, indices), T), flat(gradient)), error(),
    ),
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), false, weights),
    instantiated: () => instantiatedNorm(c, perExample(), error()),
    product: (weights: Weights | undefined) => reshape(
      b, addRows(b, table, indices, flat(weigh(c, gradient, weights))), parameterShape,
    ),
  };
}

/** The operands by unit: indices [U, T] and gradients [U, T, p]. */
export function pickedRows({ b, units }: Context, use: Use<'gather'>): { indices: Value; gradient: Value } {
  const p = b.shape(use.outputGradient).at(-1)!;
  const T = sizeOf(b.shape(use.indices)) / units;
  return { indices: reshape(b, use.indices, [units, T]), gradient: reshape(b, use.outputGradient, [units, T, p]) };
}

/** [U, T] places in a unit's table of `size` rows as places in the tables of all units. */
const byUnit = (b: GraphBuilder, places: Value, size: number): Value => {
  const units = b.shape(places)[0]!;
  return b.op('Add', [places, b.constant(int64(Array.from({ length: units }, (_, i) => i * size), [units, 1]))]);
};

/** For each of a unit's indices, [U, T], its number among the unit's different indices. */
function ranks(b: GraphBuilder, indices: Value): Value {
  const [units, T] = b.shape(indices) as [number, number];
  const [sorted = '', order = ''] = b.ops('TopK', [indices, b.ints([T])], 2, { axis: int(1), largest: int(0), sorted: int(1) });
  const differs = b.op('Not', [b.op('Equal', [slice(b, sorted, [1], [1], [T]), slice(b, sorted, [1], [0], [T - 1])])]);
  const steps = concat(b, [filled(b, 0, [units, 1], 'int64'), b.op('Cast', [differs], { to: int(7) })], 1);
  const numbers = b.op('CumSum', [steps, b.scalar(1, 'int64')]);
  return b.op('ScatterElements', [filled(b, 0, [units, T], 'int64'), order, numbers], { axis: int(1) });
}
