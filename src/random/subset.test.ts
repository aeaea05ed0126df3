import { describe, expect, it } from 'vitest';
import { stream } from './stream.ts';
import { randomSubset } from './subset.ts';

const source = (label: string) => stream(Uint8Array.from({ length: 32 }, (_, i) => i * 5), label);

describe('a sample without replacement', () => {
  it('has each subset equally often', () => {
    const draws = 60_000;
    const s = source('subsets');
    const seen = new Map<string, number>();
    for (let d = 0; d < draws; d++) {
      const key = randomSubset(6, 3, s).join();
      seen.set(key, (seen.get(key) ?? 0) + 1);
    }
    expect(seen.size).toBe(20);
    const expected = draws / 20;
    const chi2 = [...seen.values()].reduce((sum, n) => sum + (n - expected) ** 2 / expected, 0);
    // 19 degrees of freedom: exceeded with probability 1e-5.
    expect(chi2).toBeLessThan(55.5);
  });

  it('has its size, no index twice, ascending, out of 4 billion as out of few', () => {
    for (const [count, size] of [[1, 0], [1, 1], [10, 10], [1000, 37], [0xffff_ffff, 2000]] as const) {
      const drawn = randomSubset(count, size, source(`${count}`));
      expect(drawn).toHaveLength(size);
      expect(drawn.every((index, i) => index < count && (i === 0 || index > drawn[i - 1]!))).toBe(true);
    }
  });

  it('reaches the whole range evenly', () => {
    // 3·2^30 is where a remainder without rejection would prefer a third of the indices.
    const count = 3 * 2 ** 30;
    const drawn = randomSubset(count, 30_000, source('range'));
    const thirds = [0, 1, 2].map((k) => drawn.filter((i) => Math.floor(i / 2 ** 30) === k).length);
    for (const n of thirds) expect(Math.abs(n - 10_000)).toBeLessThan(5 * Math.sqrt(30_000 * (2 / 9)));
  });

  it('refuses sizes out of range', () => {
    for (const [count, size] of [[5, 6], [5, -1], [5, 2.5], [-1, 0], [2 ** 32, 1]] as const)
      expect(() => randomSubset(count, size, source('x'))).toThrow(/sample/);
  });
});
