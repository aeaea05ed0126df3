import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, refused } from '../../../test/support/cli.ts';
import { temporaryFolder } from '../../../test/support/temp.ts';

describe('check', () => {
  const fixture = (path: string): string => join(import.meta.dirname, '../../../test/fixtures', path);
  const args = ['check', fixture('models/mlp-random.onnx'), '--expected', fixture('gradients/mlp-random.json')];

  it('passes where the step agrees with the reference, and fails where it does not', async () => {
    expect(json(await ghostgrad([...args, '--json']))).toMatchObject({
      ok: true,
      maxRelativeError: {
        loss: expect.any(Number) as number,
        norms: expect.any(Number) as number,
        gradients: expect.any(Number) as number,
      },
    });
    const { folder } = temporaryFolder();
    const reference = JSON.parse(readFileSync(fixture('gradients/mlp-random.json'), 'utf8')) as {
      perExampleLoss: number[];
    };
    const wrong = join(folder, 'wrong.json');
    writeFileSync(
      wrong,
      JSON.stringify({ ...reference, perExampleLoss: reference.perExampleLoss.map((loss) => loss * 1.01) }),
    );
    const { code, out } = await ghostgrad(['check', fixture('models/mlp-random.onnx'), '--expected', wrong, '--json']);
    expect(code).toBe(1);
    expect(JSON.parse(out)).toMatchObject({ ok: false });
  });

  it('refuses references that are missing or malformed, and modes that do not clip', async () => {
    const { write } = temporaryFolder();
    const model = fixture('models/mlp-random.onnx');
    expect(await refused(['check', model, '--expected', 'none.json'])).toMatch(
      'cannot read the reference file (none.json)',
    );
    expect(await refused(['check', model, '--expected', write('text.json', 'hello')])).toMatch('not a JSON file');
    expect(await refused(['check', model, '--expected', write('empty.json', '{}')])).toMatch('lack a field');
    const renamed = readFileSync(fixture('gradients/mlp-random.json'), 'utf8').replaceAll('fc3.weight', 'fc9.weight');
    expect(await refused(['check', model, '--expected', write('renamed.json', renamed)])).toMatch(
      /does not have every parameter of the reference \(model\)\n {2}found: +no fc9\.weight/,
    );
    expect(await refused([...args, '--mode', 'non-private'])).toMatch('unknown mode "non-private"');
  });
});
