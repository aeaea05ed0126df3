import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../test/support/cli.ts';
import { certificateSchema } from '../privacy/index.ts';
import { smoothed, thinned } from './curves.ts';
import { html } from './html.ts';

const adaptive = ['--set', 'training.steps=6', '--set', 'clipping={style: per-layer, threshold: {adaptive: {}}}'];

/** What a page holds that would fetch something, run something or be markup that nobody meant. */
const foreign = /<script|<link|<img|<iframe|\son\w+=|url\(|@import|https?:|\bundefined\b|NaN|\[object/i;

async function reported(folder: string, ...options: string[]): Promise<{ readonly page: string; readonly certificate: string }> {
  const { html: path, certificate } = json(await ghostgrad(['report', folder, ...options, '--json'])) as { html: string; certificate: string };
  return { page: readFileSync(path, 'utf8'), certificate };
}

describe('report', () => {
  it('renders a finished run as one page, and leaves its certificate as it is', async () => {
    const { recipe, output } = project();
    json(await ghostgrad(['train', recipe, '--json', ...adaptive]));
    const before = readFileSync(join(output, 'privacy.json'), 'utf8');
    const { page, certificate } = await reported(output);
    expect(certificate).toBe(join(output, 'privacy.json'));
    expect(readFileSync(certificate, 'utf8')).toBe(before);
    const { epsilon, assumptions, notCovered, ledger } = certificateSchema.parse(JSON.parse(before));
    expect(page).not.toMatch(foreign);
    expect(page).toMatch(/guarantee holds, as[^]*What is promised/);
    expect(page).toContain(`ε = ${Number(epsilon.toPrecision(4))} at δ = 0.0001`);
    expect(page).toContain(ledger!.head);
    for (const text of [...assumptions, ...notCovered]) expect(page).toContain(html`${text}`.html);
    expect(page.match(/<svg/g)).toHaveLength(4);
    const ids = [...page.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id);
    expect(new Set(ids).size).toBe(ids.length);
    // Numbers that ε does not cover are there only on request, and marked.
    expect(page).not.toMatch(/Training loss|not share this page/);
    const { page: private_ } = await reported(output, '--uncovered', '--out', join(output, 'private', 'report.html'));
    expect(private_).toMatch(/class="uncovered"[^]*do not share this page[^]*Training loss[^]*<\/section>/);
    expect(private_).not.toMatch(foreign);
  });

  it('says so where the certificate does not hold', async () => {
    const { recipe, output } = project();
    json(await ghostgrad(['train', recipe, '--json', '--set', 'training.steps=3']));
    const path = join(output, 'privacy.json');
    writeFileSync(path, readFileSync(path, 'utf8').replace(/"epsilon": [\d.]+/, '"epsilon": 0.01'));
    const { page } = await reported(output);
    expect(page).toContain('the certificate does not hold');
    expect(page).toContain('ε is smaller than what was spent');
    expect(page).toContain('cannot be relied upon');
    expect(page).not.toMatch(/guarantee holds, as|What is promised/);
  });

  it('renders an unfinished run by what its ledger says', async () => {
    const { recipe, output } = project();
    json(await ghostgrad(['train', recipe, '--json', ...adaptive]));
    const whole = certificateSchema.parse(JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')));
    // As it was when the fourth line was half written.
    for (const name of ['result.json', 'privacy.json', 'model.onnx']) rmSync(join(output, name));
    const ledger = readFileSync(join(output, 'ledger.jsonl'), 'utf8').split('\n');
    writeFileSync(join(output, 'ledger.jsonl'), `${ledger.slice(0, 3).join('\n')}\n${ledger[3]!.slice(0, 40)}`);
    const { page, certificate } = await reported(output);
    expect(page).toContain('the run has not ended: 3 of 6 steps');
    const found = certificateSchema.parse(JSON.parse(readFileSync(certificate, 'utf8')));
    expect(found).toMatchObject({ steps: 3, plannedSteps: 6, plannedEpsilon: whole.plannedEpsilon, ledger: { lines: 3 } });
    expect(found.epsilon).toBeGreaterThan(0);
    expect(found.epsilon).toBeLessThan(whole.epsilon);
    expect(found.assumptions.join()).toContain('after 3 of 6 planned steps');
    expect(page).toMatch(/guarantee holds, as[^]*What is promised/);
  });

  it('says that a seeded run guarantees nothing, and refuses one without privacy', async () => {
    const seeded = project();
    json(await ghostgrad(['train', seeded.recipe, '--json', '--set', 'training.steps=2', '--set', 'training.seed=1']));
    const { page } = await reported(seeded.output);
    expect(page).toContain('without any guarantee');
    expect(page).not.toContain('What is promised');
    const plain = project();
    json(await ghostgrad(['train', plain.recipe, '--json', '--set', 'training.steps=2', '--set', 'privacy=none']));
    expect(await refused(['report', plain.output])).toMatch(/nothing to report[^]*a run without a certificate/);
    expect(await refused(['report', plain.folder])).toMatch(/found: +no run/);
  });

  it('escapes whatever a name, recipe or certificate says', async () => {
    const { recipe, folder } = project();
    const output = join(folder, '<b onclick="x">&');
    json(await ghostgrad(['train', recipe, '--json', '--set', 'training.steps=2', '--out', output]));
    const path = join(output, 'privacy.json');
    const certificate = certificateSchema.parse(JSON.parse(readFileSync(path, 'utf8')));
    writeFileSync(path, JSON.stringify({ ...certificate, software: { '<script>alert(1)</script>': '"><img src=x>' } }));
    const { page } = await reported(output);
    expect(page).not.toMatch(/<script|<img|<b onclick/);
    expect(page).toContain('&lt;script&gt;alert(1)');
    expect(page).toContain('&lt;b onclick=&quot;x&quot;&gt;&amp;');
  });
});

describe('series', () => {
  it('are thinned to means, and smoothed over the last points', () => {
    const series = Array.from({ length: 1000 }, (_, i) => [i, 2 * i] as const);
    expect(thinned(series, 100)).toHaveLength(100);
    expect(thinned(series, 100)[0]).toEqual([4.5, 9]);
    expect(smoothed([[0, 4], [1, 8], [2, 0], [3, 4]], 2)).toEqual([[0, 4], [1, 6], [2, 4], [3, 2]]);
  });
});
