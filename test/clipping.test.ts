import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { type Mode, modes } from '../src/clipping/plan.ts';
import { type Analysis, analyse, requireTrainable } from '../src/training/compile.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { type NetworkChoice, networkChoice, randomLabels, randomNetwork, randomTensor, testRandom } from './support/random-network.ts';

const privateModes = modes.filter((mode) => mode !== 'non-private');
const optionsOf = (mode: Mode, rowsPerUnit = 1, name: 'abadi' | 'automatic' = 'abadi') =>
  ({ mode, clipping: { function: name, gamma: 0.01 }, rho: defaultRho, rowsPerUnit });

function prepare(choice: NetworkChoice, rows: number): { analysis: Analysis; batch: Batch } {
  const network = randomNetwork(choice);
  const analysis = analyse({ model: network.model, loss: 'cross-entropy', trainable: network.trainable });
  requireTrainable(analysis);
  const random = testRandom(choice.seed + 1);
  return {
    analysis,
    batch: {
      rows,
      inputs: { input: randomTensor(random, [rows, ...network.inputShape]) },
      labels: randomLabels(random, rows, network.classes),
    },
  };
}

/** Below it a gradient is rounding alone (a normalised single pixel has none), and nothing can be compared. */
const smallestNorm = 1e-4;

const median = (xs: readonly number[]) => [...xs].sort((a, b) => a - b)[Math.floor(xs.length / 2)]!;

describe('every mode equals the one-example-at-a-time oracle', () => {
  it.each(privateModes)('%s', async (mode) => {
    await fc.assert(fc.asyncProperty(networkChoice, fc.constantFrom('abadi' as const, 'automatic' as const), async (choice, clip) => {
      const { analysis, batch } = prepare(choice, 4);
      const truth = await oracle(analysis, batch);
      fc.pre(Math.min(...truth.norms) > smallestNorm);
      const threshold = median(truth.norms) * 0.8;
      const found = await runStep(analysis, batch, optionsOf(mode, 1, clip), threshold);
      truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm)).toBeLessThanOrEqual(1e-4 * norm));
      truth.losses.forEach((loss, i) => expect(found.losses[i]).toBeCloseTo(loss, 4));
      const weights = truth.norms.map((n) => (clip === 'abadi' ? Math.min(1, threshold / n) : threshold / (n + 0.01)));
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, weights), 0.01 * threshold)).toBeLessThan(1e-4);
    }), { numRuns: 25 });
  });

  it.each(privateModes)('%s, three rows to a privacy unit', async (mode) => {
    await fc.assert(fc.asyncProperty(networkChoice, async (choice) => {
      const { analysis, batch } = prepare(choice, 6);
      const truth = await oracle(analysis, batch, 3);
      fc.pre(Math.min(...truth.norms) > smallestNorm);
      const threshold = Math.min(...truth.norms) * 0.7;
      const found = await runStep(analysis, batch, optionsOf(mode, 3), threshold);
      truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm)).toBeLessThanOrEqual(1e-4 * norm));
      const weights = truth.norms.map((n) => threshold / n);
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, weights), 0.01 * threshold)).toBeLessThan(1e-4);
    }), { numRuns: 10 });
  });

  it('non-private sums are the plain sums', async () => {
    await fc.assert(fc.asyncProperty(networkChoice, async (choice) => {
      const { analysis, batch } = prepare(choice, 4);
      const truth = await oracle(analysis, batch);
      const found = await runStep(analysis, batch, optionsOf('non-private'), 1);
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, [1, 1, 1, 1]), 0.01 * Math.max(...truth.norms))).toBeLessThan(1e-4);
    }), { numRuns: 15 });
  });
});
