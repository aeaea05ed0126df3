import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { noiseThreads } from '../random/noise-threads.ts';
import type { Lattice } from '../random/discrete-gaussian.ts';
import { restoreRatchet } from '../random/ratchet.ts';
import { type Groups, flatGroup, groupsOf } from './groups.ts';
import { gradientLaws } from './lattice.ts';
import { type PrivacyPlan, type PrivacyPlanOptions, privacyPlan } from './plan.ts';
import { type ClippedSum, type Privatised, assertPrivatised, clippedSum, privatise, privatiseInParallel } from './sum.ts';

const flat = (size: number): Groups => flatGroup(['w', 'b'], 0.5, size);
const groups = flat(4);
const planOf = (options: Partial<PrivacyPlanOptions> = {}): PrivacyPlan =>
  privacyPlan({
    datasetSize: 1000,
    batchSize: 12.5,
    steps: 10,
    noiseMultiplier: 1.3,
    delta: 1e-5,
    groups,
    seed: 1,
    ...options,
  });
const sumsOf = (w: readonly number[] | Float32Array, b: readonly number[] | Float32Array): Map<string, Float32Array> =>
  new Map([
    ['w', Float32Array.from(w)],
    ['b', Float32Array.from(b)],
  ]);
/** Zeros in the size of the plan's groups, half of them of each parameter. */
const zeros = (plan: PrivacyPlan): ClippedSum => {
  const half = new Float32Array(plan.groups.reduce((sum, { size }) => sum + size, 0) / 2);
  return clippedSum(sumsOf(half, half), plan.groups, plan.rho);
};
const values = (p: Privatised, name: string): Float32Array => p.gradients.get(name) ?? new Float32Array(0);

