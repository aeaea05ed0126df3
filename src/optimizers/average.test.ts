import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { float32 } from '../tensor/tensor.ts';
import { type AverageSpec, averaged } from './average.ts';
import { plainGradient } from './gradient.ts';
import type { Parameters } from './optimizer.ts';
import { sgd } from './sgd.ts';

const start = [1, -2];
const gradients = fc.array(fc.tuple(...start.map(() => fc.float({ min: -4, max: 4, noNaN: true }))), { minLength: 1, maxLength: 30 });

/** Parameters after each step, and what is released after it, of a run of `planned` steps. */
function run(steps: readonly (readonly number[])[], spec: AverageSpec, planned = steps.length) {
  const optimizer = averaged(sgd({ learningRate: 0.5, momentum: 0.5 }), spec, planned);
  const parameters: Parameters = new Map([['w', float32(start)]]);
  let state = optimizer.init(parameters);
  const released = (): number[] => Array.from(optimizer.released(parameters, state).get('w')!.data);
  const first = released();
  const seen = steps.map((g) => {
    state = optimizer.update(parameters, plainGradient(new Map([['w', Float32Array.from(g)]])), state, 0.5);
    return { raw: Array.from(parameters.get('w')!.data), average: released() };
  });
  return { first, seen };
}
const meanOf = (rows: readonly (readonly number[])[]): number[] => start.map((_, i) => Math.fround(rows.reduce((sum, row) => sum + row[i]!, 0) / rows.length));
const expectClose = (found: readonly number[], expected: readonly number[]): void =>
  expected.forEach((x, i) => expect(Math.abs(found[i]! - x)).toBeLessThanOrEqual(2e-7 * Math.max(1, Math.abs(x))));

describe('the moving average of parameters', () => {
  it('is the weighted sum of all parameters so far, with the decay warmed up', () => {
    fc.assert(fc.property(gradients, fc.constantFrom(0.05, 0.5, 0.99), (steps, ema) => {
      const { first, seen } = run(steps, { ema });
      expect(first).toEqual(start);
      const decays = seen.map((_, t) => Math.min(ema, (1 + t) / (10 + t)));
      seen.forEach(({ average }, n) => {
        const weight = (t: number): number => decays.slice(t + 1, n + 1).reduce((product, d) => product * d, t < 0 ? 1 : 1 - decays[t]!);
        const expected = start.map((w, i) => seen.slice(0, n + 1).reduce((sum, { raw }, t) => sum + weight(t) * raw[i]!, weight(-1) * w));
        expectClose(average, expected);
      });
    }));
  });

  it('does not change the steps', () => {
    const steps = [[1, 2], [-3, 0.5], [0.25, 1]];
    expect(run(steps, { ema: 0.9 }).seen.map(({ raw }) => raw)).toEqual(run(steps, { last: 2 }).seen.map(({ raw }) => raw));
  });
});

describe('the mean of the last parameters', () => {
  it('is that after the last k of the planned steps, or after all where there are fewer', () => {
    fc.assert(fc.property(gradients, fc.integer({ min: 1, max: 40 }), (steps, last) => {
      const { first, seen } = run(steps, { last });
      expect(first).toEqual(start);
      expectClose(seen.at(-1)!.average, meanOf(seen.slice(-last).map(({ raw }) => raw)));
    }));
  });

  it('of a run that stops early is that of its last steps: k to 2k − 1 of them, or all', () => {
    fc.assert(fc.property(gradients, fc.integer({ min: 1, max: 12 }), fc.integer({ min: 0, max: 20 }), (steps, last, missing) => {
      const { seen } = run(steps, { last }, steps.length + missing);
      const raws = seen.map(({ raw }) => raw);
      const counts = Array.from({ length: 2 * last - 1 }, (_, i) => i + 1).filter((n) => n >= Math.min(last, raws.length) && n <= raws.length);
      const fits = counts.some((n) => meanOf(raws.slice(-n)).every((x, i) => Math.abs(x - seen.at(-1)!.average[i]!) <= 2e-7 * Math.max(1, Math.abs(x))));
      expect(fits).toBe(true);
    }));
  });
});
