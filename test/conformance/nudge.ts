import { floatsOf, isChecked, numbersOf } from './numbers.ts';
import type { Feeds } from './program.ts';

/** Where a function is smooth enough to be differentiated numerically. */
interface Domain {
  readonly low?: number;
  readonly high?: number;
}

/** By operator and input: intervals that values are kept in. */
const domains: Readonly<Record<string, Readonly<Record<number, Domain>>>> = {
  Acos: { 0: { low: -0.9, high: 0.9 } },
  Acosh: { 0: { low: 1.2 } },
  Asin: { 0: { low: -0.9, high: 0.9 } },
  Atanh: { 0: { low: -0.9, high: 0.9 } },
  Log: { 0: { low: 0.3 } },
  Sqrt: { 0: { low: 0.3 } },
  Tan: { 0: { low: -1, high: 1 } },
  ReduceLogSum: { 0: { low: 0.2 } },
  Pow: { 0: { low: 0.3 } },
  Dropout: { 1: { low: 0.1, high: 0.8 } },
  BatchNormalization: { 4: { low: 0.3 } },
};

/** Values closer to 0 than this stand too near to a pole of 1/x. */
const away = 0.3;
const poles: Readonly<Record<string, readonly number[]>> = { Div: [1], Reciprocal: [0], Mod: [1] };

/** Larger values, which a few cases have from memory that nobody wrote to, drown every difference. */
const large = 1e5;

/** How far values are moved: ties and whole numbers, where many operators have kinks, come apart. */
const reach = 0.1;

/**
 * Float values near the given ones at which the operator is differentiable: moved a little at random, and kept where
 * the operator is defined and smooth.
 */
export function nudged(op: string, names: readonly string[], feeds: Feeds, random: () => number): Feeds {
  return Object.fromEntries(Object.entries(feeds).map(([name, t]) => {
    if (!isChecked(t.dtype)) return [name, t];
    const index = names.indexOf(name);
    const { low = -Infinity, high = Infinity } = domains[op]?.[index] ?? {};
    const pole = poles[op]?.includes(index) === true;
    const values = Array.from(numbersOf(t), (given) => {
      const x = Math.abs(given) < large ? given : random();
      const near = within(x + (random() * 2 - 1) * reach, low, high, random);
      return pole && Math.abs(near) < away ? Math.sign(near || 1) * (away + random() * reach) : near;
    });
    return [name, floatsOf(t.dtype, t.shape, values)];
  }));
}

const within = (x: number, low: number, high: number, random: () => number): number =>
  (x < low ? low + random() * reach : x > high ? high - random() * reach : x);
