import { copyFileSync, existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type TrainingInput, prepare, train } from '../src/index.ts';
import { readModel } from '../src/graph/file.ts';
import { buildModel } from '../src/models/index.ts';
import { certificateSchema, epsilonOf } from '../src/privacy/index.ts';
import { verifyLedger } from '../src/privacy/ledger.ts';
import { datasetFromTensors } from '../src/data/index.ts';
import { decodeSafetensors } from '../src/tensor/safetensors.ts';
import { float32, int64 } from '../src/tensor/tensor.ts';
import { fakeEngine as engine } from './support/fake-engine.ts';
import { temporaryFolder } from './support/temp.ts';

const values = Array.from({ length: 48 }, (_, i) => Math.sin(i));
const dataWith = (first: number) => datasetFromTensors(
  float32([first, ...values.slice(1)], [12, 4]), int64(Array.from({ length: 12 }, (_, i) => i % 2)), { name: 'rows' });
const recipe = (output: string, { first = 0, microBatch = 4, seed, ...changes }: { first?: number; microBatch?: number; seed?: number } & Partial<TrainingInput> = {}): TrainingInput => ({
  model: buildModel({ name: 'mlp', input: 4, hidden: [], classes: 2 }, { seed: 1 }), data: { train: dataWith(first) }, output,
  privacy: { noiseMultiplier: 1, delta: 1e-4, sampling: 'full-batch' }, clipping: { norm: 1 },
  training: { steps: 10, ...(seed !== undefined && { seed }), optimizer: { name: 'sgd', learningRate: 0.1, momentum: 0.9 } },
  performance: { threads: 1, microBatch, checkpointEvery: 4 }, ...changes,
});

