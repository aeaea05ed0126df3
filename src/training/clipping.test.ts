import { describe, expect, it } from 'vitest';
import { float32 } from '../tensor/tensor.ts';
import { type ClippingRecipe, adaptiveOf, clippingGroups, clippingSchema, patternsOf } from './clipping.ts';
import { summaryOf } from './metrics.ts';

const clipping = (section: object): ClippingRecipe => clippingSchema.parse(section);
const partition = ['a', 'b', 'c', 'd'].map((name) => ({ name, parameters: [`${name}.weight`, `${name}.bias`] }));
const sizeOf = (parameter: string): number => (parameter.endsWith('bias') ? 2 : 10);
const norms = (section: object, parts = partition): number[] =>
  clippingGroups(parts, sizeOf, clipping(section)).map(({ norm }) => norm);

describe('the first thresholds', () => {
  it('share the nominal norm out evenly: C/√K', () => {
    expect(norms({ norm: 3 })).toEqual([1.5, 1.5, 1.5, 1.5]);
    expect(norms({ norm: 3 }, [{ name: 'all', parameters: ['w'] }])).toEqual([3]);
    expect(clippingGroups(partition, sizeOf, clipping({ norm: 3 })).map(({ size }) => size)).toEqual([12, 12, 12, 12]);
  });

  it('are what a named group or adaptive thresholds say', () => {
    const groups = { a: ['a.*'], b: { patterns: ['b.*'], norm: 7 }, c: { patterns: ['c.*'] }, d: ['d.*'] };
    expect(norms({ style: 'groups', norm: 3, groups })).toEqual([1.5, 7, 1.5, 1.5]);
    expect(norms({ style: 'groups', groups, threshold: { adaptive: { initial: 0.2 } } })).toEqual([0.2, 7, 0.2, 0.2]);
    expect(norms({ norm: 3, threshold: { adaptive: {} } })).toEqual([1.5, 1.5, 1.5, 1.5]);
    expect(patternsOf(clipping({ style: 'groups', groups }))).toEqual({ a: ['a.*'], b: ['b.*'], c: ['c.*'], d: ['d.*'] });
  });

  it('adapt only where told to', () => {
    expect(adaptiveOf(clipping({}))).toBeUndefined();
    expect(adaptiveOf(clipping({ threshold: { adaptive: { rescaleTo: 2, initial: 3 } } }))).toEqual({
      quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: 2,
    });
  });
});

describe('the summary of a step', () => {
  it('is of whole gradients, and of the share clipped over all groups', () => {
    const seen = summaryOf(Float32Array.of(1, 2, NaN), float32([3, 4, 0.3, 0.4, NaN, 1]).data, [1, 0.35]);
    expect(seen).toMatchObject({ drawn: 3, loss: 1.5, clipFraction: 3 / 4 });
    expect(seen.medianNorm).toBeCloseTo(5, 6);
    for (let size = 1; size < 40; size++) {
      const norms = Float32Array.from({ length: size }, (_, i) => (i * 7919) % 13);
      expect(summaryOf(norms, norms, [1]).medianNorm).toBe(Number([...norms].sort((x, y) => x - y)[size >> 1]));
    }
    const one = summaryOf(Float32Array.of(1, 1), Float32Array.of(0.5, 2), [1]);
    expect(one).toMatchObject({ clipFraction: 0.5, medianNorm: 2 });
    expect(summaryOf(new Float32Array(0), new Float32Array(0), [1, 1])).toEqual({
      drawn: 0, loss: null, medianNorm: null, clipFraction: null,
    });
    expect(summaryOf(Float32Array.of(1), new Float32Array(0), [])).toMatchObject({ medianNorm: null, clipFraction: null });
  });
});
