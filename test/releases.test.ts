import { existsSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type TrainingInput, train } from '../src/index.ts';
import { readModel } from '../src/graph/file.ts';
import { buildModel } from '../src/models/index.ts';
import { readBudget } from '../src/privacy/budget.ts';
import {
  type Certificate, type PrivacyPlanOptions, clippedSum, epsilonOf, flatGroup, noiseDeviations, privacyPlan, privatise, privatiseGradually,
} from '../src/privacy/index.ts';
import { verifyLedger } from '../src/privacy/ledger.ts';
import { ratchet } from '../src/random/ratchet.ts';
import { report } from '../src/report/index.ts';
import { verify } from '../src/training/verify.ts';
import { blobs } from './support/blobs.ts';
import { fakeEngine } from './support/fake-engine.ts';
import { Crashed, faultyFiles } from './support/faulty-files.ts';
import { temporaryFolder } from './support/temp.ts';

const size = 20_000;
const plan = (changes: Partial<PrivacyPlanOptions> = {}) => privacyPlan({
  datasetSize: 1000, batchSize: 1000, sampling: 'full-batch', steps: 1, delta: 1e-6, epsilon: 8, furtherEpsilons: [2, 0.25], seed: 3,
  groups: flatGroup(['w'], 2, size), ...changes,
});
const released = (p = plan()) =>
  privatiseGradually(clippedSum(new Map([['w', new Float32Array(size)]]), p.groups, p.rho), p, p.startRatchet().advance())
    .map(({ gradients }) => gradients.get('w')!);

describe('privatiseGradually', () => {
  it.each(['discrete', 'float'] as const)('noises every release as its own ε asks for, on top of the one before: %s', (noise) => {
    const [all, first] = [released(plan({ noise })), plan({ noise })];
    const multipliers = [first, ...first.further].map(({ noiseMultiplier }) => noiseMultiplier);
    expect(multipliers.map((sigma) => sigma.toFixed(3))).toEqual(['0.653', '2.230', '15.410']);
    const S = 2 * (1 + 1e-3 + (noise === 'discrete' ? 2 ** -10 : 0));
    const product = (a: Float32Array, b: Float32Array): number => a.reduce((sum, x, i) => sum + x * b[i]!, 0) / size * (1000 / S) ** 2;
    all.forEach((one, k) => {
      expect(Math.abs(product(one, one) / multipliers[k]! ** 2 - 1)).toBeLessThan(4.5 * Math.sqrt(2 / size) + 2e-3);
      if (k === 0) return;
      const more = one.map((x, i) => x - all[k - 1]![i]!);
      expect(Math.abs(product(more, more) / (multipliers[k]! ** 2 - multipliers[k - 1]! ** 2) - 1)).toBeLessThan(4.5 * Math.sqrt(2 / size) + 2e-3);
      expect(Math.abs(product(more, all[k - 1]!))).toBeLessThan(4.5 * Math.sqrt(product(more, more) * product(all[k - 1]!, all[k - 1]!) / size));
    });
  });

  it('leaves a release as it is when smaller ε are asked for too, and when none is', () => {
    const all = released();
    const isSame = (a: Float32Array, b: Float32Array | undefined): boolean => b !== undefined && a.every((x, i) => x === b[i]);
    expect(isSame(all[0]!, released(plan({ furtherEpsilons: [2, 1, 0.5, 0.25, 0.1] }))[0])).toBe(true);
    expect(isSame(all[1]!, released(plan({ furtherEpsilons: [2] }))[1])).toBe(true);
    const p = plan({ furtherEpsilons: undefined });
    const alone = privatise(clippedSum(new Map([['w', new Float32Array(size)]]), p.groups, p.rho), p, p.startRatchet().advance());
    expect(isSame(all[0]!, alone.gradients.get('w'))).toBe(true);
    expect(isSame(all[1]!, all[0])).toBe(false);
  });

  it('has plans that cost what each says alone, on the grid of the first', () => {
    const { further, ...first } = plan();
    expect(further.map(({ noiseMultiplier, epsilon }) => [noiseMultiplier, epsilon].map((x) => x.toFixed(2)))).toEqual([['2.23', '2.00'], ['15.41', '0.25']]);
    for (const one of further) {
      expect(one.epsilon).toBe(epsilonOf(one.event, one.accountedDelta).epsilon);
      expect(one.first).toEqual({ noiseMultiplier: first.noiseMultiplier, epsilon: first.epsilon });
      expect(noiseDeviations(one.groups, one)[0]! / noiseDeviations(first.groups, first)[0]!).toBeCloseTo(one.noiseMultiplier / first.noiseMultiplier, 12);
      expect(one.noiseDistance).toBeGreaterThan(first.noiseDistance);
      expect(one.noiseDistance).toBeLessThan(2 ** -220);
    }
  });

  it('takes nothing but the plan of the first release', () => {
    const [further] = plan().further;
    const sum = clippedSum(new Map([['w', new Float32Array(size)]]), further!.groups, further!.rho);
    for (const noised of [privatise, privatiseGradually])
      expect(() => noised(sum, further!, ratchet(3).advance())).toThrow('noised as a further release');
  });

  it.each([
    [{ steps: 2 }, /second step would start from other parameters[^]*steps: 1/],
    [{ sampling: 'poisson', batchSize: 10 }, /all of the data[^]*fullBatch/],
    [{ adaptive: { quantile: 0.5, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: null } }, 'thresholds cannot adapt in one step'],
    [{ metrics: { budgetFraction: 0.01, measures: [{ name: 'trainingLoss', low: 0, high: 5 }] } }, 'metrics of one step'],
    [{ epsilon: undefined, noiseMultiplier: 1 }, 'they follow from ε'],
    [{ furtherEpsilons: [2, 2] }, '2 twice'],
    [{ furtherEpsilons: [9] }, 'the largest one comes first'],
    [{ furtherEpsilons: Array.from({ length: 40 }, (_, i) => 7 - i / 10) }, 'too many models'],
  ] as readonly (readonly [Partial<PrivacyPlanOptions>, RegExp | string])[])('is refused with the reason: %j', (changes, message) => {
    expect(() => plan(changes)).toThrow(message);
  });
});

