import { readFileSync, readdirSync } from 'node:fs';
import { join, sep } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { clippedSum, flatGroup, privacyPlan, privatise } from '../privacy/index.ts';
import { float32 } from '../tensor/tensor.ts';
import { adam, adamw } from './adam.ts';
import { adagrad, lion, rmsprop } from './adaptive.ts';
import { type PlainGradient, plainGradient } from './gradient.ts';
import { lamb, lars } from './layerwise.ts';
import type { Optimizer, OptimizerState, Parameters, StateTensor } from './optimizer.ts';
import { type OptimizerSpec, buildOptimizer } from './registry.ts';
import { sgd } from './sgd.ts';

type Sequence = readonly (readonly number[])[];

const one = (values: readonly number[]): Parameters => new Map([['w', float32(values)]]);
const gradientsOf = (entries: readonly (readonly [string, readonly number[]])[]): PlainGradient =>
  plainGradient(new Map(entries.map(([name, values]) => [name, Float32Array.from(values)])));
const gradientOf = (values: readonly number[]): PlainGradient => gradientsOf([['w', values]]);

/** The weights after each gradient of the sequence. */
function run(
  optimizer: Optimizer, start: readonly number[], gradients: Sequence, rate = optimizer.learningRate,
): number[][] {
  const parameters = one(start);
  let state = optimizer.init(parameters);
  return gradients.map((g) => {
    state = optimizer.update(parameters, gradientOf(g), state, rate);
    return Array.from(parameters.get('w')!.data);
  });
}

const repeat = (g: number, times: number): Sequence => Array.from({ length: times }, () => [g]);
const expectClose = (found: readonly number[], expected: readonly number[], tolerance = 2e-5): void =>
  expected.forEach((x, i) => expect(Math.abs(found[i]! - x)).toBeLessThanOrEqual(tolerance * Math.max(1, Math.abs(x))));

/** Σₛ decayᵗ⁻ˢ gₛ for s ≤ t: what a running sum holds, written without running. */
const discounted = (gradients: readonly number[], t: number, decay: number): number =>
  gradients.slice(0, t + 1).reduce((sum, g, s) => sum + decay ** (t - s) * g, 0);

const value = fc.float({ min: -4, max: 4, noNaN: true });
const sequence = fc.array(value, { minLength: 1, maxLength: 12 });

describe('sgd', () => {
  it('follows hand-computed steps', () => {
    expectClose(run(sgd({ learningRate: 0.1 }), [1, -2], [[0.5, 1], [1, -1]]).flat(), [0.95, -2.1, 0.85, -2.0]);
    // v: 0.5, 0.95, 1.355
    expectClose(run(sgd({ learningRate: 0.1, momentum: 0.9 }), [1], repeat(0.5, 3)).flat(), [0.95, 0.855, 0.7195]);
    // 0.5 + 0.9·v: 0.95, 1.355, 1.7195
    const ahead = sgd({ learningRate: 0.1, momentum: 0.9, nesterov: true });
    expectClose(run(ahead, [1], repeat(0.5, 3)).flat(), [0.905, 0.7695, 0.59755]);
  });

  it('with weight decay and no gradient shrinks by 1 − ηλ a step', () => {
    const weights = run(sgd({ learningRate: 0.5, weightDecay: 0.2 }), [3], repeat(0, 6)).flat();
    expectClose(weights, weights.map((_, t) => 3 * 0.9 ** (t + 1)));
  });

  it('equals the unrolled sums in float64', () => {
    const momenta = fc.constantFrom(0, 0.5, 0.9);
    fc.assert(fc.property(sequence, value, momenta, fc.boolean(), (gradients, start, momentum, ahead) => {
      const nesterov = ahead && momentum > 0;
      const found = run(sgd({ learningRate: 0.25, momentum, nesterov }), [start], gradients.map((g) => [g])).flat();
      let w = start;
      expectClose(found, gradients.map((g, t) => {
        const v = discounted(gradients, t, momentum);
        w -= 0.25 * (nesterov ? g + momentum * v : v);
        return w;
      }));
    }));
  });

  it('keeps no state without momentum', () => {
    expect(sgd({ learningRate: 1 }).init(one([1, 2])).tensors.size).toBe(0);
    const square: Parameters = new Map([['a', float32([1, 2, 3, 4], [2, 2])]]);
    expect([...sgd({ learningRate: 1, momentum: 0.1 }).init(square).tensors])
      .toEqual([['momentum/a', float32([0, 0, 0, 0], [2, 2])]]);
  });
});

