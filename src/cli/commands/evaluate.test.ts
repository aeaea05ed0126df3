import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../../test/support/cli.ts';

describe('evaluate on private data', () => {
  it('tells accuracy with noise, and what it cost', async () => {
    const { model, csv } = project();
    const data = ['--data', `{path: ${JSON.stringify(csv)}, label: y}`];
    const found = json(await ghostgrad(['evaluate', model, ...data, '--epsilon', '2', '--delta', '1e-5', '--json'])) as { epsilon: number };
    expect(found).toMatchObject({ accuracy: expect.any(Number) as number, loss: null, examples: 200, delta: 1e-5, event: { kind: 'gaussian' } });
    expect(found.epsilon).toBeLessThanOrEqual(2);
    const { out } = await ghostgrad(['evaluate', model, ...data, '--epsilon', '2', '--delta', '1e-5', '--loss-bound', '4']);
    expect(out).toMatch(/accuracy +-?[\d.]+ % ± [\d.]+ %\nloss +-?[\d.]+ ± [\d.]+\nexamples +200\nprivacy +\((2|1\.9\d+), 0\.00001\)-differential privacy/);
    expect(await refused(['evaluate', model, ...data, '--epsilon', '2'])).toMatch(/needs its ε and δ \(--delta\)/);
    expect(await refused(['evaluate', model, ...data, '--loss-bound', '2'])).toMatch(/needs its ε and δ \(--epsilon\)/);
  });
});
