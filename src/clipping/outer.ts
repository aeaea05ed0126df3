import { type GraphBuilder, type Value, matmul, mul, reshape, scale } from '../ops/builder.ts';
import { sizeOf } from '../tensor/tensor.ts';
import type { Context, Contraction, NormParts, OutputGram, Use } from './contraction.ts';
import { cutGram, operationsOf, roundingsOf } from './cut.ts';
import { cutsFor, gramNorm } from './gram.ts';
import { gamma, smallestNormal } from './rounding.ts';
import { finiteOnly, instantiatedNorm, instantiationError, markedSquares, squaresError, weighedProduct, weightedSum } from './unit.ts';

/** Σ_t inputᵀ·outputGradient. */
export function outer(c: Context, use: Use<'outer'>): Contraction {
  const { b, units, parameterShape } = c;
  const rows = (x: Value) => reshape(b, x, [units, sizeOf(b.shape(x)) / (units * b.shape(x).at(-1)!), b.shape(x).at(-1)!]);
  const raw = rows(use.input);
  const gradient = rows(use.outputGradient);
  const [, T, d] = b.shape(raw) as [number, number, number];
  const p = b.shape(gradient)[2]!;
  const alpha = use.scale ?? 1;
  const product = (x: Value, y: Value) => (use.transposed
    ? matmul(b, y, x, { transposeX: true, alpha })
    : matmul(b, x, y, { transposeX: true, alpha }));
  // A scale above 1 could make products of selected operands overflow after all.
  const selected = T <= d && Math.abs(alpha) <= 1;
  const perExample = () => reshape(
    b, product(finiteOnly(c, raw), selected ? finiteOnly(c, gradient) : gradient), [units, ...parameterShape],
  );
  const cuts = cutsFor(T, [d, p]);
  const gramRoundings = roundingsOf(cuts[0]) + roundingsOf(cuts[1]);
  const outputGram = (): OutputGram =>
    ({ gram: cutGram(b, gradient, cuts[1]), roundings: roundingsOf(cuts[1]), operations: operationsOf(cuts[1]) });
  return {
    ...(T > 1 && { outputGradient: gradient, outputGram }),
    size: { T, d, p, groups: 1, gramDepth: d, gramTerms: 1, gramRoundings, unfolded: false },
    ghost: () => scaled(b, alpha, T === 1 ? rankOneNorm(c, raw, gradient) : gramNorm(c, {
      gramA: cutGram(b, raw, cuts[0]), gramB: cutGram(b, gradient, cuts[1]),
      groups: 1, roundings: gramRoundings, operations: operationsOf(cuts[0]) + operationsOf(cuts[1]),
    })),
    perExample,
    weightedSum: (weights) => weightedSum(c, perExample(), selected, weights),
    instantiated: () => instantiatedNorm(
      c, perExample(), scale(b, instantiationError(c, T, raw, gradient), Math.abs(alpha)),
    ),
    product: (weights) => weighedProduct(c, raw, gradient, weights, (x, y) => reshape(
      b, product(reshape(b, x, [units * T, d]), reshape(b, y, [units * T, p])), parameterShape,
    )),
  };
}

/** ‖a‖²·‖b‖² for one position. What either square may have lost by underflow counts as if it were that much larger. */
function rankOneNorm(c: Context, a: Value, bb: Value): NormParts {
  const { b } = c;
  const [aa, bbSquared] = [markedSquares(c, a), markedSquares(c, bb)];
  const lost = (x: Value): Value => b.scalar((sizeOf(b.shape(x)) / c.units) * smallestNormal);
  const squared = mul(b, aa, bbSquared);
  const underflow = b.op('Sum', [mul(b, aa, lost(bb)), mul(b, bbSquared, lost(a)), b.scalar(2 * smallestNormal)]);
  const rounding = scale(b, squared, squaresError(c, a) + squaresError(c, bb) + gamma(8));
  return { squared, allowance: b.op('Add', [rounding, scale(b, underflow, 1.01)]) };
}

function scaled(b: GraphBuilder, alpha: number, parts: NormParts): NormParts {
  if (alpha === 1) return parts;
  const { squared, error, sumError, allowance, lost = 0 } = parts;
  // α² may be no float32 where the product is one.
  const twice = (x: Value) => scale(b, scale(b, x, alpha), alpha);
  return {
    squared: twice(squared), lost: lost * alpha ** 2 + 4 * smallestNormal,
    ...(error && { error: scale(b, error, Math.abs(alpha)) }),
    ...(sumError && { sumError: scale(b, sumError, Math.abs(alpha)) }),
    ...(allowance && { allowance: twice(allowance) }),
  };
}

