import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type ScheduleOptions, buildSchedule, constant, cosine, exponential, linear, stepwise, withWarmup,
} from './schedules.ts';

const expectValues = (schedule: (step: number) => number, values: Readonly<Record<number, number>>): void =>
  Object.entries(values).forEach(([step, x]) => expect(schedule(Number(step))).toBeCloseTo(x, 12));

describe('schedules', () => {
  it('follow hand-computed values', () => {
    expect([0, 7, 1e9].map(constant)).toEqual([1, 1, 1]);
    expect([0, 1, 2, 4, 9].map(linear(4))).toEqual([1, 0.75, 0.5, 0, 0]);
    expect([0, 5, 10].map(linear(10, 0.25))).toEqual([1, 0.625, 0.25]);
    expectValues(cosine(4), { 0: 1, 1: (2 + Math.SQRT2) / 4, 2: 0.5, 4: 0, 5: 0 });
    expect([0, 2, 3, 5, 6].map(stepwise(3, 0.5))).toEqual([1, 1, 0.5, 0.5, 0.25]);
    expectValues(exponential(10), { 0: 1, 5: 0.1, 10: 0.01, 12: 0.01 });
  });

  it('warm-up rises by equal parts, moves at once, and then starts the schedule from its beginning', () => {
    expect([0, 1, 2, 3, 4, 5].map(withWarmup(3, linear(4)))).toEqual([0.25, 0.5, 0.75, 1, 0.75, 0.5]);
  });

  it('stay within (0, 1] before the last step, and never rise after warm-up', () => {
    const options = fc.constantFrom<ScheduleOptions>(
      { name: 'constant' }, { name: 'linear' }, { name: 'cosine' }, { name: 'exponential' },
      { name: 'step', every: 0.3 },
    );
    const fractions = fc.double({ min: 0, max: 0.99, noNaN: true });
    fc.assert(fc.property(options, fc.integer({ min: 1, max: 200 }), fractions, (spec, total, warmup) => {
      const schedule = buildSchedule({ ...spec, warmup }, total);
      const rise = Math.round(warmup * total);
      const values = Array.from({ length: total }, (_, t) => schedule(t));
      expect(values.every((x) => x > 0 && x <= 1)).toBe(true);
      const odd = values.findIndex((x, t) => {
        const before = values[t - 1];
        return before !== undefined && t !== rise && (t < rise ? x <= before : x > before);
      });
      expect(odd).toBe(-1);
    }));
  });
});

describe('buildSchedule', () => {
  const build = (spec: unknown) => (): unknown => buildSchedule(spec as ScheduleOptions, 100);

  it('reads names, and steps as fractions of the run', () => {
    expect(buildSchedule('cosine', 100)(50)).toBeCloseTo(0.5, 12);
    expect(buildSchedule({ name: 'step', every: 0.5 }, 100)(50)).toBeCloseTo(0.1, 12);
    expect(buildSchedule({ name: 'step', every: 20, factor: 0.5 }, 100)(41)).toBe(0.25);
    expect(buildSchedule({ name: 'linear', warmup: 0.2 }, 100)(60)).toBe(0.5);
    expect(buildSchedule({ name: 'linear', warmup: 9, final: 1 }, 100)(0)).toBeCloseTo(0.1, 12);
  });

  it('refuses unknown names and options, missing and impossible values', () => {
    expect(build('cosin')).toThrow(/unknown learning-rate schedule "cosin"[^]*did you mean "cosine"/);
    expect(build({ name: 'linear', warmpu: 1 }))
      .toThrow(/unknown option of schedule linear "warmpu"[^]*did you mean "warmup"/);
    expect(build({ name: 'constant', final: 1 })).toThrow(/unknown option of schedule constant "final"/);
    expect(build('step')).toThrow(/missing option \(schedule step: every\)/);
    expect(build({ name: 'linear', final: 2 })).toThrow(/schedule linear: final/);
    expect(build({ name: 'linear', warmup: 1.5 })).toThrow(/schedule linear: warmup/);
    expect(build({ name: 'step', every: 0 })).toThrow(/schedule step: every/);
  });
});
