import { existsSync, mkdirSync, readFileSync, readdirSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { temporaryFolder } from '../../test/support/temp.ts';
import { buildModel } from '../models/index.ts';
import { ratchet } from '../random/ratchet.ts';
import { float32 } from '../tensor/tensor.ts';
import { openModel } from './model.ts';
import { resolveRecipe } from './recipe.ts';
import { readRecipeFile } from './recipe-file.ts';
import { checkOutput, createRunFolder, openRunFolder } from './run-folder.ts';

/** What the file system answers in place of doing what it was asked. */
const failing = vi.hoisted(() => new Map<string, string>());
vi.mock('node:fs', async (importOriginal) => {
  const actual = await importOriginal<typeof import('node:fs')>();
  const fail = <F extends keyof typeof actual>(name: F) => ({
    [name]: (...args: unknown[]) => {
      const code = failing.get(name);
      if (code !== undefined) throw Object.assign(new Error(`${code}: injected`), { code });
      return (actual[name] as (...args: unknown[]) => unknown)(...args);
    },
  });
  return { ...actual, ...fail('writeSync'), ...fail('mkdirSync'), ...fail('accessSync'), ...fail('fsyncSync') };
});
afterEach(() => failing.clear());

const recipe = resolveRecipe({
  model: 'mlp',
  data: { train: 'mnist:train' },
  privacy: { epsilon: 3, delta: 1e-5 },
  training: { batchSize: 8, steps: 2 },
});

const files = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => entry.name);

describe('checkOutput', () => {
  it('takes a new folder and an empty one, and changes nothing', () => {
    const { folder } = temporaryFolder();
    mkdirSync(join(folder, 'empty'));
    checkOutput(join(folder, 'empty'));
    checkOutput(join(folder, 'deep', 'new', 'run'));
    expect(readdirSync(folder)).toEqual(['empty']);
  });

  it('refuses a folder that is not empty, and a file', () => {
    const { folder, write } = temporaryFolder();
    const file = write('old.txt', 'x');
    expect(() => checkOutput(folder)).toThrow(/cannot be used \(output .*\)\n {2}found: +1 entries, e\.g\. old\.txt/);
    expect(() => checkOutput(file)).toThrow(/found: +a file/);
    expect(() => checkOutput(join(file, 'run'))).toThrow(/a part of the path is a file|is a file/);
  });

  it('refuses a folder that may not be written', () => {
    const { folder } = temporaryFolder();
    failing.set('accessSync', 'EACCES');
    expect(() => checkOutput(join(folder, 'run'))).toThrow(/cannot be written .*\n {2}found: +no permission to write/);
    failing.set('accessSync', 'EROFS');
    expect(() => checkOutput(join(folder, 'run'))).toThrow('a read-only file system');
  });

  it.skipIf(process.platform === 'win32')('refuses a link that leads nowhere it could write', () => {
    const { folder, write } = temporaryFolder();
    symlinkSync(write('file', ''), join(folder, 'link'));
    expect(() => checkOutput(join(folder, 'link'))).toThrow('a file');
  });
});

/** The wall times of TensorBoard events: a record is framed by 12 bytes and 4, and its first field is the time. */
function wallTimes(file: Buffer): number[] {
  const times: number[] = [];
  for (let at = 0; at < file.length; at += 16 + Number(file.readBigUInt64LE(at))) times.push(file.readDoubleLE(at + 13));
  return times;
}