const recipe = (output: string, changes: object = {}): TrainingInput => ({
  model: buildModel({ name: 'mlp', input: 4, hidden: [], classes: 2 }, { seed: 1 }), data: { train: blobs(), test: blobs(100) }, output,
  privacy: { epsilon: [0.5, 10, 2], delta: 1e-4 }, clipping: { norm: 1 },
  training: { fullBatch: true, steps: 1, optimizer: { name: 'sgd', learningRate: 1 } }, performance: { threads: 1 }, ...changes,
});
const read = <T>(...path: readonly string[]): T => JSON.parse(readFileSync(join(...path), 'utf8')) as T;

describe('a run for several ε', () => {
  it('leaves a model for each, with a certificate that holds by itself, and spends the largest once', async () => {
    const { folder } = temporaryFolder();
    const output = join(folder, 'run');
    const budget = join(folder, 'budget.json');
    writeFileSync(budget, '{"epsilon": 12, "delta": 1e-3}');
    const result = await train(recipe(output, { privacy: { epsilon: [0.5, 10, 2], delta: 1e-4, budget } }));
    expect(result.releases?.map(({ epsilon, runDir }) => [epsilon, runDir])).toEqual([0.5, 10, 2].map((e) => [e, join(output, `epsilon-${e}`)]));
    expect(result.epsilon).toBeCloseTo(10, 3);
    expect(result.test).toEqual(result.releases?.[1]?.test);
    expect(result.releases?.[1]?.test?.accuracy).toBeGreaterThan(0.8);

    const joint = read<Certificate>(output, 'privacy.json');
    expect(joint.guarantee).toMatch(/^\(9\.99\d+, 0\.0001\)-differential privacy for each example, of all 3 models of the run together/);
    const { lines } = await verifyLedger(join(output, 'ledger.jsonl'));
    expect(lines.map(({ further }) => further?.length)).toEqual([2]);
    expect(readBudget(budget).runs.map(({ event }) => event)).toEqual([joint.event]);
    const checked = await verify(join(output, 'privacy.json'));
    expect(checked.problems).toEqual([]);
    expect(checked.releases?.map(({ folder: name, holds }) => [name, holds])).toEqual([['epsilon-10', true], ['epsilon-2', true], ['epsilon-0.5', true]]);

    for (const epsilon of [0.5, 10, 2]) {
      const own = join(output, `epsilon-${epsilon}`);
      const certificate = read<Certificate>(own, 'privacy.json');
      expect(certificate.epsilon).toBeLessThanOrEqual(epsilon);
      expect(certificate.epsilon).toBeGreaterThan(epsilon * (1 - 1e-4));
      expect(certificate.guarantee).toMatch(/of this model alone; \(9\.99\d+, 0\.0001\) of all 3 models of its run together/);
      expect(certificate.partOf).toEqual({ models: 3, multiplier: joint.noise.multiplier, epsilon: joint.epsilon });
      expect(certificate.clipping.groups[0]!.grid).toBe(joint.clipping.groups[0]!.grid);
      // By itself, as it is handed on.
      const moved = join(folder, `alone-${epsilon}`);
      renameSync(own, moved);
      expect((await verify(join(moved, 'privacy.json'))).problems).toEqual([]);
      // Of the other models, it has nothing but the public numbers of the plan.
      const others = lines.flatMap(({ digest, further = [] }) => [digest, ...further.map((one) => one.digest)]).filter((d) => !readFileSync(join(moved, 'ledger.jsonl'), 'utf8').includes(d));
      expect(others).toHaveLength(2);
      const page = readFileSync((await report(moved)).html, 'utf8');
      expect(page).toMatch(/none of the other models of its run/);
      expect(page).not.toMatch(/everything else that this run made public|undefined|NaN/);
      renameSync(moved, own);
    }
    const weights = (name: string) => [...readModel(join(output, name, 'model.onnx')).initializers.values()].map(({ data }) => [...(data as Float32Array)]);
    expect(weights('epsilon-10')).toEqual(weights('.'));
    expect(weights('epsilon-2')).not.toEqual(weights('.'));
    const page = readFileSync((await report(output)).html, 'utf8');
    expect(page).toMatch(/all 3 models and everything else that this run made public[^]*epsilon-0\.5/);
    expect(page).not.toMatch(/undefined|NaN/);
    expect(readdirSync(join(output, 'checkpoint'))).not.toContain('secret.key');
  });

  it('does not verify when a model is gone, another’s, or says less than it spent', async () => {
    const output = join(temporaryFolder().folder, 'run');
    await train(recipe(output, { data: { train: blobs(12) } }), { engine: fakeEngine });
    const top = join(output, 'privacy.json');
    const problems = async (path = top): Promise<string> => JSON.stringify((await verify(path)).problems);
    expect(await problems()).toBe('[]');
    const changed = async (path: readonly string[], change: (text: string) => string, verified = top): Promise<string> => {
      const file = join(output, ...path);
      const before = readFileSync(file, 'utf8');
      expect(change(before)).not.toBe(before);
      writeFileSync(file, change(before));
      const found = await problems(verified);
      writeFileSync(file, before);
      return found;
    };
    const half = join('epsilon-0.5', 'privacy.json');
    const { epsilon } = read<Certificate>(output, half);
    expect(await changed([half], (text) => text.replaceAll(String(epsilon), '0.4'))).toMatch('epsilon is smaller'.replace('epsilon', 'ε'));
    expect(await changed([half], (text) => text.replaceAll(String(epsilon), '0.4'), join(output, half))).toMatch('ε is smaller');
    // The ε of all together is that of the first.
    const joint = read<Certificate>(top).epsilon;
    expect(await changed([half], (text) => text.replaceAll(String(joint), '1'), join(output, half))).toMatch('ε of a model, or of all, is smaller');
    expect(await changed(['privacy.json'], (text) => text.replace(String(epsilon), '0.4'))).toMatch('ε of a model, or of all, is smaller');
    // The digest of another release, in a chain that holds.
    const swap = (name: string): void => renameSync(join(output, name), join(output, `${name}.was`));
    swap('epsilon-0.5');
    expect(await problems()).toMatch('a model of the run is gone');
    renameSync(join(output, 'epsilon-0.5.was'), join(output, 'epsilon-0.5'));
    const other = join(temporaryFolder().folder, 'run');
    await train(recipe(other, { data: { train: blobs(16) } }), { engine: fakeEngine });
    swap('epsilon-0.5');
    renameSync(join(other, 'epsilon-0.5'), join(output, 'epsilon-0.5'));
    expect(await problems()).toMatch('a model of the run is not as the run says');
  });

  it('trains a head on a frozen model for each', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const model = buildModel({ name: 'mlp', input: 4, hidden: [8], classes: 2 }, { seed: 1 });
    const { releases } = await train(recipe(output, { model, trainable: 'head' }));
    const weights = (name: string) => new Map([...readModel(join(output, name, 'model.onnx')).initializers].map(([key, { data }]) => [key, [...(data as Float32Array)]]));
    const [ten, half] = [weights('epsilon-10'), weights('epsilon-0.5')];
    const moved = [...ten].filter(([name, values]) => values.some((x, i) => x !== half.get(name)![i])).map(([name]) => name);
    expect(moved).toEqual(['classifier.weight', 'classifier.bias']);
    expect(ten).toEqual(weights('.'));
    expect(releases?.[1]?.test?.accuracy).toBeGreaterThan(0.7);
    expect((await verify(join(output, 'privacy.json'))).problems).toEqual([]);
  });

  it('is void with a seed, for every model', async () => {
    const output = join(temporaryFolder().folder, 'run');
    await train(recipe(output, { data: { train: blobs(12) }, training: { fullBatch: true, steps: 1, seed: 1 } }), { engine: fakeEngine });
    for (const name of ['.', 'epsilon-0.5', 'epsilon-10'])
      expect(read<Certificate>(output, name, 'privacy.json')).toMatchObject({ valid: false, guarantee: expect.stringMatching(/^void: seeded/) as string });
    expect((await verify(join(output, 'privacy.json'))).holds).toBe(false);
  });

  it('refuses, before it writes anything, what is no single full-batch step', async () => {
    const output = join(temporaryFolder().folder, 'run');
    for (const [changes, message] of [
      [{ training: { fullBatch: true, steps: 2 } }, 'a second step would start'],
      [{ training: { batchSize: 50, steps: 1 } }, 'one step takes all of the data'],
      [{ privacy: { epsilon: [], delta: 1e-4 } }, 'privacy.epsilon'],
      [{ privacy: { epsilon: [1, 1], delta: 1e-4 } }, '1 twice'],
    ] as const) await expect(train(recipe(output, changes), { engine: fakeEngine })).rejects.toThrow(message);
    expect(existsSync(output)).toBe(false);
  });

  it('is charged once more and makes no model when it does not come out the same after an interruption', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const data = { train: blobs(12) };
    const { files } = faultyFiles();
    let dead = false;
    // Dies right after the charge is durable.
    const dying: typeof files = { ...files, open: (...args) => { if (dead) throw new Crashed('dead'); return files.open(...args); },
      syncData: async (file) => { await files.syncData(file); dead = true; } };
    await expect(train(recipe(output, { data, performance: { threads: 1, microBatch: 4 } }), { engine: fakeEngine, files: dying })).rejects.toThrow();
    for (const name of readdirSync(output)) if (name.startsWith('run.lock')) rmSync(join(output, name));
    const result = await train(recipe(output, { data: { train: blobs(10) }, performance: { threads: 1, microBatch: 4 } }), { engine: fakeEngine, resume: true });
    expect(result).toMatchObject({ steps: 0, recharged: 1, ended: 'budget' });
    expect(result.releases).toBeUndefined();
    expect(readdirSync(output).filter((name) => name.startsWith('epsilon-'))).toEqual([]);
    expect((await verify(join(output, 'privacy.json'))).problems.map(({ what }) => what)).not.toContain('ε is smaller than what was spent');
  });

  it('takes a list of one', async () => {
    const output = join(temporaryFolder().folder, 'run');
    const { releases } = await train(recipe(output, { data: { train: blobs(12) }, privacy: { epsilon: [3], delta: 1e-4 } }), { engine: fakeEngine });
    expect(releases).toEqual([{ epsilon: 3, runDir: join(output, 'epsilon-3'), test: null }]);
    expect((await verify(join(output, 'privacy.json'))).problems).toEqual([]);
  });
});
