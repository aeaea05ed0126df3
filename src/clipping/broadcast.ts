import { type Value, filled, matmul, mul, reduceSum, reshape, sumTo } from '../ops/builder.ts';
import { sizeOf } from '../tensor/tensor.ts';
import type { Context, Contraction, OutputGram, Use, Weights } from './contraction.ts';
import { gramNorm } from './gram.ts';
import { instantiatedNorm, numberOrZero, sum, summationError, weightedSum, withoutDropped } from './unit.ts';

/** Sums over the axes of broadcasting; cheap enough to be formed for each unit always. */
export function broadcast(c: Context, { gradient, trailing = 0, summed }: Use<'broadcast'>): Contraction {
  const { b, units, parameterShape } = c;
  const [rows, ...full] = b.shape(gradient) as [number, ...number[]];
  const perUnit = [units, rows / units, ...full];
  // The parameter's shape from the right, with the trailing axes it does not have.
  const target = [...parameterShape, ...Array.from({ length: trailing }, () => 1)];
  const aligned = [units, ...Array.from({ length: perUnit.length - 1 - target.length }, () => 1), ...target];
  const perExample = () => reshape(b, sumTo(b, reshape(b, gradient, perUnit), aligned), [units, ...parameterShape]);
  const size = sizeOf(parameterShape);
  const T = sizeOf(b.shape(gradient)) / (units * size);
  const isVector = trailing === 0 && T > 1 && full.at(-1) === size && summed === undefined;
  const errors = () => [...(T > 1 ? [summationError(c, T, gradient)] : []), ...(summed === undefined ? [] : [summationError(c, T * summed.terms, summed.of)])];
  return {
    ...(isVector && bias(c, reshape(b, gradient, [units, T, size]))),
    size: { T, d: 1, p: size, groups: 1, gramDepth: 1, gramTerms: 1, unfolded: false },
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), false, weights),
    instantiated: () => {
      const all = errors();
      return instantiatedNorm(c, perExample(), all.length === 0 ? undefined : sum(b, all));
    },
  };
}

/**
 * A vector added at every position, as the bias of a product is: an outer product of its output gradients with ones. So
 * its squared norm is the sum of all inner products of output gradients, and its sum is one vector times those.
 */
function bias(c: Context, gradient: Value): Pick<Contraction, 'outputGradient' | 'fromGram'> {
  const { b, units, parameterShape } = c;
  const [, T, p] = b.shape(gradient) as [number, number, number];
  const product = (weights: Weights | undefined): Value => {
    if (weights === undefined) return reshape(b, reduceSum(b, gradient, [0, 1]), parameterShape);
    const atEach = mul(b, reshape(b, weights.weights, [units, 1]), filled(b, 1, [units, T]));
    const kept = reshape(b, withoutDropped(c, gradient, weights.valid), [units * T, p]);
    return numberOrZero(b, reshape(b, matmul(b, reshape(b, atEach, [1, units * T]), kept), parameterShape));
  };
  return {
    outputGradient: gradient,
    fromGram: (formed: () => OutputGram) => ({
      size: { T, d: 1, p, groups: 1, gramDepth: 1, gramTerms: 1, gramProducts: 0, unfolded: false },
      ghost: () => {
        const { gram, ...exactness } = formed();
        return gramNorm(c, { gramA: filled(b, 1, [units, T, T]), gramB: gram, groups: 1, ...exactness });
      },
      product,
    }),
  };
}
