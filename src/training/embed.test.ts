import { existsSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type Fault, faultyFiles } from '../../test/support/faulty-files.ts';
import { fakeEngine } from '../../test/support/fake-engine.ts';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { type Dataset, batchOf, datasetOf, loadData, readSafetensorsData } from '../data/index.ts';
import { allRows } from '../data/dataset.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { buildModel } from '../models/index.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { halfValues, toHalves } from '../tensor/half.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import { partialOf } from './array-file.ts';
import { type EmbedOptions, embed } from './embed.ts';

const model = buildModel(blobModel, { seed: 1 });
const hidden = model.nodes.find(({ op }) => op === 'Tanh')!.outputs[0]!;
const data: Dataset = datasetOf({ ...blobs(150), classNames: ['left', 'right'] });
const threads = 1;

/** tanh(W x + b) in double precision, example by example. */
function hiddenOf(graph: Graph, dataset: Dataset): number[] {
  const [weight, bias] = ['hidden.0.weight', 'hidden.0.bias'].map((name) => graph.initializers.get(name)!);
  const x = batchOf(dataset, allRows(dataset.size)).features.get('input')!.data as Float32Array;
  return Array.from({ length: dataset.size * 8 }, (_, at) => {
    const [row, unit] = [Math.floor(at / 8), at % 8];
    const sum = [0, 1, 2, 3].reduce((total, i) => total + Number(weight!.data[4 * unit + i]) * x[4 * row + i]!, Number(bias!.data[unit]));
    return Math.tanh(sum);
  });
}

const read = async (path: string, stream = false): Promise<{ features: Float32Array; labels: BigInt64Array; classNames: unknown }> => {
  const found = await readSafetensorsData(path, { features: 'features', label: 'labels', stream });
  const { features, labels } = batchOf(found, allRows(found.size));
  return { features: features.get('input')!.data as Float32Array, labels: labels.data as BigInt64Array, classNames: found.classNames };
};

const failure = async (promise: Promise<unknown>): Promise<GhostgradError> => {
  const error: unknown = await promise.then(() => undefined, (reason: unknown) => reason);
  expect(error).toBeInstanceOf(GhostgradError);
  return error as GhostgradError;
};

