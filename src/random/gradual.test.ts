import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { continuousDeviation, smoothing, varianceOf } from './discrete-gaussian.ts';
import { gradualNoise, noisedGradually } from './gradual.ts';
import { addNoise, noiseChunk, type NoiseLaw } from './noise.ts';
import { ratchet } from './ratchet.ts';

const v = varianceOf(1);
const rising = fc.array(fc.double({ min: 0, max: 3, noNaN: true }), { minLength: 1, maxLength: 6 })
  .map((logs) => logs.reduce<number[]>((all, log) => [...all, (all.at(-1) ?? 1) * Math.exp(log)], []));
const grids = (levels: number): NoiseLaw => ({ grid: 0.25, levels });
const key = () => ratchet(7).advance().noise;
const isSame = (a: Float32Array, b: Float32Array): boolean => Buffer.from(a.buffer).equals(Buffer.from(b.buffer));
const variances = (noise: ReturnType<typeof gradualNoise>): number[] => {
  let sum = 0;
  return ('draws' in noise ? noise.draws : []).map((draws) =>
    (sum = draws.reduce((all, { levels, factor }) => all + factor ** 2 * varianceOf(levels), sum)));
};

describe('gradualNoise on a grid', () => {
  it('adds as much variance as every release asks for, and a thousandth of the first at most beyond', () => {
    fc.assert(fc.property(fc.integer({ min: 2, max: 5 }), rising, (levels, ratios) => {
      const [first, ...others] = variances(gradualNoise(grids(levels), ratios));
      expect(first).toBe(varianceOf(levels));
      others.forEach((variance, k) => {
        const asked = (continuousDeviation(levels) * ratios[k]!) ** 2;
        const accounted = variance - smoothing;
        expect(accounted / asked).toBeGreaterThan(1 - 1e-12);
        expect(accounted - asked).toBeLessThanOrEqual(varianceOf(levels) / 1297 + 1e-12 * asked);
      });
    }));
  });

  it('adds nothing that its sum would show through: s² = v·V/(V + f²·v) is never below v/(1 + 36²)', () => {
    fc.assert(fc.property(fc.integer({ min: 1, max: 5 }), rising, (levels, ratios) => {
      const noise = gradualNoise(grids(levels), ratios);
      const draws = 'draws' in noise ? noise.draws.flat() : [];
      let V = varianceOf(draws[0]!.levels);
      for (const { levels: one, factor } of draws.slice(1)) {
        expect([one, Number.isInteger(factor), factor > 0]).toEqual([1, true, true]);
        expect((v * V) / (V + factor ** 2 * v)).toBeGreaterThan((v / 1297) * (1 - 1e-12));
        V += factor ** 2 * v;
      }
      for (const release of 'draws' in noise ? noise.draws.slice(1) : []) expect(release.length).toBeLessThanOrEqual(16);
    }));
  });

  it('leaves the sum a discrete Gaussian, of the variances added up', () => {
    /** Largest relative difference of the law of W + f·X from that of its variance, W of variance V and X of v. */
    const apart = (V: number, f: number): number => {
      const weights = Array.from({ length: 401 }, (_, i) => {
        const z = (i - 200) * 7;
        let sum = 0;
        for (let x = -1500; x <= 1500; x++) sum += Math.exp(-(x ** 2) / (2 * v) - (z - f * x) ** 2 / (2 * V));
        return sum / Math.exp(-(z ** 2) / (2 * (V + f ** 2 * v)));
      });
      return Math.max(...weights) / Math.min(...weights) - 1;
    };
    for (const f of [1, 5, 36]) expect(apart(v, f)).toBeLessThan(1e-11);
    // Far beyond, what is underneath shows through.
    expect(apart(v, 300)).toBeGreaterThan(0.01);
  });

  it('refuses what float64 has no whole numbers for', () => {
    expect(() => gradualNoise(grids(5), [1e6])).toThrow('beyond what a grid');
  });
});

describe.each<[string, NoiseLaw, number]>([
  ['discrete', grids(2), continuousDeviation(2) * 0.25], ['float', { deviation: 3 }, 3],
])('noisedGradually, %s', (_, law, deviation) => {
  const n = noiseChunk + 70_000;
  const values = Float32Array.from({ length: n }, (_value, i) => (i % 11) * 100);
  const remainder = Float32Array.from({ length: n }, (_value, i) => (i % 5) * 2 ** -10);
  const ratios = [1.2, 1.25, 5, 28];
  const target = { label: 'noise:w', values, remainder };
  const releases = (to = ratios) => key().use((streamOf) => noisedGradually(target, gradualNoise(law, to), 0.5, streamOf));

  it('begins with what a release without others is, to the last bit, however many follow', () => {
    const alone = Float32Array.from(values);
    key().use((streamOf) => addNoise([{ ...target, values: alone, law }], 0.5, streamOf));
    const all = releases();
    expect(isSame(all[0]!, alone)).toBe(true);
    expect(releases([]).map((one) => isSame(one, alone))).toEqual([true]);
    expect(isSame(releases([1.2])[1]!, all[1]!)).toBe(true);
    expect(isSame(all[1]!, alone)).toBe(false);
    expect(values[1]).toBe(100);
  });

  it('has the variance of its own ratio in every release, and the increments tell nothing of what they are added to', () => {
    const noises = releases().map((one) => Float64Array.from(one, (x, i) => (x / 0.5 - values[i]! - remainder[i]!) / deviation));
    const mean = (xs: Float64Array, ys: Float64Array): number => xs.reduce((sum, x, i) => sum + x * ys[i]!, 0) / n;
    const all = [1, ...ratios];
    noises.forEach((noise, k) => {
      expect(Math.abs(mean(noise, noise) / all[k]! ** 2 - 1)).toBeLessThan(5 * Math.sqrt(2 / n) + 1e-3);
      if (k === 0) return;
      const increment = noise.map((x, i) => x - noises[k - 1]![i]!);
      const expected = all[k]! ** 2 - all[k - 1]! ** 2;
      expect(Math.abs(mean(increment, increment) / expected - 1)).toBeLessThan(5 * Math.sqrt(2 / n) + 1e-3 * all[k - 1]! ** 2 / expected);
      for (const before of noises.slice(0, k))
        expect(Math.abs(mean(increment, before)) / Math.sqrt(mean(increment, increment) * mean(before, before))).toBeLessThan(5 / Math.sqrt(n));
    });
    // Chunks and releases have streams of their own.
    const firsts = noises.flatMap((noise, k) => [0, noiseChunk].map((i) => noise[i]! - (noises[k - 1]?.[i] ?? 0)));
    expect(new Set(firsts).size).toBe(firsts.length);
  });

  it('refuses what is not finite', () => {
    const bad = { ...target, values: Float32Array.of(1, NaN) };
    expect(() => key().use((streamOf) => noisedGradually({ ...bad, remainder: undefined }, gradualNoise(law, [2]), 1, streamOf))).toThrow('not finite');
  });
});
