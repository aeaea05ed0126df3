import { GhostgradError } from '../errors.ts';
import type { Stream } from './stream.ts';

/**
 * Poisson sampling: each of `count` examples is drawn independently with probability `q`. Returns the indices
 * drawn, ascending; often a different number of them, and possibly none.
 *
 * The gaps between successes are geometric: ⌊E/λ⌋ with E exponential and λ = −log(1 − q), so the cost is
 * O(q · count). E keeps relative precision 2^-53 at both ends: the half of its distribution near 0 comes from
 * −log1p(−u), the other half from −log(u), with u a real rounded to a double. Rounding moves each boundary kλ by
 * a few parts in 2^53, which changes the probability of drawing an index by a few 2^-53.
 *
 * @param q 0 < q ≤ 1; at 1 all are drawn
 * @param count number of examples, at most 2^32 − 1
 */
export function poissonSample(count: number, q: number, source: Stream): Uint32Array {
  if (!Number.isInteger(count) || count < 0 || count > 0xffff_ffff) {
    throw new GhostgradError({
      what: 'number of examples to sample from',
      found: String(count),
      expected: 'a whole number below 2^32',
    });
  }
  if (!(q > 0 && q <= 1)) {
    throw new GhostgradError({ what: 'sampling probability out of range', found: String(q), expected: '0 < q ≤ 1' });
  }
  if (q === 1) return Uint32Array.from({ length: count }, (_, i) => i);
  const rate = -Math.log1p(-q);
  const drawn: number[] = [];
  // Stays a double: a gap may exceed 2^32, and is then past the end.
  for (let next = gap(rate, source); next < count; next += 1 + gap(rate, source)) drawn.push(next);
  return Uint32Array.from(drawn);
}

/** The number of failures before a success: P(gap ≥ k) = exp(−k·rate). */
function gap(rate: number, source: Stream): number {
  const nearZero = (source.word() & 1) === 0;
  const half = 0.5 * source.preciseUniform();
  return Math.floor((nearZero ? -Math.log1p(-half) : -Math.log(half)) / rate);
}
