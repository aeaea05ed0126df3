import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { addDiscrete, continuousDeviation, fillDiscrete, mostLevels, statisticalDistance } from './discrete-gaussian.ts';
import { comparedBits, columnBits, discreteTable, lowerWords } from './discrete-table.ts';
import { type Stream, stream } from './stream.ts';

const key = Uint8Array.from({ length: 32 }, (_, i) => 7 * i + 1);
const draws = (n: number, levels: number, label: string): Float64Array => {
  const values = new Float64Array(n);
  fillDiscrete(values, levels, stream(key, label));
  return values;
};
const mean = (values: Float64Array, f: (x: number) => number): number =>
  values.reduce((sum, x) => sum + f(x), 0) / values.length;

/** Restated from docs/noise.md: σ² of a draw, and what of it rounding alone accounts for. */
const [v, k] = [11712, 36];
const varianceOf = (levels: number): number => Array.from({ length: levels }, (_, i) => v * k ** (2 * i)).reduce((a, b) => a + b);
const rounding = v / (1 + k * k);

/** Φ(x) = ½ + φ(x)·(x + x³/3 + x⁵/15 + …), for |x| < 7. */
function normalCdf(x: number): number {
  let term = x;
  let sum = x;
  for (let i = 3; i < 200; i += 2) sum += term *= (x * x) / i;
  return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
}

/** χ² of counts against expected ones, in deviations from its mean. */
const chiSquare = (counts: readonly number[], expected: readonly number[]): number => {
  const sum = counts.reduce((total, count, i) => total + (count - expected[i]!) ** 2 / expected[i]!, 0);
  return (sum - (counts.length - 1)) / Math.sqrt(2 * (counts.length - 1));
};

