// Times ε, its bounds from both sides, calibration, and ε at every step of a run, under the default accountant.
//   npm run build && node bench/accounting.mjs
import { calibrate, epsilonOf, flatGroup, gaussian, poissonSampled, privacyPlan, selfComposed } from '../dist/privacy/index.js';

const timed = (run) => {
  const start = performance.now();
  const result = run();
  return [result, performance.now() - start];
};
const row = (...cells) => console.log(`| ${cells.join(' | ')} |`);

row('σ', 'q', 'steps', 'δ', 'ε', 'error bound', 'ms');
for (const [sigma, rate, steps, delta] of [
  [1, 0.01, 1000, 1e-5], [1, 0.01, 100_000, 1e-5], [1, 1e-3, 100_000, 1e-8], [0.6, 0.02, 200, 1e-6], [2, 0.01, 1_000_000, 1e-12],
  [0.5, 1e-6, 1_000_000, 1e-12], [0.8, 1e-5, 1_000_000, 1e-12],
]) {
  const [{ epsilon, errorBound }, ms] = timed(() => epsilonOf(selfComposed(poissonSampled(rate, gaussian(sigma)), steps), delta));
  row(sigma, rate, steps, delta, epsilon.toPrecision(6), `${((100 * errorBound) / epsilon).toFixed(3)} %`, ms.toFixed(0));
}

row('ε', 'δ', 'q', 'steps', 'σ', 'σ under rdp', 'ms');
for (const [epsilon, delta, sampleRate, steps] of [
  [3, 1e-5, 512 / 60_000, 2109], [3, 1e-5, 0.02048, 1464], [1, 1e-5, 0.01, 100_000], [8, 1e-6, 0.001, 10_000],
]) {
  const [{ noiseMultiplier }, ms] = timed(() => calibrate({ epsilon, delta, sampleRate, steps }));
  const rdp = calibrate({ epsilon, delta, sampleRate, steps, accountant: 'rdp' }).noiseMultiplier;
  row(epsilon, delta, sampleRate.toPrecision(4), steps, noiseMultiplier.toPrecision(5), rdp.toPrecision(5), ms.toFixed(0));
}

const plan = privacyPlan({
  datasetSize: 60_000, batchSize: 512, steps: 2109, noiseMultiplier: 0.9, delta: 1e-5, noise: 'float', groups: flatGroup(['w'], 0.1, 5),
});
const [, ms] = timed(() => {
  for (let step = 1; step <= plan.steps; step++) plan.spent(step);
});
console.log(`ε of every one of ${plan.steps} steps: ${(ms / plan.steps).toFixed(2)} ms each`);
