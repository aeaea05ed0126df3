import { describe, expect, it } from 'vitest';
import { epsilonOf } from './accountant.ts';
import { meansPlan } from './means.ts';

const loss = { name: 'loss', low: 0, high: 4 };
const right = { name: 'right', low: 0, high: 1 };
const measures = [loss, right];
const values = [(i: number) => i / 100, (i: number) => (i % 4 === 0 ? 0 : 1)].map((of) => Float32Array.from({ length: 200 }, (_, i) => of(i)));

describe('private means', () => {
  it('have the noise that their ε asks for, and no other', () => {
    const n = 800;
    const { event, epsilon, deviations, release } = meansPlan({ measures, size: 200, epsilon: 1, delta: 1e-5 });
    const all = Array.from({ length: n }, () => release(values));
    expect(epsilon).toBeLessThanOrEqual(1);
    expect(epsilon).toBeGreaterThan(0.999);
    expect(epsilonOf(event, 1e-5, 'exact-gaussian').epsilon).toBeCloseTo(epsilon, 4);
    const sigma = event.kind === 'gaussian' ? event.sigma : NaN;
    // Two sums, each moved by ½ by one record: √2/2 together.
    expect(deviations['right']! * 200).toBeCloseTo((sigma * Math.SQRT2) / 2, 1);
    expect(deviations['loss']).toBeCloseTo(4 * deviations['right']!, 12);
    const truth = { loss: 0.995, right: 0.75 };
    for (const name of ['loss', 'right'] as const) {
      const errors = all.map((means) => (means[name]! - truth[name]) / deviations[name]!);
      expect(Math.abs(errors.reduce((sum, e) => sum + e, 0))).toBeLessThan(5 * Math.sqrt(n));
      expect(Math.abs(errors.reduce((sum, e) => sum + e * e, 0) / n - 1)).toBeLessThan(5 * Math.sqrt(2 / n));
    }
    expect(new Set(all.map((means) => means['right'])).size).toBeGreaterThan(n / 2);
  });

  it('refuse targets and sizes that are none', () => {
    for (const odd of [{ epsilon: 0 }, { delta: 0 }, { delta: 1 }, { size: 0 }, { size: 1.5 }])
      expect(() => meansPlan({ measures, size: 200, epsilon: 1, delta: 1e-5, ...odd })).toThrow(/out of range/);
  });
});
