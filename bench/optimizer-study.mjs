// Optimizers, initialisations, numbers of steps and batch sizes for private heads on frozen features (Mehta et al. 2022).
//   npm run build
//   node bench/optimizer-study.mjs run sst2 --data features/sst2 --out study.jsonl
//   node bench/optimizer-study.mjs run cifar10-small --name cifar10-64 --data features/cifar10-64 --out study.jsonl
//   node bench/optimizer-study.mjs run sst2 --name sst2-centred --data features/sst2 --centre-share 0.1 --trainable head.weight --combinations 1:N,10:N --out study.jsonl
//   node bench/optimizer-study.mjs report --out study.jsonl --svg study.svg --plot sst2:sgd:zero:10:N,sst2:lamb:zero:10:N
// A cell is (optimizer, init, steps, batch). Its learning rate is tuned at ε = 4, on seed 0 and the validation rows, over a
// small grid, and stands for all ε. Steps are the library's own: the compiled private step, the plan's draws and noise, the
// optimizers. Cells of one step share their clipped sums. Results are appended, and what is there already is skipped.
// With --centre-share, features are centred by their mean, released with noise for that share of σ⁻² (full batches only).
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { buildOptimizer } from '../dist/optimizers/index.js';
import { clippedSum, privacyPlan, privatise } from '../dist/privacy/index.js';
import { flatGroup } from '../dist/privacy/groups.js';
import { defaultRho } from '../dist/clipping/norm.js';
import { onnxruntimeEngine } from '../dist/index.js';
import { analyse } from '../dist/training/compile.js';
import { batchSource, fittedTo, taskFor } from '../dist/training/examples.js';
import { privateGradients } from '../dist/training/gradients.js';
import { compileStep } from '../dist/training/step.js';
import { centred, datasetOf, headOn, noisedMean, sets } from './features.mjs';
import { reported } from './optimizer-study-report.mjs';

const { values: options, positionals: [what, task] } = parseArgs({
  allowPositionals: true,
  options: {
    data: { type: 'string' }, name: { type: 'string' }, 'centre-share': { type: 'string', default: '0' }, trainable: { type: 'string', default: 'head.*' }, out: { type: 'string' }, svg: { type: 'string' }, plot: { type: 'string' },
    combinations: { type: 'string', default: '1:N,10:N,100:4096,10:4096,10:256,100:256,100:N' },
    epsilons: { type: 'string', default: '0.5,1,2,4,8,10' }, seeds: { type: 'string', default: '1,2,3' },
    delta: { type: 'string', default: '1e-5' },
  },
});
const lines = existsSync(options.out) ? readFileSync(options.out, 'utf8').trim().split('\n').filter(Boolean).map((line) => JSON.parse(line)) : [];
if (what === 'report') {
  reported(lines, options.svg, options.plot?.split(','));
  process.exit(0);
}

const inits = ['zero', 'near-zero', 'usual'];
/** Learning rates to try, half decades apart (decades for one step). */
const rates = {
  sgd: { 1: [1, 10, 100, 1000, 10000], 10: [1, 3, 10, 30, 100, 300], 100: [1, 3, 10, 30, 100] },
  adam: { 1: [0.001, 0.01, 0.1, 1, 10], 10: [0.03, 0.1, 0.3, 1, 3], 100: [0.01, 0.03, 0.1, 0.3, 1] },
  lamb: { 1: [0.1, 1, 10, 100, 1000, 10000], 10: [0.1, 0.3, 1, 3, 10, 30], 100: [0.03, 0.1, 0.3, 1, 3] },
};
const optimizerOf = (name, learningRate) => buildOptimizer({ name, learningRate, ...(name === 'sgd' && { momentum: 0.9 }) });

const set = options.name ?? task;
const parts = await sets[task](options.data);
const classes = Number(parts.train.y.reduce((a, b) => (a > b ? a : b))) + 1;
const { width } = parts.train;
const engine = onnxruntimeEngine({ thread: 'caller' });
const modelOf = (init, seed) => headOn(width, { classes, init }, seed);
const analysis = analyse(taskFor({ model: modelOf('zero', 0), loss: 'cross-entropy', trainable: [options.trainable] }, datasetOf(parts.train, 'train')));
const data = Object.fromEntries(['tuning', 'train'].map((name) => [name, fittedTo(analysis.task, datasetOf(parts[name], name))]));
const sizeOf = (name) => analysis.task.model.initializers.get(name).data.length;
const centreShare = Number(options['centre-share']);
const groups = flatGroup(analysis.parameters, 1, analysis.parameters.reduce((sum, name) => sum + sizeOf(name), 0));
const programs = new Map();
async function programFor(microBatch) {
  if (!programs.has(microBatch)) {
    programs.set(microBatch, await compileStep(analysis, {
      mode: 'book-keeping', engine, threads: 1, microBatch,
      clipping: { function: 'abadi', gamma: 0.01, groups: [{ name: 'all', parameters: analysis.parameters }] },
    }));
  }
  return programs.get(microBatch);
}

