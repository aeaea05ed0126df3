import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { type Measure, checkMeasures, meanOf, measured } from './measures.ts';

const loss: Measure = { name: 'loss', low: 0, high: 4 };

describe('measures', () => {
  it('are moved by at most ½ by one unit, whatever it holds, and by nothing else', () => {
    const value = fc.oneof(fc.float(), fc.constantFrom(NaN, Infinity, -Infinity, 0, 4, 1e-30));
    fc.assert(
      fc.property(fc.array(value, { maxLength: 50 }), value, fc.nat(50), (others, one, at) => {
        const all = [...others.slice(0, at), one, ...others.slice(at)];
        const moved = measured(Float32Array.from(all), loss) - measured(Float32Array.from(others), loss);
        expect(Math.abs(moved)).toBeLessThanOrEqual(0.5);
        // Exactly, so that no rounding tells of the order or of the others.
        expect(moved).toBe(measured(Float32Array.of(one), loss));
      }),
    );
    expect(measured(new Float32Array(0), loss)).toBe(0);
    expect([NaN, Infinity, 9, -1].map((x) => measured(Float32Array.of(x), loss))).toEqual([0.5, 0.5, 0.5, -0.5]);
  });

  it('come back as the mean', () => {
    const values = Float32Array.of(0.5, 1, 3, 1.5);
    expect(meanOf(measured(values, loss), loss, 4)).toBeCloseTo(1.5, 5);
    expect(meanOf(measured(Float32Array.of(1, 1, 0, 1), { name: 'right', low: 0, high: 1 }), { name: 'right', low: 0, high: 1 }, 4)).toBe(0.75);
  });

  it('have a range, a name and a share of the budget', () => {
    for (const odd of [
      { measures: [loss], budgetFraction: 0 }, { measures: [loss], budgetFraction: 1 }, { measures: [], budgetFraction: 0.1 },
      { measures: [loss, loss], budgetFraction: 0.1 }, { measures: [{ ...loss, high: 0 }], budgetFraction: 0.1 },
      { measures: [{ ...loss, high: Infinity }], budgetFraction: 0.1 }, { measures: [{ ...loss, low: NaN }], budgetFraction: 0.1 },
    ]) expect(() => checkMeasures(odd)).toThrow(GhostgradError);
    checkMeasures({ measures: [loss], budgetFraction: 0.01 });
  });
});
