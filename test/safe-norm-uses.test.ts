import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { clipWeights, defaultRho, safeNorm } from '../src/clipping/norm.ts';
import type { NormMethod, SumMethod } from '../src/clipping/plan.ts';
import { normOf } from '../src/clipping/step-graph.ts';
import { contractionOf } from '../src/clipping/uses.ts';
import { type GraphBuilder, graphBuilder } from '../src/ops/builder.ts';
import type { ParameterUse } from '../src/ops/operator.ts';
import { semantics } from '../src/ops/table.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Shape, float32, int64, sizeOf, tensor } from '../src/tensor/tensor.ts';
import { testRandom } from './support/random-network.ts';

/** One use of a parameter by one example: what it adds to the gradient, and the operands in float32. */
type Sketch =
  | { readonly kind: 'outer'; readonly transposed: boolean; readonly scale: number; readonly x: readonly number[][]; readonly dY: readonly number[][] }
  | { readonly kind: 'gather'; readonly at: readonly number[]; readonly dY: readonly number[][] }
  | { readonly kind: 'broadcast'; readonly dY: readonly number[][] };

const flat = (rows: readonly number[][]) => float32(rows.flat(), [1, rows.length, rows[0]!.length]);

/** The gradient [n, m] in float64, from the operands as float32 holds them. */
function exactGradient(sketches: readonly Sketch[], [n, m]: readonly [number, number]): Float64Array {
  const g = new Float64Array(n * m);
  for (const s of sketches) {
    const width = s.dY[0]!.length;
    const dY = flat(s.dY).data;
    s.dY.forEach((_, t) => {
      for (let j = 0; j < width; j++) {
        const y = dY[t * width + j]!;
        if (s.kind === 'broadcast') g[j]! += y;
        else if (s.kind === 'gather') g[s.at[t]! * m + j]! += y;
        else s.x[t]!.forEach((v, i) => { g[s.transposed ? j * m + i : i * m + j]! += Math.fround(s.scale) * Math.fround(v) * y; });
      }
    });
  }
  return g;
}

/** What one example releases: its clip weight and its part of the sum. */
async function release(sketches: readonly Sketch[], shape: Shape, norm: NormMethod, sum: SumMethod, threshold: number) {
  const b: GraphBuilder = graphBuilder(semantics);
  const feeds: Record<string, ReturnType<typeof float32> | ReturnType<typeof int64>> = {};
  const feed = (name: string, t: ReturnType<typeof float32> | ReturnType<typeof int64>): string => {
    feeds[name] = t;
    return b.input(name, { dtype: t.dtype, shape: t.shape });
  };
  const uses = sketches.map((s, k): ParameterUse => {
    const gradient = feed(`dY${k}`, flat(s.dY));
    if (s.kind === 'broadcast') return { kind: 'broadcast', gradient };
    if (s.kind === 'gather') return { kind: 'gather', indices: feed(`at${k}`, int64([...s.at], [1, s.at.length])), outputGradient: gradient };
    return { kind: 'outer', transposed: s.transposed, scale: s.scale, input: feed(`x${k}`, flat(s.x)), outputGradient: gradient };
  });
  const does = contractionOf(b, uses, shape, 1, true);
  const costs = { ghost: 0, instantiate: 0, product: 0, weighted: 0 };
  const parts = normOf(b, { does, plan: { norm, sum, costs, reason: '' } });
  const mask = b.input('mask', { dtype: 'bool', shape: [1] });
  const { groups: [weights] } = clipWeights(b, safeNorm(b, [[parts]], 1, defaultRho), mask, b.constant(float32([threshold])), { function: 'abadi', gamma: 0.01 });
  const released = sum === 'product' && does.product !== undefined ? does.product(weights) : does.weightedSum(weights);
  const session = await onnxruntimeEngine().compile(b.build([['weight', weights!.weights], ['sum', released]]), { threads: 1 });
  const { outputs } = await session.run({ ...feeds, mask: tensor('bool', [1], Uint8Array.of(1)) });
  await session.release();
  return { weight: (outputs['weight']!.data as Float32Array)[0]!, sum: outputs['sum']!.data as Float32Array };
}

const scales = [1, 1e3, 1e-3, 1e15, 1e-15, 1e30, 1e-30];
const noises = [0, 1e-7, 1e-5, 1e-3, 1];
const adversary = fc.record({
  seed: fc.integer({ min: 1, max: 2 ** 30 }), T: fc.constantFrom(1, 2, 7, 64, 300), n: fc.integer({ min: 2, max: 6 }), ids: fc.integer({ min: 1, max: 3 }),
  scaleX: fc.constantFrom(...scales), scaleY: fc.constantFrom(...scales), alpha: fc.constantFrom(1, -1, 1e-3, 1e3, 1e20, 1e-20),
  noise: fc.constantFrom(...noises), threshold: fc.constantFrom(1, 1e-3, 1e3),
});

/** `T` vectors near one another, of alternating signs where asked, so that they cancel. */
function vectors(random: () => number, T: number, width: number, scale: number, noise: number, alternate: boolean): number[][] {
  const base = Array.from({ length: width }, () => random() * 2 - 1);
  return Array.from({ length: T }, (_, t) => base.map((v) => scale * (alternate && t % 2 === 1 ? -1 : 1) * (v + noise * (random() * 2 - 1))));
}

