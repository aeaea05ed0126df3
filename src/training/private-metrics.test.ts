import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { certificateSchema } from '../privacy/index.ts';
import { evaluate } from './evaluate.ts';
import type { TrainingInput } from './materials.ts';
import { resolveRecipe } from './recipe.ts';
import { prepare, train } from './train.ts';
import { verify } from './verify.ts';

const metrics = { trainingLoss: 5, trainingAccuracy: true, budgetFraction: 0.5 };
const recipe = (changes: Partial<TrainingInput> = {}): TrainingInput => ({
  model: blobModel,
  data: { train: blobs() },
  privacy: { noiseMultiplier: 0.5, delta: 1e-4, sampling: 'full-batch', metrics },
  training: { steps: 2, optimizer: { name: 'sgd', learningRate: 0.5 } },
  performance: { threads: 1, microBatch: 64 },
  ...changes,
});

describe('privatised metrics', () => {
  it('are the loss and accuracy of the model before the step, give or take their noise', async () => {
    const run = await prepare(recipe());
    const before = await evaluate(run.model(), blobs());
    const { value } = await run.steps().next();
    const { deviation } = run.plan!.metrics!;
    await run.release();
    expect(deviation).toBe(0.25 * 2);
    const { trainingLoss, trainingAccuracy } = value!.metrics!;
    expect(Math.abs(trainingAccuracy! - before.accuracy!)).toBeLessThan((6 * deviation) / 200);
    expect(Math.abs(trainingLoss! - before.loss)).toBeLessThan((5 * 6 * deviation) / 200);
    // Noised: not what it is.
    expect(trainingAccuracy! * 200).not.toBeCloseTo(Math.round(trainingAccuracy! * 200), 6);
  });

  it('go where all may look, within the ε of the run, and the certificate says so', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const privacy = { epsilon: 3, delta: 1e-4, metrics: { ...metrics, budgetFraction: 0.02 } };
    const training = { batchSize: 50, steps: 4, optimizer: { name: 'sgd', learningRate: 0.5 } } as const;
    const result = await train(recipe({ output, privacy, training }));
    expect(result.epsilon).toBeLessThanOrEqual(3);
    const lines = readFileSync(join(output, 'metrics.jsonl'), 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line) as { metrics: object });
    expect(lines.map((line) => Object.keys(line.metrics))).toEqual(Array.from({ length: 4 }, () => ['trainingLoss', 'trainingAccuracy']));
    const certificate = certificateSchema.parse(JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')));
    expect(certificate.metrics).toMatchObject({ budgetFraction: 0.02, measures: [{ name: 'trainingLoss', low: 0, high: 5 }, { name: 'trainingAccuracy', low: 0, high: 1 }] });
    expect(certificate.mechanism).toMatch(/trainingLoss and trainingAccuracy\. ε covers all of it: gradients and measures of a step/);
    expect((await verify(join(output, 'privacy.json'))).problems).toEqual([]);
  });

  it('are refused where there is nothing to measure, or no right and wrong', () => {
    const refused = (changes: object, loss = 'cross-entropy') => () => resolveRecipe({
      model: 'mlp', data: { train: 'mnist:train' }, loss, training: { batchSize: 8, steps: 1 },
      privacy: { epsilon: 3, delta: 1e-5, metrics: changes },
    });
    expect(refused({})).toThrow(/private metrics of nothing/);
    expect(refused({ trainingAccuracy: true }, 'mse')).toThrow(/does not tell right from wrong \(privacy\.metrics\.trainingAccuracy\)/);
    expect(refused({ trainingAcuracy: true })).toThrow(/trainingAcuracy/);
    expect(refused({ trainingLoss: 3 }, 'mse')).not.toThrow();
  });
});
