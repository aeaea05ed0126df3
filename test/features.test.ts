import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { frozenCut } from '../src/autodiff/frozen.ts';
import { type AnyColumn, type Dataset, batchOf, datasetFromTensors, datasetOf, floatColumn, integerColumn } from '../src/data/index.ts';
import { allRows } from '../src/data/dataset.ts';
import { defaultRho } from '../src/clipping/norm.ts';
import type { Graph } from '../src/graph/ir.ts';
import { type TrainingInput, prepare, train } from '../src/index.ts';
import { type ModelSpec, buildModel } from '../src/models/index.ts';
import { readModel } from '../src/graph/file.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type FloatTensor, type Tensor, float32, int64 } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { fittedTo, taskFor } from '../src/training/examples.ts';
import { embed } from '../src/training/embed.ts';
import { type FeatureSettings, featuresFor } from '../src/training/features.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { blobs } from './support/blobs.ts';
import { networkChoice, randomLabels, randomNetwork, randomTensor, testRandom } from './support/random-network.ts';
import { temporaryFolder } from './support/temp.ts';

const engine = onnxruntimeEngine();
const options = { mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 } as const;

const columnOf = ({ data, shape }: Tensor): AnyColumn => data instanceof BigInt64Array
  ? integerColumn(data.slice(), shape.slice(1)) : floatColumn((data as Float32Array).slice(), shape.slice(1));

/** A batch as the step takes it, and the analysis of the whole model on it. */
function caseOf(model: Graph, trainable: 'all' | readonly string[], inputs: Readonly<Record<string, Tensor>>, classes: number, rows: number) {
  const labels = randomLabels(testRandom(5), rows, classes);
  const given = datasetOf({
    name: 'random', features: new Map(Object.entries(inputs).map(([name, t]) => [name, columnOf(t)])), labels: columnOf(labels),
  });
  const task = taskFor({ model, loss: 'cross-entropy', trainable }, given);
  const analysis = analyse(task);
  return { analysis, data: fittedTo(task, given), batch: { inputs, labels, rows } satisfies Batch };
}

type Case = ReturnType<typeof caseOf>;

const settingsOf = ({ analysis, data }: Pick<Case, 'analysis' | 'data'>, more: Partial<FeatureSettings> = {}): FeatureSettings =>
  ({ analysis, data, setting: 'on', passes: 20, engine, threads: 1, ...more });

/** What the part behind the cut is fed with, all rows. */
function batchBehind(data: Dataset, { labels, rows }: Batch): Batch {
  const indices = Uint32Array.from({ length: rows }, (_, i) => i);
  const inputs = Object.fromEntries([...data.features].map(([name, column]): [string, Tensor] => {
    const size = column.shape.reduce((a, b) => a * b, rows);
    const values = column.dtype === 'int64' ? new BigInt64Array(size) : new Float32Array(size);
    column.gather(indices, values as never);
    return [name, { dtype: column.dtype, shape: [rows, ...column.shape], data: values }];
  }));
  return { inputs, labels, rows };
}

/** Norms, losses and clipped sums behind the features equal those of the whole model, and of one example at a time. */
async function expectEqual(given: Case, more: Partial<FeatureSettings> = {}): Promise<ReturnType<typeof featuresFor>> {
  requireTrainable(given.analysis);
  const features = featuresFor(settingsOf(given, more));
  expect(features.used).toBe(true);
  expect(await features.compute()).toBe(true);
  const reference = await oracle(given.analysis, given.batch);
  const threshold = Math.max(1e-6, [...reference.norms].sort((a, b) => a - b)[reference.norms.length >> 1]!);
  const whole = await runStep(given.analysis, given.batch, options, threshold);
  const cut = await runStep(features.analysis, batchBehind(features.data, given.batch), options, threshold);
  features.release(true);
  const seen = ({ norms, losses }: { readonly norms: ArrayLike<number>; readonly losses: ArrayLike<number> }) => new Map([['norms', norms], ['losses', losses]]);
  expect(relativeDifference(seen(cut), seen(whole))).toBeLessThan(1e-5);
  expect(relativeDifference(cut.sums, whole.sums)).toBeLessThan(1e-5);
  expect(Math.min(...cut.weights)).toBeGreaterThan(0);
  expect(relativeDifference(seen(cut), seen(reference))).toBeLessThan(2e-3);
  expect(relativeDifference(cut.sums, weightedSum(reference.gradients, [...cut.weights]))).toBeLessThan(1e-4);
  return features;
}