describe('a run folder', () => {
  it('holds the recipe, and keeps what is not covered apart', () => {
    const path = join(temporaryFolder().folder, 'runs', 'a');
    const run = createRunFolder(path, recipe);
    expect(resolveRecipe(readRecipeFile(join(path, 'recipe.yaml')))).toEqual(recipe);
    run.begin(recipe);
    const metrics = run.openMetrics(0);
    const uncovered = { drawn: 12345, loss: 0.12345, medianNorm: 6.54321, clipFraction: 0.54321, examplesPerSecond: 1234.5 };
    metrics.write({ step: 1, epsilon: 0.5, learningRate: 0.1, thresholds: null }, uncovered);
    metrics.write(
      { step: 2, epsilon: 0.7, learningRate: 0.1, thresholds: { conv: 0.25, head: 2 } },
      { ...uncovered, loss: null },
    );
    metrics.close();
    run.saveNotes({ id: 'a', data: 'b' });
    run.release();

    const read = (name: string): string => readFileSync(join(path, name), 'utf8');
    expect(resolveRecipe(recipe)).toEqual(recipe);
    expect(
      read('metrics.jsonl')
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as unknown),
    ).toEqual([
      { step: 1, epsilon: 0.5, learningRate: 0.1 },
      { step: 2, epsilon: 0.7, learningRate: 0.1, thresholds: { conv: 0.25, head: 2 } },
    ]);
    expect(
      read('private/metrics.jsonl')
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as unknown),
    ).toEqual([
      { step: 1, ...uncovered },
      { step: 2, ...uncovered, loss: null },
    ]);
    expect(read('private/README.txt')).toContain('does not cover');
    const events = readdirSync(path).find((name) => name.startsWith('events.out.tfevents.')) ?? '';
    const tags = [...read(events).matchAll(/[a-z]+(?:\/[a-z_]+)+/g)].map(String);
    expect(new Set(tags)).toEqual(new Set([
      'privacy/epsilon', 'training/learning_rate', 'clipping/threshold/conv', 'clipping/threshold/head',
    ]));
    const times = wallTimes(readFileSync(join(path, events))).slice(1);
    expect(times).toHaveLength(2);
    expect(new Set(times).size).toBe(1);
    if (process.platform !== 'win32') {
      expect(statSync(join(path, 'private')).mode & 0o777).toBe(0o700);
      for (const name of ['metrics.jsonl', 'run.json']) expect(statSync(join(path, 'private', name)).mode & 0o777).toBe(0o600);
    }
  });

  it('saves model, checkpoint and result so that they read back', () => {
    const path = join(temporaryFolder().folder, 'run');
    const run = createRunFolder(path, recipe);
    const model = buildModel('mlp', { seed: 1 });
    run.begin(recipe);
    run.saveModel(model);
    run.saveResult({ steps: 3 });
    run.release();
    expect(openModel(join(path, 'model.onnx')).initializers).toEqual(model.initializers);
    expect(JSON.parse(readFileSync(join(path, 'result.json'), 'utf8'))).toEqual({ steps: 3 });
    expect(files(path).sort()).toEqual(['README.txt', 'model.onnx', 'recipe.yaml', 'result.json']);
  });

  it('leaves nothing of a run that did not begin, and no folder that it made', () => {
    const { folder } = temporaryFolder();
    createRunFolder(join(folder, 'a', 'b'), recipe).abandon();
    expect(readdirSync(folder)).toEqual([]);
    mkdirSync(join(folder, 'mine'));
    createRunFolder(join(folder, 'mine'), recipe).abandon();
    expect(readdirSync(folder, { recursive: true })).toEqual(['mine']);
  });

  it('may be begun where a run was killed before it began, but not while its process lives', () => {
    const path = join(temporaryFolder().folder, 'run');
    const first = createRunFolder(path, recipe);
    expect(() => createRunFolder(path, recipe)).toThrow(/another process works on this run.*\n {2}found: +locked by process/);
    first.release();
    createRunFolder(path, recipe).release();
    openRunFolder(path).release();
    expect(files(path)).toEqual(['recipe.yaml']);
  });

  it('says what is not a run', () => {
    const { folder, write } = temporaryFolder();
    expect(() => openRunFolder(join(folder, 'none'))).toThrow(/there is no run to resume.*\n {2}found: +no such folder/);
    expect(() => openRunFolder(folder)).toThrow(/found: +a folder without recipe\.yaml/);
    expect(() => openRunFolder(write('file', ''))).toThrow(/found: +a file/);
  });

  it('is not made twice in the same place', () => {
    const path = join(temporaryFolder().folder, 'run');
    const run = createRunFolder(path, recipe);
    run.begin(recipe);
    run.release();
    expect(() => createRunFolder(path, recipe)).toThrow(/the output folder cannot be used[^]*train --resume/);
  });

  it('leaves no half file when the disk is full, and says so', () => {
    const path = join(temporaryFolder().folder, 'run');
    const run = createRunFolder(path, recipe);
    run.begin(recipe);
    const log = run.openMetrics(0);
    const checkpoint = {
      lines: 0, parameters: new Map([['w', float32([1])]]), state: { step: 0, tensors: new Map() }, further: [], groups: [],
      settings: { recipe: {}, initial: 1, model: '', microBatch: 1, features: false, threads: 1, engine: '', ranks: 1, software: {} },
    } as const;
    for (const call of ['writeSync', 'fsyncSync']) {
      failing.set(call, 'ENOSPC');
      for (const save of [
        () => run.saveModel(buildModel('mlp', { seed: 1 })),
        () => run.saveCheckpoint(checkpoint, ratchet()),
        () => run.saveResult({}),
      ])
        expect(save).toThrow(/no space left on the disk/);
      failing.clear();
    }
    failing.set('writeSync', 'ENOSPC');
    const metrics = { step: 1, epsilon: 1, learningRate: 1, thresholds: null };
    expect(() => log.write(metrics, { drawn: 1, loss: 1, medianNorm: 1, clipFraction: 1, examplesPerSecond: 1 })).toThrow(
      'metrics cannot be written',
    );
    failing.clear();
    log.close();
    run.release();
    expect(files(path).filter((name) => /model|secret|safetensors|result|tmp/.test(name))).toEqual([]);
  });

  it('is refused when the disk is full before it begins', () => {
    const { folder } = temporaryFolder();
    failing.set('mkdirSync', 'ENOSPC');
    expect(() => createRunFolder(join(folder, 'run'), recipe)).toThrow('no space left on the disk');
    expect(existsSync(join(folder, 'run'))).toBe(false);
  });
});
