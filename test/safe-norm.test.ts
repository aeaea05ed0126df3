import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { contractionOf } from '../src/clipping/uses.ts';
import { cutsFor } from '../src/clipping/gram.ts';
import { clipWeights, defaultRho, safeNorm } from '../src/clipping/norm.ts';
import { graphBuilder } from '../src/ops/builder.ts';
import type { ParameterUse } from '../src/ops/operator.ts';
import { semantics } from '../src/ops/table.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Shape, float32, sizeOf, tensor } from '../src/tensor/tensor.ts';
import { testRandom } from './support/random-network.ts';

/** How operands are made hard: positions alike, output gradients that cancel, extreme scales. */
interface Adversary {
  readonly seed: number;
  readonly T: number;
  readonly d: number;
  readonly p: number;
  readonly scaleA: number;
  readonly scaleB: number;
  readonly equal: number;
  readonly cancel: number;
}

const adversary: fc.Arbitrary<Adversary> = fc.record({
  seed: fc.integer({ min: 1, max: 2 ** 30 }),
  T: fc.constantFrom(1, 2, 4, 9, 16, 36), d: fc.integer({ min: 1, max: 6 }), p: fc.integer({ min: 1, max: 6 }),
  scaleA: fc.constantFrom(1, 1e3, 1e-3, 1e15, 1e-15, 1e18, 1e-24), scaleB: fc.constantFrom(1, 1e4, 1e-4, 1e15, 1e-15, 1e-24, 1e18),
  equal: fc.constantFrom(0, 1e-7, 1e-4, 1), cancel: fc.constantFrom(0, 1e-7, 1e-5, 1),
});

const units = 3;

/** [units, T, n]: rows that differ from their first by `noise` (relative), signs alternating when asked. */
function positions(random: () => number, T: number, n: number, scale: number, noise: number, alternate: boolean): number[] {
  return Array.from({ length: units }, () => {
    const base = Array.from({ length: n }, () => random() * 2 - 1);
    return Array.from({ length: T }, (_, t) => base.map((x) =>
      scale * (alternate && t % 2 === 1 ? -1 : 1) * (x + noise * (random() * 2 - 1))));
  }).flat(2);
}

type Method = 'ghost' | 'instantiated';

/** Clip weights for the operands, and the exact norms of their gradients in float64. */
async function clip(
  use: (a: string, b: string) => ParameterUse, parameter: Shape, a: readonly number[], shapeA: Shape,
  bb: readonly number[], shapeB: Shape, method: Method, threshold: number, name: 'abadi' | 'normalize' = 'abadi',
): Promise<Float32Array> {
  const b = graphBuilder(semantics);
  const contraction = contractionOf(b, [use(b.input('a', { dtype: 'float32', shape: shapeA }), b.input('b', { dtype: 'float32', shape: shapeB }))], parameter, units, true);
  const parts = method === 'ghost' && contraction.ghost !== undefined ? contraction.ghost() : contraction.instantiated();
  // A group beside it, with ordinary gradients of its own.
  const beside = { squared: b.constant(float32([1, 4, 9])) };
  const norm = safeNorm(b, [[beside], [parts]], units, defaultRho);
  const mask = b.input('mask', { dtype: 'bool', shape: [units] });
  const { groups: [, clipped] } = clipWeights(b, norm, mask, b.constant(float32([1, threshold])), { function: name, gamma: 0.01 });
  const session = await onnxruntimeEngine().compile(b.build([['weights', clipped!.weights]]), { threads: 1 });
  const { outputs } = await session.run({ a: float32(a, shapeA), b: float32(bb, shapeB), mask: tensor('bool', [units], Uint8Array.of(1, 1, 1)) });
  await session.release();
  return outputs['weights']!.data as Float32Array;
}

/** ‖Σ_t a_t b_tᵀ‖ of each unit in float64, from the float32 operands. */
function exactNorms(a: Float32Array, bb: Float32Array, T: number, d: number, p: number): number[] {
  return Array.from({ length: units }, (_, u) => {
    const g = new Float64Array(d * p);
    for (let t = 0; t < T; t++) {
      for (let i = 0; i < d; i++) for (let j = 0; j < p; j++) g[i * p + j]! += a[(u * T + t) * d + i]! * bb[(u * T + t) * p + j]!;
    }
    return Math.sqrt(g.reduce((sum, x) => sum + x * x, 0));
  });
}

function expectBound(weights: Float32Array, norms: readonly number[], threshold: number): void {
  norms.forEach((norm, u) => expect(weights[u]! * norm).toBeLessThanOrEqual(threshold * (1 + defaultRho)));
}

