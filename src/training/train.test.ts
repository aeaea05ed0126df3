import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { datasetFromTensors } from '../data/index.ts';
import { type Graph, latestOpset } from '../graph/ir.ts';
import { buildModel } from '../models/index.ts';
import { certificateSchema, epsilonOf, eventOf } from '../privacy/index.ts';
import { verifyLedger } from '../privacy/ledger.ts';
import { decodeSafetensors } from '../tensor/safetensors.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import { evaluate } from './evaluate.ts';
import type { TrainingInput } from './materials.ts';
import { openModel } from './model.ts';
import { readRecipeFile } from './recipe-file.ts';
import { type StepReport, prepare, train } from './train.ts';

const full = vi.hoisted(() => ({ disk: false }));
vi.mock('node:fs', async (importOriginal) => {
  const actual = await importOriginal<typeof import('node:fs')>();
  return {
    ...actual,
    writeSync: (...args: Parameters<typeof actual.writeSync>) => {
      if (full.disk) throw Object.assign(new Error('ENOSPC: injected'), { code: 'ENOSPC' });
      return actual.writeSync(...args);
    },
  };
});
afterEach(() => {
  full.disk = false;
});

const recipe = (changes: Partial<TrainingInput> = {}): TrainingInput => ({
  model: blobModel,
  data: { train: blobs(), test: blobs(100) },
  privacy: { epsilon: 8, delta: 1e-4 },
  clipping: { norm: 1 },
  training: { batchSize: 50, steps: 40, optimizer: { name: 'sgd', learningRate: 0.5, momentum: 0.9 } },
  performance: { threads: 1 },
  ...changes,
});
const shorter = (steps: number, training: object = {}): TrainingInput['training'] => ({
  batchSize: 50,
  steps,
  optimizer: { name: 'sgd', learningRate: 0.5 },
  ...training,
});

