import { expect } from 'vitest';
import { defaultRho } from '../../src/clipping/norm.ts';
import type { Mode } from '../../src/clipping/plan.ts';
import { type FloatTensor, type Tensor, float32, int64, sizeOf } from '../../src/tensor/tensor.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type Analysis, analyse, atBatchSize, requireTrainable } from '../../src/training/compile.ts';
import { labelsInput } from '../../src/training/loss.ts';
import { withSession } from './operator-sample.ts';
import { type Batch, oracle, parametersOf, relativeDifference, runStep, weightedSum } from './oracle.ts';
import { type Composition, composedNetwork } from './random-composition.ts';
import { randomLabels, randomTensor, rowsOf, testRandom } from './random-network.ts';

/** Below it a gradient is rounding alone, and nothing can be compared. */
const smallestNorm = 1e-3;
const rows = 4;

/**
 * Checks one network: norms, clip weights and clipped sums of `mode` against gradients taken one example at a time,
 * and those, which share code with what is tested, against differences of the loss along a random direction.
 *
 * @returns `kinked` where the differences said nothing, `flat` where there was no gradient to compare
 */
export async function checkComposition(choice: Composition, mode: Mode): Promise<'checked' | 'kinked' | 'flat'> {
  const { model, input, classes, vocabulary, steps } = composedNetwork(choice);
  const what = steps.join(', ');
  const analysis = analyse({ model, loss: 'cross-entropy' });
  requireTrainable(analysis);
  const random = testRandom(choice.seed + 1);
  const shape = [rows, ...input.shape];
  const values: Tensor = input.dtype === 'int64'
    ? int64(Array.from({ length: sizeOf(shape) }, () => Math.floor(random() * vocabulary)), shape) : randomTensor(random, shape);
  const batch: Batch = { rows, inputs: { input: values }, labels: randomLabels(random, rows, classes) };
  const { rowsPerUnit } = choice;
  const truth = await oracle(analysis, batch, rowsPerUnit);
  expect(truth.losses.every((loss) => loss < 30), `losses of ${what} are tame: ${truth.losses.join()}`).toBe(true);
  if (!(Math.min(...truth.norms) > smallestNorm)) return 'flat';
  const said = await checkDirection(analysis, batch, rowsPerUnit, truth.gradients[0]!, random, what);

  const isPrivate = mode !== 'non-private';
  const threshold = [...truth.norms].sort((a, b) => a - b)[1]! * 0.9;
  const found = await runStep(analysis, batch, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit }, threshold);
  const weights = truth.norms.map((norm) => (isPrivate ? Math.min(1, threshold / norm) : 1));
  if (isPrivate) {
    truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm), `norm ${norm} of ${what}`).toBeLessThanOrEqual(1e-4 * norm));
    weights.forEach((weight, i) => {
      expect(found.weights[i], `weight of ${what}`).toBeLessThanOrEqual(weight * (1 + 1e-4));
      expect(found.weights[i], `weight of ${what}`).toBeGreaterThanOrEqual(weight * (1 - 2 * defaultRho));
    });
  }
  const summed = isPrivate ? Array.from(found.weights) : weights;
  expect(relativeDifference(found.sums, weightedSum(truth.gradients, summed)), `sums of ${what}`).toBeLessThan(1e-4);
  return said ? 'checked' : 'kinked';
}

const step = 2 ** -7;

/**
 * The gradient of the first unit's mean loss against central differences, extrapolated.
 *
 * @returns whether the differences agree among themselves: otherwise a kink lies within the steps, and they say nothing
 */
async function checkDirection(
  analysis: Analysis, batch: Batch, count: number, gradient: ReadonlyMap<string, Float32Array>, random: () => number, what: string,
): Promise<boolean> {
  const { graph: whole, loss } = atBatchSize(analysis.task, count);
  const graph = expandComposites(whole);
  const wanted = new Set(analysis.parameters);
  const open = {
    ...graph, outputs: [{ name: loss, ...graph.types.get(loss)! }],
    inputs: [...graph.inputs, ...analysis.parameters.map((name) => ({ name, ...graph.types.get(name)! }))],
    initializers: new Map([...graph.initializers].filter(([name]) => !wanted.has(name))),
  };
  const parameters = parametersOf(analysis);
  const norm = Math.sqrt([...gradient.values()].reduce((sum, g) => sum + g.reduce((s, x) => s + x * x, 0), 0));
  // Half along the gradient, so that there is something to see; half anywhere, so that nothing is missed.
  const direction = new Map([...gradient].map(([name, g]) => [name, g.map((x) => x / norm + (random() - 0.5) * 2 / Math.sqrt(g.length))] as const));
  const slope = [...gradient].reduce((sum, [name, g]) => sum + g.reduce((s, x, i) => s + x * direction.get(name)![i]!, 0), 0);
  const differences = await withSession(open, async (run) => {
    const lossAt = async (t: number): Promise<number> => {
      const moved = [...parameters].map(([name, p]): [string, FloatTensor] => [name, float32(p.data.map((x, i) => x + t * direction.get(name)![i]!), p.shape)]);
      const outputs = await run({ input: rowsOf(batch.inputs['input']!, 0, count), [labelsInput]: rowsOf(batch.labels, 0, count), ...Object.fromEntries(moved) });
      return (outputs[loss]!.data as Float32Array).reduce((sum, x) => sum + x, 0) / count;
    };
    const at = async (h: number): Promise<number> => (await lossAt(h) - await lossAt(-h)) / (2 * h);
    return [await at(step), await at(step / 2), await at(step / 4)] as const;
  });
  const [wide, middle, narrow] = differences;
  const estimate = (4 * narrow - middle) / 3;
  const doubt = Math.abs(estimate - (4 * middle - wide) / 3);
  const scale = Math.abs(slope) + norm;
  if (doubt > 0.002 * scale) return false;
  expect(Math.abs(estimate - slope), `slope ${slope} and differences ${differences.join()} of ${what}`).toBeLessThanOrEqual(0.002 * scale + 2 * doubt);
  return true;
}
