import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { partitionOf } from '../src/clipping/groups.ts';
import { defaultRho } from '../src/clipping/norm.ts';
import { modes } from '../src/clipping/plan.ts';
import { stepNames } from '../src/clipping/step-graph.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type FloatTensor, float32, tensor } from '../src/tensor/tensor.ts';
import { analyse, compileTask, requireTrainable } from '../src/training/compile.ts';
import { labelsInput } from '../src/training/loss.ts';
import { parametersOf } from './support/oracle.ts';
import { type NetworkChoice, networkChoice, randomLabels, randomNetwork, randomTensor, testRandom } from './support/random-network.ts';

const magnitudes = [1e-42, 1e-30, 1e-20, 1e-8, 1, 1e4, 1e9, 1e15, 1e18, 1e19, 1e30, 3e38];
const extremes = [NaN, Infinity, -Infinity, 3e38, -3e38, 0];
const functions = ['abadi', 'automatic', 'normalize', 'global', 'psac', { expression: '1e30 * n - 1 / (n - R)' }] as const;
const units = 4;
const triesEach = 15;

/** Channels that fill blocks, so that convolutions are computed in these. */
const wide = (choice: NetworkChoice): NetworkChoice =>
  ({ ...choice, channels: 16, blocks: choice.blocks.map((b) => (b.kind === 'conv' ? { ...b, out: 16, groups: 1 } : b)) });

type Random = () => number;
const pick = <T>(random: Random, values: readonly T[]): T => values[Math.floor(random() * values.length)]!;

/** One row of values that overflow, underflow, cancel or are none, somewhere on their way through a network. */
function hostile(random: Random, row: Float32Array): void {
  const [large, small, kind] = [pick(random, magnitudes), pick(random, magnitudes), Math.floor(random() * 4)];
  row.forEach((x, i) => {
    row[i] = [
      () => (2 * random() - 1) * large, () => (2 * random() - 1) * pick(random, [large, small]),
      () => (i % 2 === 0 ? 0.9 : -0.9) * large, () => (random() < 0.1 ? pick(random, extremes) : x),
    ][kind]!();
  });
}

/** Parameters of which some are scaled to where their products leave float32. */
const scaled = (random: Random, parameters: ReadonlyMap<string, FloatTensor>): [string, FloatTensor][] =>
  [...parameters].map(([name, { data, shape }]) => {
    const by = random() < 0.25 ? pick(random, [1e-30, 1e-10, 1e3, 1e6, 1e12, 1e17, 1e25, 1e38]) : 1;
    return [name, float32(data.map((x) => x * by), shape)];
  });

const withoutUnit = (present: readonly boolean[], unit: number, rowsPerUnit: number): boolean[] =>
  present.map((there, row) => there && Math.floor(row / rowsPerUnit) !== unit);

describe('a unit of any values, absent or there', () => {
  it.each(modes.filter((mode) => mode !== 'non-private'))('moves no group\'s sum by more than C(1+ρ), and no weight of others, %s', async (mode) => {
    await fc.assert(fc.asyncProperty(
      fc.tuple(networkChoice, fc.boolean()).map(([choice, isWide]) => (isWide ? wide(choice) : choice)),
      fc.constantFrom(1, 2), fc.constantFrom(...functions), fc.constantFrom(1e-6, 0.01, 1),
      fc.constantFrom(...(mode === 'per-layer' ? ['per-layer', 'per-parameter'] as const : ['flat', 'per-layer'] as const)),
      fc.integer({ min: 1, max: 2 ** 30 }),
      async (choice, rowsPerUnit, clipFunction, gamma, style, seed) => {
        const random = testRandom(seed);
        const { model, trainable, inputShape, classes } = randomNetwork(choice);
        const analysis = analyse({ model, loss: 'cross-entropy', trainable });
        requireTrainable(analysis);
        const rows = units * rowsPerUnit;
        const groups = partitionOf({ style }, model, analysis.parameters);
        const options = { diagnostics: true, mode, clipping: { function: clipFunction, gamma, groups }, rho: defaultRho, rowsPerUnit };
        const session = await onnxruntimeEngine().compile(compileTask(analysis, rows, options).graph, { threads: 1 });
        for (let i = 0; i < triesEach; i++) {
          const thresholds = groups.map(() => pick(random, [1, 1, 1e-6, 1e3, 1e6]));
          const parameters = scaled(random, parametersOf(analysis));
          const input = randomTensor(random, [rows, ...inputShape], pick(random, [1, 1, 1e-8, 1e6]));
          const [unit, each] = [Math.floor(random() * units), input.data.length / rows];
          const row = unit * rowsPerUnit + Math.floor(random() * rowsPerUnit);
          hostile(random, input.data.subarray(row * each, (row + 1) * each));
          const labels = randomLabels(random, rows, classes);
          const company = Math.floor(random() * 3);
          const there = (u: number): boolean => u === unit || company === 2 || (company === 1 && u % 2 === 0);
          const present = Array.from({ length: rows }, (_, at) => there(Math.floor(at / rowsPerUnit)));
          const run = async (mask: readonly boolean[]) => (await session.run({
            ...Object.fromEntries(parameters.map(([name, t]) => [name, { ...t, data: t.data.slice() }])),
            input: { ...input, data: input.data.slice() }, [labelsInput]: { ...labels, data: labels.data.slice() },
            [stepNames.rowMask]: tensor('bool', [rows], Uint8Array.from(mask, Number)),
            [stepNames.thresholds]: float32(thresholds, [groups.length]),
          })).outputs;
          const [withIt, without] = [await run(present), await run(withoutUnit(present, unit, rowsPerUnit))];
          groups.forEach((group, k) => {
            const moved = Math.hypot(...group.parameters.map((name) => {
              const [one, other] = [withIt, without].map((outputs) => outputs[stepNames.sum(name)]!.data as Float32Array);
              return Math.sqrt(one!.reduce((sum, x, j) => sum + (x - other![j]!) ** 2, 0));
            }));
            // A few roundings of sums over the units beside the bound itself.
            expect(moved).toBeLessThanOrEqual(thresholds[k]! * (1 + defaultRho + 1e-6 * units));
          });
          const weights = [withIt, without].map((outputs) => outputs[stepNames.weights]!.data as Float32Array);
          const ofOthers = weights.map((w) => w.filter((_, at) => Math.floor(at / groups.length) !== unit));
          expect(ofOthers[0]).toEqual(ofOthers[1]);
        }
        await session.release();
      },
    ), { numRuns: 3 });
  });
});
