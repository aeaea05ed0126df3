import { type Value, reshape, sumTo } from '../ops/builder.ts';
import { sizeOf } from '../tensor/tensor.ts';
import type { Context, Contraction } from './contraction.ts';
import { instantiatedNorm, summationError, weightedSum } from './unit.ts';

/** Sums over the axes of broadcasting; cheap enough to be formed for each unit always. */
export function broadcast(c: Context, gradient: Value, trailing: number): Contraction {
  const { b, units, parameterShape } = c;
  const [rows, ...full] = b.shape(gradient) as [number, ...number[]];
  const perUnit = [units, rows / units, ...full];
  // The parameter's shape from the right, with the trailing axes it does not have.
  const target = [...parameterShape, ...Array.from({ length: trailing }, () => 1)];
  const aligned = [units, ...Array.from({ length: perUnit.length - 1 - target.length }, () => 1), ...target];
  const perExample = () => reshape(b, sumTo(b, reshape(b, gradient, perUnit), aligned), [units, ...parameterShape]);
  const size = sizeOf(parameterShape);
  const T = sizeOf(b.shape(gradient)) / (units * size);
  return {
    size: { T, d: 1, p: size, groups: 1, gramDepth: 1, gramTerms: 1, unfolded: false },
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), false, weights),
    instantiated: () => instantiatedNorm(c, perExample(), T > 1 ? summationError(c, T, gradient) : undefined),
  };
}
