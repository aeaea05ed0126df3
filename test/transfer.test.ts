import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { datasetFromTensors } from '../src/data/index.ts';
import { writeModel } from '../src/graph/file.ts';
import { buildModel } from '../src/models/index.ts';
import type { Certificate } from '../src/privacy/index.ts';
import { float32, int64 } from '../src/tensor/tensor.ts';
import type { TrainingInput } from '../src/training/materials.ts';
import { evaluate } from '../src/training/evaluate.ts';
import { openModel } from '../src/training/model.ts';
import { train } from '../src/training/train.ts';
import { verify } from '../src/training/verify.ts';
import { testRandom } from './support/random-network.ts';

const random = testRandom(5);
const size = 8;
/** Pictures with a bright half; which half is the class, and the public set has other classes than the private one. */
function pictures(rows: number, classOf: (bright: number) => number, name: string) {
  const halves = Array.from({ length: rows }, () => Math.floor(random() * 4));
  const isBright = (half: number, y: number, x: number): boolean =>
    [y < size / 2, y >= size / 2, x < size / 2, x >= size / 2][half]!;
  const pixels = halves.flatMap((half) => Array.from({ length: size * size }, (_, i) =>
    (isBright(half, Math.floor(i / size), i % size) ? 1 : 0) + random() - 0.5));
  return datasetFromTensors(float32(pixels, [rows, 1, size, size]), int64(halves.map(classOf), [rows]), { name });
}
const publicSet = pictures(100, (half) => half, 'public pictures');
const privateSet = pictures(100, (half) => (half < 2 ? 1 : 0), 'private pictures');

const builders = {
  'vit': { builder: { name: 'vit-tiny', channels: 1, size, patch: 4, width: 16, depth: 1, heads: 2, classes: 4 }, features: 'norm.output' },
  'wrn-gn': {
    builder: { name: 'wrn-16-4-gn', channels: 1, size, depth: 10, widening: 1, groups: 4, classes: 4 }, features: 'pool.flatten.output',
  },
} as const;

/** The runs of all tests, which begin with what earlier ones trained. */
const folder = mkdtempSync(join(tmpdir(), 'ghostgrad-test-'));
afterAll(() => { rmSync(folder, { recursive: true, force: true }); });
const modelIn = (run: string) => join(folder, run, 'model.onnx') as `${string}.onnx`;

/** Private training of what was pre-trained. */
const tuning = (kind: keyof typeof builders, changes: object = {}): TrainingInput => ({
  model: modelIn(kind), data: { train: privateSet, test: privateSet }, head: { output: builders[kind].features, classes: 2 },
  privacy: { epsilon: 8, delta: 1e-3 }, clipping: { norm: 1 },
  training: { batchSize: 32, steps: 3, seed: 3, optimizer: { name: 'adam', learningRate: 0.01 } },
  performance: { microBatch: 32 },
  ...changes,
});

beforeAll(async () => {
  for (const [kind, { builder }] of Object.entries(builders)) {
    await train({
      model: builder, data: { train: publicSet }, privacy: 'none', output: join(folder, kind),
      training: { batchSize: 32, steps: 3, seed: 1, optimizer: { name: 'adam', learningRate: 0.01 } },
    });
  }
}, 300_000);

