import { normalCdf } from '../privacy/special.ts';
import { leastAbove } from './binomial.ts';

/** Φ⁻¹(p), infinite at 0 and 1. */
export function normalQuantile(p: number): number {
  if (!(p > 0 && p < 1)) return p > 0 ? Infinity : -Infinity;
  return leastAbove(-40, 40, (x) => normalCdf(x) >= p).high;
}
