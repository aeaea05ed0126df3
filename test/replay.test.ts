import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { partitionOf } from '../src/clipping/groups.ts';
import { type Dataset, batchOf, datasetFromTensors } from '../src/data/index.ts';
import { buildModel } from '../src/models/index.ts';
import { type PrivacyPlan, groupsOf, privacyPlan } from '../src/privacy/index.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { float32, int64 } from '../src/tensor/tensor.ts';
import { analyse } from '../src/training/compile.ts';
import { privateGradients } from '../src/training/gradients.ts';
import { type StepProgram, compileStep } from '../src/training/step.ts';
import { train } from '../src/training/train.ts';
import { blobModel, blobs } from './support/blobs.ts';
import { parametersOf } from './support/oracle.ts';
import { type PlantedBug, plantedBugs } from './support/planted-bugs.ts';
import { replayed } from './support/replay.ts';
import { temporaryFolder } from './support/temp.ts';

const size = 40;

/** Points, and a row more that pulls as far as it can, or none more. */
function points(extra: 0 | 1): Dataset {
  const { features, labels } = batchOf(blobs(size), Uint32Array.from({ length: size }, (_, i) => i));
  const values = [...(features.get('input')!.data as Float32Array), ...(extra === 1 ? [900, -900, 900, -900] : [])];
  const classes = [...Array.from(labels.data as BigInt64Array, Number), ...(extra === 1 ? [1] : [])];
  return datasetFromTensors(float32(values, [size + extra, 4]), int64(classes), { name: 'points' });
}

describe.each(['flat', 'per-layer'] as const)('a step on neighbouring data, with the same randomness (%s)', (style) => {
  const analysis = analyse({ model: buildModel(blobModel, { seed: 1 }), loss: 'cross-entropy' });
  const partition = partitionOf({ style }, analysis.task.model, analysis.parameters);
  const groups = groupsOf(partition.map((group, k) => ({
    ...group, norm: k === 0 ? 0.2 : 0.1,
    size: group.parameters.reduce((sum, name) => sum + analysis.task.model.initializers.get(name)!.data.length, 0),
  })));
  const planWith = (options: Partial<Parameters<typeof privacyPlan>[0]> = {}): PrivacyPlan =>
    privacyPlan({ datasetSize: size, batchSize: 20, steps: 8, noiseMultiplier: 1, delta: 1e-5, groups, ...options });
  const adaptive = planWith({ adaptive: { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.05, rescaleTo: null } });
  let program: StepProgram;
  beforeAll(async () => {
    program = await compileStep(analysis, {
      mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01, groups: partition }, microBatch: 8, threads: 1,
      engine: onnxruntimeEngine({ thread: 'caller' }),
    });
  });
  afterAll(() => program.release());
  const replay = (plan: PrivacyPlan, seed: number, sourceOf: Parameters<typeof replayed>[1] = privateGradients) =>
    replayed({ data: [points(0), points(1)], program, plan, parameters: () => parametersOf(analysis) }, sourceOf, seed);
  // Each style shows a bug in five of the ten.
  const seeds = Array.from({ length: 5 }, (_, seed) => (style === 'flat' ? seed : 5 + seed));

  it('differs in the noised sums alone, and there by no more than the row', async () => {
    for (const plan of [planWith(), adaptive, planWith({ sampling: 'full-batch', batchSize: size, steps: 2 })])
      for (const seed of seeds) expect(await replay(plan, seed)).toEqual([]);
  });

  const caught: readonly PlantedBug[] = [
    'clipping skipped on one layer', 'normaliser by true batch size', 'noise reused on resume', 'micro-batch means clipped',
    'adaptive counts without noise',
  ];
  it.each(caught)('shows %s', async (bug) => {
    const plan = bug.startsWith('adaptive') ? adaptive : planWith();
    for (const seed of seeds) expect(await replay(plan, seed, plantedBugs[bug])).not.toEqual([]);
  });
});