describe('w·‖true gradient‖ ≤ R(1+ρ) on adversarial operands', () => {
  const both = (['ghost', 'instantiated'] as const).flatMap((method) => (['abadi', 'normalize'] as const).map((name) => [method, name] as const));

  it.each(both)('matrix products, %s, %s', async (method, name) => {
    await fc.assert(fc.asyncProperty(adversary, fc.constantFrom(1, 1e-3, 1e3), async ({ seed, T, d, p, scaleA, scaleB, equal, cancel }, threshold) => {
      const random = testRandom(seed);
      const a = positions(random, T, d, scaleA, equal, false);
      const bb = positions(random, T, p, scaleB, cancel, true);
      const weights = await clip(
        (x, y) => ({ kind: 'outer', input: x, outputGradient: y, transposed: false }), [d, p],
        a, [units, T, d], bb, [units, T, p], method, threshold, name,
      );
      expectBound(weights, exactNorms(Float32Array.from(a), Float32Array.from(bb), T, d, p), threshold);
    }), { numRuns: 60 });
  });

  it('matrix products so deep that their Gram matrices are added up in pieces', async () => {
    const sizes = fc.constantFrom<[number, number, number]>([300, 16, 640], [256, 752, 16], [600, 220, 220], [300, 16, 29 * 31]);
    await fc.assert(fc.asyncProperty(adversary, sizes, async ({ seed, scaleA, scaleB, equal, cancel }, [T, d, p]) => {
      expect(cutsFor(T, [d, p]).some(({ depth, width }) => width < depth)).toBe(true);
      const random = testRandom(seed);
      const a = positions(random, T, d, scaleA, equal, false);
      const bb = positions(random, T, p, scaleB, cancel, true);
      const weights = await clip(
        (x, y) => ({ kind: 'outer', input: x, outputGradient: y, transposed: false }), [d, p],
        a, [units, T, d], bb, [units, T, p], 'ghost', 1,
      );
      expectBound(weights, exactNorms(Float32Array.from(a), Float32Array.from(bb), T, d, p), 1);
    }), { numRuns: 10 });
  });

  it.each(both)('convolutions, %s, %s', async (method, name) => {
    await fc.assert(fc.asyncProperty(adversary, async ({ seed, d, p, scaleA, scaleB, equal, cancel }) => {
      const random = testRandom(seed);
      // 1×1 kernels over 4×4 pixels: the gradient is that of a matrix product over the pixels.
      const T = 16;
      const a = positions(random, T, d, scaleA, equal, false);
      const bb = positions(random, T, p, scaleB, cancel, true);
      const channelsFirst = (x: readonly number[], n: number) => Array.from({ length: units }, (_, u) =>
        Array.from({ length: n }, (_, c) => Array.from({ length: T }, (_, t) => x[(u * T + t) * n + c]!))).flat(2);
      const weights = await clip(
        (x, y) => ({ kind: 'convolution', input: x, outputGradient: y, geometry: { kernel: [1, 1], strides: [1, 1], dilations: [1, 1], pads: [0, 0, 0, 0], groups: 1 } }),
        [p, d, 1, 1], channelsFirst(a, d), [units, d, 4, 4], channelsFirst(bb, p), [units, p, 4, 4], method, 1, name,
      );
      expectBound(weights, exactNorms(Float32Array.from(a), Float32Array.from(bb), T, d, p), 1);
    }), { numRuns: 40 });
  });

  it('biases', async () => {
    await fc.assert(fc.asyncProperty(adversary, async ({ seed, T, p, scaleB, cancel }) => {
      const bb = positions(testRandom(seed), T, p, scaleB, cancel, true);
      const weights = await clip(
        (_, y) => ({ kind: 'broadcast', gradient: y }), [p], [0, 0, 0], [units, 1], bb, [units, T, p], 'instantiated', 1, 'normalize',
      );
      expectBound(weights, exactNorms(new Float32Array(units * T).fill(1), Float32Array.from(bb), T, 1, p), 1);
    }), { numRuns: 40 });
  });

  it('operands on the edge of overflow are dropped, not taken for zero', async () => {
    // Squared lengths between what is still ordinary and what float32 can hold.
    const [T, d, p] = [4, 4, 1];
    const a = new Array<number>(units * T * d).fill(3.5e18);
    const bb = new Array<number>(units * T * p).fill(1);
    for (const method of ['ghost', 'instantiated'] as const) {
      const weights = await clip(
        (x, y) => ({ kind: 'outer', input: x, outputGradient: y, transposed: false }), [d, p],
        a, [units, T, d], bb, [units, T, p], method, 1,
      );
      expect([...weights]).toEqual([0, 0, 0]);
    }
  });

  it('the computed norm alone would break the bound', () => {
    // Float32 Gram sums of equal positions whose output gradients cancel: the reason for all this.
    const T = 64;
    const a = 1 + 2 ** -12;
    const bs = Array.from({ length: T }, (_, t) => Math.fround((t % 2 === 0 ? 1 : -1) * 1000 + (t === 0 ? 0.003 : 0)));
    let gram = Math.fround(0);
    for (const x of bs) for (const y of bs) gram = Math.fround(gram + Math.fround(Math.fround(a * a) * Math.fround(x * y)));
    const truth = Math.abs(bs.reduce((sum, x) => sum + a * x, 0));
    expect(Math.sqrt(Math.max(0, gram))).not.toBeCloseTo(truth, 3);
  });

  it('leaves ordinary norms as computed', async () => {
    const random = testRandom(3);
    const [T, d, p] = [9, 5, 4];
    const a = Array.from({ length: units * T * d }, () => random() * 2 - 1);
    const bb = Array.from({ length: units * T * p }, () => random() * 2 - 1);
    const norms = exactNorms(Float32Array.from(a), Float32Array.from(bb), T, d, p);
    for (const method of ['ghost', 'instantiated'] as const) {
      const weights = await clip(
        (x, y) => ({ kind: 'outer', input: x, outputGradient: y, transposed: false }), [d, p],
        a, [units, T, d], bb, [units, T, p], method, 0.5,
      );
      norms.forEach((norm, u) => expect(Math.abs(weights[u]! * norm - 0.5)).toBeLessThan(1e-5));
      expect(sizeOf([units])).toBe(weights.length);
    }
  });
});