const multipliers = new Map();
/** The plan for a cell; its noise multiplier is found once. */
function planFor({ steps, batch, epsilon, seed }, size) {
  const full = batch === 'N';
  const common = {
    datasetSize: size, batchSize: full ? size : batch, steps, delta: Number(options.delta), groups, rho: defaultRho,
    sampling: full ? 'full-batch' : 'poisson', seed,
  };
  const key = [size, batch, steps, epsilon].join();
  if (!multipliers.has(key)) multipliers.set(key, privacyPlan({ ...common, epsilon }).noiseMultiplier);
  return privacyPlan({ ...common, noiseMultiplier: multipliers.get(key) / Math.sqrt(1 - centreShare) });
}

/** What a run trains and is judged on. */
function rowsFor(drawn, training, judged) {
  if (centreShare === 0) return { rows: data[training], test: parts[judged] };
  const centre = noisedMean(parts[training], { share: centreShare, delta: Number(options.delta), ...drawn });
  return { rows: fittedTo(analysis.task, datasetOf(centred(parts[training], centre), training)), test: centred(parts[judged], centre) };
}

const initial = (init, seed) => {
  const { initializers } = modelOf(init, seed);
  return () => new Map(analysis.parameters.map((name) => {
    const { shape, data: values } = initializers.get(name);
    return [name, { dtype: 'float32', shape, data: values.slice() }];
  }));
};

/** Fraction of the rows that a head classifies right. */
function accuracyOf(parameters, { x, y }) {
  const [weight, bias] = ['head.weight', 'head.bias'].map((name) => parameters.get(name).data);
  let right = 0;
  for (let row = 0; row < y.length; row++) {
    let [best, most] = [0, -Infinity];
    for (let c = 0; c < classes; c++) {
      let logit = bias[c];
      for (let i = 0; i < width; i++) logit += weight[c * width + i] * x[row * width + i];
      if (logit > most) [best, most] = [c, logit];
    }
    if (best === Number(y[row])) right++;
  }
  return right / y.length;
}

const frozen = modelOf('zero', 0).initializers;
const oneStepSums = new Map();
/** The clipped sum of all examples at an initialisation, computed once where the rows are the same whatever ε. */
async function sumsAt(init, seed, training, rows) {
  const key = centreShare > 0 ? undefined : [init, init === 'zero' ? 0 : seed, training].join();
  if (oneStepSums.has(key)) return oneStepSums.get(key);
  const all = Uint32Array.from({ length: rows.size }, (_, i) => i);
  const sums = await (await programFor(2048)).run(initial(init, seed)(), batchSource(rows, all), [1]);
  if (key !== undefined) oneStepSums.set(key, sums);
  return sums;
}

async function run(cell, rate, { epsilon, seed }, training, judged) {
  const { rows, test } = rowsFor({ epsilon, seed }, training, judged);
  const plan = planFor({ ...cell, epsilon, seed }, data[training].size);
  const optimizer = optimizerOf(cell.optimizer, rate);
  let parameters = initial(cell.init, seed)();
  let state = optimizer.init(parameters);
  if (cell.steps === 1) {
    const { sums, remainders } = await sumsAt(cell.init, seed, training, rows);
    const copy = (arrays) => new Map([...arrays].map(([name, array]) => [name, array.slice()]));
    const clipped = clippedSum(copy(sums), plan.groups, defaultRho, undefined, copy(remainders));
    optimizer.update(parameters, privatise(clipped, plan, plan.startRatchet().advance()), state, rate);
  } else {
    const program = await programFor(cell.batch === 256 ? 256 : 2048);
    const gradients = privateGradients({ plan, program, data: rows });
    for (let step = 0; step < cell.steps; step++) {
      const taken = await gradients.next(parameters);
      ({ parameters } = taken);
      state = optimizer.update(parameters, taken.gradient, state, rate);
    }
    await gradients.close();
  }
  return accuracyOf({ get: (name) => parameters.get(name) ?? frozen.get(name) }, test);
}

const keyOf = ({ set, optimizer, init, steps, batch, epsilon, seed }) => [set, optimizer, init, steps, batch, epsilon, seed].join();
const done = new Map(lines.map((line) => [keyOf(line), line]));
const keep = (line) => {
  appendFileSync(options.out, `${JSON.stringify(line)}\n`);
  done.set(keyOf(line), line);
  return line;
};

for (const combination of options.combinations.split(',')) {
  const [steps, batch] = combination.split(':').map((x) => (x === 'N' ? x : Number(x)));
  for (const optimizer of Object.keys(rates)) {
    for (const init of inits) {
      const started = performance.now();
      const cell = { set, optimizer, init, steps, batch };
      let tuned = done.get(keyOf(cell));
      if (tuned === undefined) {
        const tries = [];
        for (const rate of rates[optimizer][steps]) tries.push({ rate, validation: await run(cell, rate, { epsilon: 4, seed: 0 }, 'tuning', 'validation') });
        const best = tries.reduce((a, b) => (b.validation > a.validation ? b : a));
        tuned = keep({ ...cell, rate: best.rate, validation: best.validation, tries });
      }
      for (const epsilon of options.epsilons.split(',').map(Number)) {
        for (const seed of options.seeds.split(',').map(Number)) {
          const drawn = { ...cell, epsilon, seed };
          if (!done.has(keyOf(drawn))) keep({ ...drawn, accuracy: await run(cell, tuned.rate, drawn, 'train', 'test') });
        }
      }
      console.error(`${keyOf(cell)}: rate ${tuned.rate}, validation ${tuned.validation}, ${((performance.now() - started) / 1000).toFixed(0)} s`);
    }
  }
}
process.exit(0);