const rows = 6;
const images = (shape: readonly number[]) => ({ input: randomTensor(testRandom(3), [rows, ...shape]) });
const tokens = (length: number, vocabulary: number) => {
  const random = testRandom(4);
  const ids = Array.from({ length: rows * length }, () => Math.floor(random() * vocabulary));
  const mask = Array.from({ length: rows * length }, (_, i) => (i % length < 3 + (i / length) % 4 ? 1 : 0));
  return { input_ids: int64(ids, [rows, length]), attention_mask: int64(mask, [rows, length]) };
};
const bert: ModelSpec = { name: 'bert-base', vocabulary: 30, sequence: 7, positions: 7, classes: 3, width: 8, depth: 2, heads: 2, ratio: 2 };

const cases: readonly (readonly [string, () => Case, readonly number[]])[] = [
  ['the last layer of an MLP', () => caseOf(buildModel({ name: 'mlp', input: 4, hidden: [6, 5], classes: 3 }, { seed: 1 }), ['classifier.*'], images([4]), 3, rows), [5]],
  ['its last two layers', () => caseOf(buildModel({ name: 'mlp', input: 4, hidden: [6, 5], classes: 3 }, { seed: 1 }), ['hidden.1.*', 'classifier.*'], images([4]), 3, rows), [6]],
  ['the dense layers of a CNN', () => caseOf(buildModel({ name: 'cnn-tanh', size: 20, channels: 1, classes: 4 }, { seed: 3 }), ['fc1.*', 'fc2.*'], images([1, 20, 20]), 4, rows), [128]],
  ['the classifier of a BERT', () => caseOf(buildModel(bert, { seed: 2 }), ['classifier.*'], tokens(7, 30), 3, rows), [8]],
  ['the last block of a BERT, which needs the mask too', () => caseOf(buildModel(bert, { seed: 2 }), ['*layer.1.*', 'classifier.*'], tokens(7, 30), 3, rows), [56]],
  ['the end of an LSTM', () => caseOf(buildModel({ name: 'lstm', vocabulary: 30, sequence: 7, classes: 3, embedding: 5, hidden: 6 }, { seed: 2 }), ['fc.*'], { input_ids: tokens(7, 30).input_ids }, 3, rows), [6]],
];

describe('the step behind features that are computed once', () => {
  it.each(cases)('has the norms, losses and clipped sums of the whole model: %s', async (_, make, widths) => {
    const given = make();
    const cut = frozenCut(given.analysis.proof, new Set(given.analysis.parameters), given.analysis.batch)!;
    const width = (value: string): number => given.analysis.proof.types.get(value)!.shape.slice(1).reduce((a, b) => a * b, 1);
    expect(cut.computed.map(width).sort((a, b) => b - a)).toEqual(widths);
    await expectEqual(given);
  });

  it('reads the same from a file, batch by batch or whole', async () => {
    const { folder } = temporaryFolder();
    const [[, make]] = [cases[4]!];
    const path = join(folder, 'f.safetensors');
    const first = await expectEqual(make(), { setting: path });
    expect(first.reason).toContain(path);
    const before = readFileSync(path);
    await expectEqual(make(), { setting: path });
    expect(readFileSync(path).equals(before)).toBe(true);
  });

  it('has them for random networks, wherever their training begins', { timeout: 120_000 }, async () => {
    let cuts = 0;
    await fc.assert(fc.asyncProperty(networkChoice, fc.nat(), async (choice, from) => {
      const { model, inputShape, classes } = randomNetwork(choice);
      const all = [...model.initializers].filter(([name, t]) => t.dtype === 'float32' && model.literals?.has(name) !== true).map(([name]) => name);
      const given = caseOf(model, all.slice(from % all.length), { input: randomTensor(testRandom(choice.seed), [rows, ...inputShape]) }, classes, rows);
      if (given.analysis.obstacles.length > 0 || frozenCut(given.analysis.proof, new Set(given.analysis.parameters), given.analysis.batch) === undefined) return;
      cuts += 1;
      await expectEqual(given);
    }), { numRuns: 16, seed: 11 });
    expect(cuts).toBeGreaterThan(5);
  });
});

