import { afterAll, describe, expect, it } from 'vitest';
import { buildModel } from '../src/models/index.ts';
import { allocations, groupsOf, noiseDeviations, privacyPlan } from '../src/privacy/index.ts';
import { countsWithin } from '../src/privacy/quantiles.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { float32, int64 } from '../src/tensor/tensor.ts';
import { analyse } from '../src/training/compile.ts';
import { labelsInput } from '../src/training/loss.ts';
import { type BatchSource, compileStep } from '../src/training/step.ts';
import { blobModel } from './support/blobs.ts';
import { parametersOf } from './support/oracle.ts';
import { testRandom } from './support/random-network.ts';

const model = buildModel(blobModel, { seed: 1 });
const analysis = analyse({ model, loss: 'cross-entropy' });
const sizeOf = (name: string): number => model.initializers.get(name)!.data.length;
const partitions: Readonly<Record<string, readonly (readonly string[])[]>> = {
  'one group': [analysis.parameters],
  'a group for each parameter': analysis.parameters.map((name) => [name]),
  'two groups that interleave': [analysis.parameters.filter((_, i) => i % 2 === 0), analysis.parameters.filter((_, i) => i % 2 === 1)],
};

interface Unit {
  readonly x: readonly number[];
  readonly label: number;
}
const batchOf = (units: readonly Unit[]): BatchSource => ({
  size: units.length,
  feeds: (start, count, rows) => {
    const part = units.slice(start, start + count);
    const padding = rows - part.length;
    const input = [...part.flatMap(({ x }) => x), ...new Array<number>(4 * padding).fill(0)];
    const labels = [...part.map(({ label }) => label), ...new Array<number>(padding).fill(0)];
    return { [model.inputs[0]!.name]: float32(input, [rows, 4]), [labelsInput]: int64(labels) };
  },
});

describe.each(Object.entries(partitions))('neighbouring batches, %s', (_, partition) => {
  const random = testRandom(7);
  const between = (low: number, high: number): number => low * (high / low) ** random();
  const groups = groupsOf(partition.map((parameters, k) => ({
    name: `g${k}`, parameters, norm: between(0.01, 0.1), size: parameters.reduce((sum, name) => sum + sizeOf(name), 0),
  })));
  const program = compileStep(analysis, {
    mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01, groups }, microBatch: 4, threads: 1, engine: onnxruntimeEngine(),
  });
  afterAll(async () => (await program).release());

  const seen = async (units: readonly Unit[]) => {
    const parameters = new Map([...parametersOf(analysis)].map(([name, t]) => [name, { ...t, data: t.data.slice() }]));
    const { sums, norms } = await (await program).run(parameters, batchOf(units), groups.map(({ norm }) => norm));
    return { sums, norms, counts: countsWithin(norms, groups) };
  };
  const unit = (): Unit => {
    const size = between(1e-3, 1e3);
    const odd = random();
    const x = Array.from({ length: 4 }, () => size * (2 * random() - 1));
    // Some units are no numbers, and some beyond all bounds.
    if (odd < 0.15) x[2] = NaN;
    else if (odd < 0.25) x[1] = 3e38;
    return { x, label: random() < 0.5 ? 0 : 1 };
  };

  it('differ by no more than the noise is scaled to, gradients and counts together', async () => {
    const plans = allocations.map((allocation) => privacyPlan({
      datasetSize: 1000, batchSize: 8, steps: 10, noiseMultiplier: 1.2, delta: 1e-5, groups, allocation,
      adaptive: { quantile: 0.5, learningRate: 0.2, budgetFraction: 0.3, rescaleTo: null },
    }));
    let largest = 0;
    for (let trial = 0; trial < 25; trial++) {
      const units = Array.from({ length: Math.floor(9 * random()) }, unit);
      const at = Math.floor((units.length + 1) * random());
      const [one, other] = [await seen(units), await seen(units.toSpliced(at, 0, unit()))];
      const moved = groups.map(({ parameters }) => Math.hypot(...parameters.map((name) =>
        Math.hypot(...one.sums.get(name)!.map((x, i) => x - other.sums.get(name)![i]!)))));
      groups.forEach(({ norm }, k) => {
        expect(moved[k]).toBeLessThanOrEqual(norm * (1 + 1e-3));
        expect(Math.abs(one.counts[k]! - other.counts[k]!)).toBe(0.5);
      });
      for (const plan of plans) {
        const deviations = noiseDeviations(groups, plan);
        const inNoise = Math.hypot(...moved.map((m, k) => m / deviations[k]!), ...groups.map(() => 0.5 / plan.adaptive!.countDeviation));
        expect(inNoise * plan.noiseMultiplier).toBeLessThanOrEqual(1 + 1e-9);
        largest = Math.max(largest, inNoise * plan.noiseMultiplier);
      }
    }
    // Large units are clipped in every group, and reach the bound up to the rounding allowance.
    expect(largest).toBeGreaterThan(0.99);
  });

  it('count nothing for an empty draw, and −½ in every group for a unit that is no number', async () => {
    const { sums, norms, counts } = await seen([]);
    expect([norms.length, ...counts]).toEqual([0, ...groups.map(() => 0)]);
    for (const sum of sums.values()) expect(sum.every((x) => x === 0)).toBe(true);
    const dropped = await seen([{ x: [1, NaN, 1, 1], label: 0 }]);
    expect([...dropped.counts]).toEqual(groups.map(() => -0.5));
    for (const sum of dropped.sums.values()) expect(sum.every((x) => x === 0)).toBe(true);
  });
});