describe('adam and adamw', () => {
  it('under a constant gradient move by ηg/(|g| + ε) every step, thanks to the bias corrections', () => {
    const sizes = fc.float({ min: Math.fround(0.01), max: 100, noNaN: true });
    fc.assert(fc.property(sizes, fc.boolean(), (size, negative) => {
      const g = negative ? -size : size;
      const options = { learningRate: 0.1, epsilon: 1e-3, weightDecay: 0 };
      for (const optimizer of [adam(options), adamw(options)]) {
        const weights = run(optimizer, [0], repeat(g, 8)).flat();
        expectClose(weights, weights.map((_, t) => -(t + 1) * 0.1 * g / (size + 1e-3)), 1e-4);
      }
    }));
  });

  it('equal the unrolled moments in float64', () => {
    fc.assert(fc.property(sequence, value, fc.boolean(), (gradients, start, decoupled) => {
      const options = { learningRate: 0.05, beta1: 0.8, beta2: 0.95, epsilon: 1e-2, weightDecay: 0.1 };
      const found = run(decoupled ? adamw(options) : adam(options), [start], gradients.map((g) => [g])).flat();
      let w = start;
      const seen: number[] = [];
      expectClose(found, gradients.map((g, t) => {
        seen.push(decoupled ? g : g + 0.1 * w);
        const mean = 0.2 * discounted(seen, t, 0.8) / (1 - 0.8 ** (t + 1));
        const square = 0.05 * discounted(seen.map((x) => x * x), t, 0.95) / (1 - 0.95 ** (t + 1));
        w = (decoupled ? w - 0.05 * 0.1 * w : w) - 0.05 * mean / (Math.sqrt(square) + 1e-2);
        return w;
      }), 1e-4);
    }));
  });

  it('adamw without gradient only shrinks, adam with decay moves at full pace', () => {
    expectClose(run(adamw({ learningRate: 0.1, weightDecay: 0.5 }), [2], repeat(0, 3)).flat(), [1.9, 1.805, 1.71475]);
    expectClose(run(adam({ learningRate: 0.1, weightDecay: 0.5 }), [2], repeat(0, 1)).flat(), [1.9]);
  });
});

/** Steps of a rule written out in float64, for every weight of one parameter. */
const followed = (start: readonly number[], gradients: Sequence, rule: (w: readonly number[], seen: Sequence) => readonly number[]): number[][] => {
  let w = start;
  return gradients.map((_, t) => [...(w = rule(w, gradients.slice(0, t + 1)))]);
};
const length = (x: readonly number[]): number => Math.hypot(...x);
const pairs = fc.array(fc.tuple(value, value), { minLength: 1, maxLength: 8 });
const column = (seen: Sequence, i: number): number[] => seen.map((g) => g[i]!);

describe('lamb', () => {
  it("takes Adam's direction at the length of the weights", () => {
    fc.assert(fc.property(pairs, fc.boolean(), (gradients, biasCorrection) => {
      const options = { learningRate: 0.1, beta1: 0.8, beta2: 0.95, epsilon: 1e-2, weightDecay: 0.1, biasCorrection };
      const found = run(lamb(options), [3, -2], gradients);
      expectClose(found.flat(), followed([3, -2], gradients, (w, seen) => {
        const t = seen.length - 1;
        const by = (decay: number): number => (biasCorrection ? 1 - decay ** (t + 1) : 1);
        const u = w.map((x, i) => {
          const mean = 0.2 * discounted(column(seen, i), t, 0.8) / by(0.8);
          const square = 0.05 * discounted(column(seen, i).map((g) => g * g), t, 0.95) / by(0.95);
          return mean / (Math.sqrt(square) + 1e-2) + 0.1 * x;
        });
        return w.map((x, i) => x - 0.1 * length(w) / length(u) * u[i]!);
      }).flat(), 1e-3);
    }));
  });

  it("takes Adam's step from zero weights, and none without a gradient", () => {
    const [options, gradients] = [{ learningRate: 0.1, epsilon: 1e-6 }, [[0.5, -2]]];
    expect(run(lamb(options), [0, 0], gradients)).toEqual(run(adam(options), [0, 0], gradients));
    expect(run(lamb(options), [1, 2], [[0, 0]])).toEqual([[1, 2]]);
  });

  it('takes steps of a length that is asked for at least, from zero weights and from others near it', () => {
    const options = { learningRate: 0.1, leastNorm: 5 };
    for (const start of [[0, 0], [1e-4, -1e-4], [3, 4]]) {
      const [after] = run(lamb(options), start, [[0.5, -2]]);
      expect(Math.hypot(...after!.map((w, i) => w - start[i]!))).toBeCloseTo(0.5, 5);
    }
    const [longer] = run(lamb(options), [30, 40], [[0.5, -2]]);
    expect(Math.hypot(longer![0]! - 30, longer![1]! - 40)).toBeCloseTo(5, 4);
    expect(run(lamb(options), [1, 2], [[0, 0]])).toEqual([[1, 2]]);
  });
});

