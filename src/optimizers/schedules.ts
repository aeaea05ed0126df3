import { refuseUnknownKeys, unknownName } from '../suggest.ts';
import {
  type Fields, type Read, fraction, nonNegative, positive, readOptions, stepLength, stepsOrFraction,
} from './options.ts';

/** What the learning rate is multiplied by at a step; steps count from 0. */
export type Schedule = (step: number) => number;

export const constant: Schedule = () => 1;

/** A straight line from 1 at step 0 to `final` at `steps`, which it keeps. */
export const linear = (steps: number, final = 0): Schedule =>
  (step) => 1 + (final - 1) * progress(step, steps);

/** Half a cosine wave from 1 at step 0 to `final` at `steps`, which it keeps. */
export const cosine = (steps: number, final = 0): Schedule =>
  (step) => final + (1 - final) * (1 + Math.cos(Math.PI * progress(step, steps))) / 2;

/** Multiplies by `factor` after every `every` steps. */
export const stepwise = (every: number, factor = 0.1): Schedule => (step) => factor ** Math.floor(step / every);

/** Falls by the same factor every step, to `final` (above 0) at `steps`, which it keeps. */
export const exponential = (steps: number, final = 0.01): Schedule => (step) => final ** progress(step, steps);

/**
 * Rises in a straight line to 1 over the first `warmup` steps and then follows `schedule` from its beginning.
 * The first step already moves (1 / (warmup + 1)): no private step is paid for and left unused.
 */
export const withWarmup = (warmup: number, schedule: Schedule): Schedule =>
  (step) => (step < warmup ? (step + 1) / (warmup + 1) : schedule(step - warmup));

const progress = (step: number, steps: number): number => (steps <= 0 ? 1 : Math.min(1, Math.max(0, step / steps)));

interface Warmup {
  /** Steps (from 1) or fraction of all steps (below 1) of linear warm-up; default 0. */
  readonly warmup?: number;
}

interface Final {
  /** Multiplier at the end; default 0, for `exponential` 0.01. */
  readonly final?: number;
}

interface Stairs {
  /** Steps, or fraction of all steps, between falls. */
  readonly every: number;
  /** What each fall multiplies by; default 0.1. */
  readonly factor?: number;
}

export type ScheduleOptions =
  | { readonly name: 'constant' } & Warmup
  | { readonly name: 'linear' | 'cosine' | 'exponential' } & Final & Warmup
  | { readonly name: 'step' } & Stairs & Warmup;

export type ScheduleName = ScheduleOptions['name'];

/** Reads a schedule's own options beside `warmup`, and makes it for the steps that the warm-up leaves. */
const entry = <F extends Fields>(fields: F, make: (options: Read<F>, steps: number) => Schedule) =>
  (name: string, { warmup, ...own }: { readonly warmup?: unknown }, totalSteps: number): Schedule => {
    refuseUnknownKeys(`option of ${name}`, own, [...Object.keys(fields), 'warmup']);
    const rise = stepsOf(readOptions(name, { warmup: stepsOrFraction(0) }, { warmup }).warmup, totalSteps);
    return withWarmup(rise, make(readOptions(name, fields, own), totalSteps - rise));
  };

const table = {
  constant: entry({}, () => constant),
  linear: entry({ final: fraction(0) }, ({ final }, steps) => linear(steps, final)),
  cosine: entry({ final: fraction(0) }, ({ final }, steps) => cosine(steps, final)),
  exponential: entry({ final: positive(0.01) }, ({ final }, steps) => exponential(steps, final)),
  step: entry({ every: stepLength(), factor: nonNegative(0.1) }, ({ every, factor }, steps) =>
    stepwise(Math.max(1, stepsOf(every, steps)), factor)),
} satisfies Readonly<Record<ScheduleName, ReturnType<typeof entry>>>;

export const scheduleNames = Object.keys(table) as readonly ScheduleName[];

/** `x` steps from 1, a fraction of `total` below. */
const stepsOf = (x: number, total: number): number => (x < 1 ? Math.round(x * total) : x);

const isScheduleName = (name: string): name is ScheduleName => Object.hasOwn(table, name);

/**
 * The schedule of a run of `totalSteps` steps. Fractions are of all steps; a decay spans the steps after warm-up.
 *
 * @param spec a name (`constant`, `linear`, `cosine`, `exponential`; `step` needs options) or its options
 * @throws GhostgradError for an unknown name, or an unknown, missing or invalid option
 */
export function buildSchedule(spec: ScheduleName | ScheduleOptions, totalSteps: number): Schedule {
  const { name, ...options } = typeof spec === 'string' ? { name: spec } : spec;
  if (!isScheduleName(name)) throw unknownName('learning-rate schedule', String(name), scheduleNames);
  return table[name](`schedule ${name}`, options, totalSteps);
}
