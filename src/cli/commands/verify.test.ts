import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../../test/support/cli.ts';
import type { Certificate, Verification } from '../../privacy/index.ts';
import { buildModel } from '../../models/index.ts';
import { writeModel } from '../../graph/file.ts';

const steps = ['--set', 'training.steps=3'];

describe('verify', () => {
  it('confirms what a run leaves, and finds what was tampered with', async () => {
    const { recipe, output } = project();
    json(await ghostgrad(['train', recipe, '--json', ...steps]));
    const path = join(output, 'privacy.json');
    const certificate = JSON.parse(readFileSync(path, 'utf8')) as Certificate;
    expect(json(await ghostgrad(['verify', path, '--json']))).toMatchObject({
      holds: true, epsilonClaimed: certificate.epsilon, epsilonRecomputed: expect.closeTo(certificate.epsilon, 2) as number, problems: [],
    });
    expect((await ghostgrad(['verify', output])).out).toMatch(/^certificate +holds\nε claimed/);

    const problems = async (): Promise<Verification['problems']> => {
      const { code, out } = await ghostgrad(['verify', path, '--json']);
      const result = JSON.parse(out) as Verification;
      expect({ code, holds: result.holds }).toEqual({ code: 1, holds: false });
      return result.problems;
    };
    const written = (changes: Partial<Certificate>): void => writeFileSync(path, JSON.stringify({ ...certificate, ...changes }));
    written({ epsilon: certificate.epsilon / 2 });
    expect((await problems())[0]).toMatchObject({ where: 'epsilon', found: String(certificate.epsilon / 2), expected: expect.stringMatching(/^at least/) as string });
    expect((await ghostgrad(['verify', path])).out).toMatch(/certificate +does not hold[^]*\nproblem: ε is smaller than what was spent[^]*\n {2}found: +[\d.]+\n {2}expected: at least/);
    written({});
    const ledger = readFileSync(join(output, 'ledger.jsonl'), 'utf8');
    writeFileSync(join(output, 'ledger.jsonl'), `${ledger.trimEnd().split('\n').slice(0, 2).join('\n')}\n`);
    expect((await problems()).map(({ where }) => where)).toEqual(expect.arrayContaining(['ledger.lines', 'ledger.head', 'steps', 'event']));
    rmSync(join(output, 'ledger.jsonl'));
    expect(await problems()).toEqual([{ what: 'no ledger, so what was released cannot be checked', where: 'ledger' }]);
    writeFileSync(join(output, 'ledger.jsonl'), ledger);
    writeModel(join(output, 'model.onnx'), buildModel('mlp', { seed: 1 }));
    expect(await problems()).toEqual([expect.objectContaining({ where: 'model.onnx, metadata ghostgrad.privacy', found: 'nothing' })]);
  });

  it('refuses what is no certificate', async () => {
    const { folder, write } = project();
    expect(await refused(['verify', join(folder, 'none.json')])).toMatch(/the certificate cannot be read/);
    expect(await refused(['verify', write('text.json', '{')])).toMatch(/the certificate cannot be read/);
    const { code, out } = await ghostgrad(['verify', write('other.json', '{"epsilon": 3}'), '--json']);
    expect(code).toBe(1);
    expect(JSON.parse(out)).toMatchObject({ holds: false, epsilonClaimed: 3, epsilonRecomputed: null });
  });
});
