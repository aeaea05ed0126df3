import { generateKeyPairSync } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../../test/support/cli.ts';
import { readBudget } from '../../privacy/budget.ts';
import type { TrainResult } from '../../training/train.ts';

describe('train, from the command line', () => {
  it('goes on with a run that was stopped, signs its certificate, and then has nothing more to do', async () => {
    const { recipe, output, write } = project();
    const { publicKey, privateKey } = generateKeyPairSync('ed25519');
    const key = write('key.pem', privateKey.export({ type: 'pkcs8', format: 'pem' }));
    const open = write('key.pub', publicKey.export({ type: 'spki', format: 'pem' }));
    const stopped = await ghostgrad(['train', recipe, '--set', 'training.steps=300', '--json'], { interruptAt: /^300 steps/ });
    expect(stopped.code).toBe(130);
    const before = JSON.parse(stopped.out) as TrainResult;
    expect(before).toMatchObject({ ended: 'stopped' });
    expect(await refused(['train', recipe, '--resume', output])).toContain('recipe of a run that began cannot be changed');
    expect(await refused(['train', '--resume', output, '--set', 'privacy.epsilon=9'])).toContain('privacy.epsilon');

    const resumed = json(await ghostgrad(['train', '--resume', output, '--sign', key, '--json'])) as TrainResult;
    expect(resumed).toMatchObject({ ended: 'complete', steps: 300, recharged: 0, valid: true });
    expect(resumed.epsilon).toBeGreaterThan(before.epsilon!);
    const certificate = join(output, 'privacy.json');
    expect(json(await ghostgrad(['verify', certificate, '--signed-by', open, '--json']))).toMatchObject({ holds: true, problems: [] });

    const model = readFileSync(join(output, 'model.onnx'));
    const again = await ghostgrad(['train', '--resume', output, '--json']);
    expect(again.err).toContain('nothing to go on with');
    expect(json(again)).toEqual(resumed);
    expect(readFileSync(join(output, 'model.onnx'))).toEqual(model);
  });

  it('charges a budget that runs share, and refuses the run that would overrun it, without a trace', async () => {
    const { recipe, folder, output, write } = project();
    const budget = write('budget.json', JSON.stringify({ epsilon: 10, delta: 1e-3 }));
    const run = (out: string): string[] => ['train', recipe, '--set', `privacy.budget=${budget}`, '--out', out];
    json(await ghostgrad([...run(output), '--json']));
    expect(readBudget(budget).runs).toMatchObject([{ name: output }]);
    const other = join(folder, 'runs', 'other');
    expect(await refused(run(other))).toMatch(/would overrun the budget[^]*budget\.json/);
    expect(existsSync(other)).toBe(false);
    expect(readBudget(budget).runs).toHaveLength(1);
    expect(await refused([...run(other), '--set', 'training.seed=1'])).toContain('a seeded run has no guarantee');
  });
});
