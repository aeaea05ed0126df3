import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { fitExponent, fitLine, median } from './statistics.ts';

describe('median', () => {
  it('is the middle, or the mean of the two middle ones', () => {
    expect(median([5, 1, 3])).toBe(3);
    expect(median([4, 1, 3, 2])).toBe(2.5);
    expect(median([])).toBeNaN();
  });
});

describe('fits', () => {
  const number = (min: number, max: number) => fc.double({ min, max, noNaN: true });

  it('find the line and the power law that made the points', () => {
    fc.assert(fc.property(number(-5, 5), number(-100, 100), (slope, intercept) => {
      const line = fitLine([1, 2, 5, 9].map((x) => [x, intercept + slope * x]));
      expect(line?.slope).toBeCloseTo(slope, 6);
      expect(line?.intercept).toBeCloseTo(intercept, 6);
      expect(line?.rSquared).toBeCloseTo(1, Math.abs(slope) < 1e-3 ? -1 : 4);
    }));
    fc.assert(fc.property(number(-3, 3), number(0.01, 100), (exponent, factor) => {
      expect(fitExponent([16, 64, 256, 0].map((x) => [x, factor * x ** exponent]))).toBeCloseTo(exponent, 6);
    }));
  });

  it('minimise the squares: residuals are orthogonal to 1 and to x', () => {
    const points = [[1, 3], [2, 1], [4, 8], [7, 2]] as const;
    const { slope, intercept, rSquared } = fitLine(points)!;
    const residuals = points.map(([x, y]) => y - intercept - slope * x);
    expect(residuals.reduce((sum, r) => sum + r, 0)).toBeCloseTo(0);
    expect(residuals.reduce((sum, r, i) => sum + r * points[i]![0], 0)).toBeCloseTo(0);
    expect(rSquared).toBeLessThan(0.2);
  });

  it('need two different x', () => {
    expect(fitLine([[2, 1], [2, 3]])).toBeUndefined();
    expect(fitExponent([[2, 1], [4, -1]])).toBeUndefined();
  });
});