describe('a run', () => {
  it('learns, spends what it said, and leaves a folder that holds together', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const reports: StepReport[] = [];
    const result = await train(recipe({ output }), { onStep: (report) => reports.push(report) });
    const read = (name: string): string => readFileSync(join(output, name), 'utf8');

    expect(result).toMatchObject({
      runDir: output,
      steps: 40,
      delta: 1e-4,
      accountant: 'pld',
      sampleRate: 0.25,
      batchSize: 50,
      datasetSize: 200,
    });
    expect(result.test?.accuracy).toBeGreaterThan(0.9);
    expect(result.epsilon).toBeLessThanOrEqual(8);
    expect(result.epsilon).toBeGreaterThan(7.99);
    expect(JSON.parse(read('result.json'))).toEqual(result);

    expect(reports.map(({ step }) => step)).toEqual(Array.from({ length: 40 }, (_, i) => i + 1));
    const spent = reports.map(({ epsilon }) => epsilon ?? NaN);
    expect(spent.every((epsilon, i) => i === 0 || epsilon > (spent[i - 1] ?? Infinity))).toBe(true);
    expect(spent.at(-1)).toBe(result.epsilon);
    // The draw is random, the normaliser is not.
    expect(new Set(reports.map(({ uncovered }) => uncovered.drawn)).size).toBeGreaterThan(1);

    const certificate = certificateSchema.parse(JSON.parse(read('privacy.json')));
    expect(certificate).toMatchObject({
      valid: true,
      steps: 40,
      plannedSteps: 40,
      epsilon: result.epsilon,
      normaliser: 50,
      clipping: { function: 'abadi', norm: 1 },
    });
    expect(certificate.assumptions.join('\n')).toMatch(/sums over examples are exact.*at most 0\.00\d+ of the sensitivity/);
    expect(epsilonOf(certificate.event, certificate.noise.accountedDelta).epsilon).toBeCloseTo(result.epsilon ?? NaN, 10);
    const ledger = await verifyLedger(join(output, 'ledger.jsonl'));
    expect(ledger).toMatchObject({ problems: [], torn: false, head: certificate.ledger?.head });
    expect(ledger.lines).toHaveLength(40);
    expect(epsilonOf(ledger.event, 1e-4)).toEqual(epsilonOf(certificate.event, 1e-4));

    const model = openModel(join(output, 'model.onnx'));
    expect(model.metadata['ghostgrad.privacy']).toBe(certificate.guarantee);
    expect(await evaluate(model, blobs(100))).toEqual(result.test);
    expect(readdirSync(join(output, 'checkpoint'))).toEqual(['certificate.json', 'step-40-40.safetensors']);
    const saved = decodeSafetensors(readFileSync(join(output, 'checkpoint', 'step-40-40.safetensors'))).tensors;
    for (const [name, value] of saved) {
      const [, parameter] = /^parameters\/(.*)/.exec(name) ?? [];
      if (parameter !== undefined) expect(value).toEqual(model.initializers.get(parameter));
    }
    expect(readRecipeFile(join(output, 'recipe.yaml'))).toMatchObject({
      data: { train: '(in memory: blobs)' },
      clipping: { norm: 1, gamma: 0.01 },
    });
    expect(readdirSync(output).filter((name) => name.startsWith('events'))).toHaveLength(1);
  });

  it('takes its steps one at a time, and shows the model as it is', async () => {
    const run = await prepare(recipe({ training: shorter(3) }));
    const weights = () => [...run.model().initializers.values()].map(({ data }) => [...data]);
    const before = weights();
    const epsilons: (number | null)[] = [run.certificate()?.epsilon ?? null];
    for await (const { epsilon } of run.steps()) {
      epsilons.push(epsilon);
      if (epsilons.length === 2) break;
    }
    expect(weights()).not.toEqual(before);
    expect(run.certificate()).toMatchObject({ steps: 1, epsilon: expect.closeTo(epsilons[1]!, 3) as number, ledger: null });
    for await (const { epsilon } of run.steps()) epsilons.push(epsilon);
    expect(epsilons).toHaveLength(4);
    const result = await run.finish();
    expect(result).toMatchObject({ runDir: null, steps: 3, epsilon: run.plan?.epsilon });
    for await (const _ of run.steps()) throw new Error('a finished run takes no steps');
  });

  it('stops after the step that has begun, and certifies the steps done', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const stop = new AbortController();
    const result = await train(recipe({ output }), {
      signal: stop.signal,
      onStep: ({ step }) => (step === 5 ? stop.abort() : undefined),
    });
    expect(result.steps).toBe(5);
    const certificate = certificateSchema.parse(JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')));
    expect(certificate).toMatchObject({ steps: 5, plannedSteps: 40, epsilon: result.epsilon });
    expect(result.epsilon).toBeLessThan(certificate.plannedEpsilon);
    expect(existsSync(join(output, 'model.onnx'))).toBe(true);
  });

  it('takes noisy steps on empty draws', async () => {
    const run = await prepare(
      recipe({
        privacy: { noiseMultiplier: 1, delta: 1e-7 },
        training: shorter(5, { batchSize: 0.001, optimizer: { name: 'sgd', learningRate: 1e-6 } }),
      }),
    );
    const before = run.model().initializers;
    for await (const { uncovered } of run.steps())
      expect(uncovered).toMatchObject({ drawn: 0, loss: null, medianNorm: null, clipFraction: null });
    const after = run.model().initializers;
    for (const [name, { data }] of before)
      expect([...(after.get(name)?.data ?? [])].every((x, i) => x !== data[i])).toBe(true);
    expect((await run.finish()).epsilon).toBeGreaterThan(0);
  });

  it('is the same again for a seed, whose certificate is void, and another without', async () => {
    const weights = async (seed?: number) => {
      const run = await prepare(
        recipe({ model: buildModel(blobModel, { seed: 1 }), training: shorter(3, seed === undefined ? {} : { seed }) }),
      );
      for await (const _ of run.steps());
      const { initializers } = run.model();
      await run.release();
      return { values: [...initializers.values()].map(({ data }) => [...data]), valid: run.certificate()?.valid };
    };
    const [first, second, other, free] = [await weights(7), await weights(7), await weights(8), await weights()];
    expect(second).toEqual(first);
    expect(first.valid).toBe(false);
    expect(other.values).not.toEqual(first.values);
    expect(free.valid).toBe(true);
  });

  it('goes without privacy when told so, and the model says it', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const result = await train(recipe({ output, privacy: 'none' }));
    expect(result).toMatchObject({ epsilon: null, delta: null, accountant: null, noiseMultiplier: null });
    expect(result.test?.accuracy).toBeGreaterThan(0.95);
    expect(existsSync(join(output, 'privacy.json'))).toBe(false);
    expect(existsSync(join(output, 'ledger.jsonl'))).toBe(false);
    expect(openModel(join(output, 'model.onnx')).metadata['ghostgrad.privacy']).toBe('none: trained without privacy');
  });

  it('trains a head near zero on a value of a frozen model, and nothing else', async () => {
    const body = buildModel(blobModel, { seed: 3 });
    const [value] = body.nodes.at(-1)!.inputs;
    const run = await prepare(recipe({
      model: body, head: { output: value!, classes: 2 }, trainable: 'head', training: { ...recipe().training, seed: 1 },
    }));
    expect([...run.plan!.groups[0]!.parameters].sort()).toEqual(['head.bias', 'head.weight']);
    for await (const _ of run.steps());
    const model = run.model();
    const { test } = await run.finish();
    expect(test!.accuracy).toBeGreaterThan(0.9);
    for (const [name, { data }] of model.initializers)
      if (!name.startsWith('head.')) expect(data, name).toEqual(body.initializers.get(name)!.data);
    expect(model.outputs).toMatchObject([{ name: 'logits', shape: ['batch', 2] }]);
  });

  it('trains low-rank adapters, and saves the model with them merged', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const body = buildModel(blobModel, { seed: 3 });
    const run = await prepare(recipe({
      model: body, trainable: { lora: { rank: 2, alpha: 8 } }, training: { ...recipe().training, seed: 1 }, output,
    }));
    const names = run.plan!.groups[0]!.parameters;
    expect(names).toHaveLength(4);
    expect(names.every((name) => /lora_[AB]$/.test(name))).toBe(true);
    for await (const _ of run.steps());
    const model = run.model();
    const { test } = await run.finish();
    expect(test!.accuracy).toBeGreaterThan(0.9);
    const saved = decodeSafetensors(readFileSync(join(output, 'adapters.safetensors')));
    expect([...saved.tensors.keys()].sort()).toEqual(names.map((name) => `base_model.model.${name.replace('.weight.lora', '.lora')}.weight`).sort());
    expect(model.nodes).toEqual(body.nodes);
    expect([...model.initializers.keys()]).toEqual([...body.initializers.keys()]);
    expect([...model.initializers].filter(([name, { data }]) => !Buffer.from(data.buffer).equals(Buffer.from(body.initializers.get(name)!.data.buffer))).map(([name]) => name))
      .toEqual([...body.initializers].filter(([, { shape }]) => shape.length === 2).map(([name]) => name));
  });

  it.each(['without-replacement', 'truncated-poisson'] as const)('draws and accounts for batches %s', async (sampling) => {
    const run = await prepare(recipe({ privacy: { epsilon: 8, delta: 1e-4, sampling }, training: shorter(3, { seed: 1 }) }));
    const sizes: number[] = [];
    for await (const { uncovered } of run.steps()) sizes.push(uncovered.drawn);
    const { sampling: certified, epsilon, event, neighbors, noise } = run.certificate()!;
    await run.release();
    if (sampling === 'without-replacement') expect(sizes).toEqual([50, 50, 50]);
    else expect(Math.max(...sizes)).toBeLessThanOrEqual(certified.maxBatchSize!);
    expect(certified).toMatchObject({ name: sampling, expectedBatchSize: 50, maxBatchSize: run.plan!.maxBatchSize });
    expect(neighbors).toBe(sampling === 'without-replacement' ? 'replace-one' : 'add-remove');
    expect(epsilonOf(event, noise.accountedDelta).epsilon).toBeCloseTo(epsilon, 9);
    expect(certificateSchema.safeParse(run.certificate()).success).toBe(true);
  });

  it('refuses a declared size that the draws would not be accounted for at', async () => {
    const data = { train: blobs(), size: 60 };
    const privacy = { epsilon: 8, delta: 1e-4, sampling: 'without-replacement' } as const;
    await expect(prepare(recipe({ data, privacy }))).rejects.toThrow('cannot be sampled as the privacy plan says');
  });

  it('takes all of the data at every step under full-batch sampling, accounted for exactly', async () => {
    const { batchSize: _, ...training } = shorter(2);
    const run = await prepare(recipe({ privacy: { epsilon: 2, delta: 1e-4, sampling: 'full-batch' }, training }));
    for await (const { uncovered } of run.steps()) expect(uncovered.drawn).toBe(200);
    await run.release();
    expect(run.plan).toMatchObject({ accountant: 'exact-gaussian', batchSize: 200, sampleRate: 1 });
    expect(run.plan === null ? null : epsilonOf(eventOf(run.plan, 2), run.plan.accountedDelta).epsilon).toBe(run.plan?.epsilon);
  });

  it('takes sizes from what is public: the declared number of examples, not the rows', async () => {
    const run = await prepare(
      recipe({ data: { train: blobs(), size: 400 }, training: { ...shorter(1), epochs: 3, steps: undefined } }),
    );
    expect(run.plan).toMatchObject({ datasetSize: 400, sampleRate: 50 / 400 });
    expect(run.plannedSteps).toBe(24);
    await run.release();
  });

  it('changes only the trainable parameters', async () => {
    const model = buildModel(blobModel, { seed: 1 });
    const run = await prepare(recipe({ model, trainable: ['classifier.*'], training: shorter(2) }));
    for await (const _ of run.steps());
    const changed = [...run.model().initializers]
      .filter(([name, { data }]) => [...data].some((x, i) => x !== model.initializers.get(name)?.data[i]))
      .map(([name]) => name);
    await run.release();
    expect(changed.sort()).toEqual(['classifier.bias', 'classifier.weight']);
  });
});

