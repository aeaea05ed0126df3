import { describe, expect, it } from 'vitest';
import { type PrivacyPlan, type Privatised, clippedSum, groupsOf, privacyPlan, privatise } from '../privacy/index.ts';
import { type Groups, withNorms } from '../privacy/groups.ts';
import { float32 } from '../tensor/tensor.ts';
import { adam, adamw } from './adam.ts';
import { plainGradient } from './gradient.ts';
import { lamb } from './layerwise.ts';
import type { Optimizer, Parameters } from './optimizer.ts';
import { buildUpdate } from './registry.ts';
import { sgd } from './sgd.ts';
import { shrinkageOf, shrunk } from './shrinkage.ts';

const batch = 50;
const planFor = (size: number, adaptive = true): PrivacyPlan => privacyPlan({
  datasetSize: 1e5, batchSize: batch, steps: 5000, noiseMultiplier: 1.5, delta: 1e-7, seed: 3,
  groups: groupsOf([{ name: 'a', norm: 1, parameters: ['a'], size }, { name: 'b', norm: 2, parameters: ['b'], size }]),
  ...(adaptive && { adaptive: { quantile: 0.5, learningRate: 0.2, budgetFraction: 0.02, rescaleTo: null } }),
});

/** A source of privatised gradients, of mean `g` before their noise, clipped to other thresholds at every step. */
function noised(plan: PrivacyPlan, size: number, normsAt: (t: number) => readonly number[] = () => [1, 2]) {
  const keys = plan.startRatchet();
  let t = 0;
  return (g: (i: number) => number): Privatised => {
    const groups: Groups = withNorms(plan.groups, [...normsAt(t++)]);
    const sums = new Map(['a', 'b'].map((name) => [name, Float32Array.from({ length: size }, (_, i) => batch * g(i))]));
    return privatise(clippedSum(sums, groups, plan.rho, plan.adaptive === null ? undefined : new Float32Array(0)), plan, keys.advance());
  };
}
const start = (size: number, value = 0): Parameters => new Map(['a', 'b'].map((name) => [name, float32(new Float32Array(size).fill(value))]));
const mean = (x: readonly number[]): number => x.reduce((sum, value) => sum + value, 0) / x.length;

describe('the deviation that a privatised gradient carries', () => {
  it('is that of its noise, parameter by parameter, at the thresholds of the step', () => {
    const size = 20_000;
    const next = noised(planFor(size), size, (t) => (t === 0 ? [1, 2] : [6, 0.5]));
    for (const { gradients, deviations } of [next(() => 0), next(() => 0)]) {
      for (const [name, values] of gradients) {
        const measured = Math.sqrt(mean(Array.from(values, (x) => x * x)));
        // The deviation of a deviation is 1/√(2n), 0.5 %.
        expect(Math.abs(measured / deviations.get(name)! - 1)).toBeLessThan(0.02);
      }
    }
    const [first, second] = [noised(planFor(2), 2)(() => 0), noised(planFor(2), 2, () => [6, 0.5])(() => 0)];
    expect(second.deviations.get('a')! / first.deviations.get('a')!).toBeCloseTo(Math.hypot(6, 0.5) / Math.hypot(1, 2), 6);
  });
});