describe('embed', () => {
  it('writes what the frozen model computes of each example, with labels and the names of the classes', async () => {
    const path = join(temporaryFolder().folder, 'f.safetensors');
    const done = await embed(model, data, path, { output: hidden, threads, batchSize: 32 });
    expect(done).toMatchObject({ path, examples: 150, dimensions: 8, dtype: 'float32', computed: 150, complete: true });
    const expected = hiddenOf(model, data);
    for (const stream of [false, true]) {
      const { features, labels, classNames } = await read(path, stream);
      expect(features).toHaveLength(expected.length);
      expect(Math.max(...expected.map((x, i) => Math.abs(x - features[i]!)))).toBeLessThan(1e-6);
      expect(labels).toEqual(batchOf(data, allRows(150)).labels.data);
      expect(classNames).toEqual(['left', 'right']);
    }
    expect(await loadData({ path, features: 'features', label: 'labels' })).toMatchObject({ size: 150, classNames: ['left', 'right'] });
  });

  it('keeps float16 as the nearest halves of the same numbers, however the file is read', async () => {
    const { folder } = temporaryFolder();
    const [whole, half] = [join(folder, 'a.safetensors'), join(folder, 'b.safetensors')];
    await embed(model, data, whole, { output: hidden, threads });
    await embed(model, data, half, { output: hidden, threads, dtype: 'float16' });
    const { features } = await read(whole);
    const bits = new Uint16Array(features.length);
    toHalves(features, bits);
    const expected = Float32Array.from(bits, (b) => halfValues()[b]!);
    expect((await read(half)).features).toEqual(expected);
    expect((await read(half, true)).features).toEqual(expected);
  });

  it('computes nothing that is there, and refuses a file of anything else until told to overwrite it', async () => {
    const { folder, write } = temporaryFolder();
    const path = join(folder, 'f.safetensors');
    const options: EmbedOptions = { output: hidden, threads, spec: { path: 'blobs.csv' } };
    await embed(model, data, path, options);
    const before = readFileSync(path);
    // Neither the file's age nor rows computed at once make other features of it.
    expect(await embed(model, data, path, { ...options, batchSize: 7 })).toMatchObject({ computed: 0, complete: true });

    const other = buildModel(blobModel, { seed: 2 });
    const moved = new Map(model.initializers).set('classifier.bias', float32([1, 2]));
    const stale: [RegExp, Promise<unknown>][] = [
      [/another model, or other weights/, embed(other, data, path, options)],
      [/other data, or read another way \({"path":"blobs.csv"}, not {"path":"more.csv"}\)/, embed(model, blobs(149), path, { ...options, spec: { path: 'more.csv' } })],
      [/another element type \("float32", not "float16"\)/, embed(model, data, path, { ...options, dtype: 'float16' })],
      [/another output/, embed(model, data, path, { ...options, output: model.outputs[0]!.name })],
    ];
    for (const [message, promise] of stale) expect((await failure(promise)).message).toMatch(message);
    // What stands behind the output has no part in the features.
    expect(await embed({ ...model, initializers: moved }, data, path, options)).toMatchObject({ computed: 0 });
    expect(readFileSync(path).equals(before)).toBe(true);

    expect(await embed(other, data, path, { ...options, overwrite: true })).toMatchObject({ computed: 150 });
    expect(Math.abs((await read(path)).features[5]! - hiddenOf(other, data)[5]!)).toBeLessThan(1e-6);
    const foreign = write('notes.txt', 'hello');
    expect((await failure(embed(model, data, foreign, options))).message).toMatch(/there is another file/);
    expect(readFileSync(foreign, 'utf8')).toBe('hello');
    expect(readdirSync(folder).sort()).toEqual(['f.safetensors', 'notes.txt']);
  });

  it('refuses a model that lets examples mix, and outputs that are no features', async () => {
    const path = join(temporaryFolder().folder, 'f.safetensors');
    const node = (op: string, inputs: string[], output: string) => ({ op, domain: '', name: output, inputs, outputs: [output], attributes: {} });
    const centred: Graph = {
      ...model, nodes: [node('ReduceMean', ['input', 'axes'], 'mean'), node('Sub', ['input', 'mean'], 'centred')],
      initializers: new Map([['axes', int64([0])]]), literals: new Set(['axes']),
      outputs: [{ name: 'centred', dtype: 'float32', shape: ['batch', 4] }],
    };
    expect((await failure(embed(centred, data, path))).message).toMatch(/lets examples mix/);
    const largest: Graph = {
      ...centred, nodes: [node('ArgMax', ['input'], 'place')], initializers: new Map(), literals: new Set(),
      outputs: [{ name: 'place', dtype: 'int64', shape: [1, 4] }],
    };
    expect((await failure(embed(largest, data, path))).message).toMatch(/the output holds no features/);
    expect(existsSync(path)).toBe(false);
  });

  it('refuses features that are not finite or beyond float16 by their row, and leaves nothing', async () => {
    const { folder } = temporaryFolder();
    const path = join(folder, 'f.safetensors');
    const scaled = (by: number): Graph => ({
      ...model, initializers: new Map(model.initializers).set('classifier.bias', float32([by, 0])),
    });
    const { message } = await failure(embed(scaled(1e5), data, path, { dtype: 'float16', batchSize: 16 }));
    expect(message).toMatch(/too large for float16 \(output "logits" for row 1 of blobs\)/);
    expect((await failure(embed(scaled(Infinity), data, path))).message).toMatch(/not finite .* row 1/);
    expect(readdirSync(folder)).toEqual([]);
  });

  it('is stopped between two chunks, and goes on to the same bytes', async () => {
    const { folder } = temporaryFolder();
    const [path, reference] = [join(folder, 'f.safetensors'), join(folder, 'g.safetensors')];
    await embed(model, data, reference, { output: hidden, threads, batchSize: 16 });
    const stop = new AbortController();
    const onProgress = (rows: number): void => { if (rows >= 48) stop.abort(); };
    const first = await embed(model, data, path, { output: hidden, threads, batchSize: 16, signal: stop.signal, onProgress });
    expect(first).toMatchObject({ computed: 48, complete: false });
    expect(existsSync(path)).toBe(false);
    expect((await failure(embed(model, data, path, { threads }))).message).toMatch(/an unfinished file of other features/);
    // Goes on in the chunks that it was begun with.
    expect(await embed(model, data, path, { output: hidden, threads, batchSize: 50 })).toMatchObject({ computed: 102, complete: true });
    expect(readFileSync(path).equals(readFileSync(reference))).toBe(true);
    expect(readdirSync(folder).sort()).toEqual(['f.safetensors', 'g.safetensors']);
  });
});

