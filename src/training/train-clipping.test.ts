import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { groupStyles, stylesOfNames } from '../clipping/groups.ts';
import { allocations, certificateSchema, composed, epsilonOf, noiseDeviations, selfComposed, withNorms } from '../privacy/index.ts';
import { verifyLedger } from '../privacy/ledger.ts';
import { decodeSafetensors } from '../tensor/safetensors.ts';
import type { ClippingRecipe } from './clipping.ts';
import type { TrainingInput } from './materials.ts';
import { type StepReport, prepare, train } from './train.ts';

type Clipping = NonNullable<TrainingInput['clipping']>;

const recipe = (clipping: Clipping, changes: Partial<TrainingInput> = {}): TrainingInput => ({
  model: blobModel,
  data: { train: blobs(), test: blobs(100) },
  privacy: { epsilon: 8, delta: 1e-4 },
  clipping,
  training: { batchSize: 50, steps: 2, optimizer: { name: 'sgd', learningRate: 0.5 } },
  performance: { threads: 1, microBatch: 16 },
  ...changes,
});
const groups = { first: ['hidden.*'], last: { patterns: ['classifier.*'], norm: 0.7 } };
const clippingOf = (style: ClippingRecipe['style'], more: Clipping = {}): Clipping =>
  ({ style, norm: 1, ...(stylesOfNames.has(style) && { groups }), ...more });
const adaptive = { adaptive: { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.05 } };