describe('privatise', () => {
  it.each(['float', 'discrete'] as const)('adds noise of variance (σ·C·(1 + ρ + ν))² to every coordinate, over the public normaliser: %s', (noise) => {
    const nu = noise === 'float' ? 0 : 2 ** -10;
    const n = 200_000;
    const two = groupsOf([
      { name: 'x', norm: 3, parameters: ['w'], size: n },
      { name: 'y', norm: 4, parameters: ['b'], size: n },
    ]);
    for (const [plan, deviation] of [
      [planOf({ noise, groups: flat(2 * n) }), 1.3 * 0.5 * (1.001 + nu)],
      [planOf({ noise, groups: flat(2 * n), rho: 0 }), 1.3 * 0.5 * (1 + nu)],
      [planOf({ noise, groups: two, rho: 0 }), 1.3 * 5 * (1 + nu)],
      [
        planOf({ noise, groups: flat(2 * n), sampling: 'full-batch', batchSize: 1000, neighbors: 'replace-one', rho: 0 }),
        1.3 * 0.5 * (1 + nu),
      ],
    ] as const) {
      const result = privatise(zeros(plan), plan, plan.startRatchet().advance());
      for (const name of ['w', 'b']) {
        const variance = (values(result, name).reduce((sum, x) => sum + x * x, 0) / n) * plan.normaliser ** 2;
        // A sample variance of normals has relative deviation √(2/n).
        expect(Math.abs(variance / deviation ** 2 - 1)).toBeLessThan(4 * Math.sqrt(2 / n));
        // A sampler of half the noise would be found out, and so would one of a tenth less.
        expect(Math.abs((0.9 ** 2 * variance) / deviation ** 2 - 1)).toBeGreaterThan(4 * Math.sqrt(2 / n));
      }
    }
  });

  it('adds it to the sum, once: without the noise the sum over the expected batch size is left', () => {
    const plan = planOf();
    const run = (w: readonly number[]): Float32Array => {
      const sums = new Map([
        ['w', Float64Array.from(w)],
        ['b', new Float64Array(1)],
      ]);
      return values(privatise(clippedSum(sums, groups, 0), plan, plan.startRatchet().advance()), 'w');
    };
    const noise = run([0, 0, 0]);
    run([1, 2, 4]).forEach((x, i) => expect(x - (noise[i] ?? 0)).toBeCloseTo([1, 2, 4][i]! / 12.5, 5));
  });

  it('releases points of the public grid and nothing between them, whatever the sum', () => {
    const n = 1000;
    const plan = planOf({ groups: flat(2 * n), batchSize: 16 });
    const [law] = gradientLaws(plan.groups, plan);
    const { grid } = law as Lattice;
    const odd = Float32Array.from({ length: n }, (_, i) => Math.sin(i) / 10);
    const remainders = new Map([['w', odd.map((x) => x * 2 ** -26)]]);
    const sum = clippedSum(sumsOf(odd, new Float32Array(n)), plan.groups, plan.rho, undefined, remainders);
    const released = privatise(sum, plan, plan.startRatchet().advance());
    const points = ['w', 'b'].flatMap((name) => Array.from(values(released, name), (x) => (x * 16) / grid));
    // A released float32 is a point rounded to 24 bits.
    for (const point of points) expect(Math.abs(point - Math.round(point))).toBeLessThanOrEqual(2 ** -23 * Math.abs(point));
    // Which is next to nothing of a point.
    expect(Math.max(...points.map(Math.abs))).toBeLessThan(2 ** 21);
    expect(new Set(points.map(Math.round)).size).toBeGreaterThan(n);
  });

  it('adds the noise to sums and what their rounding left over', () => {
    for (const noise of ['float', 'discrete'] as const) {
      const plan = planOf({ noise });
      const run = (remainders?: ReadonlyMap<string, Float32Array>): Float32Array =>
        values(privatise(clippedSum(sumsOf([1, 2], [3, 4]), groups, 0, undefined, remainders), plan, plan.startRatchet().advance()), 'w');
      const [without, withOne] = [run(), run(new Map([['w', Float32Array.of(0, 0.5)]]))];
      expect(withOne[0]).toBe(without[0]);
      expect(withOne[1]! - without[1]!).toBeCloseTo(0.5 / 12.5, 4);
    }
    expect(() => clippedSum(sumsOf([1, 2], [3, 4]), groups, 0, undefined, new Map([['w', new Float32Array(3)]]))).toThrow('the remainder of parameter "w"');
    expect(() => clippedSum(sumsOf([1, 2], [3, 4]), groups, 0, undefined, new Map([['v', new Float32Array(2)]]))).toThrow('the remainder of parameter "v"');
  });

  it('gives each parameter and each step noise of its own', () => {
    const plan = planOf();
    const ratchet = plan.startRatchet();
    const results = [0, 1].map(() => privatise(zeros(plan), plan, ratchet.advance()));
    expect(results.map(({ step }) => step)).toEqual([0, 1]);
    const all = results.flatMap((r) => ['w', 'b'].map((name) => values(r, name).join()));
    expect(new Set(all).size).toBe(4);
  });

  it.each(['float', 'discrete'] as const)('has no %s noise that tells of that of another parameter or step', (noise) => {
    const n = 50_000;
    const plan = planOf({ noise, groups: flat(2 * n) });
    const ratchet = plan.startRatchet();
    const [first, second] = [0, 1].map(() => privatise(zeros(plan), plan, ratchet.advance()));
    const all = [first!, second!].flatMap((step) => ['w', 'b'].map((name) => values(step, name)));
    const product = (x: Float32Array, y: Float32Array): number => x.reduce((sum, z, i) => sum + z * y[i]!, 0);
    all.forEach((x, i) => all.slice(i + 1).forEach((y) =>
      expect(Math.abs(product(x, y) / Math.sqrt(product(x, x) * product(y, y))) * Math.sqrt(n)).toBeLessThan(4.5)));
  });

  it('repeats its noise only for the same key, as resuming a charged step needs', () => {
    const plan = planOf({ seed: undefined });
    const ratchet = plan.startRatchet();
    const state = ratchet.serialise();
    const first = privatise(zeros(plan), plan, ratchet.advance());
    const again = privatise(zeros(plan), plan, restoreRatchet(state).advance());
    expect(values(again, 'w')).toEqual(values(first, 'w'));
  });

  it('takes each sum and each key once', () => {
    const plan = planOf();
    const ratchet = plan.startRatchet();
    const sum = zeros(plan);
    const keys = ratchet.advance();
    privatise(sum, plan, keys);
    expect(() => privatise(sum, plan, ratchet.advance())).toThrow('a clipped sum was noised twice');
    expect(() => privatise(zeros(plan), plan, keys)).toThrow('used twice');
  });

  it('refuses sums whose bound is not what the noise was scaled to', () => {
    const plan = planOf();
    const keys = plan.startRatchet().advance();
    const sums = sumsOf([0, 0], [0, 0]);
    const w = new Map([['w', new Float32Array(4)]]);
    for (const sum of [
      clippedSum(sums, flatGroup(['w', 'b'], 0.6, 4), 0),
      clippedSum(sums, flatGroup(['b', 'w'], 0.5, 4), 0),
      clippedSum(sums, groupsOf([{ ...groups[0]!, name: 'other' }]), 0),
      clippedSum(sumsOf([0, 0], [0]), flat(3), 0),
      clippedSum(w, flatGroup(['w'], 0.5, 4), 0),
    ])
      expect(() => privatise(sum, plan, keys)).toThrow('not clipped as the privacy plan says');
    expect(() => privatise(clippedSum(sums, groups, 2e-3), plan, keys)).toThrow('rounding allowance exceeds');
    // A refusal uses up neither the key nor the sum.
    expect(privatise(clippedSum(sums, groups, 1e-3), plan, keys).step).toBe(0);
  });

  it('refuses forged plans, sums and results, and keys of the other kind', () => {
    const plan = planOf();
    const silent: PrivacyPlan = { ...plan, gradientMultiplier: 0 };
    expect(() => privatise(zeros(plan), silent, plan.startRatchet().advance())).toThrow(
      'privacyPlan() did not make',
    );
    const forged = { ...zeros(plan) };
    expect(() => privatise(forged, plan, plan.startRatchet().advance())).toThrow(GhostgradError);
    const result = privatise(zeros(plan), plan, plan.startRatchet().advance());
    expect(() => assertPrivatised(result)).not.toThrow();
    expect(() => assertPrivatised({ ...result })).toThrow('not privatised');
    const secret = planOf({ seed: undefined });
    expect(() => privatise(zeros(plan), secret, plan.startRatchet().advance())).toThrow(
      'seeded keys under a plan for secret ones',
    );
  });

  it('refuses values that are not finite, and releases nothing of them', () => {
    const plan = planOf();
    const sum = clippedSum(sumsOf([1, NaN], [0, 0]), groups, 0);
    const keys = plan.startRatchet().advance();
    expect(() => privatise(sum, plan, keys)).toThrow('not finite');
    expect(() => privatise(sum, plan, plan.startRatchet().advance())).toThrow('noised twice');
    expect(keys.noise.used).toBe(true);
  });
});

