import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { sizeOf } from '../tensor/tensor.ts';
import { type View, disjoint, reshapedView, sameView, slicedView, transposedView, wholeView } from './view.ts';

/** The places of a view's elements, in row-major order. */
function places({ shape, strides, offset }: View): number[] {
  return Array.from({ length: sizeOf(shape) }, (_, flat) => {
    let [at, rest] = [offset, flat];
    for (let i = shape.length - 1; i >= 0; i--) {
      at += (rest % shape[i]!) * strides[i]!;
      rest = Math.floor(rest / shape[i]!);
    }
    return at;
  });
}

const shapes = fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 1, maxLength: 4 });
const slices = (view: View) => fc.tuple(...view.shape.map((size) => fc.integer({ min: 0, max: size - 1 })
  .chain((start) => fc.tuple(fc.constant(start), fc.integer({ min: 1, max: 2 }), fc.integer({ min: 1, max: size - start }))
    .map(([from, step, count]) => ({ start: from, step, count: Math.min(count, Math.ceil((size - from) / step)) })))))
  .map((cuts) => cuts.reduce((v, { start, step, count }, axis) => slicedView(v, axis, start, step, count), view));
const views = shapes.chain((shape) => slices(wholeView(shape))
  .chain((view) => fc.shuffledSubarray(view.shape.map((_, i) => i), { minLength: view.shape.length })
    .map((order) => transposedView(view, order))));

describe('views', () => {
  it('reshape keeps the order of the elements', () => {
    fc.assert(fc.property(views, shapes, (view, other) => {
      const merged = [sizeOf(view.shape)];
      for (const shape of [merged, other, [...view.shape, 1], view.shape.flatMap((n) => (n === 4 ? [2, 2] : [n]))]) {
        const reshaped = reshapedView(view, shape);
        if (reshaped !== undefined) expect(places(reshaped)).toEqual(places(view));
        else expect(sameView(view, wholeView(view.shape)) && sizeOf(shape) === sizeOf(view.shape)).toBe(false);
      }
    }));
  });

  it('each element is another one', () => {
    fc.assert(fc.property(views, (view) => { expect(new Set(places(view)).size).toBe(sizeOf(view.shape)); }));
  });

  it('says disjoint only where no element is shared', () => {
    const seen = new Set<boolean>();
    fc.assert(fc.property(shapes.chain((shape) => fc.tuple(slices(wholeView(shape)), slices(wholeView(shape)))), ([a, b]) => {
      const inA = new Set(places(a));
      const shares = places(b).some((place) => inA.has(place));
      seen.add(disjoint(a, b));
      if (disjoint(a, b)) expect(shares).toBe(false);
    }), { numRuns: 500 });
    expect(seen.size).toBe(2);
  });

  it('knows the slices of fused weights apart', () => {
    const columns = [0, 1, 2].map((i) => slicedView(wholeView([8, 12]), 1, 4 * i, 1, 4));
    const rows = [0, 1].map((i) => slicedView(wholeView([2, 6, 5]), 0, i, 1, 1));
    expect([disjoint(columns[0]!, columns[1]!), disjoint(columns[2]!, columns[0]!), disjoint(rows[0]!, rows[1]!)]).toEqual([true, true, true]);
    expect(disjoint(columns[0]!, columns[0]!)).toBe(false);
  });
});
