// Private heads on frozen features against the same heads without privacy, both tuned over the same grid.
//   npm run build
//   node bench/heads.mjs sst2 --data features/sst2 --epsilon 3
//   node bench/heads.mjs adult --data examples/data/adult --epsilon 1
// Every setting of the grid is tried on the rows for tuning (seed 0) and judged on the validation rows; the best of each side
// is trained on all training rows with five seeds and judged on the test rows. Full batches. One JSON line for each run.
// With --centre-share, features are centred by their mean, released with noise for that share of σ⁻².
// The search is not accounted for: its cost would be the same for every method compared. Seeds void a run's guarantee.
import { parseArgs } from 'node:util';
import { onnxruntimeEngine, train } from '../dist/index.js';
import { flatGroup } from '../dist/privacy/groups.js';
import { centred, datasetOf, fullBatchPlan, headOn, meanOf, noisedMean, sets, unitRows } from './features.mjs';

const { values: options, positionals: [task] } = parseArgs({
  allowPositionals: true,
  options: {
    data: { type: 'string' }, epsilon: { type: 'string' }, delta: { type: 'string', default: '1e-5' },
    seeds: { type: 'string', default: '1,2,3,4,5' }, steps: { type: 'string', default: '30,100' },
    'norm': { type: 'string', default: '1' }, 'average': { type: 'string' }, 'schedule': { type: 'string', default: 'constant' }, 'trainable': { type: 'string', default: 'head' },
    'centre-share': { type: 'string', default: '0' }, 'sides': { type: 'string', default: 'non-private,private' },
    sgd: { type: 'string', default: '1,3,10,30,100' }, adam: { type: 'string', default: '0.03,0.1,0.3,1' },
  },
});
const engine = onnxruntimeEngine({ thread: 'caller' });
const rates = { sgd: options.sgd.split(',').map(Number), adam: options.adam.split(',').map(Number) };
const grid = options.steps.split(',').map(Number).flatMap((steps) => Object.entries(rates).flatMap(([name, all]) =>
  all.map((learningRate) => ({ steps, optimizer: { name, learningRate, ...(name === 'sgd' && { momentum: 0.9 }) } }))));
const [epsilon, delta, share] = [options.epsilon, options.delta, options['centre-share']].map(Number);

const parts = await sets[task](options.data);
const classes = Number(parts.train.y.reduce((a, b) => (a > b ? a : b))) + 1;
const model = headOn(parts.train.width, { classes, init: 'zero' });

/** What a run trains and is judged on. Centred rows are brought to length 1 again, which depends on each row alone. */
function rowsFor(isPrivate, training, test, seed) {
  const centre = share === 0 ? undefined : isPrivate ? noisedMean(parts[training], { share, epsilon, delta, seed }) : meanOf(parts[training]);
  const rows = (name) => (centre === undefined ? parts[name] : unitRows(centred(parts[name], centre)));
  return { train: datasetOf(rows(training), training), test: datasetOf(rows(test), test) };
}

async function run(side, { steps, optimizer }, training, test, seed) {
  const started = performance.now();
  const isPrivate = side === 'private';
  const data = rowsFor(isPrivate, training, test, seed);
  const { size } = data.train;
  const { noiseMultiplier } = fullBatchPlan(size, flatGroup(['head'], 1, 1), { steps, epsilon, delta });
  const result = await train({
    model, trainable: [options.trainable], data,
    ...(isPrivate ? {
      privacy: { noiseMultiplier: noiseMultiplier / Math.sqrt(1 - share), delta, sampling: 'full-batch' }, clipping: { norm: Number(options.norm) },
    } : { privacy: 'none' }),
    training: {
      batchSize: size, ...(isPrivate ? { steps } : { epochs: steps }), optimizer, schedule: options.schedule, seed,
      ...(options.average !== undefined && { average: { last: Number(options.average) } }),
    },
    performance: { microBatch: 2048, threads: 1 },
  }, { engine });
  const line = {
    task, side, steps, optimizer, training, test, seed, accuracy: result.test.accuracy,
    // Centred, the run's own ε is for its share alone; both parts together have what was asked for.
    epsilon: isPrivate && share > 0 ? epsilon : result.epsilon, seconds: (performance.now() - started) / 1000,
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
console.log(JSON.stringify({ task, epsilon, delta, rows: parts.train.y.length, ...summary }));
process.exit(0);
