import { GhostgradError } from '../errors.ts';
import { refuseUnknownKeys, showValue } from '../suggest.ts';

/** One option: what it accepts, and its default; without a default it must be given. */
export interface Field<T extends number | boolean> {
  readonly accepts: (value: unknown) => value is T;
  readonly expected: string;
  readonly fallback?: T;
}

export type Fields = Readonly<Record<string, Field<number> | Field<boolean>>>;
export type Read<F extends Fields> = { readonly [K in keyof F]: F[K] extends Field<infer T> ? T : never };

const number = (test: (x: number) => boolean, expected: string) => (fallback?: number): Field<number> => ({
  accepts: (value): value is number => typeof value === 'number' && Number.isFinite(value) && test(value),
  expected,
  ...(fallback === undefined ? {} : { fallback }),
});

export const positive = number((x) => x > 0, 'a number more than 0');
export const nonNegative = number((x) => x >= 0, 'a number of at least 0');
/** [0, 1): a decay of a running mean. */
export const decay = number((x) => x >= 0 && x < 1, 'a number from 0 up to, but not including, 1');
/** [0, 1] */
export const fraction = number((x) => x >= 0 && x <= 1, 'a number from 0 to 1');
/** A fraction of all steps below 1, a number of steps from 1. */
export const stepsOrFraction = number(
  (x) => x >= 0 && (x < 1 || Number.isInteger(x)), 'a fraction of all steps (below 1) or a whole number of steps',
);
export const stepLength = number(
  (x) => x > 0 && (x < 1 || Number.isInteger(x)),
  'a fraction of all steps (above 0, below 1) or a whole number of steps',
);
export const flag = (fallback: boolean): Field<boolean> =>
  ({ accepts: (value): value is boolean => typeof value === 'boolean', expected: 'true or false', fallback });

/**
 * The options as `fields` describe them, defaults filled in.
 *
 * @param name what they are options of, e.g. `optimizer sgd`
 * @throws GhostgradError for an unknown, missing or unacceptable option
 */
export function readOptions<F extends Fields>(name: string, fields: F, options: object): Read<F> {
  refuseUnknownKeys(`option of ${name}`, options, Object.keys(fields));
  const given = options as Readonly<Record<string, unknown>>;
  const read = Object.entries(fields).map(([key, field]) => {
    const value = given[key] ?? field.fallback;
    if (!field.accepts(value)) {
      throw new GhostgradError({
        what: value === undefined ? 'missing option' : 'invalid option',
        where: `${name}: ${key}`,
        found: value === undefined ? undefined : showValue(value),
        expected: field.expected,
      });
    }
    return [key, value];
  });
  return Object.fromEntries(read) as Read<F>;
}
