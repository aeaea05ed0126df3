import { describe, expect, it } from 'vitest';
import { initialDraws } from './initial.ts';

const variance = (values: Float32Array): number => values.reduce((sum, x) => sum + x * x, 0) / values.length;

describe('initial draws', () => {
  it('depend on the seed and the name alone', () => {
    const a = initialDraws(5);
    const first = a.normal('w', [3, 2], 1).data;
    a.uniform('b', [7], 1);
    expect(a.normal('w', [3, 2], 1).data).toEqual(first);
    expect(initialDraws(5).normal('w', [3, 2], 1).data).toEqual(first);
    expect(initialDraws(5).normal('v', [3, 2], 1).data).not.toEqual(first);
    expect(initialDraws(6).normal('w', [3, 2], 1).data).not.toEqual(first);
    expect(initialDraws().normal('w', [3, 2], 1).data).not.toEqual(initialDraws().normal('w', [3, 2], 1).data);
  });

  it('have the spread asked for', () => {
    const draws = initialDraws(1);
    const uniform = draws.uniform('u', [100, 1000], 0.3).data;
    expect(Math.max(...uniform.subarray(0, 50_000).map(Math.abs))).toBeLessThanOrEqual(Math.fround(0.3));
    expect(variance(uniform) / (0.09 / 3)).toBeCloseTo(1, 1);
    expect(variance(draws.normal('n', [100_000], 0.02).data) / 4e-4).toBeCloseTo(1, 1);
    const truncated = draws.truncatedNormal('t', [100_000], 0.5).data;
    expect(truncated.every((x) => Math.abs(x) <= 1)).toBe(true);
    expect(Math.sqrt(variance(truncated)) / 0.5).toBeCloseTo(0.8796, 2);
  });
});
