// The audit's own acceptance, ten seeds each: no alarm and a good part of ε where all is right, an alarm for each planted bug.
//   node --import ./test/support/typescript-loader.mjs bench/audit.mjs [--only sound|bugs] [--seeds 10] [--noise discrete]
import { parseArgs } from 'node:util';
import { auditGradients } from '../src/audit/gradient-audit.ts';
import { flatGroup, groupsOf, privacyPlan } from '../src/privacy/index.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { plantedBugs } from '../test/support/planted-bugs.ts';

const { values } = parseArgs({ options: { only: { type: 'string' }, seeds: { type: 'string', default: '10' }, noise: { type: 'string', default: 'discrete' } } });
const { noise } = values;
const seeds = Array.from({ length: Number(values.seeds) }, (_, i) => 100 + i);
const engine = onnxruntimeEngine({ thread: 'caller' });
const clipping = { function: 'abadi', gamma: 0.01 };
const common = { noise, delta: 1e-5, groups: flatGroup(['w'], 0.1, 26010) };
/** examples/mnist.yaml: 18 epochs of 60,000 examples in batches of 512. */
const mnist = { ...common, datasetSize: 60_000, batchSize: 512, steps: 2109 };
const fullBatch = { ...common, datasetSize: 60_000, batchSize: 60_000, sampling: 'full-batch', steps: 1 };

const row = (...cells) => console.log(`| ${cells.join(' | ')} |`);
const at = (sorted, p) => sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))];

async function audits(plan, trials, sourceOf) {
  const found = [];
  for (const seed of seeds) found.push(await auditGradients({ plan, clipping, engine, trials, seed, ...(sourceOf && { sourceOf }) }));
  return found;
}

if (values.only !== 'bugs') {
  row('steps', 'ε claimed', 'trials', 'lower bound / ε: least, median, most', 'for any mechanism: by rates, by one run (medians)', 'alarms', 's each');
  row('---', '---', '---', '---', '---', '---', '---');
  for (const [name, options, trialsOf] of [
    ['one full batch', fullBatch, (epsilon) => (epsilon === 1 ? 160_000 : 40_000)],
    ['2109 of 512 of 60,000', mnist, () => 8000],
  ]) {
    for (const epsilon of [1, 4, 8]) {
      const started = performance.now();
      const found = await audits(privacyPlan({ ...options, epsilon }), trialsOf(epsilon));
      const shares = (of) => found.map((audit) => of(audit) / epsilon).sort((a, b) => a - b);
      const bounds = shares(({ epsilonLowerBound }) => epsilonLowerBound);
      const show = (x) => x.toFixed(2);
      row(
        name, epsilon, trialsOf(epsilon), [at(bounds, 0), at(bounds, 0.5), at(bounds, 1)].map(show).join(', '),
        [shares(({ anyMechanism }) => anyMechanism.rates), shares(({ anyMechanism }) => anyMechanism.oneRun)].map((s) => show(at(s, 0.5))).join(', '),
        `${found.filter(({ alarms }) => alarms.length > 0).length} of ${found.length}`,
        ((performance.now() - started) / 1000 / found.length).toFixed(1),
      );
    }
  }
}

if (values.only !== 'sound') {
  const groups = groupsOf([
    { name: 'first', norm: 1, parameters: ['a'], size: 10 },
    { name: 'second', norm: 0.25, parameters: ['b'], size: 20 },
  ]);
  const plan = (options) => privacyPlan({ noise, datasetSize: 1000, batchSize: 100, steps: 40, epsilon: 4, delta: 1e-5, groups, ...options });
  const adaptive = { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.05, rescaleTo: null };
  row('planted bug', 'alarms', 'of these by the lower bound', 'first alarm');
  row('---', '---', '---', '---');
  for (const [bug, sourceOf] of Object.entries(plantedBugs)) {
    const options = bug.startsWith('adaptive') ? { adaptive, steps: 150 } : {};
    const found = await audits(plan(options), 3000, sourceOf);
    const count = (holds) => `${found.filter(holds).length} of ${found.length}`;
    row(
      bug, count(({ alarms }) => alarms.length > 0), count(({ epsilonLowerBound, epsilonClaimed }) => epsilonLowerBound > epsilonClaimed),
      found.flatMap(({ alarms }) => alarms)[0] ?? '–',
    );
  }
}
