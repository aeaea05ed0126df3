import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { circle, realTransform, transformError } from './fft.ts';

function bySums(x: Float64Array): { re: number[]; im: number[] } {
  const n = x.length;
  const at = (r: number, part: (angle: number) => number): number =>
    x.reduce((sum, value, k) => sum + value * part((-2 * Math.PI * ((r * k) % n)) / n), 0);
  const rs = Array.from({ length: n / 2 + 1 }, (_, r) => r);
  return { re: rs.map((r) => at(r, Math.cos)), im: rs.map((r) => at(r, Math.sin)) };
}

describe('the Fourier transform', () => {
  it('equals its defining sums, within the stated error', () => {
    fc.assert(
      fc.property(fc.integer({ min: 4, max: 9 }), fc.infiniteStream(fc.double({ min: -1, max: 1, noNaN: true })), (log, numbers) => {
        const n = 2 ** log;
        const x = Float64Array.from({ length: n }, () => numbers.next().value as number);
        const { re, im } = realTransform(x);
        const sums = bySums(x);
        const off = Math.hypot(...sums.re.map((value, r) => Math.hypot(value - re[r]!, sums.im[r]! - im[r]!)));
        // The sums themselves are off by about n·u.
        expect(off).toBeLessThanOrEqual((transformError(n) + n * 2 ** -53) * Math.hypot(...sums.re, ...sums.im));
      }),
      { numRuns: 30 },
    );
  });

  it('equals its sums at every length in use, frequency by frequency', () => {
    for (const n of [16, 2 ** 12, 2 ** 18]) {
      const x = Float64Array.from({ length: n }, (_, k) => Math.sin(k * k) / (1 + (k % 17)));
      const norm = Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));
      const { re, im } = realTransform(x);
      for (const r of [0, 1, 2, 3, n / 8, n / 4 - 1, n / 2 - 1, n / 2]) {
        let [a, b] = [0, 0];
        for (let k = 0; k < n; k++) {
          const angle = (-2 * Math.PI * ((r * k) % n)) / n;
          a += x[k]! * Math.cos(angle);
          b += x[k]! * Math.sin(angle);
        }
        // One frequency's error is below that of all, √n·‖x‖; the plain sum adds its own.
        expect(Math.hypot(re[r]! - a, im[r]! - b)).toBeLessThan(2 * transformError(n) * Math.sqrt(n) * norm);
      }
    }
  });

  it('takes roots of unity from one eighth of the circle', () => {
    const { cos, sin } = circle(64);
    for (let k = 0; k < 64; k++) {
      expect(cos[k]).toBeCloseTo(Math.cos((2 * Math.PI * k) / 64), 14);
      expect(sin[k]).toBeCloseTo(Math.sin((2 * Math.PI * k) / 64), 14);
    }
  });
});
