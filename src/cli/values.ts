import { InvalidArgumentError } from 'commander';
import { type Mode, modes } from '../clipping/plan.ts';
import { unknownName } from '../suggest.ts';

/** Parses a number; ranges are checked where the number is used. */
export function number(text: string): number {
  const value = Number(text);
  if (text.trim() === '' || Number.isNaN(value)) throw new InvalidArgumentError('Expected a number.');
  return value;
}

/** Parses a whole number of at least 1. */
export function positiveInteger(text: string): number {
  const value = number(text);
  if (!Number.isSafeInteger(value) || value < 1)
    throw new InvalidArgumentError('Expected a whole number of at least 1.');
  return value;
}

/** Parses whole numbers of at least 1 with commas between. */
export const integers = (text: string): readonly number[] => text.split(',').map(positiveInteger);

/** Gathers a repeated option. */
export const collect = (text: string, before: readonly string[] = []): readonly string[] => [...before, text];

/** The mode of that name. Throws GhostgradError, with the nearest valid name, when it is not among `allowed`. */
export function asMode(name: string, allowed: readonly Mode[] = modes): Mode {
  const mode = allowed.find((m) => m === name);
  if (mode === undefined) throw unknownName('mode', name, allowed, '--mode');
  return mode;
}

/** Modes with commas between, each once. */
export const asModes = (names: string): readonly Mode[] => [...new Set(names.split(',').map((name) => asMode(name.trim())))];