describe('a run that clips by groups', () => {
  it.each(groupStyles.flatMap((style) => allocations.map((allocation) => [style, allocation] as const)))(
    '%s, %s: spends what it says, and its certificate, metrics, checkpoint and ledger agree',
    async (style, allocation) => {
      const output = join(temporaryFolder().folder, 'run');
      const reports: StepReport[] = [];
      const run = recipe(clippingOf(style, { allocation, threshold: adaptive }), { output });
      const { epsilon } = await train(run, { onStep: (report) => reports.push(report) });

      const read = (name: string): string => readFileSync(join(output, name), 'utf8');
      const certificate = certificateSchema.parse(JSON.parse(read('privacy.json')));
      const { clipping, noise } = certificate;
      expect(clipping).toMatchObject({ style, allocation, threshold: { adaptive: { ...adaptive.adaptive, rescaleTo: null } } });
      expect(clipping.groups.flatMap(({ parameters }) => parameters).sort()).toEqual([
        'classifier.bias', 'classifier.weight', 'hidden.0.bias', 'hidden.0.weight',
      ]);
      expect(clipping.groups.reduce((sum, { size }) => sum + size, 0)).toBe(4 * 8 + 8 + 8 * 2 + 2);
      if (style === 'flat') expect(clipping.groups).toHaveLength(1);
      if (style === 'per-layer' || stylesOfNames.has(style)) expect(clipping.groups).toHaveLength(2);
      if (style === 'per-parameter') expect(clipping.groups).toHaveLength(4);
      const K = clipping.groups.length;
      clipping.groups.forEach(({ name, norm }) =>
        expect(norm).toBe(stylesOfNames.has(style) && name === 'last' ? 0.7 : 1 / Math.sqrt(K)));
      const scale = { allocation, gradientMultiplier: noise.gradientMultiplier, rho: clipping.rho, rounding: noise.rounding };
      const finals = withNorms(clipping.groups, clipping.groups.map(({ finalNorm }) => finalNorm));
      expect(clipping.groups.map(({ deviation }) => deviation)).toEqual(noiseDeviations(clipping.groups, scale));
      expect(clipping.groups.map(({ finalDeviation }) => finalDeviation)).toEqual(noiseDeviations(finals, scale));
      expect(noise.gradientMultiplier ** -2 + K / (4 * (noise.countDeviation ?? NaN) ** 2)).toBeCloseTo(noise.multiplier ** -2, 10);

      // The thresholds are those of fixed clipping at first, and are on record at every step.
      const lines = read('metrics.jsonl').trim().split('\n').map((line) => JSON.parse(line) as StepReport);
      expect(lines.map(({ thresholds }) => thresholds)).toEqual(reports.map(({ thresholds }) => thresholds));
      expect(lines[0]?.thresholds).toEqual(Object.fromEntries(clipping.groups.map(({ name, norm }) => [name, norm])));
      expect(lines[1]?.thresholds).not.toEqual(lines[0]?.thresholds);
      const [checkpoint] = readdirSync(join(output, 'checkpoint')).filter((name) => name.endsWith('.safetensors'));
      const saved = decodeSafetensors(readFileSync(join(output, 'checkpoint', checkpoint!)));
      expect([...(saved.tensors.get('thresholds')?.data ?? [])]).toEqual(clipping.groups.map(({ finalNorm }) => finalNorm));

      const ledger = await verifyLedger(join(output, 'ledger.jsonl'));
      expect(ledger.problems).toEqual([]);
      expect(ledger.event).toEqual(composed([selfComposed(ledger.lines[0]!.event, 2)]));
      expect(epsilonOf(ledger.event, noise.accountedDelta).epsilon).toBeCloseTo(epsilon ?? NaN, 10);
      expect(epsilon).toBeLessThanOrEqual(8);
    },
  );

  it('keeps fixed thresholds as they are, and tells of none', async () => {
    const run = await prepare(recipe(clippingOf('per-layer')));
    for await (const { thresholds } of run.steps()) expect(thresholds).toBeNull();
    await run.release();
    expect(run.plan?.adaptive).toBeNull();
    run.certificate()?.clipping.groups.forEach(({ norm, finalNorm, deviation, finalDeviation }) => {
      expect([finalNorm, finalDeviation]).toEqual([norm, deviation]);
    });
  });

  it('spends the same ε whatever the groups, with more noise on the gradients where it counts', async () => {
    const plans = await Promise.all(
      [clippingOf('flat'), clippingOf('per-layer', { threshold: adaptive })].map(async (clipping) => {
        const run = await prepare(recipe(clipping));
        await run.release();
        return run.plan!;
      }),
    );
    expect(plans[1]!.epsilon).toBeCloseTo(plans[0]!.epsilon, 6);
    expect(plans[1]!.noiseMultiplier).toBeCloseTo(plans[0]!.noiseMultiplier, 6);
    expect(plans[1]!.gradientMultiplier).toBeCloseTo(plans[0]!.gradientMultiplier / Math.sqrt(0.95), 12);
  });

  it('learns with thresholds that come from far off, and the same again for a seed', async () => {
    const clipping = clippingOf('per-layer', { threshold: { adaptive: { ...adaptive.adaptive, initial: 50, learningRate: 0.5 } } });
    const training = { batchSize: 100, steps: 40, seed: 3, optimizer: { name: 'sgd', learningRate: 0.5, momentum: 0.9 } } as const;
    const thresholds = async (): Promise<readonly unknown[]> => {
      const seen: unknown[] = [];
      const result = await train(recipe(clipping, { training }), { onStep: (step) => seen.push(step.thresholds) });
      expect(result.test?.accuracy).toBeGreaterThan(0.9);
      return seen;
    };
    const first = await thresholds();
    Object.values(first.at(-1) as Record<string, number>).forEach((norm) => expect(norm).toBeLessThan(5));
    expect(await thresholds()).toEqual(first);
  });

  it('follows empty draws by noise alone', async () => {
    const training = { batchSize: 0.001, steps: 3, optimizer: { name: 'sgd', learningRate: 1e-6 } } as const;
    const privacy = { noiseMultiplier: 1, delta: 1e-7 };
    const run = await prepare(recipe(clippingOf('per-layer', { threshold: adaptive }), { training, privacy }));
    expect(run.plan?.warnings.join()).toContain('drowns');
    for await (const { thresholds, uncovered } of run.steps()) {
      expect(uncovered.drawn).toBe(0);
      Object.values(thresholds ?? {}).forEach((norm) => expect(norm).toBeGreaterThan(0));
    }
    await run.release();
  });
});
