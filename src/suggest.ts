import { distance } from 'fastest-levenshtein';
import { GhostgradError } from './errors.ts';

const normal = (name: string): string => name.toLowerCase().replace(/[-_ ]/g, '');
const letters = (name: string): string => [...name].sort().join('');

/** Edits between two names; letters that only changed places are one slip. */
const edits = (a: string, b: string): number => Math.min(distance(a, b), letters(a) === letters(b) ? 1 : Infinity);

/**
 * The candidate nearest to `name`, when it is near enough to be what a slip of the keyboard meant: at most a
 * third of the name's characters differ, capitals and separators not counted.
 */
export function nearest(name: string, candidates: readonly string[]): string | undefined {
  const written = normal(name);
  let best: string | undefined;
  let least = Math.max(1, Math.floor(written.length / 3)) + 1;
  for (const candidate of candidates) {
    const apart = edits(written, normal(candidate));
    if (apart < least) [best, least] = [candidate, apart];
  }
  return best;
}

/**
 * The error for a name that is not in a closed list; its fix is the nearest valid name, when one is near.
 *
 * @param kind what the name names, e.g. `optimizer` or `option of adam`
 */
export function unknownName(kind: string, name: string, allowed: readonly string[], where?: string): GhostgradError {
  const suggestion = nearest(name, allowed);
  return new GhostgradError({
    what: `unknown ${kind} "${name}"`,
    where,
    expected: allowed.length === 0 ? 'none' : `one of ${allowed.join(', ')}`,
    fix: suggestion === undefined ? undefined : `did you mean "${suggestion}"?`,
  });
}

/** Throws {@link unknownName} for the first key of `options` that is not in `allowed`. */
export function refuseUnknownKeys(kind: string, options: object, allowed: readonly string[], where?: string): void {
  const unknown = Object.keys(options).find((key) => !allowed.includes(key));
  if (unknown !== undefined) throw unknownName(kind, unknown, allowed, where);
}

/** A value written by the user, for a message: JSON, cut short. */
export function showValue(value: unknown): string {
  const text = typeof value === 'number' || value === undefined ? String(value) : JSON.stringify(value) ?? typeof value;
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}

/**
 * The parameters that a pattern matches, `*` standing for any characters. A pattern that matches none is a slip: what it
 * was meant for would silently be left out.
 *
 * @throws GhostgradError where nothing matches, with the nearest name when one is near
 */
export function matching(pattern: string, parameters: readonly string[], where: string): readonly string[] {
  const regex = wildcard(pattern);
  const matches = parameters.filter((name) => regex.test(name));
  if (matches.length > 0) return matches;
  const shown = parameters.slice(0, 8).join(', ');
  const meant = nearest(pattern, parameters);
  throw new GhostgradError({
    what: `pattern "${pattern}" matches no parameter`, where,
    expected: `names of trainable parameters, * for any characters: ${shown}${parameters.length > 8 ? ', …' : ''}`,
    fix: meant === undefined ? '`ghostgrad explain MODEL` lists the names' : `did you mean "${meant}"?`,
  });
}

const wildcard = (pattern: string): RegExp =>
  new RegExp(`^${pattern.split('*').map((s) => s.replace(/[.+?^${}()|[\]\\]/g, '\\$&')).join('.*')}$`);