describe('discrete Gaussian draws', () => {
  const n = 300_000;
  const levels = [1, 2, 3, 4, 6] as const;

  it.each(levels)('of %i levels are integers with the moments of their Gaussian', (L) => {
    const values = draws(n, L, 'moments');
    expect(values.every(Number.isInteger)).toBe(true);
    const sigma = Math.sqrt(varianceOf(L));
    const scaled = values.map((x) => x / sigma);
    const moments: readonly [(x: number) => number, number, number][] = [
      [(x) => x, 0, 1],
      [(x) => x * x, 1, 2],
      [(x) => x ** 3, 0, 15],
      [(x) => x ** 4, 3, 96],
      [(x) => x ** 6, 15, 10170],
    ];
    for (const [f, expected, variance] of moments)
      expect(Math.abs(mean(scaled, f) - expected)).toBeLessThan(4.5 * Math.sqrt(variance / n));
    // Half of the noise, or a tenth less, would be seen.
    expect(Math.abs(mean(scaled.map((x) => x * 0.9), (x) => x * x) - 1)).toBeGreaterThan(4.5 * Math.sqrt(2 / n));
  });

  it('of one level have its probabilities, integer by integer', () => {
    const values = draws(8 * n, 1, 'pmf');
    const most = 400;
    const weights = Array.from({ length: 2 * most + 1 }, (_, i) => Math.exp(-((i - most) ** 2) / (2 * v)));
    // Without the tails, which a sum over all integers needs no more of than float64 holds.
    const total = Array.from({ length: 4001 }, (_, i) => Math.exp(-((i - 2000) ** 2) / (2 * v))).reduce((a, b) => a + b);
    const counts = weights.map(() => 0);
    for (const x of values) if (Math.abs(x) <= most) counts[x + most]! += 1;
    expect(Math.abs(chiSquare(counts, weights.map((w) => (w / total) * values.length)))).toBeLessThan(4);
  });

  it.each([2, 3, 4] as const)('of %i levels pass the Kolmogorov–Smirnov test', (L) => {
    const sorted = draws(200_000, L, 'ks').sort();
    const sigma = Math.sqrt(varianceOf(L));
    // The distribution function of an integer in the middle between it and the next.
    const distance = sorted.reduce(
      (worst, x, i) => {
        const [below, above] = [normalCdf((x - 0.5) / sigma), normalCdf((x + 0.5) / sigma)];
        const isFirst = sorted[i - 1] !== x;
        const isLast = sorted[i + 1] !== x;
        return Math.max(worst, isLast ? Math.abs(above - (i + 1) / sorted.length) : 0, isFirst ? Math.abs(below - i / sorted.length) : 0);
      }, 0);
    // P(√n·D > 1.95) = 0.001
    expect(distance * Math.sqrt(sorted.length)).toBeLessThan(1.95);
  });

  it.each([2, 3, 4] as const)('of %i levels leave no trace of the levels: every remainder is as likely', (L) => {
    const values = draws(n, L, 'residues');
    for (const modulus of [2, 36, 64, 1000]) {
      const counts = Array.from({ length: modulus }, () => 0);
      for (const x of values) counts[((x % modulus) + modulus) % modulus]! += 1;
      expect(Math.abs(chiSquare(counts, counts.map(() => n / modulus)))).toBeLessThan(4);
    }
  });

  it('are independent within a stream and between streams', () => {
    const [values, other] = [draws(n, 3, 'one'), draws(n, 3, 'other')];
    const sigma = Math.sqrt(varianceOf(3));
    const product = (lag: number, y: Float64Array, f = (x: number) => x / sigma): number => {
      let sum = 0;
      for (let i = 0; i + lag < n; i++) sum += f(values[i]!) * f(y[i + lag]!);
      return sum / Math.sqrt(n - lag);
    };
    const square = (x: number): number => ((x / sigma) ** 2 - 1) / Math.SQRT2;
    const low = (x: number): number => (((x % 36) + 36) % 36 - 17.5) / Math.sqrt((36 * 36 - 1) / 12);
    for (const f of [undefined, square, low]) {
      for (const lag of [1, 2, 256, 4096]) expect(Math.abs(product(lag, values, f))).toBeLessThan(4);
      expect(Math.abs(product(0, other, f))).toBeLessThan(4);
    }
  });

  it('read on in the stream where the bits compared are equal, and settle by them', () => {
    const { entries, lower } = discreteTable();
    const column = entries.findIndex((entry, c) => (entry & ((1 << columnBits) - 1)) !== c && lower[c * lowerWords]! > 5);
    const other = entries[column]! & ((1 << columnBits) - 1);
    const drawn = (next: readonly number[]): number => {
      const rest = [...next];
      const source = {
        words: () => Uint32Array.of(((entries[column]! >>> columnBits) << columnBits) | column), word: () => rest.shift()!,
      } as unknown as Stream;
      const target = new Float64Array(1);
      fillDiscrete(target, 1, source);
      return target[0]! + 2048;
    };
    const share = Array.from(lower.subarray(column * lowerWords, (column + 1) * lowerWords));
    expect(drawn([share[0]! - 1])).toBe(column);
    expect(drawn([share[0]! + 1])).toBe(other);
    expect(drawn([share[0]!, share[1]! + 1])).toBe(other);
    expect(drawn(share.with(-1, share.at(-1)! - 1))).toBe(column);
    expect(drawn(share)).toBe(other);
    expect(comparedBits + columnBits).toBe(32);
  });

  it('have the variance of what they are accounted as, and what rounding adds', () => {
    for (let L = 1; L <= mostLevels; L++)
      expect(continuousDeviation(L) ** 2 / (varianceOf(L) - rounding)).toBeCloseTo(1, 12);
    // An even sum over the integers, which joins Gaussians and rounds them: within 2^-256 of its mean, by Poisson summation.
    const evenness = Math.log2(2) - (2 * Math.PI ** 2 * rounding) / Math.LN2;
    expect(evenness).toBeLessThan(-256);
    for (let L = 1; L <= mostLevels; L++) expect(Math.log2(statisticalDistance(L))).toBeLessThan(Math.log2(L) - 255);
  });

  it('come from wherever the smoothing holds: a rounded continuous Gaussian is one', () => {
    // P(z) = ∫ N(y; τ²)·ρ_r(z − y)/ρ_r(Z − y) dy, by a fine sum, for a width that shows what r does.
    for (const [r, close] of [[Math.sqrt(rounding), 1e-12], [0.4, 0]] as const) {
      const tau = 3;
      const density = (x: number, s: number): number => Math.exp((-x * x) / (2 * s * s));
      const at = (z: number): number => {
        let sum = 0;
        for (let y = -40; y < 40; y += 1 / 64) {
          let mass = 0;
          for (let x = Math.floor(y) - 30; x < y + 30; x++) mass += density(x - y, r);
          sum += (density(y, tau) * density(z - y, r)) / mass;
        }
        return sum;
      };
      const s = Math.hypot(tau, r);
      const worst = Math.max(...[1, 2, 5, 8].map((z) => Math.abs(at(z) / at(0) / density(z, s) - 1)));
      if (close > 0) expect(worst).toBeLessThan(close);
      else expect(worst).toBeGreaterThan(1e-4);
    }
  });
});

