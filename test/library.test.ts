import { describe, expect, it } from 'vitest';
import { type Certificate, type Graph, GhostgradError, prepare, train } from '../src/index.ts';

describe('the library', () => {
  it('trains a model in a few lines, typed from end to end', async () => {
    const run = await prepare({
      model: 'cnn-tanh',
      data: { train: 'mnist:train', test: 'mnist:test' },
      privacy: { epsilon: 3, delta: 1e-5 },
      clipping: { norm: 0.1 },
      training: { batchSize: 256, steps: 3, optimizer: { name: 'sgd', learningRate: 0.5, momentum: 0.9 } },
    });
    for await (const { step, epsilon } of run.steps()) expect(epsilon).toBeGreaterThan(step / 1e6);
    const { test, epsilon } = await run.finish();
    const certificate: Certificate | null = run.certificate();
    const model: Graph = run.model();

    expect(test?.examples).toBe(10000);
    expect(epsilon).toBeLessThanOrEqual(3);
    expect(certificate?.epsilon).toBe(epsilon);
    expect(model.initializers.get('conv1.weight')?.shape).toEqual([16, 1, 8, 8]);
  });

  it('refuses mistakes before the program runs, and when it does', async () => {
    const rest = { data: { train: 'mnist:train' }, training: { batchSize: 8, steps: 1 } };
    // @ts-expect-error there is no such model
    await expect(train({ ...rest, model: 'cnn-than', privacy: 'none' })).rejects.toThrow('did you mean "cnn-tanh"?');
    // @ts-expect-error there is no such key
    await expect(train({ ...rest, model: 'mlp', privacy: { epsilonn: 3, delta: 1e-5 } })).rejects.toThrow(
      'unknown option',
    );
    const adma = { ...rest.training, optimizer: { name: 'adma', learningRate: 1 } };
    // @ts-expect-error there is no such optimizer
    await expect(train({ ...rest, model: 'mlp', privacy: 'none', training: adma })).rejects.toThrow(GhostgradError);
  });
});
