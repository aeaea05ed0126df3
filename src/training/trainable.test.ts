import { describe, expect, it } from 'vitest';
import { buildModel } from '../models/index.ts';
import { withHead } from '../models/head.ts';
import { trainableOf } from './trainable.ts';

describe('what is trained', () => {
  it('is all, or names and patterns as they are', () => {
    const model = buildModel('mlp', {});
    expect(trainableOf(model, 'all')).toBe('all');
    expect(trainableOf(model, ['a.*'])).toEqual(['a.*']);
  });

  it('is the last layer, or the head that was put on', () => {
    const model = buildModel({ name: 'cnn-tanh' }, { seed: 1 });
    const [weight, bias] = [...model.initializers.keys()].slice(-2);
    expect([...trainableOf(model, 'head')].sort()).toEqual([weight, bias].sort());
    expect(trainableOf(withHead(model, { classes: 2 }, [10]), 'head', { hasHead: true })).toEqual(['head.weight', 'head.bias']);
  });

  it('is every bias, of convolutions, products and normalisations', () => {
    for (const name of ['cnn-tanh', 'resnet18-gn', 'vit-tiny', 'bert-base'] as const) {
      const small = name === 'bert-base' ? { name, depth: 1, width: 12, heads: 2, vocabulary: 20 } as const : name;
      const model = buildModel(small, { seed: 1 });
      const expected = [...model.initializers].filter(([key, t]) => /bias$|beta$/.test(key) && !model.literals?.has(key) && t.shape.length === 1)
        .map(([key]) => key);
      expect(expected.length).toBeGreaterThan(3);
      expect([...trainableOf(model, 'bias')].sort(), name).toEqual(expected.sort());
      expect(trainableOf(model, 'bias', { hasHead: true })).toContain('head.weight');
    }
  });

  it('must be something', () => {
    const model = { ...buildModel('mlp', {}), nodes: [] };
    expect(() => trainableOf(model, 'bias')).toThrow('no biases');
    expect(() => trainableOf(model, 'head')).toThrow('no last layer');
  });
});
