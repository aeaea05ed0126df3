import { describe, expect, it } from 'vitest';
import { addGaussian, fillGaussian, layerArea } from './gaussian.ts';
import { stream } from './stream.ts';

const key = Uint8Array.from({ length: 32 }, (_, i) => 255 - i);
const normals = (n: number, label: string): Float64Array => {
  const values = new Float64Array(n);
  fillGaussian(values, 1, stream(key, label));
  return values;
};

/** Φ(x) = ½ + φ(x)·(x + x³/3 + x⁵/15 + …), for |x| < 7. */
function normalCdf(x: number): number {
  let term = x;
  let sum = x;
  for (let k = 3; k < 200; k += 2) sum += term *= (x * x) / k;
  return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
}

const mean = (values: Float64Array, f: (x: number) => number): number =>
  values.reduce((sum, x) => sum + f(x), 0) / values.length;

describe('Gaussian draws', () => {
  const n = 2_000_000;
  const values = normals(n, 'moments');

  it('have layers of equal area that close at the top of the curve', () => {
    // Marsaglia & Tsang's published constant for 256 layers.
    expect(layerArea).toBeCloseTo(0.00492867323399, 12);
    const f = (x: number): number => Math.exp((-x * x) / 2);
    let edge = 3.6541528853610088;
    for (let i = 2; i < 256; i++) edge = Math.sqrt(-2 * Math.log(layerArea / edge + f(edge)));
    expect(layerArea / edge + f(edge)).toBeCloseTo(1, 10);
  });

  it('have the moments of the normal distribution', () => {
    const moments: readonly [(x: number) => number, number, number][] = [
      [(x) => x, 0, 1],
      [(x) => x * x, 1, 2],
      [(x) => x ** 3, 0, 15],
      [(x) => x ** 4, 3, 96],
      [(x) => x ** 6, 15, 10170],
    ];
    for (const [f, expected, variance] of moments) {
      expect(Math.abs(mean(values, f) - expected)).toBeLessThan(4 * Math.sqrt(variance / n));
    }
  });

  it('pass the Kolmogorov–Smirnov test', () => {
    const sorted = values.slice(0, 300_000).sort();
    const distance = sorted.reduce(
      (worst, x, i) =>
        Math.max(worst, Math.abs(normalCdf(x) - i / sorted.length), Math.abs(normalCdf(x) - (i + 1) / sorted.length)),
      0,
    );
    // P(√n·D > 1.95) = 0.001
    expect(distance * Math.sqrt(sorted.length)).toBeLessThan(1.95);
  });

  it('have the right tails, with the tail beyond the last layer', () => {
    for (const [limit, sign] of [
      [2, 1],
      [3, -1],
      [3.6541528853610088, 1],
      [3.6541528853610088, -1],
      [4.2, 1],
      [4.2, -1],
    ] as const) {
      const expected = n * (1 - normalCdf(limit));
      const found = values.filter((x) => sign * x > limit).length;
      expect(Math.abs(found - expected)).toBeLessThan(4 * Math.sqrt(expected));
    }
    const beyond = normals(8_000_000, 'tail')
      .filter((x) => Math.abs(x) > 3.6541528853610088)
      .map(Math.abs);
    // E[x | x > r] = φ(r)/(1 − Φ(r)) = 3.9045 by the Mills ratio; its deviation in the tail is about 0.236.
    const expected =
      Math.exp(-(3.6541528853610088 ** 2) / 2) / Math.sqrt(2 * Math.PI) / (1 - normalCdf(3.6541528853610088));
    expect(Math.abs(mean(beyond, (x) => x) - expected)).toBeLessThan((4 * 0.24) / Math.sqrt(beyond.length));
  });

  it('are independent within a stream and between streams', () => {
    const other = normals(n, 'other');
    const products = (lag: number, y: Float64Array): number => {
      let sum = 0;
      for (let i = 0; i + lag < n; i++) sum += (values[i] ?? 0) * (y[i + lag] ?? 0);
      return sum / Math.sqrt(n - lag);
    };
    for (const lag of [1, 2, 256, 4096]) expect(Math.abs(products(lag, values))).toBeLessThan(4);
    expect(Math.abs(products(0, other))).toBeLessThan(4);
    // Magnitudes too: a shared layer or sign bit would show here.
    const squares =
      values.reduce((sum, x, i) => sum + (x * x - 1) * ((values[i + 1] ?? 0) ** 2 - 1), 0) / (2 * Math.sqrt(n));
    expect(Math.abs(squares)).toBeLessThan(4);
  });

  it('scale by sigma and fill every element of arrays of any length and type', () => {
    for (const length of [0, 1, 2, 4095, 4096, 4097, 10_000]) {
      const array = new Float32Array(length);
      fillGaussian(array, 3, stream(key, 'length'));
      expect(array.every((x) => x !== 0)).toBe(true);
    }
    expect(
      mean(
        normals(50_000, 'sigma').map((x) => 3 * x),
        (x) => x * x,
      ) / 9,
    ).toBeCloseTo(1, 1);
  });
});

describe('addGaussian', () => {
  it('adds the very noise that fillGaussian draws, once, and then scales', () => {
    const noise = new Float64Array(5000);
    fillGaussian(noise, 0.5, stream(key, 'add'));
    const target = Float64Array.from({ length: 5000 }, (_, i) => i);
    addGaussian(target, undefined, 0.5, stream(key, 'add'), 0.25);
    expect(target).toEqual(noise.map((z, i) => (i + z) * 0.25));
  });

  it('refuses values that are not finite', () => {
    for (const bad of [NaN, Infinity, -Infinity]) {
      const target = new Float32Array(10);
      target[7] = bad;
      expect(() => addGaussian(target, undefined, 1, stream(key, 'bad'))).toThrow('not finite');
    }
  });
});
