import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { batchOf } from '../data/index.ts';
import { writeModel } from '../graph/file.ts';
import { type Graph, latestOpset } from '../graph/ir.ts';
import { buildModel } from '../models/index.ts';
import { encodeSafetensors } from '../tensor/safetensors.ts';
import { type Tensor, float32, int64 } from '../tensor/tensor.ts';
import type { Io } from './io.ts';
import { main } from './program.ts';

interface Ran {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

/** Runs the command line in this process. `interruptAt`: asks to stop when a message matches it. */
async function ghostgrad(
  args: readonly string[],
  { env = {}, interruptAt }: { env?: Io['env']; interruptAt?: RegExp } = {},
): Promise<Ran> {
  let out = '';
  let err = '';
  let interrupt = (): void => undefined;
  const code = await main(args, {
    stdout: { write: (text) => (out += text) },
    stderr: {
      write: (text) => {
        err += text;
        if (interruptAt?.test(text) === true) interrupt();
      },
    },
    env,
    onInterrupt: (handler) => {
      interrupt = handler;
      return () => undefined;
    },
  });
  return { code, out, err };
}

/** One clear message on stderr: nothing on stdout, no stack. */
async function refused(args: readonly string[]): Promise<string> {
  const { code, out, err } = await ghostgrad([...args, '--json']);
  expect({ code, out }).toEqual({ code: 1, out: '' });
  expect(err).toMatch(/^error: /);
  expect(err).not.toMatch(/\n +at /);
  expect(err).not.toContain('unexpected');
  return err;
}

const json = ({ code, out }: Ran): unknown => {
  expect(code).toBe(0);
  expect(out.trim().split('\n')).toHaveLength(1);
  return JSON.parse(out);
};

/** A folder with data, a model and a recipe for them. */
function project() {
  const { folder, write } = temporaryFolder();
  const { features, labels } = batchOf(
    blobs(),
    Uint32Array.from({ length: 200 }, (_, i) => i),
  );
  const rows = (name: string, parts: Readonly<Record<string, Tensor>>): string =>
    write(name, encodeSafetensors(new Map(Object.entries(parts))));
  const x = features.get('input') ?? float32([]);
  const table = [...(labels.data as BigInt64Array)].map((y, i) =>
    [...(x.data as Float32Array).subarray(4 * i, 4 * i + 4), y].join(),
  );
  const csv = write('blobs.csv', ['a,b,c,d,y', ...table].join('\n'));
  const model = join(folder, 'mlp.onnx');
  writeModel(model, buildModel(blobModel, { seed: 1 }));
  const output = join(folder, 'runs', 'blobs');
  const recipe = write(
    'blobs.yaml',
    JSON.stringify({
      model,
      data: { train: { path: csv, label: 'y' }, test: { path: csv, label: 'y' } },
      privacy: { epsilon: 8, delta: 1e-4 },
      training: { batchSize: 50, steps: 30, optimizer: { name: 'sgd', learningRate: 0.5, momentum: 0.9 } },
      performance: { threads: 1 },
      output,
    }),
  );
  return { folder, write, rows, x, labels, csv, model, output, recipe };
}

describe('ghostgrad', () => {
  it('helps, in general and with every command', async () => {
    for (const args of [
      [],
      ['train'],
      ['evaluate'],
      ['explain'],
      ['check'],
      ['epsilon'],
      ['calibrate'],
      ['bench'],
      ['bench', 'step'],
    ]) {
      const { code, out } = await ghostgrad([...args, '--help']);
      expect(code).toBe(0);
      expect(out).toMatch(new RegExp(`^Usage: ghostgrad ${args.join(' ')}`));
    }
    expect((await ghostgrad(['--version'])).out).toMatch(/^\d+\.\d+\.\d+\n$/);
    expect(await ghostgrad([])).toMatchObject({
      code: 1,
      out: '',
      err: expect.stringContaining('Usage: ghostgrad') as string,
    });
  });

  it('refuses unknown commands and options, and suggests the nearest', async () => {
    expect(await refused(['trian'])).toMatch(/unknown command 'trian'[^]*Did you mean train\?/);
    expect(await refused(['train', '--epsilonn', '3'])).toMatch(
      /unknown option '--epsilonn'[^]*Did you mean --epsilon\?/,
    );
    expect(await refused(['bench', 'stpe'])).toMatch(/unknown command 'stpe'/);
    expect(await refused(['train', 'a.yaml', 'b.yaml'])).toMatch('too many arguments');
    expect(await refused(['epsilon', '--steps', '3'])).toMatch(
      "required option '--noise-multiplier <sigma>' not specified",
    );
    expect(await refused(['calibrate', '--epsilon', 'three'])).toMatch('Expected a number');
    expect(await refused(['evaluate', 'm.onnx', '--data', 'x.csv', '--threads', '0'])).toMatch(
      'Expected a whole number',
    );
  });

  it('shows a stack only to those who ask, and a way to report a bug', async () => {
    const missing = ['evaluate', 'none.onnx', '--data', 'mnist:test'];
    expect((await ghostgrad(missing, { env: { DEBUG: '1' } })).err).toMatch(/\n +at /);
    expect((await ghostgrad(missing)).err).not.toMatch(/\n +at /);
    const broken: Io = {
      stdout: {
        write: () => {
          throw new Error('a bug');
        },
      },
      stderr: { write: (text: string) => (said += text) },
      env: {},
      onInterrupt: () => () => undefined,
    };
    let said = '';
    expect(
      await main(['calibrate', '--epsilon', '3', '--delta', '1e-5', '--sample-rate', '1', '--steps', '1'], broken),
    ).toBe(2);
    expect(said).toMatch(/^error: unexpected: a bug\n.*report.*DEBUG=1\n$/);
  });
});

describe('epsilon and calibrate', () => {
  const noise = ['--noise-multiplier', '1.23', '--sample-rate', '0.01', '--steps', '1000'];

  it('tell ε, δ and noise, each from the others', async () => {
    const spent = json(await ghostgrad(['epsilon', ...noise, '--delta', '1e-5', '--json'])) as { epsilon: number };
    expect(Object.keys(spent).sort()).toEqual(['accountant', 'delta', 'epsilon']);
    expect(spent).toMatchObject({ delta: 1e-5, accountant: 'rdp' });
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
    expect(Object.keys(calibrated).sort()).toEqual(['accountant', 'delta', 'epsilon', 'noiseMultiplier']);
    expect(calibrated.noiseMultiplier).toBeCloseTo(1.23, 3);
    expect(calibrated.epsilon).toBeLessThanOrEqual(spent.epsilon);
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
    expect(out).toMatch(/^ε +\d\.\d+\nδ +0\.00001\naccountant +rdp\n$/);
  });

  it('refuse what is out of range, missing or contradictory', async () => {
    expect(await refused(['epsilon', ...noise])).toMatch('neither --delta nor --epsilon is given');
    expect(await refused(['epsilon', ...noise, '--delta', '1e-5', '--epsilon', '1'])).toMatch('both given');
    for (const delta of ['0', '1', '-1', '2'])
      expect(await refused(['epsilon', ...noise, '--delta', delta])).toMatch('out of range');
    expect(await refused(['epsilon', ...noise, '--delta', '1e-5', '--accountant', 'pld'])).toMatch(
      /"pld" cannot be used.*not there yet/,
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

describe('train and evaluate', () => {
  it('train by a recipe, and evaluate to the same', async () => {
    const { recipe, output, csv } = project();
    const ran = await ghostgrad(['train', recipe, '--json']);
    const result = json(ran) as { test: object; epsilon: number; seconds: number; peakRssMiB: number };
    expect(result).toMatchObject({
      runDir: output,
      steps: 30,
      delta: 1e-4,
      accountant: 'rdp',
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
    expect((await ghostgrad(['train', recipe, '--set', 'training.steps=1', '--set', 'training.seed=1'])).err).toMatch(
      /warning: .*void/,
    );
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
    ['what is not available yet', ['--set', 'clipping.style=per-layer'], /not available yet \(.*clipping\.style\)/],
    ['a batch larger than the data', ['--batch-size', '201'], /batchSize is out of range/],
    ['a missing model file', ['--model', 'none.onnx'], /cannot read the file \(none\.onnx\)\n {2}found: +no such file/],
    ['a missing data file', ['--set', 'data.train=none.csv'], /none\.csv/],
    ['a model that does not exist', ['--model', 'cnn-tahn'], /unknown model "cnn-tahn"[^]*did you mean "cnn-tanh"\?/],
    ['resuming', ['--resume', 'runs/a'], /not available yet \(--resume\)/],
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

describe('explain', () => {
  it('tells how each layer would be trained', async () => {
    const explained = json(await ghostgrad(['explain', 'cnn-tanh', '--batch-size', '64', '--json'])) as {
      layers: { parameter: string }[];
    };
    expect(explained).toMatchObject({
      parameters: { total: 26010, trainable: 26010 },
      unsupported: [],
      batchIndependent: true,
      violations: [],
    });
    expect(explained.layers[0]).toMatchObject({
      name: 'conv1',
      parameter: 'conv1.weight',
      operator: 'Conv',
      kind: 'convolution',
      T: 169,
      d: 64,
      p: 16,
      groups: 1,
      norm: expect.any(String) as string,
      bytes: expect.any(Number) as number,
      flops: expect.any(Number) as number,
    });
    expect((await ghostgrad(['explain', '{name: mlp, hidden: [7]}'])).out).toMatch(/hidden\.0\.weight +1 +784 +7/);
  });

  it('takes shapes, patterns and losses', async () => {
    const { folder } = temporaryFolder();
    const open: Graph = {
      name: 'open',
      opset: latestOpset,
      metadata: {},
      initializers: new Map([
        ['w', float32([1, 2, 3, 4], [2, 2])],
        ['b', float32([1, 2])],
      ]),
      inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 'time', 2] }],
      outputs: [{ name: 'y', dtype: 'float32', shape: null }],
      nodes: [
        { op: 'MatMul', domain: '', name: 'm', inputs: ['x', 'w'], outputs: ['a'], attributes: {} },
        { op: 'Add', domain: '', name: 'add', inputs: ['a', 'b'], outputs: ['y'], attributes: {} },
      ],
    };
    const path = join(folder, 'open.onnx');
    writeModel(path, open);
    expect(await refused(['explain', path])).toMatch(/the shape of an input is not known[^]*--shape x=/);
    const args = ['explain', path, '--shape', 'x=8,5,2', '--loss', 'mse', '--trainable', 'w', '--json'];
    expect(json(await ghostgrad(args))).toMatchObject({
      parameters: { total: 6, trainable: 4 },
      layers: [{ parameter: 'w', T: 5, d: 2, p: 2 }],
    });
    for (const shape of ['x', 'x=', 'x=B,', 'x=B,-1', 'x=B,a'])
      expect(await refused(['explain', path, '--shape', shape])).toMatch('not a shape');
    expect(await refused(['explain', path, '--shape', 'z=B,2'])).toMatch('unknown input "z"');
    expect(await refused(['explain', path, '--loss', 'mes'])).toMatch('did you mean "mse"?');
    expect(await refused(['explain', 'mlp', '--mode', 'ghots'])).toMatch('did you mean "ghost"?');
    expect(await refused(['explain', 'mlp', '--trainable', 'head'])).toMatch('not available yet');
  });

  it('reports what stands in the way, and that is no failure', async () => {
    const { folder } = temporaryFolder();
    const path = join(folder, 'mixing.onnx');
    const model = buildModel(blobModel);
    const softmax = {
      op: 'Softmax',
      domain: '',
      name: 'mixer',
      inputs: ['logits'],
      outputs: ['mixed'],
      attributes: { axis: { type: 'int', value: 0 } },
    } as const;
    writeModel(path, {
      ...model,
      nodes: [...model.nodes, softmax],
      outputs: [{ name: 'mixed', dtype: 'float32', shape: ['batch', 2] }],
    });
    const explained = json(await ghostgrad(['explain', path, '--json']));
    expect(explained).toMatchObject({
      batchIndependent: false,
      violations: [{ node: 'mixer', axis: 0, fix: expect.any(String) as string }],
    });
    expect((await ghostgrad(['explain', path])).out).toMatch(/examples mix +yes[^]*mixer/);
  });
});

describe('check', () => {
  const fixture = (path: string): string => join(import.meta.dirname, '../../test/fixtures', path);
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
    expect(await refused([...args, '--mode', 'non-private'])).toMatch('unknown mode "non-private"');
  });
});

describe('bench step', () => {
  it('refuses unknown modes and models', async () => {
    expect(await refused(['bench', 'step', '--model', 'mlp', '--batch-size', '8', '--mode', 'fast'])).toMatch(
      'unknown mode',
    );
  });
});
