import { z } from 'zod';
import { GhostgradError } from './errors.ts';
import { nearest, showValue, unknownName } from './suggest.ts';

type Issue = z.core.$ZodIssue;
type Path = readonly PropertyKey[];

/**
 * `value` as `schema` reads it, defaults filled in.
 *
 * @param where what the value is, e.g. `model cnn-tanh`; the path of the fault is appended
 * @param fixOf the advice to give for a fault at a path such as `training.batchSize`; default: none
 * @throws GhostgradError for the first fault; an unknown key is refused with the nearest valid one
 */
export function parseWith<S extends z.core.$ZodType>(
  schema: S, value: unknown, where: string, fixOf: (path: string) => string | undefined = () => undefined,
): z.output<S> {
  const result = z.safeParse(schema, value);
  if (result.success) return result.data;
  const issues = result.error.issues.map((issue) => deepest(issue));
  // An unknown key is often the misspelling of one reported as missing: name it first.
  throw explain(issues.find((i) => i.code === 'unrecognized_keys') ?? issues[0]!, schema, value, where, fixOf);
}

/** Of a union's alternatives, the fault of the one that fits best: the one that gets furthest into the value. */
function deepest(issue: Issue, prefix: Path = []): Issue {
  const here = { ...issue, path: [...prefix, ...issue.path] };
  if (issue.code !== 'invalid_union') return here;
  const inner = issue.errors.map((alternative) => {
    const found = alternative.map((i) => deepest(i, here.path));
    return found.find((i) => i.code === 'unrecognized_keys') ?? found[0];
  });
  const depth = (i: Issue): number => i.path.length + (i.code === 'unrecognized_keys' ? 1 : 0);
  return inner.reduce<Issue>((best, i) => (i !== undefined && depth(i) > depth(best) ? i : best), here);
}

function explain(
  issue: Issue, schema: z.core.$ZodType, value: unknown, where: string, fixOf: (path: string) => string | undefined,
): GhostgradError {
  const path = issue.path.map(String).join('.');
  const at = path === '' ? where : `${where}: ${path}`;
  if (issue.code === 'unrecognized_keys') {
    return unknownName('option', issue.keys[0] ?? '', keysAt(schema, issue.path), at);
  }
  const found = valueAt(value, issue.path);
  return new GhostgradError({
    what: found === undefined ? 'missing option' : 'invalid option',
    where: at,
    found: found === undefined ? undefined : showValue(found),
    expected: expectation(issue),
    fix: suggestion(issue, found) ?? fixOf(path),
  });
}

/** For the misspelling of one of several values. */
function suggestion(issue: Issue, found: unknown): string | undefined {
  if (issue.code === 'invalid_union') {
    return issue.errors.map(([first]) => first && suggestion(first, found)).find((fix) => fix !== undefined);
  }
  if (issue.code !== 'invalid_value' || typeof found !== 'string') return undefined;
  const meant = nearest(found, issue.values.filter((v) => typeof v === 'string'));
  return meant === undefined ? undefined : `did you mean "${meant}"?`;
}

function expectation(issue: Issue): string {
  switch (issue.code) {
    case 'invalid_type': return issue.expected === 'int' ? 'a whole number' : `a value of type ${issue.expected}`;
    case 'invalid_value': {
      const [only] = issue.values;
      return issue.values.length === 1 ? showValue(only) : `one of ${issue.values.map(String).join(', ')}`;
    }
    case 'too_small': return bounded(issue.origin, issue.inclusive === false ? 'more than' : 'at least', issue.minimum);
    case 'too_big': return bounded(issue.origin, issue.inclusive === false ? 'less than' : 'at most', issue.maximum);
    case 'invalid_union': {
      const first = issue.errors.map((alternative) => alternative[0]).filter((i) => i !== undefined);
      return first.length === 0 ? issue.message : [...new Set(first.map(expectation))].join(', or ');
    }
    default: return issue.message;
  }
}

const bounded = (origin: string, relation: string, bound: number | bigint): string =>
  origin === 'array' || origin === 'string' || origin === 'map' || origin === 'set'
    ? `${relation} ${bound} ${origin === 'string' ? 'characters' : 'entries'}`
    : `a number ${relation} ${bound}`;

function valueAt(value: unknown, path: Path): unknown {
  return path.reduce<unknown>(
    (v, key) => (typeof v === 'object' && v !== null ? (v as Readonly<Record<PropertyKey, unknown>>)[key] : undefined),
    value,
  );
}

/** The keys that the object schemas at `path` know. */
function keysAt(schema: z.core.$ZodType, path: Path): string[] {
  const [key, ...rest] = path;
  const keys = unwrap(schema).flatMap((inner): string[] => {
    if (inner instanceof z.core.$ZodObject) {
      const shape: Readonly<Record<string, z.core.$ZodType>> = inner._zod.def.shape;
      if (key === undefined) return Object.keys(shape);
      const child = shape[String(key)];
      return child === undefined ? [] : keysAt(child, rest);
    }
    if (key !== undefined && inner instanceof z.core.$ZodArray) return keysAt(inner._zod.def.element, rest);
    if (key !== undefined && inner instanceof z.core.$ZodRecord) return keysAt(inner._zod.def.valueType, rest);
    return [];
  });
  return [...new Set(keys)];
}

/** The schemas behind optional values, defaults and unions. */
function unwrap(schema: z.core.$ZodType): z.core.$ZodType[] {
  if (schema instanceof z.core.$ZodUnion) return schema._zod.def.options.flatMap(unwrap);
  if (
    schema instanceof z.core.$ZodOptional || schema instanceof z.core.$ZodNullable
    || schema instanceof z.core.$ZodReadonly || schema instanceof z.core.$ZodDefault
    || schema instanceof z.core.$ZodPrefault
  ) return unwrap(schema._zod.def.innerType);
  if (schema instanceof z.core.$ZodPipe) return unwrap(schema._zod.def.in);
  return [schema];
}
