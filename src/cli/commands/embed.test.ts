import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../../test/support/cli.ts';

describe('ghostgrad embed', () => {
  it('writes features that train takes, and computes them once', async () => {
    const { folder, csv, model } = project();
    const out = join(folder, 'features.safetensors');
    const args = ['embed', model, '--data', `{ path: ${csv}, label: y }`, '--out', out, '--threads', '1'];
    const first = await ghostgrad([...args, '--json']);
    expect(json(first)).toMatchObject({ examples: 200, dimensions: 2, dtype: 'float32', computed: 200, complete: true });
    const again = await ghostgrad([...args, '--json']);
    expect(json(again)).toMatchObject({ examples: 200, dimensions: 2, computed: 0 });
    expect(again.err).toContain('nothing was computed');
    const spec = `{ path: ${out}, features: features, label: labels }`;
    const trained = await ghostgrad([
      'train', '--model', '{ name: mlp, input: 2, hidden: [], classes: 2 }', '--train', spec, '--test', spec, '--epsilon', '8', '--delta', '1e-4',
      '--batch-size', '50', '--epochs', '5', '--set', 'performance.threads=1', '--out', join(folder, 'run'), '--json',
    ]);
    expect(json(trained)).toMatchObject({ datasetSize: 200, steps: 20, test: { examples: 200 } });
  });

  it('refuses a stale file, and --force replaces it', async () => {
    const { folder, csv, model } = project();
    const out = join(folder, 'features.safetensors');
    const args = ['embed', model, '--data', `{ path: ${csv}, label: y }`, '--out', out, '--threads', '1'];
    json(await ghostgrad([...args, '--json']));
    expect(await refused([...args, '--dtype', 'float16'])).toMatch(/another element type[^]*--force/);
    expect(json(await ghostgrad([...args, '--dtype', 'float16', '--force', '--json']))).toMatchObject({ dtype: 'float16', computed: 200 });
  });

  it('stops when asked to, with what is there kept for the same command', async () => {
    const { folder, csv, model } = project();
    const out = join(folder, 'features.safetensors');
    const args = ['embed', model, '--data', `{ path: ${csv}, label: y }`, '--out', out, '--threads', '1', '--batch-size', '20', '--json'];
    const stopped = await ghostgrad(args, { isTTY: true, interruptAt: /\/200/ });
    // Progress on a terminal comes every tenth of a second: the file may be done by then.
    expect([0, 130]).toContain(stopped.code);
    expect(existsSync(out)).toBe(stopped.code === 0);
    const { computed, complete } = json(await ghostgrad(args)) as { computed: number; complete: boolean };
    expect(complete).toBe(true);
    expect(computed + (JSON.parse(stopped.out) as { computed: number }).computed).toBe(200);
  });

  it('says what is wrong with its options', async () => {
    const { folder, csv, model } = project();
    const out = join(folder, 'features.safetensors');
    const args = ['embed', model, '--data', `{ path: ${csv}, label: y }`, '--out'];
    expect(await refused([...args, out, '--dtype', 'flaot16'])).toContain('did you mean "float16"');
    expect(await refused([...args, out, '--output', 'hiden'])).toMatch(/no such value \(output\)[^]*"hiden"/);
    expect(await refused([...args, join(folder, 'nowhere', 'f.safetensors')])).toContain('no such file or folder');
    expect(existsSync(out)).toBe(false);
  });
});
