import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { testRandom } from '../../test/support/random-network.ts';
import { type Lattice, continuousDeviation, statisticalDistance } from '../random/discrete-gaussian.ts';
import { ratchet } from '../random/ratchet.ts';
import { allocations } from './allocation.ts';
import { groupsOf } from './groups.ts';
import {
  type NoiseSettings, accountedDelta, checkAdditions, checkReserve, countLaw, gradientLaws, latticeFor, noiseDistance, roundingOf,
} from './lattice.ts';
import { privacyPlan } from './plan.ts';
import { clippedSum, privatise } from './sum.ts';

const positive = (min: number, max: number) => fc.double({ min, max, noNaN: true });
const anySettings = fc.record({
  noise: fc.constant('discrete' as const), allocation: fc.constantFrom(...allocations), gradientMultiplier: positive(0.3, 20),
  rho: fc.constant(1e-3), rounding: fc.constant(roundingOf('discrete')), adaptive: fc.record({ countDeviation: positive(0.5, 1000) }),
});
/** The deviation of the continuous Gaussian that a lattice's noise is as private as. */
const accounted = (law: Lattice): number => law.grid * continuousDeviation(law.levels);

describe('grids of discrete noise', () => {
  it('have points so close that rounding costs a thousandth, and as few levels as that takes', () => {
    fc.assert(fc.property(positive(1e-4, 1e3), fc.integer({ min: 1, max: 1e9 }), positive(0.1, 100), (norm, size, multiplier) => {
      const lattice = latticeFor({ norm, size }, multiplier * norm);
      expect(accounted(lattice)).toBeCloseTo(multiplier * norm, 9);
      expect(Math.sqrt(size) * lattice.grid).toBeLessThanOrEqual(2 ** -10 * norm);
      if (lattice.levels > 1)
        expect((Math.sqrt(size) * multiplier * norm) / continuousDeviation(lattice.levels - 1)).toBeGreaterThan(7 * 2 ** -13 * norm);
    }));
    expect(() => latticeFor({ norm: 1e-30, size: 100 }, 1)).toThrow('too large for discrete noise');
  });

  it('keep neighbours, rounded, within what the noise is accounted for', () => {
    const random = testRandom(3);
    const instance = fc.record({
      settings: anySettings,
      groups: fc.array(fc.record({ norm: positive(0.01, 10), size: fc.integer({ min: 1, max: 40 }) }), { minLength: 1, maxLength: 4 }),
    });
    let largest = 0;
    fc.assert(fc.property(instance, ({ settings, groups: given }) => {
      const groups = groupsOf(given.map((group, k) => ({ ...group, name: `g${k}`, parameters: [`p${k}`] })));
      const laws = gradientLaws(groups, settings) as readonly Lattice[];
      // One unit more, clipped to C_k(1 + ρ), on sums that any addition carries over to the next point: rounded up, all of it.
      const moved = groups.map(({ norm, size }, k) => {
        const { grid } = laws[k]!;
        const direction = Array.from({ length: size }, () => 0.1 + random());
        const length = Math.hypot(...direction);
        const unit = direction.map((x) => (x / length) * norm * (1 + settings.rho));
        return Math.hypot(...unit.map((x) => {
          const sum = (Math.floor(random() * 1000) + 0.5 - 1e-6) * grid;
          return Math.round((sum + x) / grid) - Math.round(sum / grid);
        })) / continuousDeviation(laws[k]!.levels);
      });
      const spent = Math.hypot(...moved) * settings.gradientMultiplier;
      expect(spent).toBeLessThanOrEqual(1 + 1e-12);
      largest = Math.max(largest, spent * (1 + settings.rho + settings.rounding));
    }), { numRuns: 300 });
    // Without ν some would be out of bounds: 1 + ρ is what clipping alone allows.
    expect(largest).toBeGreaterThan(1 + 1e-3 + 1e-5);
  });

  it('serve counts too: half a point of a unit and what rounding adds, under noise that is as much larger', () => {
    fc.assert(fc.property(anySettings, (settings) => {
      const law = countLaw(settings) as Lattice;
      const apart = (Math.round(0.5 / law.grid) + 1) * law.grid;
      expect(apart / accounted(law)).toBeLessThanOrEqual((0.5 / settings.adaptive.countDeviation) * (1 + 2e-3));
      expect((0.5 + law.grid) / accounted(law)).toBeLessThanOrEqual(0.5 / settings.adaptive.countDeviation);
    }));
    const settings: NoiseSettings = { noise: 'float', allocation: 'global', gradientMultiplier: 1, rho: 0, rounding: 0, adaptive: null };
    expect(countLaw(settings)).toBeNull();
    expect(countLaw({ ...settings, adaptive: { countDeviation: 3 } })).toEqual({ deviation: 3 });
  });

  it('counts are noised on their grid with the deviation that is accounted for', () => {
    const K = 50_000;
    const groups = groupsOf(Array.from({ length: K }, (_, k) => ({ name: `g${k}`, norm: 1, parameters: [`p${k}`], size: 1 })));
    const plan = privacyPlan({
      datasetSize: 1e7, batchSize: 1e5, steps: 1, noiseMultiplier: 1, delta: 1e-8, groups, seed: 3,
      adaptive: { quantile: 0.5, learningRate: 0.2, budgetFraction: 0.5, rescaleTo: null },
    });
    const zeros = new Map(groups.map(({ parameters: [name] }) => [name!, new Float32Array(1)]));
    const { fractions } = privatise(clippedSum(zeros, groups, plan.rho, new Float32Array(0)), plan, ratchet(3).advance());
    const { grid } = countLaw(plan) as Lattice;
    const deviation = plan.adaptive!.countDeviation * (1 + 2 ** -10);
    const noise = fractions!.map((f) => (f - 0.5) * 1e5);
    for (const x of noise) expect(Math.abs(x / grid - Math.round(x / grid))).toBeLessThan(1e-4);
    const variance = noise.reduce((sum, x) => sum + x * x, 0) / K / deviation ** 2;
    expect(Math.abs(variance - 1)).toBeLessThan(4.5 * Math.sqrt(2 / K));
  });

  it('takes of δ more than the distance of the noise can cost, or refuses', () => {
    const groups = groupsOf([{ name: 'a', norm: 1, parameters: ['w'], size: 1e8 }]);
    expect(noiseDistance('float', groups, 10)).toBe(0);
    const distance = noiseDistance('discrete', groups, 1e5);
    expect(distance).toBeGreaterThan(1e13 * statisticalDistance(4));
    expect(accountedDelta('float', 1e-5)).toBe(1e-5);
    for (const epsilon of [0.1, 3, 50, 100]) expect(() => { checkReserve(distance, epsilon, 1e-6); }).not.toThrow();
    for (const epsilon of [150, 1e3, Infinity]) expect(() => { checkReserve(distance, epsilon, 1e-6); }).toThrow('delta does not hold');
    expect((1 + Math.exp(3)) * distance).toBeLessThan(1e-6 - accountedDelta('discrete', 1e-6));
  });

  it('cover the additions of micro-batches, or the batch is refused', () => {
    // 2·n·parts·2^-47.8 of C(1 + ρ) is within 2^-13 of C.
    expect(2 * 2 ** 33 * 2 ** -47.8 * 1.001).toBeLessThan(2 ** -13);
    expect(() => { checkAdditions(2 ** 20, 2 ** 13); }).not.toThrow();
    expect(() => { checkAdditions(2 ** 20, 2 ** 13 + 1); }).toThrow('larger micro-batches');
  });
});
