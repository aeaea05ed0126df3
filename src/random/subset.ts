import { GhostgradError } from '../errors.ts';
import type { Stream } from './stream.ts';

/**
 * A sample of fixed size without replacement: `size` of the indices 0 … count−1, ascending, all such subsets equally
 * likely (Floyd's algorithm). Takes work and memory in proportion to `size` alone.
 *
 * @param count at most 2^32 − 1
 * @param size a whole number from 0 to `count`
 */
export function randomSubset(count: number, size: number, source: Stream): Uint32Array {
  if (!Number.isInteger(count) || count < 0 || count > 0xffff_ffff) {
    throw new GhostgradError({ what: 'number of examples to sample from', found: String(count), expected: 'a whole number below 2^32' });
  }
  if (!(Number.isInteger(size) && size >= 0 && size <= count)) {
    throw new GhostgradError({ what: 'size of a sample out of range', found: String(size), expected: `a whole number from 0 to ${count}` });
  }
  const chosen = new Set<number>();
  for (let last = count - size; last < count; last++) {
    const candidate = below(last + 1, source);
    chosen.add(chosen.has(candidate) ? last : candidate);
  }
  return Uint32Array.from(chosen).sort();
}

/** A whole number from 0 to `bound` − 1, each equally likely: words beyond the last whole multiple of `bound` are drawn anew. */
function below(bound: number, source: Stream): number {
  const fair = 2 ** 32 - (2 ** 32 % bound);
  for (;;) {
    const word = source.word();
    if (word < fair) return word % bound;
  }
}
