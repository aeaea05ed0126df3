import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { GhostgradError } from './errors.ts';
import { parseWith } from './parse.ts';

const schema = z.strictObject({
  epochs: z.number().int().positive().default(3),
  kind: z.enum(['flat', 'per-layer']).optional(),
  layers: z.array(z.strictObject({ width: z.number() })).optional(),
  normalize: z.union([z.literal('none'), z.strictObject({ mean: z.number(), std: z.number() })]).default('none'),
});

const refusal = (value: unknown): GhostgradError => {
  try {
    parseWith(schema, value, 'recipe');
  } catch (error) {
    if (error instanceof GhostgradError) return error;
    throw error;
  }
  throw new Error('was accepted');
};

describe('parseWith', () => {
  it('fills in defaults', () => {
    expect(parseWith(schema, {}, 'recipe')).toEqual({ epochs: 3, normalize: 'none' });
  });

  it('suggests the nearest key, at any depth and inside unions and arrays', () => {
    expect(refusal({ epoch: 1 }).parts)
      .toMatchObject({ what: 'unknown option "epoch"', where: 'recipe', fix: 'did you mean "epochs"?' });
    expect(refusal({ normalize: { mean: 1, sdt: 2 } }).parts).toMatchObject({
      what: 'unknown option "sdt"', where: 'recipe: normalize', fix: 'did you mean "std"?',
    });
    expect(refusal({ layers: [{ width: 1 }, { widht: 1 }] }).parts).toMatchObject({
      where: 'recipe: layers.1', fix: 'did you mean "width"?',
    });
  });

  it('suggests the nearest of several values', () => {
    expect(refusal({ kind: 'per-laeyr' }).parts.fix).toBe('did you mean "per-layer"?');
    expect(refusal({ kind: 'something else' }).parts.fix).toBeUndefined();
  });

  it('says what was found and what was expected', () => {
    expect(refusal({ epochs: 'many' }).parts).toMatchObject({
      what: 'invalid option', where: 'recipe: epochs', found: '"many"', expected: 'a value of type number',
    });
    expect(refusal({ epochs: 1.5 }).parts.expected).toBe('a whole number');
    expect(refusal({ epochs: 0 }).parts.expected).toBe('a number more than 0');
    expect(refusal({ kind: 'round' }).parts.expected).toBe('one of flat, per-layer');
    expect(refusal({ normalize: 3 }).parts.expected).toBe('"none", or a value of type object');
    expect(refusal({ layers: [{}] }).parts).toMatchObject({ what: 'missing option', where: 'recipe: layers.0.width' });
    expect(refusal([]).parts).toMatchObject({ where: 'recipe', expected: 'a value of type object' });
  });
});
