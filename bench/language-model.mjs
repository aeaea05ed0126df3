// Fine-tunes a small language model on short texts with and without privacy, whole and by adapters, and compares perplexities.
//   node bench/language-model.mjs --model lm.onnx --tokenizer tokenizer.json --train e2e-valid.txt --test e2e-test.txt --out FOLDER
// Lines are texts; of `prompt||text`, as E2E has them, only the text is taken unless --prompts is given. Every run is a line
// of FOLDER/results.jsonl, and what is there is not run again.
import { appendFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { evaluate, loadData, readModel, train } from '../dist/index.js';

const { values: options } = parseArgs({
  options: {
    'model': { type: 'string' }, 'tokenizer': { type: 'string' }, 'train': { type: 'string' }, 'test': { type: 'string' }, 'out': { type: 'string' },
    'prompts': { type: 'boolean', default: false },
    'max-length': { type: 'string', default: '64' },
    'test-examples': { type: 'string', default: '256' },
    'batch-size': { type: 'string', default: '256' },
    'steps': { type: 'string', default: '18' },
    'epsilon': { type: 'string', default: '8' },
    'seeds': { type: 'string', default: '1' },
    'runs': { type: 'string', default: 'full-private,full-plain,lora-private,lora-plain' },
    // Of the whole model and of adapters, tuned without privacy.
    'learning-rates': { type: 'string', default: '5e-3,2e-2' },
  },
});
const { model, tokenizer, out } = options;
mkdirSync(out, { recursive: true });
const results = join(out, 'results.jsonl');
const [fullRate, loraRate] = options['learning-rates'].split(',').map(Number);

/** The texts of a file, at most so many, as a file of `out`. */
function texts(path, name, most = Infinity) {
  const lines = readFileSync(path, 'utf8').split('\n').filter((line) => line.trim() !== '').slice(0, most);
  const taken = join(out, name);
  writeFileSync(taken, lines.map((line) => `${options.prompts ? line : line.split('||').at(-1)}\n`).join(''));
  return { path: taken, tokenizer, maxLength: Number(options['max-length']), eos: '</s>', ...(options.prompts && { separator: '||' }) };
}

const data = {
  train: await loadData(texts(options.train, 'train.txt')),
  test: await loadData(texts(options.test, 'test.txt', Number(options['test-examples']))),
};
const known = () => (existsSync(results) ? readFileSync(results, 'utf8').trim().split('\n').map((line) => JSON.parse(line)) : []);
const record = (result) => {
  appendFileSync(results, `${JSON.stringify(result)}\n`);
  console.log(JSON.stringify(result));
};

const folderOf = (run, seed) => join(out, `${run}-${seed}`);

function recipeOf(run, seed) {
  const [part, privacy] = run.split('-');
  return {
    model: { path: model },
    data,
    loss: 'causal-lm',
    trainable: part === 'full' ? 'all' : { lora: { rank: 8, alpha: 16 } },
    privacy: privacy === 'plain' ? 'none' : { epsilon: Number(options.epsilon), delta: 1e-5 },
    // Far below every norm, so that all gradients are clipped: Adam makes nothing of the scale.
    clipping: { norm: 1 },
    training: {
      batchSize: Number(options['batch-size']), steps: Number(options.steps), seed,
      optimizer: { name: 'adam', learningRate: part === 'full' ? fullRate : loraRate }, schedule: 'linear',
    },
    performance: { microBatch: 16 },
    output: folderOf(run, seed),
  };
}

if (!known().some(({ run }) => run === 'pretrained')) {
  record({ run: 'pretrained', ...await evaluate(readModel(model), data.test, { loss: 'causal-lm' }) });
}
for (const seed of options.seeds.split(',').map(Number)) {
  for (const run of options.runs.split(',')) {
    if (known().some((done) => done.run === run && done.seed === seed)) continue;
    // What is left of an interrupted run.
    rmSync(folderOf(run, seed), { recursive: true, force: true });
    const { test, epsilon, noiseMultiplier, seconds } = await train(recipeOf(run, seed));
    record({ run, seed, ...test, epsilon, noiseMultiplier, seconds });
  }
}

const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
const perplexity = (run) => mean(known().filter((done) => done.run === run).map((done) => done.perplexity));
const before = perplexity('pretrained');
console.table(['full', 'lora'].map((part) => {
  const [priv, plain] = [perplexity(`${part}-private`), perplexity(`${part}-plain`)];
  return {
    trained: part, pretrained: before, plain, private: priv,
    'share of the fall': (before - priv) / (before - plain),
    'share of the fall of its logarithm': Math.log(before / priv) / Math.log(before / plain),
  };
}));
