import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { poissonSample } from './poisson.ts';
import { stream } from './stream.ts';

const source = (label: string) =>
  stream(
    Uint8Array.from({ length: 32 }, (_, i) => i * 7),
    label,
  );

describe('Poisson sampling', () => {
  const statistics = (count: number, q: number, draws: number) => {
    const s = source(`q${q}`);
    const hits = new Float64Array(count);
    const sizes = new Float64Array(draws);
    let neighbours = 0;
    let ends = 0;
    for (let d = 0; d < draws; d++) {
      const drawn = poissonSample(count, q, s);
      sizes[d] = drawn.length;
      drawn.forEach((index, i) => {
        hits[index] = (hits[index] ?? 0) + 1;
        if (i > 0 && index === (drawn[i - 1] ?? 0) + 1) neighbours += 1;
      });
      if (drawn[0] === 0 && drawn.at(-1) === count - 1) ends += 1;
    }
    return { hits, sizes, neighbours, ends };
  };

  it.each([
    [300, 0.02, 20_000],
    [200, 0.3, 10_000],
    [50, 0.9, 10_000],
  ])('draws each of %d examples with probability %d, independently', (count, q, draws) => {
    const { hits, sizes, neighbours, ends } = statistics(count, q, draws);
    // Marginal frequencies: χ² over the examples has mean `count` and deviation √(2·count).
    const chi2 = hits.reduce((sum, h) => sum + (h - draws * q) ** 2 / (draws * q * (1 - q)), 0);
    expect(Math.abs(chi2 - count)).toBeLessThan(4.5 * Math.sqrt(2 * count));
    // Batch sizes: mean and variance of the binomial; a fixed size or shuffled batches have none.
    const m = sizes.reduce((a, b) => a + b, 0) / draws;
    const variance = sizes.reduce((sum, x) => sum + (x - m) ** 2, 0) / (draws - 1);
    const v = count * q * (1 - q);
    expect(Math.abs(m - count * q)).toBeLessThan(4 * Math.sqrt(v / draws));
    expect(Math.abs(variance / v - 1)).toBeLessThan(5 * Math.sqrt((2 + 1 / v) / draws));
    // Pairs: adjacent examples, and the first with the last, meet with probability q².
    const pairs = draws * (count - 1) * q * q;
    expect(Math.abs(neighbours - pairs)).toBeLessThan(5 * Math.sqrt(pairs * (1 + 2 * q)));
    expect(Math.abs(ends - draws * q * q)).toBeLessThan(4 * Math.sqrt(draws * q * q) + 1);
  });

  it('gives ascending indices below the count', () => {
    const drawn = poissonSample(100_000, 0.01, source('order'));
    expect(drawn.every((index, i) => i === 0 || index > (drawn[i - 1] ?? 0))).toBe(true);
    expect(Math.max(...drawn)).toBeLessThan(100_000);
  });

  it('draws nothing as often as it should', () => {
    const s = source('empty');
    const draws = 20_000;
    let empty = 0;
    for (let i = 0; i < draws; i++) if (poissonSample(20, 0.1, s).length === 0) empty += 1;
    const expected = 0.9 ** 20;
    expect(Math.abs(empty / draws - expected)).toBeLessThan(4 * Math.sqrt((expected * (1 - expected)) / draws));
  });

  it('holds at the extremes of q', () => {
    const s = source('extremes');
    expect(poissonSample(1000, 1, s)).toEqual(Uint32Array.from({ length: 1000 }, (_, i) => i));
    expect(poissonSample(0, 0.5, s)).toHaveLength(0);
    expect(poissonSample(1000, 1e-300, s)).toHaveLength(0);
    expect(poissonSample(100_000, 1 - 1e-9, s).length).toBeGreaterThan(99_998);
    // 4·10⁹ examples at q = 1e-9: a Poisson number of mean 4, anywhere in the range.
    let drawn = 0;
    let sum = 0;
    for (let i = 0; i < 5000; i++)
      for (const index of poissonSample(4e9, 1e-9, s)) {
        drawn += 1;
        sum += index;
      }
    expect(Math.abs(drawn - 20_000)).toBeLessThan(4 * Math.sqrt(20_000));
    expect(Math.abs(sum / drawn / 4e9 - 0.5)).toBeLessThan(4 * Math.sqrt(1 / 12 / drawn));
  });

  it('refuses probabilities and counts out of range', () => {
    for (const q of [0, -0.1, 1.1, NaN]) expect(() => poissonSample(10, q, source('bad'))).toThrow(GhostgradError);
    for (const n of [-1, 1.5, 2 ** 32, NaN]) expect(() => poissonSample(n, 0.5, source('bad'))).toThrow(GhostgradError);
  });
});