describe('a run is refused before anything is written', () => {
  const refused = async (changes: Partial<TrainingInput>): Promise<string> => {
    const output = join(temporaryFolder().folder, 'run');
    const message = await train(recipe({ ...changes, output })).then(
      () => 'accepted',
      (error: unknown) => String(error),
    );
    expect(existsSync(output)).toBe(false);
    return message;
  };

  it('for data that do not fit', async () => {
    expect(await refused({ data: { train: datasetFromTensors(float32([1, 2, 3, 4], [1, 4]), int64([2])) } })).toMatch(
      'a label is out of range',
    );
    expect(await refused({ data: { train: datasetFromTensors(float32([1, NaN, 3, 4], [1, 4]), int64([1])) } })).toMatch(
      'not finite',
    );
    expect(await refused({ data: { train: datasetFromTensors(float32([1, 2, 3], [1, 3]), int64([1])) } })).toMatch(
      /another shape|shape/,
    );
    expect(
      await refused({ data: { train: blobs(), test: datasetFromTensors(float32([1, 2, 3, 4], [1, 4]), int64([5])) } }),
    ).toMatch('a label is out of range');
  });

  it('for sizes that cannot be', async () => {
    expect(await refused({ training: shorter(3, { batchSize: 201 }) })).toMatch('batchSize is out of range');
    expect(await refused({ privacy: 'none', training: shorter(3, { batchSize: 201 }) })).toMatch(
      'batchSize is out of range',
    );
    expect(await refused({ privacy: { epsilon: 1, delta: 1e-4, sampling: 'full-batch' } })).toMatch(
      'a full batch is all of the data, and batchSize says otherwise',
    );
  });

  it('for patterns that match nothing', async () => {
    expect(await refused({ trainable: ['conv*'] })).toMatch('pattern "conv*" matches no parameter');
    expect(await refused({ trainable: ['*.weight', 'classifier.bais'] })).toMatch('did you mean "classifier.bias"?');
  });

  const graph = (nodes: Graph['nodes'], more: Readonly<Record<string, number[]>> = {}): Graph => ({
    name: 'g',
    opset: latestOpset,
    metadata: {},
    nodes,
    inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 4] }],
    outputs: [{ name: 'y', dtype: 'float32', shape: ['batch', 4] }],
    initializers: new Map(
      Object.entries({ w: [1, 1, 1, 1], ...more }).map(([name, values]) => [name, float32(values)]),
    ),
  });
  const node = (op: string, inputs: string[], output: string, attributes = {}) => ({
    op,
    domain: '',
    name: `the ${op}`,
    inputs,
    outputs: [output],
    attributes,
  });

  it('for an operator without a gradient on the way to a parameter, by the name of its node', async () => {
    const message = await refused({
      model: graph(
        [node('Mul', ['x', 'w'], 'a'), node('QuantizeLinear', ['a', 's'], 'q'), node('DequantizeLinear', ['q', 's'], 'y')],
        { s: [1] },
      ),
    });
    expect(message).toContain('the DequantizeLinear');
    expect(message).toContain('cannot be differentiated');
  });

  it('for a model whose gradient is zero everywhere', async () => {
    const rounded = graph([node('Mul', ['x', 'w'], 'a'), node('Round', ['a'], 'y')]);
    expect(await refused({ model: rounded })).toContain('nothing to train');
  });

  it('for batch normalisation in training mode, by the name of its node', async () => {
    const training = { training_mode: { type: 'int', value: 1 } };
    const message = await refused({
      model: graph(
        [{ ...node('BatchNormalization', ['x', 'w', 'b', 'm', 'v'], 'y', training), outputs: ['y', 'm2', 'v2'] }],
        {
          b: [0, 0, 0, 0],
          m: [0, 0, 0, 0],
          v: [1, 1, 1, 1],
        },
      ),
    });
    expect(message).toContain('the BatchNormalization');
    expect(message).toContain('mix');
  });
});

describe('a full disk', () => {
  it('ends the run with a clear error and no half file', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const run = await prepare(recipe({ output, training: shorter(1) }));
    for await (const _ of run.steps());
    full.disk = true;
    await expect(run.finish()).rejects.toThrow(/no space left on the disk/);
    full.disk = false;
    expect(existsSync(join(output, 'model.onnx'))).toBe(false);
    expect(readdirSync(output, { recursive: true }).filter((name) => String(name).endsWith('.tmp'))).toEqual([]);
    // What was spent is on record all the same.
    expect((await verifyLedger(join(output, 'ledger.jsonl'))).lines).toHaveLength(1);
  });
});
