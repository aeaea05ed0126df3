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

  it('is a list of words and patterns together', () => {
    const model = buildModel({ name: 'vit-tiny', depth: 2, width: 12, heads: 2 }, { seed: 1 });
    const all = [...model.initializers.keys()].filter((name) => !model.literals?.has(name));
    const pattern = all.find((name) => /qkv|query/.test(name))!;
    const found = trainableOf(model, ['head', 'norm', pattern]);
    expect([...found].sort()).toEqual([...new Set([...trainableOf(model, 'head'), ...trainableOf(model, 'norm'), pattern])].sort());
    expect(trainableOf(model, ['bias', 'all'])).toBe('all');
    const named = { ...model, initializers: new Map([...model.initializers, ['head', model.initializers.get(pattern)!]]) };
    expect(() => trainableOf(named, ['head', 'norm'])).toThrow(/"head" is a word and the name of a parameter/);
  });

  it('is less what is frozen', () => {
    const model = buildModel({ name: 'vit-tiny', depth: 2, width: 12, heads: 2 }, { seed: 1 });
    const all = [...model.initializers.keys()].filter((name) => !model.literals?.has(name));
    const biases = new Set(trainableOf(model, 'bias'));
    expect([...trainableOf(model, 'all', { freeze: ['bias'] })].sort()).toEqual(all.filter((name) => !biases.has(name)).sort());
    const [first] = biases;
    expect(trainableOf(model, 'bias', { freeze: [first!] })).toEqual([...biases].slice(1));
    expect(() => trainableOf(model, 'all', { freeze: ['no-such*'] })).toThrow(/"no-such\*" matches no parameter \(freeze\)/);
    expect(() => trainableOf(model, 'bias', { freeze: ['all'] })).toThrow('everything is frozen');
  });

  it('is of what the output needs', () => {
    const model = buildModel({ name: 'mlp', input: [3], hidden: [4], classes: 2 }, { seed: 1 });
    const [hidden] = model.nodes.filter(({ op }) => op === 'Gemm');
    expect(trainableOf(model, 'bias', { output: hidden!.outputs[0] })).toEqual(['hidden.0.bias']);
  });

  it('must be something', () => {
    const model = { ...buildModel('mlp', {}), nodes: [] };
    expect(() => trainableOf(model, 'bias')).toThrow('no biases');
    expect(() => trainableOf(model, 'head')).toThrow('no last layer');
  });
});