type Case = (a: typeof adversary extends fc.Arbitrary<infer A> ? A : never, random: () => number) => readonly Sketch[];

const unit = (n: number, i: number, scale: number): number[] => Array.from({ length: n }, (_, k) => (k === i ? scale : 0));
const negated = (rows: readonly number[][], noise: number, random: () => number): number[][] =>
  rows.map((row) => row.map((v) => -v * (1 + noise * (random() * 2 - 1))));

const cases: Readonly<Record<string, Case>> = {
  'a table of which the same rows are read, with gradients that cancel': ({ T, n, ids, scaleY, noise }, random) => [{
    kind: 'gather', at: Array.from({ length: T }, () => Math.floor(random() * ids) % n), dY: vectors(random, T, n, scaleY, noise, true),
  }],
  'a table that is read, and multiplied by so that its rows cancel': ({ T, n, ids, scaleX, scaleY, noise }, random) => {
    const at = Array.from({ length: T }, () => Math.floor(random() * ids) % n);
    const dY = vectors(random, T, n, scaleY, noise, false);
    return [
      { kind: 'gather', at, dY },
      { kind: 'outer', transposed: false, scale: 1 / scaleX, x: at.map((i) => unit(n, i, scaleX)), dY: negated(dY, noise, random) },
    ];
  },
  'a table that is read, and multiplied by from its other side': ({ T, n, ids, scaleX, scaleY, alpha, noise }, random) => {
    const at = Array.from({ length: T }, () => Math.floor(random() * ids) % n);
    return [
      { kind: 'outer', transposed: true, scale: alpha, x: vectors(random, T, n, scaleX, noise, false), dY: vectors(random, T, n, scaleY, noise, true) },
      { kind: 'gather', at, dY: vectors(random, T, n, scaleY, noise, true) },
    ];
  },
  'products of different scales that cancel': ({ T, n, scaleX, scaleY, alpha, noise }, random) => {
    const [x, dY] = [vectors(random, T, n, scaleX, noise, false), vectors(random, T, n, scaleY, noise, false)];
    return [
      { kind: 'outer', transposed: false, scale: alpha, x, dY },
      { kind: 'outer', transposed: false, scale: -alpha, x, dY: negated(negated(dY, noise, random), 0, random) },
    ];
  },
  'a matrix and its transpose that cancel': ({ T, n, scaleX, scaleY, alpha, noise }, random) => {
    const [x, dY] = [vectors(random, T, n, scaleX, noise, false), vectors(random, T, n, scaleY, noise, false)];
    return [
      { kind: 'outer', transposed: false, scale: alpha, x, dY },
      { kind: 'outer', transposed: true, scale: alpha, x: negated(dY, noise, random), dY: x },
    ];
  },
  'a table read, multiplied by from both sides': ({ T, n, ids, scaleX, scaleY, noise }, random) => [
    { kind: 'gather', at: Array.from({ length: T }, () => Math.floor(random() * ids) % n), dY: vectors(random, T, n, scaleY, noise, true) },
    { kind: 'outer', transposed: true, scale: 1, x: vectors(random, T, n, scaleX, noise, true), dY: vectors(random, T, n, scaleY, noise, false) },
    { kind: 'outer', transposed: false, scale: 1, x: vectors(random, T, n, scaleX, noise, true), dY: vectors(random, T, n, scaleY, noise, false) },
  ],
};

describe('what an example releases stays within R(1+ρ), however its uses of a parameter cancel', () => {
  const methods = (['ghost', 'instantiate'] as const).flatMap((norm) => (['product', 'weighted'] as const).map((sum): [NormMethod, SumMethod] => [norm, sum]));
  it.each(Object.keys(cases).flatMap((name) => methods.map(([norm, sum]) => [name, norm, sum] as const)))('%s: %s, %s', async (name, norm, sum) => {
    await fc.assert(fc.asyncProperty(adversary, async (a) => {
      const sketches = cases[name]!(a, testRandom(a.seed));
      const { weight, sum: released } = await release(sketches, [a.n, a.n], norm, sum, a.threshold);
      const most = a.threshold * (1 + defaultRho);
      expect(sizeOf([a.n, a.n])).toBe(released.length);
      expect(Math.hypot(...released)).toBeLessThanOrEqual(most);
      expect(weight === 0 ? 0 : weight * Math.hypot(...exactGradient(sketches, [a.n, a.n]))).toBeLessThanOrEqual(most);
    }), { numRuns: 8 });
  });

  it('leaves ordinary examples as they are', async () => {
    const random = testRandom(9);
    const ordinary = { seed: 1, T: 7, n: 5, ids: 3, scaleX: 1, scaleY: 1, alpha: 1e-3, noise: 1, threshold: 1e-3 } as const;
    for (const make of Object.values(cases)) {
      for (const [norm, sum] of methods) {
        const sketches = make(ordinary, random);
        const norms = Math.hypot(...exactGradient(sketches, [5, 5]));
        const threshold = norms * 0.5;
        const { weight, sum: released } = await release(sketches, [5, 5], norm, sum, threshold);
        expect(Math.abs(weight * norms / threshold - 1)).toBeLessThan(1e-4);
        expect(Math.abs(Math.hypot(...released) / threshold - 1)).toBeLessThan(1e-4);
      }
    }
  });
});
