import { describe, expect, it } from 'vitest';
import { certificateJsonSchema } from '../src/privacy/index.ts';

type Schema = Readonly<Record<string, unknown>>;
const isSchema = (value: unknown): value is Schema => typeof value === 'object' && value !== null;

/** Paths of the properties below a schema that lack a description, each with whether what it is has one. */
function undescribed(schema: Schema, path = ''): string[] {
  const inner = (value: unknown, at: string): string[] => (isSchema(value) ? undescribed(value, at) : []);
  const properties = Object.entries(isSchema(schema['properties']) ? schema['properties'] : {});
  return [
    ...properties.flatMap(([name, property]) => {
      const at = `${path}.${name}`;
      return [...(isSchema(property) && typeof property['description'] === 'string' ? [] : [at]), ...inner(property, at)];
    }),
    ...inner(schema['items'], `${path}[]`),
    ...['anyOf', 'oneOf'].flatMap((key) => (Array.isArray(schema[key]) ? schema[key].flatMap((one: unknown) => inner(one, path)) : [])),
  ];
}

describe('the JSON schema of certificates', () => {
  it('is the published one (npm run docs:schema writes it)', async () => {
    await expect(`${JSON.stringify(certificateJsonSchema(), null, 2)}\n`).toMatchFileSnapshot('../schema/privacy.schema.json');
  });

  it('describes every field', () => {
    const { $defs: _, ...schema } = certificateJsonSchema() as Schema;
    // A name is a name.
    expect(undescribed(schema)).toEqual(['.clipping.threshold.adaptive', '.clipping.groups[].name']);
  });
});