describe('lars', () => {
  it('brings the gradient to a share of the length of the weights', () => {
    fc.assert(fc.property(pairs.filter((all) => all.every((g) => length(g) > 1e-3)), (gradients) => {
      const found = run(lars({ learningRate: 0.5, momentum: 0.9, weightDecay: 0.1, trustCoefficient: 0.02 }), [3, -2], gradients);
      const v = [0, 0];
      expectClose(found.flat(), followed([3, -2], gradients, (w, seen) => {
        const g = seen.at(-1)!;
        const ratio = 0.02 * length(w) / (length(g) + 0.1 * length(w));
        return w.map((x, i) => x - (v[i] = 0.9 * v[i]! + 0.5 * ratio * (g[i]! + 0.1 * x)));
      }).flat(), 1e-4);
    }));
  });

  it('takes the plain step from zero weights', () => {
    expectClose(run(lars({ learningRate: 0.5 }), [0, 0], [[1, -2]]).flat(), [-0.5, 1]);
  });
});

describe('adagrad, rmsprop and lion', () => {
  it('equal their sums in float64', () => {
    fc.assert(fc.property(sequence, value, (gradients, start) => {
      const steps = gradients.map((g) => [g]);
      expectClose(run(adagrad({ learningRate: 0.1, epsilon: 1e-2 }), [start], steps).flat(), followed([start], steps, ([w], seen) => {
        const all = column(seen, 0);
        return [w! - 0.1 * all.at(-1)! / (Math.sqrt(discounted(all.map((g) => g * g), all.length - 1, 1)) + 1e-2)];
      }).flat(), 1e-4);
      let v = 0;
      expectClose(run(rmsprop({ learningRate: 0.1, decay: 0.9, momentum: 0.5, epsilon: 1e-2 }), [start], steps).flat(),
        followed([start], steps, ([w], seen) => {
          const all = column(seen, 0);
          v = 0.5 * v + all.at(-1)! / (Math.sqrt(0.1 * discounted(all.map((g) => g * g), all.length - 1, 0.9)) + 1e-2);
          return [w! - 0.1 * v];
        }).flat(), 1e-3);
    }));
  });

  it('lion moves every weight by the rate, in the direction of the mean', () => {
    // The first weight's mean is 0, 0.04, 0.0386: it outweighs 0.1 of the second gradient.
    expectClose(run(lion({ learningRate: 0.1 }), [1, 1], [[4, -1e-3], [-0.1, 5], [0, 0]]).flat(), [0.9, 1.1, 0.8, 1, 0.7, 0.9]);
    expectClose(run(lion({ learningRate: 0.1, weightDecay: 0.5 }), [2], [[0], [0]]).flat(), [1.9, 1.805]);
  });
});

