import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { loadData, readTokenizer } from '../src/data/index.ts';
import { readModel } from '../src/graph/file.ts';
import { readRecipeFile } from '../src/training/recipe-file.ts';
import { resolveRecipe } from '../src/training/recipe.ts';
import { buildModel } from '../src/models/index.ts';

const examples = join(import.meta.dirname, '..', 'examples');
const recipes = readdirSync(examples).filter((name) => name.endsWith('.yaml'));
const read = (name: string) => readRecipeFile(join(examples, name));

test.each(recipes)('%s is a recipe', (name) => {
  expect(resolveRecipe(read(name), name).output).toBe(`runs/${name.replace('.yaml', '')}`);
});

describe('examples:data', () => {
  let folder: string;
  const run = (...wanted: string[]): string =>
    execFileSync(process.execPath, [join(examples, 'data.mjs'), ...wanted, '--out', folder], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  const lines = (name: string): string[] => readFileSync(join(folder, name), 'utf8').trimEnd().split('\n').slice(1);
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'examples-test-'));
    run('adult', 'sms', 'sst2', 'e2e', 'stories260k');
  });
  afterAll(() => { rmSync(folder, { recursive: true }); });

  test('parts a set so that every row is in one part', () => {
    expect([lines('adult-train.csv').length, lines('adult-test.csv').length]).toEqual([26030, 6531]);
    expect([lines('sms-train.tsv').length, lines('sms-test.tsv').length]).toEqual([4419, 1155]);
    expect(['train', 'dev', 'test'].map((part) => lines(`sst2-${part}.tsv`).length)).toEqual([6920, 872, 1821]);
  });

  test('writes a damaged file again and leaves the others', () => {
    const path = join(folder, 'sst2-dev.tsv');
    const whole = readFileSync(path);
    writeFileSync(path, 'text\tlabel\n');
    run('sst2');
    expect(readFileSync(path).equals(whole)).toBe(true);
  });

  test('names what there is when asked for something else', () => {
    expect(() => run('mnist')).toThrow(/there are adult, sms, sst2, e2e, stories260k, cifar10, mobilenetv2, use-lite/);
  });

  test('the recipe for Adult fits its table: every column by public bounds and categories', async () => {
    const recipe = read('adult.yaml') as { model: { name: 'mlp'; input: number }; data: { test: object } };
    const data = await loadData({ ...recipe.data.test, path: join(folder, 'adult-test.csv') });
    expect(data.features.get('input')!.shape).toEqual([recipe.model.input]);
    expect(buildModel(recipe.model).inputs[0]!.shape).toEqual(['batch', recipe.model.input]);
    const rows = Uint32Array.from({ length: data.size }, (_, i) => i);
    const values = new Float32Array(data.size * recipe.model.input);
    (data.features.get('input') as { gather(indices: Uint32Array, into: Float32Array): void }).gather(rows, values);
    expect(values.every((x) => x >= 0 && x <= 1)).toBe(true);
  });

  test('the recipe for E2E fits its texts: a prompt of which nothing is to be predicted, and its end', async () => {
    const { test: spec } = (read('e2e-lora.yaml') as { data: { test: { tokenizer: string } } }).data;
    const texts = readFileSync(join(folder, 'e2e-test.txt'), 'utf8').trimEnd().split('\n');
    const [inFolder, [first = '']] = [{ path: join(folder, 'head.txt'), tokenizer: join(folder, 'stories260k.tokenizer.json') }, texts];
    writeFileSync(inFolder.path, texts.slice(0, 3).join('\n'));
    const { labels, size } = await loadData({ ...spec, ...inFolder });
    const row = new BigInt64Array(labels.shape[0]);
    (labels as { gather(indices: Uint32Array, into: BigInt64Array): void }).gather(Uint32Array.of(0), row);
    const { decode, plain, special } = await readTokenizer(inFolder.tokenizer);
    const at = first.indexOf('||') + 2;
    const prompt = special.before.length + plain(first.slice(0, at)).length;
    expect([texts.length, size]).toEqual([4693, 3]);
    expect(row.findIndex((label) => label >= 0n)).toBe(prompt);
    expect(first.slice(at).trim().startsWith(decode([...row].filter((label) => label >= 0n).map(Number)))).toBe(true);
    expect(readModel(join(folder, 'stories260k.onnx')).inputs.map(({ name }) => name)).toEqual(['input_ids']);
  });
});

test('weights are laid out for the graphs that refer to them', async () => {
  const { rebuilt } = await import(join(examples, 'weights.mjs')) as { rebuilt(name: string, shards: Buffer): Buffer };
  const table = JSON.parse(readFileSync(join(examples, 'models', 'weights.json'), 'utf8')) as
    Record<string, { bytes: number; weights: { name: string; at: number; shape: number[]; order?: number[]; scale: number; min: number }[] }>;
  const folder = mkdtempSync(join(tmpdir(), 'examples-test-'));
  try {
    const shards = Buffer.alloc(4_300_775, Buffer.from(Array.from({ length: 251 }, (_, i) => i)));
    writeFileSync(join(folder, 'mobilenetv2.weights'), rebuilt('mobilenetv2', shards));
    const graph = readFileSync(join(examples, 'models', 'mobilenetv2.onnx'));
    writeFileSync(join(folder, 'mobilenetv2.onnx'), graph);
    const { initializers } = readModel(join(folder, 'mobilenetv2.onnx'));
    // A kernel of TensorFlow, [height, width, input, output], is one of ONNX, [output, input, height, width].
    const { name, at, shape: [h, w, i, o], scale, min } = table['mobilenetv2']!.weights.find(({ shape }) => shape.length === 4 && shape[0]! > 1)! as
      { name: string; at: number; shape: [number, number, number, number]; scale: number; min: number };
    const kernel = initializers.get(name)!;
    expect(kernel.shape).toEqual([o, i, h, w]);
    const [y, x, from, to] = [1, 2, 1, 5];
    expect(kernel.data[((to * i + from) * h + y) * w + x])
      .toBe(Math.fround(shards[at + ((y * w + x) * i + from) * o + to]! * scale + min));
  } finally {
    rmSync(folder, { recursive: true });
  }
});
