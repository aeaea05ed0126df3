import { describe, expect, it } from 'vitest';
import { GhostgradError } from './errors.ts';
import { nearest, refuseUnknownKeys, showValue, unknownName } from './suggest.ts';

describe('nearest', () => {
  it('finds slips, other capitals and other separators', () => {
    expect(nearest('momentun', ['momentum', 'nesterov'])).toBe('momentum');
    expect(nearest('batch_size', ['epochs', 'batchSize'])).toBe('batchSize');
    expect(nearest('CNN-Tanh', ['mlp', 'cnn-tanh'])).toBe('cnn-tanh');
    expect(nearest('adm', ['sgd', 'adam'])).toBe('adam');
  });

  it('suggests nothing far away', () => {
    expect(nearest('banana', ['momentum', 'nesterov'])).toBeUndefined();
    expect(nearest('xyz', ['sgd'])).toBeUndefined();
    expect(nearest('a', [])).toBeUndefined();
  });
});

describe('refuseUnknownKeys', () => {
  it('lets known keys pass', () => {
    expect(() => refuseUnknownKeys('option', { a: 1 }, ['a', 'b'])).not.toThrow();
  });

  it('names the key, the place, the choices and the nearest', () => {
    const act = (): void =>
      refuseUnknownKeys('option of sgd', { momentun: 1 }, ['momentum', 'nesterov'], 'training.optimizer');
    expect(act).toThrow(GhostgradError);
    expect(act).toThrow(/unknown option of sgd "momentun" \(training\.optimizer\)[^]*momentum, nesterov/);
    expect(act).toThrow(/did you mean "momentum"/);
  });
});

it('an unknown name far from all has no suggestion', () => {
  expect(unknownName('model', 'zzzzzz', ['mlp']).parts.fix).toBeUndefined();
});

it('showValue is short JSON, and keeps numbers that JSON lacks', () => {
  expect(showValue('a')).toBe('"a"');
  expect(showValue(Number.NaN)).toBe('NaN');
  expect(showValue({ a: [1] })).toBe('{"a":[1]}');
  expect(showValue('x'.repeat(200))).toHaveLength(80);
});
