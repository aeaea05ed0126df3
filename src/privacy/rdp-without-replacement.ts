import { logAdd, logExpm1 } from './special.ts';

/**
 * Rényi divergence of the Gaussian mechanism on a sample of fixed size, where neighbours replace a unit (Wang, Balle &
 * Kasiviswanathan 2019, Theorem 27): with q the share that is sampled and ε(j) = j/2σ²,
 *
 *   (α − 1)·ε'(α) = log(1 + C(α,2)·q²·min{4(e^{ε(2)} − 1), 2e^{ε(2)}}
 *                     + Σ_{j=3}^α C(α,j)·q^j·min{4·√(B(2⌊j/2⌋)·B(2⌈j/2⌉)), 2e^{(j−1)ε(j)}})
 *
 * for whole α, B(l) = E[(P/Q − 1)^l]. Between whole orders (α − 1)·ε'(α), a convex function, is below its chord.
 */
export function withoutReplacementMoment(q: number, sigma: number): (order: number) => number {
  const known = new Map<number, number>([[1, 0]]);
  const spread = centralMoments(sigma);
  const whole = (alpha: number): number => {
    const found = known.get(alpha);
    if (found !== undefined) return found;
    const value = logMoment(q, sigma, alpha, spread);
    known.set(alpha, value);
    return value;
  };
  return (order) => {
    const low = Math.floor(order);
    return order === low ? whole(low) : (low + 1 - order) * whole(low) + (order - low) * whole(low + 1);
  };
}

/** Beyond this order the second term of each minimum is taken alone: still a bound, and far from the best order. */
const mostDifferences = 512;

function logMoment(q: number, sigma: number, alpha: number, spread: (l: number) => number): number {
  const half = 1 / (2 * sigma ** 2);
  let logChoose = Math.log(alpha);
  let total = -Infinity;
  for (let j = 2; j <= alpha; j++) {
    logChoose += Math.log((alpha - j + 1) / j);
    const plain = Math.LN2 + j * (j - 1) * half;
    const tight =
      j === 2
        ? Math.log(4) + logExpm1(2 * half)
        : j <= mostDifferences
          ? Math.log(4) + 0.5 * (spread(2 * Math.floor(j / 2)) + spread(2 * Math.ceil(j / 2)))
          : Infinity;
    total = logAdd(total, logChoose + j * Math.log(q) + Math.min(plain, tight));
  }
  return total > 30 ? logAdd(0, total) : Math.log1p(Math.exp(total));
}

/**
 * log E_Q[(P/Q − 1)^l] for even l, P = N(1, σ²) and Q = N(0, σ²), by the trapezoidal rule, which converges exponentially for
 * this integrand; as a sum of the moments of P/Q it would cancel.
 */
function centralMoments(sigma: number): (l: number) => number {
  const known = new Map<number, number>();
  return (l) => {
    const found = known.get(l);
    if (found !== undefined) return found;
    const step = Math.min(0.1, sigma / 4);
    let total = -Infinity;
    // In units of σ about 0; the integrand's far peak is next to l/σ.
    for (let z = -12; z <= l / sigma + 12; z += step) {
      const y = z / sigma - 0.5 / sigma ** 2;
      const log = y > 0 ? logExpm1(y) : Math.log(-Math.expm1(y));
      total = logAdd(total, l * log - 0.5 * z * z);
    }
    const value = total + Math.log(step / Math.sqrt(2 * Math.PI)) + 1e-10;
    known.set(l, value);
    return value;
  };
}