describe('noiseCorrection', () => {
  const options = { learningRate: 0.1, beta1: 0.8, beta2: 0.9, epsilon: 1e-3, noiseCorrection: true, noiseFloor: 0.05 };
  const kinds: readonly (readonly [string, Optimizer, (w: number, m: number, v: number, norms: readonly [number, number] | null) => number])[] = [
    ['adam', adam(options), (w, m, v) => w - 0.1 * m / (v + 1e-3)],
    ['adamw', adamw({ ...options, weightDecay: 0.5 }), (w, m, v) => w * 0.95 - 0.1 * m / (v + 1e-3)],
    ['lamb', lamb(options), (w, m, v, norms) => w - 0.1 * norms![0] / norms![1] * m / (v + 1e-3)],
  ];

  it.each(kinds)('of %s is max(v̂ − Φ, floor), Φ the running mean of the variance of the noise', (_, optimizer, step) => {
    const size = 4;
    const next = noised(planFor(size), size, (t) => [1 + t % 3, 2 / (1 + t)]);
    const parameters = start(size, 3);
    let state = optimizer.init(parameters);
    const w = { a: new Array<number>(size).fill(3), b: new Array<number>(size).fill(3) };
    const seen: Privatised[] = [];
    for (let t = 0; t < 12; t++) {
      const gradient = next((i) => 0.3 * i);
      seen.push(gradient);
      state = optimizer.update(parameters, gradient, state, 0.1);
      for (const name of ['a', 'b'] as const) {
        const hat = (of: (s: Privatised) => number, beta: number): number =>
          seen.reduce((sum, s, k) => sum + (1 - beta) * beta ** (t - k) * of(s), 0) / (1 - beta ** (t + 1));
        const moments = w[name].map((__, i) => {
          const known = hat((s) => s.deviations.get(name)! ** 2, 0.9);
          const square = hat((s) => s.gradients.get(name)![i]! ** 2, 0.9);
          return [hat((s) => s.gradients.get(name)![i]!, 0.8), Math.sqrt(Math.max(square - known, 0.05 * known))] as const;
        });
        const norms = [Math.hypot(...w[name]), Math.hypot(...moments.map(([m, v]) => m / (v + 1e-3)))] as const;
        w[name] = w[name].map((x, i) => step(x, ...moments[i]!, norms));
        w[name].forEach((x, i) => expect(Math.abs(parameters.get(name)!.data[i]! - x)).toBeLessThan(1e-3 * Math.max(1, Math.abs(x))));
      }
    }
  });

  it('leaves in the second moment what the gradients are without their noise', () => {
    const size = 2000;
    const next = noised(planFor(size), size, (t) => (t < 150 ? [1, 2] : [3, 4]));
    const optimizer = adam({ learningRate: 1e-3, beta2: 0.99, noiseCorrection: true });
    const parameters = start(size);
    let state = optimizer.init(parameters);
    const g = 0.05;
    for (let t = 0; t < 200; t++) state = optimizer.update(parameters, next(() => g), state, 1e-3);
    const by = 1 - 0.99 ** 200;
    for (const name of ['a', 'b']) {
      const squares = Array.from(state.tensors.get(`square/${name}`)!.data, (v) => v / by);
      const known = state.tensors.get(`noise/${name}`)!.data[0]! / by;
      // Of the mean of 2000 estimates of g² + Φ: √(2·(1 − β)/(1 + β))·Φ/√2000, and much more noise than gradient.
      const deviation = 1.2 * known * Math.sqrt(2 * 0.01 / 1.99) / Math.sqrt(size);
      expect(known).toBeGreaterThan(2 * g * g);
      expect(Math.abs(mean(squares) - known - g * g)).toBeLessThan(5 * deviation);
      expect(5 * deviation).toBeLessThan(0.5 * g * g);
    }
  });

  it('changes nothing where there is no noise', () => {
    const run = (optimizer: Optimizer): number[] => {
      const parameters = start(2, 1);
      let state = optimizer.init(parameters);
      for (let t = 0; t < 5; t++) {
        const gradient = plainGradient(new Map(['a', 'b'].map((name) => [name, Float32Array.of(Math.sin(t), 0)])));
        state = optimizer.update(parameters, gradient, state, 0.1);
      }
      return [...parameters.values()].flatMap(({ data }) => Array.from(data));
    };
    for (const make of [adam, adamw, lamb]) expect(run(make({ noiseCorrection: true }))).toEqual(run(make()));
  });
});

describe('james-stein', () => {
  it('multiplies by max(0, 1 − (d − 2)σ²/‖g‖²)', () => {
    expect(shrinkageOf(Float32Array.of(3, 4, 0), 2)).toBeCloseTo(1 - 4 / 25, 12);
    expect(shrinkageOf(Float32Array.of(0.3, 0.4, 0), 2)).toBe(0);
    expect(shrinkageOf(new Float32Array(3), 1)).toBe(0);
    expect(shrinkageOf(Float32Array.of(3, 4, 0), 0)).toBe(1);
    expect(shrinkageOf(Float32Array.of(3, 4), 2)).toBe(1);
  });

  it.each([0, 0.02, 0.2])('brings gradients of size %s nearer to what they were before the noise', (size) => {
    const [d, steps] = [40, 300];
    const next = noised(planFor(d, false), d);
    const g = (i: number): number => size * Math.cos(i);
    const errors = Array.from({ length: steps }, () => {
      const { gradients, deviations } = next(g);
      const values = gradients.get('a')!;
      const factor = shrinkageOf(values, deviations.get('a')!);
      const errorOf = (by: number): number => values.reduce((sum, x, i) => sum + (by * x - g(i)) ** 2, 0);
      return [errorOf(1), errorOf(factor)] as const;
    });
    expect(mean(errors.map(([, after]) => after))).toBeLessThan(mean(errors.map(([before]) => before)));
  });

  it('is what the optimizer follows, and excludes noiseCorrection', () => {
    const size = 8;
    const [next, again] = [noised(planFor(size), size), noised(planFor(size), size)];
    const run = (optimizer: Optimizer, gradient: Privatised): number[] => {
      const parameters = start(size);
      optimizer.update(parameters, gradient, optimizer.init(parameters), 1);
      return Array.from(parameters.get('a')!.data);
    };
    const [raw, copy] = [next((i) => i), again((i) => i)];
    const factor = shrinkageOf(raw.gradients.get('a')!, raw.deviations.get('a')!);
    expect(factor).toBeGreaterThan(0);
    expect(factor).toBeLessThan(1);
    const plain = run(sgd({ learningRate: 1 }), copy);
    run(shrunk(sgd({ learningRate: 1 })), raw).forEach((x, i) => expect(x).toBeCloseTo(plain[i]! * factor, 5));
    expect(() => buildUpdate({ optimizer: { name: 'adam', noiseCorrection: true }, denoise: 'james-stein' }, 1)).toThrow(/one of the two/);
    expect(() => buildUpdate({ optimizer: { name: 'adam' }, denoise: 'james-stein' }, 1)).not.toThrow();
  });
});