describe('a whole run on neighbouring data, with the same randomness', () => {
  /** What a run released, apart from the time that it took: by file, with what follows from the noised sums taken out. */
  async function released(extra: 0 | 1, style: 'flat' | 'per-layer', adapts: boolean) {
    const output = join(temporaryFolder().folder, 'run');
    const said: unknown[] = [];
    await train({
      model: blobModel, data: { train: points(extra), size }, privacy: { noiseMultiplier: 1, delta: 1e-5 },
      clipping: { style, norm: 0.2, ...(adapts && { threshold: { adaptive: {} } }) },
      training: { batchSize: 10, steps: 12, seed: 5, optimizer: { name: 'adam', learningRate: 0.1 }, schedule: 'cosine' },
      performance: { threads: 1, microBatch: 8 }, output,
    }, { onStep: ({ uncovered: _, ...shown }) => said.push(shown), onStart: ({ microBatch, stepPlan }) => said.push({ microBatch, stepPlan }) });
    const lines = (name: string): object[] => readFileSync(join(output, name), 'utf8').trim().split('\n').map((line) => JSON.parse(line) as object);
    const without = (value: object, ...keys: readonly string[]): object =>
      Object.fromEntries(Object.entries(value).filter(([key]) => !keys.includes(key)));
    return {
      drawn: lines('private/metrics.jsonl').map((line) => (line as { drawn: number }).drawn),
      digests: lines('ledger.jsonl').map((line) => (line as { digest: string }).digest),
      shown: {
        said, files: readdirSync(output, { recursive: true }).map((name) => String(name).replace(/tfevents\.\d+/, 'tfevents')).sort(),
        recipe: readFileSync(join(output, 'recipe.yaml'), 'utf8').replace(output, ''),
        metrics: lines('metrics.jsonl'),
        ledger: lines('ledger.jsonl').map((line) => without(line, 'digest', 'chain')),
        certificate: without(JSON.parse(readFileSync(join(output, 'privacy.json'), 'utf8')) as object, 'ledger'),
        result: without(JSON.parse(readFileSync(join(output, 'result.json'), 'utf8')) as object, 'runDir', 'seconds', 'peakRssMiB'),
        lengths: readdirSync(output, { recursive: true, withFileTypes: true })
          .filter((entry) => entry.isFile() && !/private/.test(entry.parentPath) && !/result|recipe/.test(entry.name))
          .map(({ parentPath, name }) => readFileSync(join(parentPath, name)).length).sort(),
      },
    };
  }

  it.each(['flat', 'per-layer'] as const)('releases the same but for the noised sums (%s)', async (style) => {
    const [without, withRow] = [await released(0, style, false), await released(1, style, false)];
    expect(withRow.shown).toEqual(without.shown);
    // Up to the first draw of the row, the sums too are the same; from there on none is.
    const first = withRow.drawn.findIndex((count, i) => count !== without.drawn[i]);
    expect(first).toBeGreaterThan(0);
    expect(withRow.digests.slice(0, first)).toEqual(without.digests.slice(0, first));
    withRow.digests.slice(first).forEach((digest, i) => expect(digest).not.toBe(without.digests[first + i]));
  });

  it('lets adaptive thresholds differ only once their noised counts do', async () => {
    const [without, withRow] = [await released(0, 'per-layer', true), await released(1, 'per-layer', true)];
    const first = withRow.drawn.findIndex((count, i) => count !== without.drawn[i]);
    expect(withRow.digests.slice(0, first)).toEqual(without.digests.slice(0, first));
    // A step shows the thresholds that it clipped to: those after the first draw are the first to follow another count.
    expect(withRow.shown.metrics.slice(0, first + 1)).toEqual(without.shown.metrics.slice(0, first + 1));
    expect(withRow.shown.metrics.slice(first + 1)).not.toEqual(without.shown.metrics.slice(first + 1));
    const { files, recipe, ledger } = without.shown;
    expect(withRow.shown).toMatchObject({ files, recipe, ledger });
  });
});