describe('every optimizer', () => {
  const specs: readonly OptimizerSpec[] = [
    { name: 'sgd', learningRate: 0.1 },
    { name: 'sgd', learningRate: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.01 },
    { name: 'adam' }, { name: 'adamw', weightDecay: 0.1 },
    { name: 'lamb', weightDecay: 0.1 }, { name: 'lars', learningRate: 1 }, { name: 'adagrad' }, { name: 'rmsprop', momentum: 0.9 }, { name: 'lion' },
    { name: 'adam', noiseCorrection: true },
  ];

  it('continues bit for bit from a copy of its state', () => {
    const gradients = Array.from({ length: 10 }, (_, t) => [Math.sin(t), Math.cos(3 * t)]);
    for (const spec of specs) {
      const whole = run(buildOptimizer(spec), [1, -1], gradients, 0.03);
      const optimizer = buildOptimizer(spec);
      let parameters = one([1, -1]);
      let state = optimizer.init(parameters);
      for (const [t, g] of gradients.entries()) {
        if (t === 5) {
          const copy = <T extends StateTensor>(m: ReadonlyMap<string, T>): ReadonlyMap<string, T> =>
            new Map([...m].map(([n, x]) => [n, { ...x, data: x.data.slice() }]));
          parameters = copy(parameters);
          state = { step: state.step, tensors: copy(state.tensors) };
        }
        state = optimizer.update(parameters, gradientOf(g), state, 0.03);
      }
      expect(state.step).toBe(10);
      expect(Array.from(parameters.get('w')!.data)).toEqual(whole.at(-1));
    }
  });

  it('scales with the rate it is passed, not with its own', () => {
    for (const spec of specs) expect(run(buildOptimizer(spec), [1], [[1]], 0)).toEqual([[1]]);
  });

  it('refuses what does not belong together, and changes nothing', () => {
    for (const spec of specs) {
      const optimizer = buildOptimizer(spec);
      const parameters: Parameters = new Map([['a', float32([1])], ['b', float32([1, 2])]]);
      const state = optimizer.init(parameters);
      const attempt = (entries: [string, number[]][], from: OptimizerState = state) => (): unknown =>
        optimizer.update(parameters, gradientsOf(entries), from, 0.1);
      expect(attempt([['a', [1]]])).toThrow(/parameter "b"[^]*no gradient/);
      expect(attempt([['a', [1]], ['b', [1, 1]], ['c', [1]]])).toThrow(/parameter "c"[^]*without a parameter/);
      expect(attempt([['a', [1]], ['b', [1]]])).toThrow(/parameter "b"[^]*1 elements[^]*2 elements/);
      if (state.tensors.size > 0) {
        expect(attempt([['a', [1]], ['b', [1, 1]]], { step: 0, tensors: new Map() }))
          .toThrow(/parameter "a"[^]*optimizer's state/);
      }
      expect(parameters.get('a')!.data[0]).toBe(1);
    }
  });
});

describe('invariant 1', () => {
  it('a gradient that nobody vouched for is refused, whatever its type says', () => {
    const optimizer = sgd({ learningRate: 0.1 });
    const parameters = one([1]);
    const forged = { gradients: new Map([['w', Float32Array.of(1)]]) } as unknown as PlainGradient;
    expect(() => optimizer.update(parameters, forged, optimizer.init(parameters), 0.1)).toThrow(/not privatised/);
    expect(parameters.get('w')!.data[0]).toBe(1);
  });

  it('a noised sum is followed', () => {
    const plan = privacyPlan({
      datasetSize: 100, batchSize: 10, steps: 1, noiseMultiplier: 1, delta: 1e-5, groups: flatGroup(['w'], 1, 1), seed: 1,
    });
    const sum = clippedSum(new Map([['w', Float32Array.of(0.5)]]), plan.groups, plan.rho);
    const gradient = privatise(sum, plan, plan.startRatchet().advance());
    const optimizer = sgd({ learningRate: 0.1 });
    const parameters = one([1]);
    optimizer.update(parameters, gradient, optimizer.init(parameters), 0.1);
    expectClose(Array.from(parameters.get('w')!.data), [1 - 0.1 * gradient.gradients.get('w')![0]!]);
    expect(parameters.get('w')!.data[0]).not.toBe(1);
  });

  it('only training vouches for gradients without noise', () => {
    const source = join(import.meta.dirname, '..');
    const callers = readdirSync(source, { recursive: true, encoding: 'utf8' })
      .map((path) => path.split(sep).join('/'))
      .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts'))
      .filter((path) => readFileSync(join(source, path), 'utf8').includes('plainGradient('));
    expect(callers.filter((path) => !path.startsWith('training/'))).toEqual(['optimizers/gradient.ts']);
  });
});

describe('buildOptimizer', () => {
  const build = (spec: unknown) => (): unknown => buildOptimizer(spec as OptimizerSpec);

  it('fills in defaults', () => {
    expect(buildOptimizer({ name: 'sgd', learningRate: 0.5 }).options)
      .toEqual({ learningRate: 0.5, momentum: 0, nesterov: false, weightDecay: 0 });
    expect(buildOptimizer({ name: 'adamw' }).options)
      .toEqual({ learningRate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weightDecay: 0.01, noiseCorrection: false, noiseFloor: 0.03 });
    expect(buildOptimizer({ name: 'adam', learningRate: 0.2 }).learningRate).toBe(0.2);
  });

  it('refuses unknown names and options, missing and impossible values', () => {
    expect(build({ name: 'adma' })).toThrow(/unknown optimizer "adma"[^]*did you mean "adam"/);
    expect(build({})).toThrow(GhostgradError);
    expect(build({ name: 'sgd', learningRate: 1, momentun: 0.9 }))
      .toThrow(/unknown option of optimizer sgd "momentun"[^]*momentum/);
    expect(build({ name: 'sgd' })).toThrow(/missing option \(optimizer sgd: learningRate\)/);
    expect(build({ name: 'sgd', learningRate: 0 })).toThrow(/invalid option[^]*found: +0[^]*more than 0/);
    expect(build({ name: 'sgd', learningRate: '0.1' })).toThrow(/invalid option[^]*"0.1"/);
    expect(build({ name: 'sgd', learningRate: 1, momentum: 1 })).toThrow(/momentum/);
    expect(build({ name: 'sgd', learningRate: 1, nesterov: true })).toThrow(/nesterov without momentum/);
    expect(build({ name: 'adam', beta2: Number.NaN })).toThrow(/beta2/);
  });
});
