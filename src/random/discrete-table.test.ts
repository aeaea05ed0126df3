import { describe, expect, it } from 'vitest';
import { centre, columnBits, comparedBits, discreteTable, lowerWords, variance } from './discrete-table.ts';

/** The probabilities of the table as it is drawn from, in units of 2^-(columnBits + share's bits): exact. */
function massesOf({ entries, lower }: ReturnType<typeof discreteTable>): readonly bigint[] {
  const height = 1n << BigInt(comparedBits + 32 * lowerWords);
  const masses = Array.from(entries, () => 0n);
  entries.forEach((entry, column) => {
    let own = BigInt(entry >>> columnBits);
    for (let i = 0; i < lowerWords; i++) own = (own << 32n) | BigInt(lower[column * lowerWords + i]!);
    masses[column]! += own;
    masses[entry & (2 * centre - 1)]! += height - own;
  });
  return masses;
}

/**
 * exp(−x²/2v) in units of 2^-bits from its own Taylor series, e^(−y) = 1/e^y: other arithmetic than the table's recurrence of
 * products.
 */
function weight(x: number, bits: bigint): bigint {
  const unit = 1n << bits;
  // e^y = (e^(y/1024))^1024 keeps the series short.
  const [top, bottom] = [BigInt(x * x) << bits, 2n * BigInt(variance) * 1024n];
  const y = top / bottom;
  let [sum, term] = [unit, unit];
  for (let n = 1n; term > 0n; n++) {
    term = (term * y) / (unit * n);
    sum += term;
  }
  for (let i = 0; i < 10; i++) sum = (sum * sum) / unit;
  return (unit * unit) / sum;
}

describe('table of the discrete Gaussian', () => {
  const table = discreteTable();
  const masses = massesOf(table);
  const whole = BigInt(masses.length) << BigInt(comparedBits + 32 * lowerWords);

  it('gives every integer the probability of the discrete Gaussian, to the distance it says', () => {
    expect(masses.reduce((a, b) => a + b)).toBe(whole);
    const bits = 480n;
    const weights = Array.from({ length: 6000 }, (_, x) => weight(x, bits));
    const total = weights.reduce((sum, w, x) => sum + (x === 0 ? w : 2n * w), 0n);
    // Twice the distance in units of 1/(whole · total).
    let twice = 0n;
    for (let x = -5999; x < 6000; x++) {
      const difference = (masses[x + centre] ?? 0n) * total - weights[Math.abs(x)]! * whole;
      twice += difference < 0n ? -difference : difference;
    }
    const distance = Number((twice << 600n) / (2n * whole * total)) * 2 ** -600;
    expect(distance).toBeGreaterThan(0);
    expect(distance).toBeLessThanOrEqual(table.distance);
    // A bound, and no more than that.
    expect(table.distance).toBeLessThan(8 * distance);
    expect(Math.log2(table.distance)).toBeLessThan(-261);
  });

  it('is symmetric, and never gives what lies beyond its columns', () => {
    for (let x = 1; x < centre; x++) expect(masses[centre + x]).toBe(masses[centre - x]);
    expect(masses[0]).toBe(0n);
  });
});