describe('features as large as a float can be', () => {
  it('drop no example that the whole model keeps', async () => {
    const node = (op: string, inputs: string[], output: string) => ({ op, domain: '', name: output, inputs, outputs: [output], attributes: {} });
    const random = testRandom(8);
    const model: Graph = {
      ...buildModel({ name: 'mlp', input: 4, hidden: [], classes: 3 }, { seed: 1 }),
      nodes: [
        node('MatMul', ['input', 'w'], 'mixed'), node('Min', ['mixed', 'low'], 'masked'),
        node('Add', ['masked', 'bias'], 'shifted'), node('Tanh', ['shifted'], 'bounded'), node('MatMul', ['bounded', 'v'], 'logits'),
      ],
      initializers: new Map<string, Tensor>([
        ['w', randomTensor(random, [4, 4])], ['v', randomTensor(random, [4, 3])], ['bias', randomTensor(random, [4])],
        ['low', float32([9, 9, -3.4e38, 9])],
      ]),
      literals: new Set(['low']),
    };
    const features = await expectEqual(caseOf(model, ['bias', 'v'], images([4]), 3, rows));
    expect([...features.data.features.keys()]).toEqual(['masked']);
  });
});

describe('whether features are computed once', () => {
  const wide = (trainable: 'all' | readonly string[]) => caseOf(
    buildModel({ name: 'mlp', input: 64, hidden: [512, 8], classes: 3 }, { seed: 1 }), trainable, images([64]), 3, rows);
  const reasonOf = (given: Case, more: Partial<FeatureSettings> = {}): string => {
    const { used, reason } = featuresFor(settingsOf(given, { setting: 'auto', ...more }));
    return `${used}: ${reason}`;
  };

  it('is decided by passes, by the arithmetic that is spared, and by what is frozen', () => {
    expect(reasonOf(wide(['classifier.*']))).toMatch(/^true: activation\.1.*: 8 numbers of each example, 1 MiB in memory, for 20 passes/);
    expect(reasonOf(wide(['classifier.*']), { passes: 1 })).toBe('false: the run passes over the data once');
    expect(reasonOf(wide(['classifier.*']), { setting: 'off' })).toBe('false: as the recipe says');
    expect(reasonOf(wide('all'))).toBe('false: nothing is computed in front of what is trained');
    expect(reasonOf(cases[0]![1]())).toMatch(/^false: a number read from memory would spare \d+ multiplications, less than 32/);
    // What was looked up in a table need not be kept.
    const table = caseOf(buildModel({ name: 'lstm', vocabulary: 30, sequence: 7, classes: 3, embedding: 5, hidden: 6 }, { seed: 2 }), ['lstm.*', 'fc.*'], { input_ids: tokens(7, 30).input_ids }, 3, rows);
    expect(reasonOf(table)).toBe('false: nothing is computed in front of what is trained');
  });

  it('cannot be asked for where nothing is frozen', () => {
    expect(() => reasonOf(wide('all'), { setting: 'on' })).toThrow(/no frozen part to compute once/);
  });

  it('leaves values that are not rows of numbers to the part behind', () => {
    const model = buildModel({ name: 'lstm', vocabulary: 30, sequence: 7, classes: 3, embedding: 5, hidden: 6, layers: 2 }, { seed: 2 });
    // Between its layers, the batch is the second axis.
    const given = caseOf(model, ['lstm.*_l1', 'fc.*'], { input_ids: tokens(7, 30).input_ids }, 3, rows);
    const cut = frozenCut(given.analysis.proof, new Set(given.analysis.parameters), given.analysis.batch);
    for (const value of cut?.computed ?? []) expect(given.analysis.proof.types.get(value)!.shape[0]).toBe(1009);
  });
});

