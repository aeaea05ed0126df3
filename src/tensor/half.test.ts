import { describe, expect, it } from 'vitest';
import { halfValues, largestHalf, toHalves } from './half.ts';

const halved = (values: readonly number[]): number[] => {
  const into = new Uint16Array(values.length);
  toHalves(Float32Array.from(values), into);
  return [...into];
};

describe('halves', () => {
  it('come back as they were, every one of them', () => {
    const values = halfValues();
    const bits = halved([...values]);
    const odd = bits.findIndex((b, i) => !Object.is(values[b], values[i]));
    expect(odd).toBe(-1);
  });

  it('are the nearest to a float, and of two as near, the even one', () => {
    const values = halfValues();
    // From one half to the next: a quarter, the middle, three quarters of the way.
    for (let bits = 0; bits < 0x7bff; bits += 7) {
      const [a, b] = [values[bits]!, values[bits + 1]!];
      const even = bits % 2 === 0 ? bits : bits + 1;
      expect(halved([a + (b - a) / 4, (a + b) / 2, a + (3 * (b - a)) / 4])).toEqual([bits, even, bits + 1]);
      expect(halved([-a - (b - a) / 4, -(a + b) / 2])).toEqual([bits | 0x8000, even | 0x8000]);
    }
  });

  it('become infinite beyond the largest', () => {
    expect(halved([largestHalf, 65519.99, 65520, -1e30, Infinity])).toEqual([0x7bff, 0x7bff, 0x7c00, 0xfc00, 0x7c00]);
    expect(Number.isNaN(halfValues()[halved([NaN])[0]!])).toBe(true);
  });
});
