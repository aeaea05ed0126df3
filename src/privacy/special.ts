/**
 * Special functions to nearly full double precision, in forms that neither overflow nor cancel in the tails.
 */

const halfLog2Pi = 0.5 * Math.log(2 * Math.PI);
const sqrt2 = Math.SQRT2;
const step = 0.5;
const nodes = Float64Array.from({ length: 12 }, (_, n) => ((n + 1) * step) ** 2);
const nodeWeights = nodes.map((square) => Math.exp(-square));

/**
 * The scaled complementary error function exp(x²)·erfc(x); +Infinity below about −26.6.
 *
 * For x ≥ ½: the trapezoidal rule with step ½ on erfc's integral, with the residue of the pole at ix (Matta &
 * Reichel 1971), whose error is below exp(−π²/¼). For |x| < ½: the Taylor series of erf.
 */
export function erfcx(x: number): number {
  if (x < -0.5) return 2 * Math.exp(x * x) - erfcx(-x);
  const square = x * x;
  if (x < 0.5) return Math.exp(square) * (1 - erfNearZero(x));
  if (x > 1e8) return 1 / (x * Math.sqrt(Math.PI));
  let sum = 0.5 / square;
  for (let n = 0; n < nodes.length; n++) sum += (nodeWeights[n] ?? 0) / ((nodes[n] ?? 0) + square);
  const trapezoid = ((2 * step * x) / Math.PI) * sum;
  return x < Math.PI / step ? trapezoid - (2 * Math.exp(square)) / Math.expm1((2 * Math.PI * x) / step) : trapezoid;
}

/** erf(x) = 2/√π · Σ (−1)ⁿ x²ⁿ⁺¹ / (n! (2n + 1)) for |x| ≤ ½. */
function erfNearZero(x: number): number {
  let power = x;
  let sum = x;
  for (let n = 1; n < 20; n++) {
    power *= (-x * x) / n;
    sum += power / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}

/** The complementary error function. */
export function erfc(x: number): number {
  if (Math.abs(x) < 0.5) return 1 - erfNearZero(x);
  return x > 0 ? Math.exp(-x * x) * erfcx(x) : 2 - erfc(-x);
}

/** Φ(x), the standard normal distribution function. */
export const normalCdf = (x: number): number => 0.5 * erfc(-x / sqrt2);

/** log Φ(x), accurate in both tails. */
export const logNormalCdf = (x: number): number =>
  x < 0 ? Math.log(0.5 * erfcx(-x / sqrt2)) - 0.5 * x * x : Math.log1p(-0.5 * erfc(x / sqrt2));

/** (1 − Φ(x))/φ(x), decreasing; finite for x above about −37. */
export const millsRatio = (x: number): number => Math.sqrt(Math.PI / 2) * erfcx(x / sqrt2);

/** log φ(x). */
export const logNormalDensity = (x: number): number => -0.5 * x * x - halfLog2Pi;

/** log(exp(x) − 1) for x > 0, without overflow. */
export const logExpm1 = (x: number): number => (x > 40 ? x : x + Math.log(-Math.expm1(-x)));

/** log(1 − exp(x)) for x < 0. */
export const log1mExp = (x: number): number => (x > -Math.LN2 ? Math.log(-Math.expm1(x)) : Math.log1p(-Math.exp(x)));

/** log(exp(x) + exp(y)). */
export function logAdd(x: number, y: number): number {
  const high = Math.max(x, y);
  return high === -Infinity ? high : high + Math.log1p(Math.exp(Math.min(x, y) - high));
}