describe('a run with features', () => {
  const model = buildModel({ name: 'mlp', input: 4, hidden: [8], classes: 2, activation: 'tanh' }, { seed: 1 });
  const recipe = (output: string, features: string, data: Dataset = blobs(60)): TrainingInput => ({
    model, data: { train: data, test: blobs(40) }, trainable: 'head', output,
    privacy: { noiseMultiplier: 1, delta: 1e-4 }, clipping: { norm: 1, threshold: { adaptive: { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01 } } },
    training: { batchSize: 20, steps: 12, seed: 3, optimizer: { name: 'adam', learningRate: 0.02 } },
    performance: { threads: 1, microBatch: 8, checkpointEvery: 4, features },
  });
  const run = async (folder: string, features: string) => {
    const output = join(folder, features);
    const result = await train(recipe(output, features), { engine });
    const certificate = JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')) as Record<string, unknown>;
    return { output, result, certificate, model: readModel(join(output, 'model.onnx')) };
  };

  it('trains the same head, exports the whole model, and says the same of privacy', async () => {
    const { folder } = temporaryFolder();
    const [on, off] = [await run(folder, 'on'), await run(folder, 'off')];
    expect([...on.model.initializers.keys()]).toEqual([...off.model.initializers.keys()]);
    expect(relativeDifference(new Map([...on.model.initializers].map(([name, t]) => [name, t.data as Float32Array])),
      new Map([...off.model.initializers].map(([name, t]) => [name, t.data as Float32Array])))).toBeLessThan(1e-4);
    expect(on.model.initializers.get('hidden.0.weight')).toEqual(model.initializers.get('hidden.0.weight'));
    expect(on.model.initializers.get('classifier.weight')).not.toEqual(model.initializers.get('classifier.weight'));
    expect(on.result.test!.accuracy).toBe(off.result.test!.accuracy);
    expect(Math.abs(on.result.test!.loss - off.result.test!.loss)).toBeLessThan(1e-4);
    // All but the head of the ledger, which chains digests of noised sums, and thresholds that follow from these.
    const told = ({ certificate }: typeof on) => JSON.stringify(certificate, (key, value: unknown) => (['ledger', 'finalThreshold', 'finalNorm', 'final'].includes(key) ? undefined : value));
    expect(told(on)).toBe(told(off));
    // Nothing of the features stays behind, and the recipe says how it was computed.
    expect(readdirSync(join(on.output, 'private')).filter((name) => name.startsWith('features'))).toEqual([]);
    expect(readFileSync(join(on.output, 'recipe.yaml'), 'utf8')).toContain('features: on');
  });

  it('goes on after an interruption to the same model, while features are computed and after', async () => {
    const { folder } = temporaryFolder();
    const expected = readFileSync(join((await run(folder, 'on')).output, 'model.onnx'));
    const output = join(folder, 'again');
    const stop = new AbortController();
    const first = await train(recipe(output, 'on'), { engine, signal: stop.signal, onFeatures: () => { stop.abort(); } });
    expect(first).toMatchObject({ steps: 0, ended: 'stopped' });
    // As a kill would: its key and checkpoint stay, and the features.
    const second = await prepare(recipe(output, 'on'), { engine, resume: true });
    expect(second.features).toMatchObject({ used: true });
    for await (const { step } of second.steps()) if (step === 6) break;
    await second.release();
    expect(existsSync(join(output, 'private', 'features.safetensors'))).toBe(true);
    const warnings: string[] = [];
    let computed = 0;
    const last = await train(recipe(output, 'on'), { engine, resume: true, onWarning: (text) => warnings.push(text), onFeatures: () => (computed += 1) });
    expect(last).toMatchObject({ steps: 12, recharged: 0, ended: 'complete' });
    expect({ warnings, computed }).toEqual({ warnings: [], computed: 0 });
    expect(readFileSync(join(output, 'model.onnx')).equals(expected)).toBe(true);
  });

  it('notices a row that changed, computes its features anew, and charges again', async () => {
    const { folder } = temporaryFolder();
    const output = join(folder, 'run');
    const run = await prepare(recipe(output, 'on'), { engine });
    for await (const { step } of run.steps()) if (step === 6) break;
    await run.release();
    const before = readFileSync(join(output, 'private', 'features.safetensors'));
    const { features, labels } = batchOf(blobs(60), allRows(60));
    const x = features.get('input') as FloatTensor;
    x.data[0] = 5;
    const changed = datasetFromTensors(x, labels as Tensor<'int64'>, { name: 'blobs' });
    const warnings: string[] = [];
    const resumed = await prepare(recipe(output, 'on', changed), { engine, resume: true, onWarning: (text) => warnings.push(text) });
    for await (const { step } of resumed.steps()) if (step === 8) break;
    expect(warnings.join('\n')).toMatch(/the data changed since the run began[^]*does not come out as it was charged/);
    expect(readFileSync(join(output, 'private', 'features.safetensors')).equals(before)).toBe(false);
    expect((await resumed.finish()).recharged).toBeGreaterThan(0);
  });

  it('keeps features that the recipe names, for runs to come and for nobody else', async () => {
    const { folder } = temporaryFolder();
    const file = join(folder, 'cache.safetensors');
    let computed = 0;
    const trained = async (name: string, given: Partial<TrainingInput> = {}) =>
      train({ ...recipe(join(folder, name), file), ...given }, { engine, onFeatures: () => (computed += 1) });
    await trained('a');
    const once = computed;
    await trained('b');
    expect({ once: once > 0, again: computed - once }).toEqual({ once: true, again: 0 });
    const other = buildModel({ name: 'mlp', input: 4, hidden: [8], classes: 2, activation: 'tanh' }, { seed: 2 });
    await expect(trained('c', { model: other })).rejects.toThrow(/another model, or other weights/);
    writeFileSync(file, 'something else');
    await expect(trained('d')).rejects.toThrow(/there is another file at this place/);
    await expect(embed(model, blobs(60), file)).rejects.toThrow(/there is another file/);
  });
});
