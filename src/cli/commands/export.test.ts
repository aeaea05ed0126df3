import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../../test/support/cli.ts';
import { readModel } from '../../graph/file.ts';
import { decodeSafetensors } from '../../tensor/safetensors.ts';

const steps = ['--set', 'training.steps=3'];

describe('export', () => {
  it('writes the model with adapters merged, or the adapters alone', async () => {
    const { recipe, output, folder, model: original } = project();
    json(await ghostgrad(['train', recipe, '--json', ...steps, '--set', 'trainable={ lora: { rank: 2, alpha: 6 } }']));
    const out = join(folder, 'exported.onnx');
    const before = readModel(original);
    const numbers = [...before.initializers.values()].reduce((sum, { data }) => sum + data.length, 0);
    expect(json(await ghostgrad(['export', output, '--out', out, '--json']))).toEqual({ path: out, parameters: numbers, adaptersKept: 0 });
    const model = readModel(out);
    expect(model.nodes).toEqual(before.nodes);
    expect(model.initializers).toEqual(readModel(join(output, 'model.onnx')).initializers);
    expect(model.initializers).not.toEqual(before.initializers);

    const adapter = join(folder, 'adapter.safetensors');
    const answer = json(await ghostgrad(['export', output, '--out', adapter, '--adapter', '--json']));
    const { tensors, metadata } = decodeSafetensors(readFileSync(adapter));
    expect(answer).toMatchObject({ path: adapter, parameters: [...tensors.values()].reduce((sum, { data }) => sum + data.length, 0) });
    expect([...tensors.keys()].every((name) => /^base_model\.model\..*\.lora_[AB]\.weight$/.test(name))).toBe(true);
    expect(metadata).toMatchObject({ r: '2', lora_alpha: '6' });
    expect((await ghostgrad(['export', output, '--out', out])).out).toMatch(/^file +.*exported\.onnx\nparameters +\d+\n$/);
  });

  it('refuses what is no finished run, has no adapters, or cannot be written', async () => {
    const { recipe, output, folder } = project();
    json(await ghostgrad(['train', recipe, '--json', ...steps]));
    const out = join(folder, 'x.onnx');
    expect(await refused(['export', output, '--out', out, '--adapter'])).toMatch('the run trained no adapters');
    expect(await refused(['export', output, '--out', join(folder, 'no', 'x.onnx')])).toMatch('there is no such folder');
    expect(await refused(['export', folder, '--out', out])).toMatch('there is no run');
    expect(await refused(['export', output])).toMatch("required option '--out <file>'");
    rmSync(join(output, 'model.onnx'));
    expect(await refused(['export', output, '--out', out])).toMatch(/the run has no model yet[^]*train --resume/);
    expect(existsSync(out)).toBe(false);
  });
});
