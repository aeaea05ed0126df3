import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { graphBuilder } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { float32 } from '../tensor/tensor.ts';
import { type Cut, cutBoth, cutGram, cutTo, operationsOf, roundingsOf, uncut } from './cut.ts';

describe('cuts of a depth', () => {
  it('take no more roundings than asked wherever there is such a cut, in pieces of whole granules', () => {
    fc.assert(fc.property(fc.integer({ min: 1, max: 6000 }), fc.integer({ min: 8, max: 6000 }), (depth, most) => {
      const cut = cutTo(depth, most);
      expect(cut.depth).toBe(depth);
      expect(depth % cut.granule).toBe(0);
      expect(cut.width % cut.granule).toBe(0);
      expect(operationsOf(cut)).toBeGreaterThanOrEqual(depth);
      expect(roundingsOf(cut)).toBeLessThanOrEqual(Math.max(most, depth));
      if (depth % 64 === 0 && most >= 64 + depth / 64) expect(roundingsOf(cut)).toBeLessThanOrEqual(most);
    }));
  });

  it('are made in the deeper side first, and only as needed', () => {
    expect(cutBoth([768, 768], 1600)).toEqual([uncut(768), uncut(768)]);
    expect(cutBoth([768, 3072], 1600)).toEqual([uncut(768), { depth: 3072, width: 768, granule: 768 }]);
    const [vocabulary, width] = cutBoth([50257, 768], 740);
    expect(roundingsOf(vocabulary) + roundingsOf(width)).toBeLessThanOrEqual(740);
    // 50257 = 29·1733: no even cut is short enough.
    expect(vocabulary.granule).toBe(29);
  });

  const [units, T] = [2, 5];
  it.each<Cut>([uncut(48), { depth: 48, width: 16, granule: 16 }, { depth: 80, width: 32, granule: 16 }, { depth: 96, width: 64, granule: 32 }])(
    'give the Gram matrix: $depth in pieces of $width', async (cut) => {
      const values = Array.from({ length: units * T * cut.depth }, (_, i) => ((i * 7919) % 13) - 6);
      const b = graphBuilder(semantics);
      const shape = [units, T, cut.depth];
      const graph = b.build([['gram', cutGram(b, b.input('x', { dtype: 'float32', shape }), cut)]]);
      const session = await onnxruntimeEngine().compile(graph, { threads: 1 });
      const { outputs } = await session.run({ x: float32(values, shape) });
      await session.release();
      const row = (u: number, t: number) => values.slice((u * T + t) * cut.depth, (u * T + t + 1) * cut.depth);
      const expected = Array.from({ length: units * T * T }, (_, i) => {
        const [u, s, t] = [Math.floor(i / (T * T)), Math.floor(i / T) % T, i % T];
        return row(u, s).reduce((sum, x, k) => sum + x * row(u, t)[k]!, 0);
      });
      expect([...outputs['gram']!.data]).toEqual(expected);
    });
});
