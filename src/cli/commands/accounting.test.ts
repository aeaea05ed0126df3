import { describe, expect, it } from 'vitest';
import { ghostgrad, json, refused } from '../../../test/support/cli.ts';

describe('epsilon and calibrate', () => {
  const noise = ['--noise-multiplier', '1.23', '--sample-rate', '0.01', '--steps', '1000'];

  it('tell ε, δ and noise, each from the others', async () => {
    const spent = json(await ghostgrad(['epsilon', ...noise, '--delta', '1e-5', '--json'])) as { epsilon: number };
    expect(Object.keys(spent).sort()).toEqual(['accountant', 'delta', 'epsilon', 'errorBound']);
    expect(spent).toMatchObject({ delta: 1e-5, accountant: 'pld' });
    const back = json(await ghostgrad(['epsilon', ...noise, '--epsilon', String(spent.epsilon), '--json'])) as {
      delta: number;
    };
    expect(back.delta).toBeCloseTo(1e-5, 7);
    const calibrated = json(
      await ghostgrad([
        'calibrate',
        '--epsilon',
        String(spent.epsilon),
        '--delta',
        '1e-5',
        '--sample-rate',
        '0.01',
        '--steps',
        '1000',
        '--json',
      ]),
    ) as { noiseMultiplier: number; epsilon: number };
    expect(Object.keys(calibrated).sort()).toEqual(
      ['accountant', 'delta', 'epsilon', 'errorBound', 'noiseMultiplier', 'sampleRate', 'steps']);
    expect(calibrated.noiseMultiplier).toBeCloseTo(1.23, 3);
    expect(calibrated.epsilon).toBeLessThanOrEqual(spent.epsilon);
  });

  it('find the most steps, or the largest sample rate, where the noise is given', async () => {
    const target = ['--epsilon', '2', '--delta', '1e-5', '--noise-multiplier', '1.23', '--json'];
    const longest = json(await ghostgrad(['calibrate', ...target, '--sample-rate', '0.01'])) as { steps: number; epsilon: number };
    expect(longest.steps).toBeGreaterThan(1000);
    expect(longest.epsilon).toBeLessThanOrEqual(2);
    const largest = json(await ghostgrad(['calibrate', ...target, '--steps', '1000'])) as { sampleRate: number; epsilon: number };
    expect(largest.sampleRate).toBeGreaterThan(0.01);
    expect(largest.epsilon).toBeLessThanOrEqual(2);
    expect(await refused(['calibrate', ...target])).toMatch(/not two of noise multiplier[^]*found: +--noise-multiplier/);
    expect(await refused(['calibrate', ...target, '--steps', '9', '--sample-rate', '0.1'])).toMatch('not two of');
  });

  it('are exact for one step on all of the data', async () => {
    expect(
      json(
        await ghostgrad([
          'epsilon',
          '--noise-multiplier',
          '1',
          '--sample-rate',
          '1',
          '--steps',
          '1',
          '--delta',
          '1e-5',
          '--json',
        ]),
      ),
    ).toMatchObject({ accountant: 'exact-gaussian' });
  });

  it('answer in words without --json', async () => {
    const { out } = await ghostgrad(['epsilon', ...noise, '--delta', '1e-5']);
    expect(out).toMatch(/^ε +\d\.\d+\nδ +0\.00001\naccountant +pld\n$/);
  });

  it('refuse what is out of range, missing or contradictory', async () => {
    expect(await refused(['epsilon', ...noise])).toMatch('neither --delta nor --epsilon is given');
    expect(await refused(['epsilon', ...noise, '--delta', '1e-5', '--epsilon', '1'])).toMatch('both given');
    for (const delta of ['0', '1', '-1', '2'])
      expect(await refused(['epsilon', ...noise, '--delta', delta])).toMatch('out of range');
    expect(await refused(['epsilon', ...noise, '--delta', '1e-5', '--accountant', 'exact-gaussian'])).toMatch(
      'cannot account for this event',
    );
    expect(await refused(['epsilon', ...noise, '--delta', '1e-5', '--accountant', 'rpd'])).toMatch(
      'did you mean "rdp"?',
    );
    const target = ['--delta', '1e-5', '--sample-rate', '0.01', '--steps', '1000'];
    for (const epsilon of ['0', '-1', 'Infinity'])
      expect(await refused(['calibrate', '--epsilon', epsilon, ...target])).toMatch('out of range');
    expect(
      await refused(['calibrate', '--epsilon', '1', '--delta', '1e-5', '--sample-rate', '2', '--steps', '9']),
    ).toMatch('out of range');
    expect(
      await refused(['calibrate', '--epsilon', '1', '--delta', '1e-5', '--sample-rate', '0.1', '--steps', '1.5']),
    ).toMatch('out of range');
  });
});
