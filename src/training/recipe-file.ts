import { readFileSync } from 'node:fs';
import { parseDocument, stringify } from 'yaml';
import { GhostgradError } from '../errors.ts';
import { showValue } from '../suggest.ts';
import type { Recipe } from './recipe.ts';

type Mapping = Readonly<Record<string, unknown>>;
const isMapping = (value: unknown): value is Mapping =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * What a recipe file holds, unchecked.
 *
 * @throws GhostgradError when it cannot be read, is not YAML or is no mapping
 */
export function readRecipeFile(path: string): Mapping {
  const value = parseYaml(readText(path), path);
  if (isMapping(value)) return value;
  throw new GhostgradError({
    what: 'a recipe is a mapping',
    where: path,
    found: showValue(value),
    expected: 'keys model, data, privacy, training, …',
  });
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    const code = cause instanceof Error && 'code' in cause ? cause.code : undefined;
    const found =
      code === 'ENOENT'
        ? 'no such file'
        : code === 'EISDIR'
          ? 'a folder'
          : cause instanceof Error
            ? cause.message
            : String(cause);
    throw new GhostgradError(
      { what: 'cannot read the recipe', where: path, found, expected: 'a YAML file', fix: 'check the path' },
      { cause },
    );
  }
}

/**
 * The value of YAML text (JSON is YAML).
 *
 * @throws GhostgradError with line and column for anything else, repeated keys included
 */
export function parseYaml(source: string, where: string): unknown {
  const document = parseDocument(source, { prettyErrors: false });
  const [error] = document.errors;
  if (error === undefined) return document.toJS({ maxAliasCount: 100 });
  const before = source.slice(0, error.pos[0]).split('\n');
  throw new GhostgradError({
    what: 'not valid YAML',
    where: `${where}, line ${before.length}, column ${(before.at(-1) ?? '').length + 1}`,
    found: error.message,
    fix: 'check indentation, colons and quotes there',
  });
}

/** A recipe as YAML text. */
export const recipeText = (recipe: Recipe): string => stringify(recipe, { lineWidth: 0 });

/**
 * The mapping with `path=value` settings applied in order; values are YAML, e.g. `training.epochs=3` or
 * `data.train={path: a.csv, label: y}`. Nothing (`training.epochs=`) or null takes a key away.
 *
 * @throws GhostgradError for a setting without `=`, and where a path runs into something that is not a mapping
 */
export function withSettings(raw: Mapping, settings: readonly string[]): Mapping {
  return settings.reduce((recipe, setting) => {
    const at = setting.indexOf('=');
    const path = setting.slice(0, at);
    if (at < 1 || path.split('.').includes('')) {
      throw new GhostgradError({
        what: 'not a setting',
        where: '--set',
        found: setting,
        expected: 'path=value',
        fix: 'e.g. --set training.epochs=3',
      });
    }
    return withValue(recipe, path.split('.'), parseYaml(setting.slice(at + 1), `--set ${path}`), path);
  }, raw);
}

/** The mapping with the value at a path replaced (null: taken away); mappings on the way that do not exist are made. */
export function withValue(raw: Mapping, [key = '', ...rest]: readonly string[], value: unknown, path: string): Mapping {
  if (rest.length === 0 && value === null)
    return Object.fromEntries(Object.entries(raw).filter(([name]) => name !== key));
  if (rest.length === 0) return { ...raw, [key]: value };
  const inner = Object.hasOwn(raw, key) ? raw[key] : {};
  if (!isMapping(inner)) {
    throw new GhostgradError({
      what: 'a setting leads into a value that has no keys',
      where: `--set ${path}`,
      found: `${key}: ${showValue(inner)}`,
      expected: 'a mapping',
      fix: `set all of ${key}, e.g. --set ${key}={…}`,
    });
  }
  return { ...raw, [key]: withValue(inner, rest, value, path) };
}

/** A data spec as a command line gives it: a mapping in YAML's braces, else a named set or a path as it is. */
export const parseSpec = (spec: string, where: string): unknown =>
  spec.trimStart().startsWith('{') ? parseYaml(spec, where) : spec;
