import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { frozenCut } from '../src/autodiff/frozen.ts';
import { type AnyColumn, type Dataset, datasetOf, floatColumn, integerColumn } from '../src/data/index.ts';
import { defaultRho } from '../src/clipping/norm.ts';
import type { Graph } from '../src/graph/ir.ts';
import { type TrainingInput, prepare, train } from '../src/index.ts';
import { type ModelSpec, buildModel } from '../src/models/index.ts';
import { readModel } from '../src/graph/file.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Tensor, int64 } from '../src/tensor/tensor.ts';
import { type Analysis, analyse, requireTrainable } from '../src/training/compile.ts';
import { fittedTo, taskFor } from '../src/training/examples.ts';
import { embed } from '../src/training/embed.ts';
import { type FeatureSettings, featuresFor } from '../src/training/features.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { blobs } from './support/blobs.ts';
import { networkChoice, randomLabels, randomNetwork, randomTensor, testRandom } from './support/random-network.ts';
import { temporaryFolder } from './support/temp.ts';

const engine = onnxruntimeEngine();
const options = { mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho } as const;

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
  ['the dense layers of a CNN', () => caseOf(buildModel({ name: 'cnn-tanh', size: 20, channels: 1, classes: 4 }, { seed: 3 }), ['fc*', 'classifier*', 'hidden*'].slice(1, 2), images([1, 20, 20]), 4, rows), []],
  ['the classifier of a BERT', () => caseOf(buildModel(bert, { seed: 2 }), ['classifier.*'], tokens(7, 30), 3, rows), [8]],
  ['the last block of a BERT, which needs the mask too', () => caseOf(buildModel(bert, { seed: 2 }), ['*layer.1.*', 'classifier.*'], tokens(7, 30), 3, rows), [56]],
  ['the end of an LSTM', () => caseOf(buildModel({ name: 'lstm', vocabulary: 30, sequence: 7, classes: 3, embedding: 5, hidden: 6 }, { seed: 2 }), ['fc.*'], { input_ids: tokens(7, 30).input_ids }, 3, rows), [6]],
];
