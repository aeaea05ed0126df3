// Private heads on frozen features against the same heads without privacy, both tuned over the same grid.
//   npm run build
//   node bench/heads.mjs sst2 --data features/sst2 --epsilon 3
//   node bench/heads.mjs adult --data examples/data/adult --epsilon 1
// Every setting of the grid is tried on the rows for tuning (seed 0) and judged on the validation rows; the best of each side
// is trained on all training rows with five seeds and judged on the test rows. Full batches. One JSON line for each run.
// The search is not accounted for: its cost would be the same for every method compared. Seeds void a run's guarantee.
import { parseArgs } from 'node:util';
import { onnxruntimeEngine, train } from '../dist/index.js';
import { datasetOf, headOn, sets } from './features.mjs';

const { values: options, positionals: [task] } = parseArgs({
  allowPositionals: true,
  options: {
    data: { type: 'string' }, epsilon: { type: 'string' }, delta: { type: 'string', default: '1e-5' },
    seeds: { type: 'string', default: '1,2,3,4,5' }, steps: { type: 'string', default: '30,100' },
    norm: { type: 'string', default: '1' }, average: { type: 'string' }, trainable: { type: 'string', default: 'head' }, sides: { type: 'string', default: 'non-private,private' }, sgd: { type: 'string', default: '1,3,10,30,100' }, adam: { type: 'string', default: '0.03,0.1,0.3,1' },
  },
});
const engine = onnxruntimeEngine({ thread: 'caller' });
const rates = { sgd: options.sgd.split(',').map(Number), adam: options.adam.split(',').map(Number) };
const grid = options.steps.split(',').map(Number).flatMap((steps) => Object.entries(rates).flatMap(([name, all]) =>
  all.map((learningRate) => ({ steps, optimizer: { name, learningRate, ...(name === 'sgd' && { momentum: 0.9 }) } }))));
const sides = {
  'non-private': { privacy: 'none' },
  'private': { privacy: { epsilon: Number(options.epsilon), delta: Number(options.delta), sampling: 'full-batch' }, clipping: { norm: Number(options.norm) } },
};

const parts = await sets[task](options.data);
const classes = Number(parts.train.y.reduce((a, b) => (a > b ? a : b))) + 1;
const data = Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, datasetOf(part, name)]));
const model = headOn(parts.train.width, { classes, init: 'zero' });

async function run(side, { steps, optimizer }, training, test, seed) {
  const started = performance.now();
  const size = data[training].size;
  const result = await train({
    model, trainable: [options.trainable], data: { train: data[training], test: data[test] }, ...sides[side],
    training: {
      batchSize: size, ...(options.average !== undefined && { average: { last: Number(options.average) } }),
      ...(side === 'private' ? { steps } : { epochs: steps }), optimizer, seed },
    performance: { microBatch: 2048, threads: 1 },
  }, { engine });
  const line = {
    task, side, steps, optimizer, training, test, seed, accuracy: result.test.accuracy,
    epsilon: result.epsilon, seconds: (performance.now() - started) / 1000,
  };
  console.log(JSON.stringify(line));
  return line;
}

const summary = {};
for (const side of options.sides.split(',')) {
  let best;
  for (const setting of grid) {
    const { accuracy } = await run(side, setting, 'tuning', 'validation', 0);
    if (best === undefined || accuracy > best.accuracy) best = { setting, accuracy };
  }
  const runs = [];
  // Without noise nothing is drawn: every seed gives the same.
  const seeds = options.seeds.split(',').map(Number).slice(0, side === 'private' ? undefined : 1);
  for (const seed of seeds) runs.push(await run(side, best.setting, 'train', 'test', seed));
  const accuracies = runs.map((r) => r.accuracy);
  const mean = accuracies.reduce((a, b) => a + b, 0) / accuracies.length;
  summary[side] = { setting: best.setting, validation: best.accuracy, mean, least: Math.min(...accuracies), most: Math.max(...accuracies) };
}
console.log(JSON.stringify({ task, epsilon: Number(options.epsilon), delta: Number(options.delta), rows: data.train.size, ...summary }));
process.exit(0);
