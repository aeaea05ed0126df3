import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ghostgrad, json, project, refused } from '../../../test/support/cli.ts';
import { encodeSafetensors } from '../../tensor/safetensors.ts';
import { type Tensor, float32, int64 } from '../../tensor/tensor.ts';

describe('train and evaluate', () => {
  it('train by a recipe, and evaluate to the same', async () => {
    const { recipe, output, csv } = project();
    const ran = await ghostgrad(['train', recipe, '--json']);
    const result = json(ran) as { test: object; epsilon: number; seconds: number; peakRssMiB: number };
    expect(result).toMatchObject({
      runDir: output,
      steps: 30,
      delta: 1e-4,
      accountant: 'pld',
      sampleRate: 0.25,
      batchSize: 50,
      datasetSize: 200,
      noiseMultiplier: expect.any(Number) as number,
      test: { accuracy: expect.any(Number) as number, loss: expect.any(Number) as number, examples: 200 },
    });
    expect(result.epsilon).toBeLessThanOrEqual(8);
    expect(result.seconds).toBeGreaterThan(0);
    expect(result.peakRssMiB).toBeGreaterThan(10);
    expect(ran.err).toContain('step 30/30');
    expect(ran.err).toContain('(not covered by ε)');
    expect(
      json(
        await ghostgrad([
          'evaluate',
          join(output, 'model.onnx'),
          '--data',
          `{path: ${JSON.stringify(csv)}, label: y}`,
          '--json',
        ]),
      ),
    ).toEqual(result.test);
  });

  it('make a model for each of several ε, and say what each alone and all together cost', async () => {
    const { recipe, output } = project();
    const args = ['train', recipe, '--set', 'privacy.epsilon=[1, 8]', '--set', 'training={ fullBatch: true, steps: 1 }'];
    const ran = await ghostgrad(args);
    expect([ran.code, ran.err]).toEqual([0, expect.not.stringContaining('Error')]);
    expect(ran.out).toMatch(/\(8, 0.0001\)-differential privacy[^]*ε = 1 alone +\S*epsilon-1 [^]*ε = 8 alone +\S*epsilon-8 /);
    expect(json(await ghostgrad(['train', '--resume', output, '--json']))).toMatchObject({
      epsilon: expect.closeTo(8, 3) as number, releases: [1, 8].map((epsilon) => ({ epsilon, runDir: join(output, `epsilon-${epsilon}`), test: { examples: 200 } })),
    });
    const checked = await ghostgrad(['verify', output]);
    expect(checked.code).toBe(0);
    expect(checked.out).toMatch(/epsilon-8 +holds, ε 8 alone\nepsilon-1 +holds, ε 1 alone/);
  });

  it('train by flags alone, and by flags over a recipe', async () => {
    const { folder, csv, model, recipe, output } = project();
    const out = join(folder, 'other');
    const flags = [
      '--model',
      model,
      '--train',
      csv,
      '--test',
      csv,
      '--label',
      'y',
      '--epsilon',
      '5',
      '--delta',
      '1e-3',
      '--batch-size',
      '40',
    ];
    expect(json(await ghostgrad(['train', ...flags, '--epochs', '1', '--out', out, '--json']))).toMatchObject({
      runDir: out,
      steps: 5,
      delta: 1e-3,
      batchSize: 40,
      test: { examples: 200 },
    });
    const set = ['--set', 'training.steps=2', '--set', 'clipping.function=automatic', '--batch-size', '20'];
    expect(json(await ghostgrad(['train', recipe, ...set, '--json']))).toMatchObject({
      runDir: output,
      steps: 2,
      batchSize: 20,
    });
    expect(readFileSync(join(output, 'recipe.yaml'), 'utf8')).toContain('function: automatic');
  });

  it('say in words what came of it', async () => {
    const { recipe } = project();
    const { code, out } = await ghostgrad(['train', recipe, '--set', 'training.steps=2']);
    expect(code).toBe(0);
    expect(out).toMatch(
      /model +.*model\.onnx\nprivacy +\([\d.]+, 0\.0001\)-differential privacy[^]*accuracy +[\d.]+ % of 200 test examples/,
    );
    const plain = await ghostgrad([
      'train',
      recipe,
      '--set',
      'training.steps=2',
      '--set',
      'privacy=none',
      '--out',
      join(project().folder, 'plain'),
    ]);
    expect(plain.err).toContain('without privacy');
    expect(plain.out).toMatch(/privacy +none/);
  });

  it('finish the step, save and certify when asked to stop', async () => {
    const { recipe, output } = project();
    const { code, out, err } = await ghostgrad(['train', recipe, '--json', '--set', 'training.steps=2000'], {
      interruptAt: /^2000 steps/,
    });
    expect(code).toBe(130);
    expect(err).toContain('stopping after this step');
    expect((JSON.parse(out) as { steps: number }).steps).toBeLessThan(2000);
    expect(readdirSync(output)).toEqual(
      expect.arrayContaining(['model.onnx', 'privacy.json', 'result.json']) as string[],
    );
  });

  it('warn when the guarantee is void', async () => {
    const { recipe } = project();
    const { out, err } = await ghostgrad(['train', recipe, '--set', 'training.steps=1', '--set', 'training.seed=1']);
    expect(err).toMatch(/warning: .*void/);
    expect(out).toMatch(/privacy +void, see .*privacy\.json/);
  });

  it.each([
    [
      'an unknown recipe key',
      ['--set', 'training.batchsize=3'],
      /unknown option "batchsize" \(.*blobs\.yaml: training\)[^]*did you mean "batchSize"\?/,
    ],
    [
      'ε out of range',
      ['--epsilon', '0'],
      /invalid option \(.*privacy\.epsilon\)\n {2}found: +0\n {2}expected: a number more than 0/,
    ],
    [
      'δ out of range',
      ['--delta', '1'],
      /invalid option \(.*privacy\.delta\)\n {2}found: +1\n {2}expected: a number less than 1/,
    ],
    ['σ and ε both given', ['--set', 'privacy.noiseMultiplier=1'], /epsilon and noiseMultiplier are both given/],
    ['what is not available yet', ['--set', 'privacy.unit=person'], /not available yet \(.*privacy\.unit\)/],
    ['a batch larger than the data', ['--batch-size', '201'], /batchSize is out of range/],
    ['a missing model file', ['--model', 'none.onnx'], /cannot read the file \(none\.onnx\)\n {2}found: +no such file/],
    ['a missing data file', ['--set', 'data.train=none.csv'], /none\.csv/],
    ['a model that does not exist', ['--model', 'cnn-tahn'], /unknown model "cnn-tahn"[^]*did you mean "cnn-tanh"\?/],
    ['resuming with a recipe', ['--resume', 'runs/a'], /cannot be changed \(train --resume\)/],
  ])('refuse %s and write nothing', async (_, args, message) => {
    const { recipe, output } = project();
    expect(await refused(['train', recipe, ...args])).toMatch(message);
    expect(existsSync(output)).toBe(false);
  });

  it('refuse a recipe that is missing, not YAML or nothing', async () => {
    const { write } = project();
    expect(await refused(['train', 'none.yaml'])).toMatch(/cannot read the recipe \(none\.yaml\)/);
    expect(await refused(['train', write('bad.yaml', 'model: [')])).toMatch(/not valid YAML \(.*bad\.yaml, line 1/);
    expect(await refused(['train', write('no-data.yaml', 'model: mlp')])).toMatch(/missing option/);
    expect(await refused(['train', write('odd.yaml', 'model: {initializers: 1}\ndata: 3')])).toMatch(
      /(invalid|missing) option/,
    );
    expect(await refused(['train'])).toMatch('no recipe is given');
  });

  it('refuse an output folder that is not empty, or is a file', async () => {
    const { recipe, folder, csv } = project();
    expect(await refused(['train', recipe, '--out', folder])).toMatch(/the output folder cannot be used[^]*entries/);
    expect(await refused(['train', recipe, '--out', csv])).toMatch(/the output folder cannot be used[^]*a file/);
    expect(await refused(['train', recipe, '--out', join(csv, 'run')])).toMatch(/the output folder cannot be/);
  });

  it.skipIf(process.platform === 'win32' || process.getuid?.() === 0)(
    'refuse an output folder that may not be written',
    async () => {
      expect(await refused(['train', project().recipe, '--out', '/run'])).toMatch(/cannot be/);
    },
  );

  it('refuse a truncated model, and one that is none', async () => {
    const { recipe, model, write, output } = project();
    const bytes = readFileSync(model);
    for (const [name, content] of [
      ['cut.onnx', bytes.subarray(0, bytes.length >> 1)],
      ['text.onnx', Buffer.from('hello')],
      ['empty.onnx', Buffer.alloc(0)],
    ] as const) {
      const path = write(name, content);
      expect(await refused(['train', recipe, '--model', path])).toContain(name);
      expect(await refused(['evaluate', path, '--data', 'mnist:test'])).toContain(name);
      expect(await refused(['explain', path])).toContain(name);
    }
    expect(existsSync(output)).toBe(false);
  });

  it('refuse data that do not fit, naming the place and no value', async () => {
    const { recipe, rows, x, labels, write, model } = project();
    const cases: readonly [RegExp, string][] = [
      [
        /a label is out of range \(.*row 3 /,
        rows('labels.safetensors', { x: float32([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], [3, 4]), y: int64([0, 1, 77]) }),
      ],
      [
        /another shape than the model takes[^]*found: +\[2\][^]*expected: +\[4\]/,
        rows('shape.safetensors', { x: float32([1, 2], [1, 2]), y: int64([0]) }),
      ],
      [
        /not finite \(.*row 1 .*element 2/,
        rows('nan.safetensors', { x: float32([1, NaN, 3, 4], [1, 4]), y: int64([0]) }),
      ],
      [/not finite/, rows('inf.safetensors', { x: float32([1, Infinity, 3, 4], [1, 4]), y: int64([0]) })],
      [/float64|type/, rows('dtype.safetensors', { x: int64([1, 2, 3, 4], [1, 4]), y: int64([0]) })],
      [
        /truncated|short|damaged/,
        write(
          'cut.safetensors',
          encodeSafetensors(
            new Map<string, Tensor>([
              ['x', x],
              ['y', labels],
            ]),
          ).subarray(0, 300),
        ),
      ],
    ];
    for (const [message, path] of cases) {
      const spec = `{path: ${JSON.stringify(path)}, features: x, label: y}`;
      for (const args of [
        ['train', recipe, '--set', `data.train=${spec}`],
        ['evaluate', model, '--data', spec],
      ]) {
        const said = await refused(args);
        expect(said).toMatch(message);
        expect(said).not.toContain('77');
      }
    }
  });
});