describe('addDiscrete', () => {
  const lattice = { grid: 2 ** -12, levels: 2 };

  it('rounds to the grid, adds the very noise that fillDiscrete draws, once, and then scales', () => {
    const noise = draws(5000, 2, 'add');
    const sums = Float64Array.from({ length: 5000 }, (_, i) => (i - 2500) / 777);
    const target = sums.slice();
    addDiscrete(target, undefined, lattice, stream(key, 'add'), 0.25);
    target.forEach((x, i) => expect(x).toBe((Math.round(sums[i]! / lattice.grid) + noise[i]!) * lattice.grid * 0.25));
    expect(target.every((x) => Number.isInteger(x / (lattice.grid * 0.25)))).toBe(true);
    // In float32 it is that, rounded once.
    const single = Float32Array.from(sums);
    const remainder = sums.map((x, i) => x - single[i]!);
    addDiscrete(single, Float32Array.from(remainder), lattice, stream(key, 'add'), 0.25);
    expect(single).toEqual(Float32Array.from(target));
  });

  it('moves by no more than the neighbours and √d points, whatever the grid', () => {
    const number = fc.double({ min: -1e4, max: 1e4, noNaN: true });
    let most = 0;
    fc.assert(fc.property(
      fc.array(fc.tuple(number, fc.oneof(number, fc.double({ min: -1e-3, max: 1e-3, noNaN: true }))), { minLength: 1, maxLength: 20 }),
      fc.double({ min: 1e-4, max: 10, noNaN: true }),
      (pairs, grid) => {
        const [one, other] = [pairs.map(([x]) => x), pairs.map(([x, d]) => x + d)].map((sum) => {
          const target = Float64Array.from(sum);
          addDiscrete(target, undefined, { grid, levels: 1 }, stream(key, 'pair'));
          return target;
        });
        const apart = Math.hypot(...one!.map((x, i) => x - other![i]!));
        const before = Math.hypot(...pairs.map(([x, d]) => x + d - x));
        // The sums are of up to 1e4, in float64.
        expect(apart).toBeLessThanOrEqual((before + Math.sqrt(pairs.length) * grid) * (1 + 1e-9) + 1e-11);
        most = Math.max(most, (apart - before) / (Math.sqrt(pairs.length) * grid));
      },
    ), { numRuns: 400 });
    // The allowance is used: without it the bound would be broken.
    expect(most).toBeGreaterThan(0.1);
  });

  it('cuts sums off where float64 has no more integers, and refuses what is not finite', () => {
    const target = Float64Array.of(1e300, -1e300);
    addDiscrete(target, undefined, { grid: 1, levels: 1 }, stream(key, 'far'));
    target.forEach((x, i) => expect(Math.abs(x - (i === 0 ? 1 : -1) * 2 ** 50)).toBeLessThan(2048));
    for (const bad of [NaN, Infinity, -Infinity]) {
      const sums = new Float32Array(10);
      sums[7] = bad;
      expect(() => addDiscrete(sums, undefined, lattice, stream(key, 'bad'))).toThrow('not finite');
      const remainder = new Float32Array(10);
      remainder[3] = bad;
      expect(() => addDiscrete(new Float32Array(10), remainder, lattice, stream(key, 'bad'))).toThrow('not finite');
    }
  });
});
