import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { oracle, relativeDifference, runStep, weightedSum } from '../../test/support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from '../../test/support/random-network.ts';
import { withSession } from '../../test/support/operator-sample.ts';
import { defaultRho } from '../clipping/norm.ts';
import { buildModel } from '../models/index.ts';
import { type GraphBuilder, graphBuilder } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { type Tensor, float32, int64, sizeOf } from '../tensor/tensor.ts';
import { analyse } from './compile.ts';
import { type LossName, attachLoss, labelsInput } from './loss.ts';

/** A model that outputs its input. */
function identity(shape: readonly number[]): ReturnType<GraphBuilder['build']> {
  const b = graphBuilder(semantics);
  return b.build([['output', b.op('Identity', [b.input('x', { dtype: 'float32', shape })])]]);
}

const lossesOf = async (name: LossName, x: Tensor, labels: Tensor): Promise<number[]> => {
  const { graph, loss } = attachLoss(identity(x.shape), name);
  return withSession(graph, async (run) => Array.from((await run({ x, [labelsInput]: labels }))[loss]!.data, Number));
};

const crossEntropy = (logits: readonly number[], label: number): number =>
  Math.log(logits.reduce((sum, z) => sum + Math.exp(z), 0)) - logits[label]!;

describe('causal-lm', () => {
  it('sums over the tokens of an example what each costs to predict, less those to be ignored', async () => {
    await fc.assert(fc.asyncProperty(
      fc.integer({ min: 1, max: 3 }), fc.integer({ min: 2, max: 5 }), fc.integer({ min: 2, max: 6 }), fc.nat(),
      async (rows, tokens, vocabulary, seed) => {
        const random = testRandom(seed + 1);
        const x = float32(Array.from({ length: rows * tokens * vocabulary }, () => random() * 6 - 3), [rows, tokens, vocabulary]);
        const labels = Array.from({ length: rows * tokens }, () => (random() < 0.2 ? -100 : Math.floor(random() * vocabulary)));
        const found = await lossesOf('causal-lm', x, int64(labels, [rows, tokens]));
        const wanted = found.map((_, i) => Array.from({ length: tokens - 1 }, (_unused, t) => {
          const next = labels[i * tokens + t + 1]!;
          const start = (i * tokens + t) * vocabulary;
          return next < 0 ? 0 : crossEntropy(Array.from(x.data.slice(start, start + vocabulary)), next);
        }).reduce((sum, loss) => sum + loss, 0));
        expect(found).toHaveLength(rows);
        found.forEach((loss, i) => { expect(loss).toBeCloseTo(wanted[i]!, 4); });
      },
    ), { numRuns: 10 });
  });

  it('is refused for outputs that are no logits of tokens', () => {
    for (const shape of [[3, 4], [3, 1, 4], [2, 3, 4, 5]]) {
      expect(() => attachLoss(identity(shape), 'causal-lm')).toThrow(/does not fit the loss causal-lm/);
    }
    expect(sizeOf(attachLoss(identity([3, 2, 4]), 'causal-lm').labels!.shape)).toBe(6);
  });
});

describe('cross-entropy', () => {
  it('is that of the label, also where another class has no probability', async () => {
    const logits = [[1, 2, 3], [0, -1e30, 5]];
    const found = await lossesOf('cross-entropy', float32(logits.flat(), [2, 3]), int64([0, 2]));
    found.forEach((loss, i) => { expect(loss).toBeCloseTo(crossEntropy(logits[i]!, [0, 2][i]!), 5); });
  });
});

describe('sigmoid-cross-entropy', () => {
  it('is that of each class against all others, and large logits do not overflow', async () => {
    const logits = [[1, 2, -3], [0, -1e4, 5]];
    const found = await lossesOf('sigmoid-cross-entropy', float32(logits.flat(), [2, 3]), int64([0, 1]));
    const wanted = logits.map((row, i) => row.reduce((sum, z, c) => sum + Math.log1p(Math.exp(c === i ? -z : z)), 0));
    wanted[1] = 1e4 + Math.LN2 + Math.log1p(Math.exp(5));
    found.forEach((loss, i) => { expect(loss / wanted[i]!).toBeCloseTo(1, 5); });
  });

  it('is trained with the gradients and norms of the oracle', async () => {
    const random = testRandom(3);
    const analysis = analyse({ model: buildModel({ name: 'mlp', input: [6], hidden: [5], classes: 4 }, { seed: 1 }), loss: 'sigmoid-cross-entropy' });
    const batch = { rows: 5, inputs: { input: randomTensor(random, [5, 6]) }, labels: randomLabels(random, 5, 4) };
    const truth = await oracle(analysis, batch);
    const found = await runStep(
      analysis, batch, { mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 }, Math.min(...truth.norms) * 1.1,
    );
    truth.norms.forEach((norm, i) => { expect(found.norms[i]! / norm).toBeCloseTo(1, 3); });
    expect(relativeDifference(found.sums, weightedSum(truth.gradients, [...found.weights]))).toBeLessThan(1e-4);
  });
});
