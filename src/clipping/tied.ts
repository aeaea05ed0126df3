import { int } from '../graph/ir.ts';
import { type Value, concat, reshape, scale, transpose } from '../ops/builder.ts';
import type { Context, Contraction, Use, Weights } from './contraction.ts';
import { gather, pickedRows } from './gather.ts';
import { cutGram, operationsOf, roundingsOf } from './cut.ts';
import { cutsFor, gramNorm } from './gram.ts';
import { outer } from './outer.ts';
import { gamma } from './rounding.ts';
import { instantiatedNorm, squares, sum, weightedSum } from './unit.ts';

/** Several uses of one parameter: the gradient is their sum, formed for each unit. */
export function tied(c: Context, parts: readonly Contraction[]): Contraction {
  const { b } = c;
  const perExample = () => sum(b, parts.map((part) => part.perExample()));
  const products = parts.map((part) => part.product);
  const size = parts.map((part) => part.size).reduce((a, x) => ({ ...a, T: a.T + x.T, p: Math.max(a.p, x.p), d: Math.max(a.d, x.d) }));
  return {
    size,
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), false, weights),
    instantiated: () => {
      const errors = parts.flatMap((part) => part.instantiated().error ?? []);
      // Adding the parts rounds each entry by at most u·(parts − 1) of its parts' magnitudes.
      const adding = parts.map((part) => scale(b, b.op('Sqrt', [squares(c, part.perExample())]), gamma(parts.length)));
      return instantiatedNorm(c, perExample(), sum(b, [...errors, ...adding]));
    },
    ...(products.every((f) => f !== undefined) && {
      product: (weights: Weights | undefined) => sum(b, products.map((f) => f(weights))),
    }),
  };
}

/**
 * A table that is read and multiplied by (an embedding tied to the output head). Reading row i is multiplying by the
 * i-th unit vector, so that both are one outer product over the positions of both, whose Gram matrix on the table's
 * side is made of three blocks: products of the head's vectors, their entries at the rows read, and which rows are equal.
 */
export function tableAndProduct(c: Context, reads: Use<'gather'>, multiplies: Use<'outer'>): Contraction {
  const { b, units } = c;
  const whole = tied(c, [outer(c, multiplies), gather(c, reads)]);
  const { indices, gradient } = pickedRows(c, reads);
  const rows = (x: Value) => reshape(b, x, [units, b.shape(x)[1]! * b.shape(x)[0]! / units, b.shape(x)[2]!]);
  const input = rows(multiplies.input);
  const outputs = rows(scale(b, multiplies.outputGradient, multiplies.scale ?? 1));
  const [T, read] = [b.shape(input)[1]!, b.shape(indices)[1]!];
  const [d, p] = [b.shape(input)[2]!, b.shape(outputs)[2]!];
  const [onTable, across] = multiplies.transposed ? [outputs, input] : [input, outputs];
  const cuts = cutsFor(T + read, [b.shape(onTable)[2]!, b.shape(across)[2]!]);
  const gramRoundings = roundingsOf(cuts[0]) + roundingsOf(cuts[1]);
  return {
    ...whole,
    size: {
      T: T + read, d, p, groups: 1, gramDepth: d, gramTerms: 1, gramRoundings, read, unfolded: false,
      gramProducts: T ** 2 * cuts[0].depth + (T + read) ** 2 * cuts[1].depth,
    },
    ghost: () => {
      const at = b.op('Expand', [reshape(b, indices, [units, 1, read]), b.ints([units, T, read])]);
      const entries = b.op('GatherElements', [onTable, at], { axis: int(2) });
      const same = b.op('Cast', [
        b.op('Equal', [reshape(b, indices, [units, read, 1]), reshape(b, indices, [units, 1, read])]),
      ], { to: int(1) });
      return gramNorm(c, {
        gramA: concat(b, [
          concat(b, [cutGram(b, onTable, cuts[0]), entries], 2), concat(b, [transpose(b, entries, [0, 2, 1]), same], 2),
        ], 1),
        gramB: cutGram(b, concat(b, [across, gradient], 1), cuts[1]),
        groups: 1, roundings: gramRoundings, operations: operationsOf(cuts[0]) + operationsOf(cuts[1]),
      });
    },
  };
}