/** `npm run test:kill` has every fault at every change. */
const everything = process.env['EVERY_CRASH'] !== undefined;

describe('embed that is interrupted at any change to a file', () => {
  const attempt = (path: string, fault?: Fault) => {
    const { files, calls } = faultyFiles(fault);
    return { calls, outcome: embed(model, blobs(20), path, { engine: fakeEngine, batchSize: 4, syncSeconds: 0, files }) };
  };
  const forgetLocks = (folder: string): void => {
    for (const name of readdirSync(folder)) if (name.includes('.lock')) rmSync(join(folder, name));
  };

  it('leaves no half file under the name, and ends with the same bytes', { timeout: 120_000 }, async () => {
    const { folder } = temporaryFolder();
    const path = join(folder, 'f.safetensors');
    const whole = attempt(path);
    await whole.outcome;
    const expected = readFileSync(path);
    const count = whole.calls().length;
    expect(count).toBeGreaterThan(60);
    let kept = 0;
    for (let at = 0; at < count; at++) {
      const faults: Fault[] = [
        { kind: 'crash', at, losesUnsynced: true }, { kind: 'crash', at, losesUnsynced: false },
        { kind: 'error', at, code: 'ENOSPC', lasting: true }, { kind: 'error', at, code: 'EROFS', lasting: true },
      ];
      // In the gate, the faults in turn.
      for (const fault of everything ? faults : [faults[at % 4]!]) {
        rmSync(path, { force: true });
        const { outcome, calls } = attempt(path, fault);
        const error: unknown = await outcome.then(() => undefined, (reason: unknown) => reason);
        const where = `${JSON.stringify(fault)}: ${calls()[at]}`;
        if (fault.kind === 'error' && error !== undefined) {
          expect(error, where).toBeInstanceOf(GhostgradError);
          expect((error as Error).message, where).toMatch(fault.code === 'ENOSPC' ? /no space left on the disk/ : /a read-only file system/);
        }
        if (existsSync(path)) expect(readFileSync(path).equals(expected), where).toBe(true);
        forgetLocks(folder);
        const { computed } = await attempt(path).outcome;
        if (computed > 0 && computed < 20) kept += 1;
        expect(readFileSync(path).equals(expected), where).toBe(true);
        expect(existsSync(partialOf(path)), where).toBe(false);
        expect(readdirSync(folder).filter((name) => !name.endsWith('.tmp')), where).toEqual(['f.safetensors']);
      }
    }
    // Most of them do not begin at the first row again.
    expect(kept).toBeGreaterThan((everything ? 4 : 1) * count / 3);
  });

  it('comes to the same with ONNX Runtime as without an interruption', async () => {
    const { folder } = temporaryFolder();
    const [path, reference] = [join(folder, 'f.safetensors'), join(folder, 'g.safetensors')];
    const engine = onnxruntimeEngine();
    await embed(model, data, reference, { engine, output: hidden, batchSize: 16 });
    const { files } = faultyFiles({ kind: 'crash', at: 40, losesUnsynced: true });
    await expect(embed(model, data, path, { engine, output: hidden, batchSize: 16, syncSeconds: 0, files })).rejects.toThrow();
    forgetLocks(folder);
    const { computed } = await embed(model, data, path, { engine, output: hidden });
    expect(computed).toBeLessThan(150);
    expect(readFileSync(path).equals(readFileSync(reference))).toBe(true);
  });
});
