import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Tensor, float32, toNumbers } from '../../src/tensor/tensor.ts';
import type { Compiled } from '../support/operator-sample.ts';
import { testRandom } from '../support/random-network.ts';
import { disagreement } from './differences.ts';
import { fromHalf, toHalf } from './half.ts';

/** A function of each element, computed in float32. */
const elementwise = (f: (x: number) => number): Compiled => async ({ x }) =>
  ({ y: float32(toNumbers(x!).map(f), x!.shape) });

const x = float32([0.3, -1.2, 0.7, 2.1, -0.4]);
const seed = float32([1, -0.5, 0.25, 2, -1]);
const slopes = (f: (x: number) => number): number[] => toNumbers(x).map((v, i) => f(v) * seed.data[i]!);

const compare = (forward: Compiled, gradient: Tensor | undefined): Promise<string | undefined> =>
  disagreement(forward, { x }, 'x', gradient, { y: seed }, testRandom(3));

describe('comparing a gradient with finite differences', () => {
  it('accepts the right one', async () => {
    expect(await compare(elementwise(Math.sin), float32(slopes(Math.cos)))).toBeUndefined();
    expect(await compare(elementwise(Math.round), undefined)).toBeUndefined();
  });

  it('accepts one beside a kink', async () => {
    const f = elementwise((v) => Math.abs(v - 0.31));
    expect(await compare(f, float32(slopes((v) => Math.sign(v - 0.31))))).toBeUndefined();
  });

  it.each([0, 1, 2, 3, 4])('sees a fault of 1 % in element %i alone', async (i) => {
    const wrong = slopes(Math.cos).map((g, k) => (k === i ? g * 1.01 : g));
    expect(await compare(elementwise(Math.sin), float32(wrong))).toMatch(`x[${i}]`);
  });

  it('takes a missing gradient for zero, and none that is not finite', async () => {
    expect(await compare(elementwise(Math.sin), undefined)).toMatch('x[');
    expect(await compare(elementwise(Math.sin), float32([NaN, 0, 0, 0, 0]))).toMatch('not finite');
  });
});

describe('half-precision numbers', () => {
  it('survive being read and written', () => {
    fc.assert(fc.property(fc.integer({ min: 0, max: 0xffff }).filter((bits) => (bits & 0x7c00) !== 0x7c00), (bits) => {
      expect(toHalf(fromHalf(bits))).toBe(bits);
    }));
  });

  it('are the nearest ones, ties to even', () => {
    expect([1, -2, 65504, 2 ** -24, 0.1, 1 + 2 ** -11, 1 + 3 * 2 ** -11].map(toHalf))
      .toEqual([0x3c00, 0xc000, 0x7bff, 1, 0x2e66, 0x3c00, 0x3c02]);
    expect(fromHalf(0x7c00)).toBe(Infinity);
  });
});
