// What a step does outside of its graph, for parameter vectors of the sizes given: adding up two micro-batches, noise,
// digest and update; as the loop does it, with discrete and float noise on one thread and on all.
//
//   npm run build && node bench/sweep-memory.mjs 10e6 110e6
import { availableParallelism } from 'node:os';
import { buildOptimizer } from '../dist/optimizers/index.js';
import { clippedSum, flatGroup, privacyPlan, privatise, privatiseInParallel } from '../dist/privacy/index.js';
import { digestOf } from '../dist/privacy/ledger.js';
import { noiseThreads } from '../dist/random/noise-threads.js';
import { stepNames } from '../dist/clipping/step-graph.js';
import { accumulator } from '../dist/training/accumulate.js';

const arrays = 16;
const repeats = 5;
const names = Array.from({ length: arrays }, (_, i) => `w${i}`);
const mib = (bytes) => Math.round(bytes / 2 ** 20);

for (const size of process.argv.slice(2).map(Number)) {
  const each = Math.floor(size / arrays);
  const total = each * arrays;
  const planOf = (noise) => privacyPlan({
    datasetSize: 1000, batchSize: 10, steps: 1000, noiseMultiplier: 1, delta: 1e-5, groups: flatGroup(names, 1, total), noise,
  });
  const plans = { discrete: planOf('discrete'), float: planOf('float') };
  const ratchet = plans.float.startRatchet();
  const tensors = () => new Map(names.map((name) => [name, { dtype: 'float32', shape: [each], data: new Float32Array(each) }]));
  const part = Object.fromEntries([...tensors()].map(([name, t]) => [stepNames.sum(name), t]));
  const optimizer = buildOptimizer({ name: 'sgd', learningRate: 0.1, momentum: 0.9 });
  const parameters = tensors();
  let state = optimizer.init(parameters);
  const threads = noiseThreads(availableParallelism());

  const add = () => {
    const sums = accumulator(new Map(names.map((name) => [name, [each]])), { shared: true });
    sums.add(part);
    sums.add(part);
    return sums.result();
  };
  const sealed = ({ sums, remainders }, plan) => clippedSum(sums, plan.groups, plan.rho, undefined, remainders);
  const ways = Object.fromEntries(Object.entries(plans).flatMap(([noise, plan]) => [
    [`${noise} noise, one thread`, (totals) => privatise(sealed(totals, plan), plan, ratchet.advance())],
    [`${noise} noise, all cores`, (totals) => privatiseInParallel(sealed(totals, plan), plan, ratchet.advance(), threads)],
  ]));
  const best = {};
  for (let round = 0; round <= repeats; round++) {
    for (const [name, noised] of Object.entries(ways)) {
      globalThis.gc?.();
      const marks = [performance.now()];
      const totals = add();
      marks.push(performance.now());
      const gradient = await noised(totals);
      marks.push(performance.now());
      digestOf(gradient);
      marks.push(performance.now());
      state = optimizer.update(parameters, gradient, state, 0.1);
      marks.push(performance.now());
      const ms = marks.slice(1).map((mark, k) => mark - marks[k]);
      // The first round starts threads and warms up; of the others, each part's best.
      if (round > 0) best[name] = ms.map((part, k) => Math.min(part, best[name]?.[k] ?? Infinity));
    }
  }
  for (const [way, parts] of Object.entries(best)) {
    const [added, noise, digest, updated] = parts.map(Math.round);
    console.log(JSON.stringify({
      numbers: total, way, add: added, noise, digest, update: updated, ms: added + noise + digest + updated,
      drawsPerSecond: Math.round(total / parts[1] / 100) * 1e5, sumsMiB: mib(total * (4 + 4)),
    }));
  }
  await threads.close();
}