describe('privatiseInParallel', () => {
  const shared = (values: readonly number[]): Float32Array => {
    const array = new Float32Array(new SharedArrayBuffer(4 * values.length));
    array.set(values);
    return array;
  };
  const summed = (plan: PrivacyPlan) =>
    clippedSum(new Map([['w', shared([1, 2, 3])], ['b', shared([4])]]), plan.groups, plan.rho);

  it('comes to what one thread comes to', async () => {
    const plan = planOf({ groups: flat(4) });
    const threads = noiseThreads(2);
    const found = await privatiseInParallel(summed(plan), plan, plan.startRatchet().advance(), threads);
    await threads.close();
    const expected = privatise(summed(plan), plan, plan.startRatchet().advance());
    for (const name of ['w', 'b']) expect([...values(found, name)]).toEqual([...values(expected, name)]);
    expect(() => assertPrivatised(found)).not.toThrow();
  });

  it('uses up sum and key when a thread fails, and gives no result', async () => {
    const plan = planOf({ groups: flat(4) });
    const ratchet = plan.startRatchet();
    const [sum, keys] = [summed(plan), ratchet.advance()];
    const failing = { addNoise: () => Promise.reject(new Error('injected')) };
    await expect(privatiseInParallel(sum, plan, keys, failing)).rejects.toThrow('injected');
    expect(() => privatise(sum, plan, ratchet.advance())).toThrow('noised twice');
    expect(keys.noise.used).toBe(true);
  });
});

describe('clippedSum', () => {
  it('shows its bound and nothing of its values', () => {
    const sum = clippedSum(sumsOf([42], [0]), flat(2), 1e-3, Float32Array.of(77));
    expect(JSON.stringify(sum)).not.toContain('77');
    expect(JSON.stringify(sum)).not.toContain('42');
    expect(Object.keys(sum)).toEqual(['groups', 'rho']);
  });

  it('refuses parameters without a bound, bounds without parameters, and other sizes than the groups say', () => {
    const w = ['w', new Float32Array(1)] as const;
    const b = ['b', new Float32Array(1)] as const;
    expect(() => clippedSum(new Map([w]), flat(2), 0)).toThrow('parameter "b"');
    expect(() => clippedSum(new Map([w, b, ['c', new Float32Array(1)]]), flat(2), 0)).toThrow('parameter "c"');
    expect(() => clippedSum(new Map([w, b]), flat(3), 0)).toThrow(/clipping group "all"[^]*2 numbers[^]*3 numbers/);
    for (const rho of [-1, 1, NaN])
      expect(() => clippedSum(new Map([w, b]), flat(2), rho)).toThrow('rounding allowance out of range');
  });

  it('and its result cannot be written down without a cast', () => {
    // @ts-expect-error an object literal is not a ClippedSum
    const sum: ClippedSum = { groups, rho: 0 };
    // @ts-expect-error nor is one a Privatised
    const result: Privatised = { step: 0, gradients: new Map<string, Float32Array>(), groups, fractions: null };
    expect(() => privatise(sum, planOf(), planOf().startRatchet().advance())).toThrow(GhostgradError);
    expect(() => assertPrivatised(result)).toThrow(GhostgradError);
  });
});
