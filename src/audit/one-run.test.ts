import { describe, expect, it } from 'vitest';
import { testRandom } from '../../test/support/random-network.ts';
import { binomialTail } from './binomial.ts';
import { oneRunBest, oneRunBound, probabilityOf } from './one-run.ts';

describe('a one-run audit', () => {
  it('bounds by the binomial tail, and pays for δ', () => {
    const guesses = { canaries: 1000, guesses: 100, right: 90 };
    const tail = binomialTail(100, 90, 1 / (1 + Math.exp(-1)));
    expect(probabilityOf(guesses, 1, 0)).toBeCloseTo(tail, 12);
    // The term of δ, computed as the theorem states it.
    const p = 1 / (1 + Math.exp(-1));
    const masses = Array.from({ length: 90 }, (_, i) => (binomialTail(100, 89 - i, p) - binomialTail(100, 90, p)) / (i + 1));
    expect(probabilityOf(guesses, 1, 1e-6)).toBeCloseTo(tail + 2 * 1000 * 1e-6 * Math.max(...masses), 10);
    expect(probabilityOf({ ...guesses, right: 0 }, 1, 1e-5)).toBe(1);
  });

  it('refutes an ε that so many right guesses make improbable, and none below chance', () => {
    // All of r guesses right: (e^ε/(1 + e^ε))^r = 0.001.
    const expected = Math.log(1 / (0.001 ** (-1 / 200) - 1));
    expect(oneRunBound({ canaries: 200, guesses: 200, right: 200 }, 0, 0.999)).toBeCloseTo(expected, 6);
    expect(oneRunBound({ canaries: 200, guesses: 200, right: 200 }, 1e-5, 0.999)).toBeLessThan(expected);
    expect(oneRunBound({ canaries: 200, guesses: 200, right: 100 }, 0, 0.999)).toBe(0);
    expect(oneRunBound({ canaries: 200, guesses: 200, right: 20 }, 0, 0.999)).toBe(0);
  });

  it('does not alarm where every canary leaks as much as randomized response may', () => {
    // ε = 1: each coin is shown rightly with probability e/(1 + e).
    const bounds = Array.from({ length: 40 }, (_, seed) => {
      const random = testRandom(seed);
      const present = Uint8Array.from({ length: 500 }, () => (random() < 0.5 ? 0 : 1));
      const scores = Float64Array.from(present, (x) => (random() < Math.E / (1 + Math.E) ? x : 1 - x) + 0.01 * random());
      return oneRunBest(scores, present, { numbers: [50, 500], delta: 1e-5, confidence: 0.999 }).epsilon;
    });
    expect(Math.max(...bounds)).toBeLessThan(1);
    expect(Math.min(...bounds)).toBeGreaterThan(0.3);
  });
});