/** A run that is cut off after some steps, as a kill would: its key and checkpoint stay. */
async function cutOff(output: string, after: number, changes: Parameters<typeof recipe>[1] = {}): Promise<void> {
  const run = await prepare(recipe(output, changes), { engine });
  for await (const { step } of run.steps()) if (step === after) break;
  await run.release();
}
async function goOn(output: string, changes: Parameters<typeof recipe>[1] = {}) {
  const warnings: string[] = [];
  const result = await train(recipe(output, changes), { engine, resume: true, onWarning: (text) => warnings.push(text) });
  const certificate = certificateSchema.parse(JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')));
  const ledger = await verifyLedger(join(output, 'ledger.jsonl'));
  expect(ledger).toMatchObject({ problems: [], head: certificate.ledger?.head });
  expect(readdirSync(join(output, 'checkpoint')).filter((name) => name.startsWith('secret'))).toEqual([]);
  // What was spent is what the ledger says, repeated steps included.
  expect(certificate.epsilon).toBeCloseTo(epsilonOf(ledger.event, 1e-4).epsilon, 5);
  return { result, warnings: warnings.join('\n'), certificate, steps: ledger.lines.map(({ step }) => step), lines: ledger.lines };
}
const folder = (): string => join(temporaryFolder().folder, 'run');
const upTo = (end: number, from = 0): number[] => Array.from({ length: end - from }, (_, i) => from + i);

describe('a resumed run', () => {
  it('repeats what was charged and charges nothing again on the same machine, without a seed too', async () => {
    const output = folder();
    await cutOff(output, 6);
    expect(existsSync(join(output, 'checkpoint', 'secret.key'))).toBe(true);
    const found = await goOn(output);
    expect(found).toMatchObject({ warnings: '', steps: upTo(10), result: { steps: 10, recharged: 0, ended: 'complete' } });
    const metrics = readFileSync(join(output, 'metrics.jsonl'), 'utf8').trim().split('\n').map((line) => (JSON.parse(line) as { step: number }).step);
    expect(metrics).toEqual(upTo(11, 1));
  });

  it.each([
    ['another micro-batch', { microBatch: 3 }, /step 5 does not come out as it was charged \(micro-batch 3 instead of 4\)/],
    ['one row changed', { first: 9 }, /the data changed since the run began[^]*step 5 does not come out as it was charged/],
  ])('draws afresh and charges again with %s, and ends when the budget is spent', async (_, changes, warning) => {
    const output = folder();
    await cutOff(output, 6);
    const before = (await verifyLedger(join(output, 'ledger.jsonl'))).lines;
    const { result, warnings, steps, lines, certificate } = await goOn(output, changes);
    expect(warnings).toMatch(warning);
    expect(warnings).toContain('the run ends after 8 of 10 steps');
    // The checkpoint was of step 4: two steps were charged twice, and took the place of the last two.
    expect(steps).toEqual([...upTo(6), ...upTo(8, 4)]);
    expect(lines.slice(0, 6)).toEqual(before);
    expect(new Set(lines.map(({ digest }) => digest)).size).toBe(lines.length);
    expect(result).toMatchObject({ steps: 8, recharged: 2, ended: 'budget' });
    expect(certificate).toMatchObject({ valid: true, steps: 8, epsilon: certificate.plannedEpsilon });
  });

  it('recharges once, however often it is interrupted meanwhile', async () => {
    const output = folder();
    await cutOff(output, 6);
    await (async () => {
      const run = await prepare(recipe(output, { microBatch: 3 }), { engine, resume: true });
      for await (const { step } of run.steps()) if (step === 5) break;
      await run.release();
    })();
    const { steps, result } = await goOn(output, { microBatch: 3 });
    expect(steps).toEqual([...upTo(6), ...upTo(8, 4)]);
    expect(result.recharged).toBe(2);
  });

  it('charges again what it cannot repeat for want of the key', async () => {
    const output = folder();
    await cutOff(output, 6);
    rmSync(join(output, 'checkpoint', 'secret.key'));
    const { warnings, steps } = await goOn(output);
    expect(warnings).toContain('the secret key is gone: 2 steps after the checkpoint cannot be repeated');
    expect(steps).toEqual([...upTo(6), ...upTo(8, 4)]);
  });

  it('goes on after it was stopped, with fresh keys and nothing charged again', async () => {
    const output = folder();
    const stop = new AbortController();
    const stopped = await train(recipe(output), { engine, signal: stop.signal, onStep: ({ step }) => void (step === 3 && stop.abort()) });
    expect(stopped).toMatchObject({ steps: 3, ended: 'stopped' });
    expect(existsSync(join(output, 'checkpoint', 'secret.key'))).toBe(false);
    expect(await goOn(output)).toMatchObject({ warnings: '', steps: upTo(10), result: { ended: 'complete', recharged: 0 } });
  });

  it('goes on without privacy too', async () => {
    const [whole, cut] = [folder(), folder()];
    const plain = { privacy: 'none', training: { batchSize: 4, steps: 10, seed: 5, optimizer: { name: 'sgd', learningRate: 0.1 } } } as const;
    await train(recipe(whole, plain), { engine });
    await cutOff(cut, 6, plain);
    await train(recipe(cut, plain), { engine, resume: true });
    expect(readFileSync(join(cut, 'model.onnx'))).toEqual(readFileSync(join(whole, 'model.onnx')));
  });

  it.each([['a moving average', { ema: 0.9 }], ['the mean of the last steps', { last: 4 }]] as const)('with %s ends as one that was not interrupted', async (_, average) => {
    const [whole, cut, raw] = [folder(), folder(), folder()];
    const training = { steps: 10, seed: 5, average, optimizer: { name: 'adam', learningRate: 0.1, noiseCorrection: true } } as const;
    const values = (output: string, name = 'model.onnx') => {
      if (name === 'model.onnx') return [...readModel(join(output, name)).initializers].map(([key, t]) => [key, [...t.data as Float32Array]]);
      const [file] = readdirSync(join(output, 'checkpoint')).filter((each) => each.startsWith('step-10-'));
      const { tensors } = decodeSafetensors(readFileSync(join(output, 'checkpoint', file!)), 'checkpoint');
      return [...tensors].flatMap(([key, t]) => (key.startsWith('parameters/') ? [[key.slice(11), [...t.data as Float32Array]]] : []));
    };
    await train(recipe(whole, { training }), { engine });
    await cutOff(cut, 6, { training });
    expect((await goOn(cut, { training })).warnings).toBe('');
    expect(readFileSync(join(cut, 'model.onnx'))).toEqual(readFileSync(join(whole, 'model.onnx')));
    // The steps are those of a run without an average, whose parameters the checkpoint keeps.
    const { average: __, ...plain } = training;
    await train(recipe(raw, { training: plain }), { engine });
    expect(new Map(values(whole, 'checkpoint') as [])).toEqual(new Map(values(raw) as []));
    expect(values(whole)).not.toEqual(values(raw));
  });

  it('that stops early saves the average of the steps taken', async () => {
    const output = folder();
    const stop = new AbortController();
    const training = { steps: 10, seed: 5, average: { last: 8 }, optimizer: { name: 'sgd', learningRate: 0.1 } } as const;
    const seen: number[][] = [];
    const run = await prepare(recipe(output, { training: { ...training, average: { last: 1 } } }), { engine });
    const weights = ({ initializers }: ReturnType<typeof run.model>) => [...initializers.values()].flatMap(({ data }) => [...data as Float32Array]);
    for await (const { step } of run.steps()) {
      seen.push(weights(run.model()));
      if (step === 3) break;
    }
    await run.release();
    const stopped = folder();
    await train(recipe(stopped, { training }), { engine, signal: stop.signal, onStep: ({ step }) => void (step === 3 && stop.abort()) });
    const found = weights(readModel(join(stopped, 'model.onnx')));
    found.forEach((x, i) => expect(x).toBeCloseTo(seen.reduce((sum, w) => sum + w[i]! / 3, 0), 6));
  });

  it('refuses another recipe, another model, a folder that was tampered with, and company', async () => {
    const output = folder();
    await cutOff(output, 6);
    const refused = (changes: Parameters<typeof recipe>[1]) => expect(train(recipe(output, changes), { engine, resume: true })).rejects;
    await refused({ clipping: { norm: 2 } }).toThrow(/the recipe changed since the run began \(recipe: clipping\.norm\)\n {2}found: +2\n {2}expected: 1/);
    await refused({ trainable: ['*.bias'] }).toThrow(/the recipe changed since the run began \(recipe: trainable\)/);
    const other = buildModel({ name: 'mlp', input: 4, hidden: [3], classes: 2 }, { seed: 1 });
    await refused({ model: { ...other, name: 'mlp' } }).toThrow('the model changed since the run began');
    const key = join(output, 'checkpoint', 'secret.key');
    copyFileSync(key, `${key}.copy`);
    const bytes = readFileSync(key);
    bytes[30]! ^= 1;
    writeFileSync(key, bytes);
    await refused({}).toThrow('the secret key belongs to no checkpoint of this run');
    copyFileSync(`${key}.copy`, key);
    const ledger = join(output, 'ledger.jsonl');
    const lines = readFileSync(ledger, 'utf8');
    writeFileSync(ledger, lines.split('\n').slice(0, 2).join('\n') + '\n');
    await refused({}).toThrow('ledger and checkpoint do not belong together');
    writeFileSync(ledger, lines);
    const run = await prepare(recipe(output), { engine, resume: true });
    await refused({}).toThrow(/another process works on this run/);
    await run.release();
    await expect(train(recipe(join(output, 'none')), { engine, resume: true })).rejects.toThrow('there is no run to resume');
  });
});
