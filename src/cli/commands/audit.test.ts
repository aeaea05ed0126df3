import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../../test/support/cli.ts';

describe('ghostgrad audit', () => {
  it('bounds the ε of a recipe and of a run folder from below, by what each claims', async () => {
    const { recipe, output, csv, folder } = project();
    const found = json(await ghostgrad(['audit', recipe, '--canaries', '2000', '--json'])) as Record<string, number>;
    expect(found).toMatchObject({ confidence: 0.999, method: 'gradient-canary', delta: 1e-4, alarms: [] });
    expect(found['epsilonClaimed']).toBeGreaterThan(7.9);
    expect(found['epsilonLowerBound']).toBeGreaterThan(0.5 * found['epsilonClaimed']!);
    expect(found['epsilonLowerBound']).toBeLessThan(found['epsilonClaimed']!);

    await ghostgrad(['train', recipe, '--set', 'training.steps=4', '--set', 'clipping.style=per-layer', '--set', 'clipping.function=automatic']);
    // A certificate needs neither model nor data to be audited.
    writeFileSync(csv, '');
    writeFileSync(join(folder, 'mlp.onnx'), '');
    const certificate = JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')) as { epsilon: number; plannedEpsilon: number };
    const run = json(await ghostgrad(['audit', output, '--canaries', '2000', '--json'])) as Record<string, number>;
    expect(run).toMatchObject({ epsilonClaimed: certificate.epsilon, alarms: [] });
    expect(run['epsilonLowerBound']).toBeGreaterThan(0.1 * certificate.epsilon);

    // A certificate that claims too little for its noise.
    writeFileSync(join(output, 'privacy.json'), JSON.stringify({ ...certificate, plannedEpsilon: 0.1 * certificate.plannedEpsilon }));
    const { code, out, err } = await ghostgrad(['audit', output, '--canaries', '2000', '--json']);
    expect(code).toBe(1);
    expect(JSON.parse(out)).toMatchObject({ epsilonClaimed: 0.1 * certificate.plannedEpsilon });
    expect(err).toMatch(/alarm: the lower bound .* is above the claimed ε/);
  });

  it('trains once with wrong labels, and tells what they give away', async () => {
    const { recipe } = project();
    const found = json(await ghostgrad(['audit', recipe, '--method', 'one-run', '--canaries', '40', '--json'])) as Record<string, number>;
    expect(found).toMatchObject({ method: 'one-run', canaries: 40, confidence: 0.999, alarms: [] });
    expect(found['epsilonLowerBound']).toBeLessThan(found['epsilonClaimed']!);
  });

  it('refuses what it cannot audit, and what it does not know', async () => {
    const { recipe, write } = project();
    expect(await refused(['audit', recipe, '--method', 'gradient-canery'])).toMatch(/did you mean "gradient-canary"\?/);
    expect(await refused(['audit', recipe, '--confidence', '1'])).toMatch('confidence is out of range');
    expect(await refused(['audit', 'none.yaml'])).toMatch('no such file');
    const open = write('open.yaml', readFileSync(recipe, 'utf8').replace(/"privacy":\{[^}]*\}/, '"privacy":"none"'));
    expect(await refused(['audit', open])).toMatch('claims no ε');
    expect(await refused(['audit', open, '--method', 'one-run'])).toMatch('cannot be audited by losses');
  });
});