describe.each(Object.keys(builders) as (keyof typeof builders)[])('a %s that was pre-trained without privacy', (kind) => {
  it('is fine-tuned in all layers, to the same model by book-keeping and by mixed ghost norms', async () => {
    const modes = ['book-keeping', 'mixed-ghost'] as const;
    const tuned = [];
    for (const mode of modes) {
      const run = `${kind}-${mode}`;
      const { test } = await train(tuning(kind, { output: join(folder, run), performance: { microBatch: 32, mode } }));
      expect(test!.examples).toBe(100);
      tuned.push(openModel(modelIn(run)));
    }
    const [before, one, other] = [openModel(modelIn(kind)), ...tuned];
    const changed = [...one!.initializers].filter(([name, t]) => before.initializers.get(name)?.data.join() !== t.data.join());
    const trained = [...one!.initializers.keys()].filter((name) => one!.literals?.has(name) !== true);
    expect(changed.map(([name]) => name).sort()).toEqual(trained.sort());
    for (const name of trained) {
      const [a, b] = [one!, other!].map((model) => model.initializers.get(name)!.data as Float32Array);
      expect(Math.max(...a!.map((x, i) => Math.abs(x - b![i]!))), name).toBeLessThan(1e-3);
    }
  });

  it('has its head alone trained, with every other number as it was', async () => {
    const { test } = await train(tuning(kind, { output: join(folder, `${kind}-head`), trainable: 'head' }));
    const [before, after] = [modelIn(kind), modelIn(`${kind}-head`)].map(openModel);
    for (const [name, { data }] of after!.initializers) if (!name.startsWith('head.')) expect(data, name).toEqual(before!.initializers.get(name)!.data);
    expect(await evaluate(after!, privateSet)).toMatchObject({ accuracy: test!.accuracy });
  });
});

describe('a fine-tuned model', () => {
  it('is certified for the records of its run, and its file keeps what was said before', async () => {
    const output = join(folder, 'certified');
    const { seed: _, ...training } = tuning('vit').training;
    await train(tuning('vit', { output, training: { ...training, steps: 2 } }));
    const certificate = JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')) as Certificate;
    expect(certificate.assumptions.join()).toMatch(/the starting model, .*model\.onnx, is public/);
    expect(certificate.notCovered).toContain(
      'records that the starting model was trained on before: its file says of their privacy: none: trained without privacy',
    );
    expect(await verify(join(output, 'privacy.json'))).toMatchObject({ holds: true });
    const { metadata } = openModel(modelIn('certified'));
    expect(metadata['ghostgrad.privacy']).toBe(certificate.guarantee);
    expect(metadata['ghostgrad.startedFrom']).toBe('none: trained without privacy');

    await train(tuning('vit', { model: modelIn('certified'), privacy: 'none', output: join(folder, 'again'), training: { ...training, steps: 1 } }));
    expect(openModel(modelIn('again')).metadata).toMatchObject({
      'ghostgrad.privacy': 'none: trained without privacy',
      'ghostgrad.startedFrom': `${certificate.guarantee}; and before: none: trained without privacy`,
    });
  });

  it('gets another head in place of its own', async () => {
    const headed = modelIn('vit-head');
    const three = pictures(60, (half) => Math.min(half, 2), 'three classes');
    const { test } = await train({ ...tuning('vit'), model: headed, data: { train: three, test: three }, head: { output: 'norm.output', classes: 3 } });
    expect(test!.examples).toBe(60);
  });
});

describe('a head that does not fit', () => {
  const refused = (changes: object) => expect(train(tuning('vit', changes))).rejects;

  it('is told where it could be', async () => {
    await refused({ head: { output: 'norm.ouput', classes: 2 } }).toThrow(/no such value[^]*head.output[^]*did you mean "norm.output"/);
    await refused({ head: { classes: 2 } }).toThrow(/what it was trained to predict[^]*head.output: norm.output puts it in place of the last layer/);
  });

  it('is not told of data of another shape', async () => {
    const colour = datasetFromTensors(float32(new Float32Array(2 * 3 * 64), [2, 3, 8, 8]), int64([0, 1], [2]), { name: 'colour pictures' });
    await refused({ data: { train: colour } }).toThrow(/another shape[^]*"input" of colour pictures[^]*\[3, 8, 8\][^]*\[1, 8, 8\]/);
  });

  it('may be on the predictions of a model that says nothing of its loss', async () => {
    const path = join(folder, 'plain.onnx');
    // Its last layer is not called as a head is.
    writeModel(path, buildModel(builders['wrn-gn'].builder, { seed: 2 }));
    const { test } = await train(tuning('vit', { model: path, head: { classes: 2 }, trainable: 'head', training: { batchSize: 10, steps: 1, seed: 1 } }));
    expect(test!.examples).toBe(100);
  });
});
