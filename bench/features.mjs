// What the studies of heads share: features as `ghostgrad embed` writes them, PREFIX-train.safetensors and the like, their fixed
// splits, and the library's own head on them.
import { readFileSync } from 'node:fs';
import { defaultRho } from '../dist/clipping/norm.js';
import { latestOpset } from '../dist/graph/index.js';
import { datasetFromTensors, loadData, readRecipeFile } from '../dist/index.js';
import { withHead } from '../dist/models/head.js';
import { clippedSum, privacyPlan, privatise } from '../dist/privacy/index.js';
import { flatGroup } from '../dist/privacy/groups.js';
import { decodeSafetensors } from '../dist/tensor/index.js';
import { partsOf, splits } from '../examples/splits.mjs';

const rowsFrom = (start, end) => Array.from({ length: end - start }, (_, i) => start + i);

function take({ x, y, width }, rows) {
  const part = { x: new Float32Array(rows.length * width), y: new BigInt64Array(rows.length), width };
  rows.forEach((row, i) => {
    part.x.set(x.subarray(row * width, (row + 1) * width), i * width);
    part.y[i] = y[row];
  });
  return part;
}

/** Every row brought to length 1: that costs no privacy, since a row's length depends on it alone. */
export function unitRows({ x, y, width }) {
  const unit = new Float32Array(x.length);
  for (let row = 0; row < y.length; row++) {
    let square = 0;
    for (let i = row * width; i < (row + 1) * width; i++) square += x[i] ** 2;
    for (let i = row * width; i < (row + 1) * width; i++) unit[i] = x[i] / Math.sqrt(square);
  }
  return { x: unit, y, width };
}

function sumOf({ x, width }) {
  const sum = new Float64Array(width);
  for (let i = 0; i < x.length; i++) sum[i % width] += x[i];
  return sum;
}

export const meanOf = (rows) => sumOf(rows).map((value) => value / rows.y.length);

/** The plan of full-batch steps at ε, or at a noise multiplier. */
export const fullBatchPlan = (size, groups, { steps = 1, delta, seed, ...noise }) => privacyPlan({
  datasetSize: size, batchSize: size, steps, delta, sampling: 'full-batch', rho: defaultRho, groups, seed, ...noise,
});

/**
 * The mean of rows of length 1 at most, as a full-batch step releases it, for a share of ε. Full-batch steps are Gaussian
 * mechanisms without sampling, whose σ⁻² add up: the mean has its share of what one step at this ε would have, and noise
 * that is larger by 1/√(1 − share) leaves other steps the rest.
 */
export function noisedMean(rows, { share, epsilon, delta, seed }) {
  const [size, groups] = [rows.y.length, flatGroup(['mean'], 1, rows.width)];
  const { noiseMultiplier } = fullBatchPlan(size, groups, { epsilon, delta });
  const plan = fullBatchPlan(size, groups, { noiseMultiplier: noiseMultiplier / Math.sqrt(share), delta, seed: `mean ${seed}` });
  return privatise(clippedSum(new Map([['mean', sumOf(rows)]]), plan.groups, defaultRho), plan, plan.startRatchet().advance()).gradients.get('mean');
}

/** Rows less a vector. */
export const centred = ({ x, y, width }, centre) => ({ x: x.map((value, i) => value - centre[i % width]), y, width });

function embedded(prefix, part) {
  const path = `${prefix}-${part}.safetensors`;
  const { tensors } = decodeSafetensors(readFileSync(path), path);
  const { data: x, shape: [, width] } = tensors.get('features');
  return { x, y: tensors.get('labels').data, width };
}

async function table(path) {
  const { data: { train } } = readRecipeFile('examples/adult.yaml');
  const data = await loadData({ ...train, path });
  const width = data.features.get('input').shape[0];
  const rows = Uint32Array.from({ length: data.size }, (_, i) => i);
  const all = { x: new Float32Array(data.size * width), y: new BigInt64Array(data.size), width };
  data.features.get('input').gather(rows, all.x);
  data.labels.gather(rows, all.y);
  return unitRows(all);
}

/** What is tuned on, what tunes, all that is trained on in the end, and the test rows, of a set that examples:data parts in two. */
function parted(set, train, test) {
  const parts = partsOf(set);
  const validation = new Set(parts.validation);
  const order = [...parts.train, ...parts.validation].sort((a, b) => a - b);
  const places = (wanted) => order.flatMap((row, place) => (validation.has(row) === wanted ? [place] : []));
  return { tuning: take(train, places(false)), validation: take(train, places(true)), train, test };
}

function firstRows(prefix, { train, validation, test }) {
  const all = unitRows(take(embedded(prefix, 'train'), rowsFrom(0, train)));
  return {
    tuning: take(all, rowsFrom(0, train - validation)), validation: take(all, rowsFrom(train - validation, train)),
    train: all, test: unitRows(take(embedded(prefix, 'test'), rowsFrom(0, test))),
  };
}

/** Sets by name, from the prefix of their files. */
export const sets = {
  'sst2': (prefix) => {
    const train = embedded(prefix, 'train');
    return { tuning: train, validation: embedded(prefix, 'dev'), train, test: embedded(prefix, 'test') };
  },
  'sms': (prefix) => parted('sms', embedded(prefix, 'train'), embedded(prefix, 'test')),
  'adult': async (prefix) => parted('adult', await table(`${prefix}-train.csv`), await table(`${prefix}-test.csv`)),
  'cifar10': (prefix) => firstRows(prefix, splits.cifar10),
  'cifar10-all': (prefix) => firstRows(prefix, splits['cifar10-all']),
  // Fewer rows, as a study's grid is large.
  'cifar10-small': (prefix) => firstRows(prefix, splits['cifar10-small']),
};

export const datasetOf = ({ x, y, width }, name) => datasetFromTensors(
  { dtype: 'float32', shape: [y.length, width], data: x }, { dtype: 'int64', shape: [y.length], data: y }, { name },
);

/** A head on features that are the model's input. */
export const headOn = (width, options, seed) => withHead({
  name: 'features', opset: latestOpset, metadata: {}, initializers: new Map(),
  inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', width] }],
  outputs: [{ name: 'features', dtype: 'float32', shape: ['batch', width] }],
  nodes: [{ op: 'Identity', domain: '', name: 'features', inputs: ['input'], outputs: ['features'], attributes: {} }],
}, options, [width], seed);
