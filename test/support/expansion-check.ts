import { expect } from 'vitest';
import { traceBatch } from '../../src/autodiff/batch-independence.ts';
import { backpropagate, dependentOn } from '../../src/autodiff/reverse.ts';
import type { TypedGraph } from '../../src/graph/ir.ts';
import { leading } from '../../src/ops/batch.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type GraphBuilder, graphBuilder } from '../../src/ops/builder.ts';
import { semantics } from '../../src/ops/table.ts';
import { type FloatTensor, type Tensor, float32, isFloat, sizeOf, toNumbers } from '../../src/tensor/tensor.ts';
import { type Feeds, type Sample, buildNode, differentiable, feedsOf, shapes, withSession } from './operator-sample.ts';
import { testRandom } from './random-network.ts';

export interface ExpansionOptions {
  /** Whether ONNX Runtime has a kernel for the node itself, whose outputs the expansion must equal; default true. */
  readonly kernel?: boolean;
  /** Inputs whose gradient is checked; default: every float input that is not constant. */
  readonly wrt?: readonly number[];
  /** Outputs that gradients are checked from; default: all of floats. */
  readonly through?: readonly number[];
  /** Largest difference of outputs, relative to the largest output and at least 1; default 1e-5. */
  readonly tolerance?: number;
}

/**
 * Checks a composite operator: its expansion computes the outputs that ONNX Runtime computes for the node itself, of
 * the types that the shape rule says, and the gradients of the expansion equal finite differences.
 */
export async function checkExpansion(sample: Sample, { kernel = true, wrt, through, tolerance = 1e-5 }: ExpansionOptions = {}): Promise<void> {
  const { b, node } = buildNode(sample);
  const named = node.outputs.filter((y) => y !== '');
  const whole = b.build(named.map((y) => [y, y]));
  const core = expandComposites(whole);
  const feeds = feedsOf(sample);
  const expanded = await withSession(core, (run) => run(feeds));
  if (kernel) {
    const found = await withSession(whole, (run) => run(feeds));
    for (const y of named) {
      const [wanted, ours] = [found[y]!, expanded[y]!];
      expect({ dtype: ours.dtype, shape: ours.shape }, `${y} of ${shapes(sample)}`).toEqual({ dtype: wanted.dtype, shape: wanted.shape });
      const scale = Math.max(1, ...toNumbers(wanted).map(Math.abs).filter((v) => v < masking));
      const off = (v: number, i: number): number => (Object.is(v, Number(ours.data[i])) ? 0
        : Math.abs(v - Number(ours.data[i])) / (Math.abs(v) < masking ? scale : Math.abs(v)));
      expect(Math.max(0, ...toNumbers(wanted).map(off)), `${y} of ${shapes(sample)}`).toBeLessThanOrEqual(tolerance);
    }
  }
  named.forEach((y) => {
    expect({ dtype: expanded[y]!.dtype, shape: expanded[y]!.shape }, `${y} of ${shapes(sample)}`)
      .toEqual({ dtype: b.type(y).dtype, shape: [...b.type(y).shape] });
  });
  const from = named.filter((_, k) => through === undefined || through.includes(k));
  await checkGradients(sample, core, wrt ?? differentiable(sample), from);
}

/** Checks that the expansion keeps rows apart, which every output has in front. */
export function expectRowsApart(sample: Sample): void {
  const { b, node } = buildNode(sample);
  const core = expandComposites(b.build(node.outputs.map((y) => [y, y])));
  const at = new Map(sample.inputs.flatMap((o, i) => (o?.batch === undefined ? [] : [[`x${i}`, o.batch] as const])));
  const { violations, batch } = traceBatch(core, at);
  expect(violations, shapes(sample)).toEqual([]);
  node.outputs.forEach((y) => expect(batch.get(y), `${y} of ${shapes(sample)}`).toEqual(leading));
}

/** Numbers as large as this stand for infinity. */
const masking = 1e30;

const step = 1 / 32;

/** Directional derivatives along random directions against differences of two steps, extrapolated. */
async function checkGradients(sample: Sample, core: TypedGraph, wrt: readonly number[], from: readonly string[]): Promise<void> {
  const outputs = core.outputs.filter(({ name, dtype }) => from.includes(name) && isFloat(dtype)).map(({ name }) => name);
  if (wrt.length === 0 || outputs.length === 0) return;
  const random = testRandom(7);
  const like = (shape: readonly number[]): FloatTensor => float32(Array.from({ length: sizeOf(shape) }, () => 2 * random() - 1), shape);
  const wanted = new Set(wrt.map((i) => `x${i}`));
  const feeds = feedsOf(sample);
  const b: GraphBuilder = graphBuilder(semantics, core);
  const reached = dependentOn(core, wanted);
  const seeds = new Map(outputs.filter((y) => reached.has(y)).map((y) => [y, b.input(`d_${y}`, b.type(y))]));
  const cotangents: Feeds = Object.fromEntries([...seeds.keys()].map((y) => [`d_${y}`, like(b.shape(y))]));
  const found = backpropagate(b, core.nodes, seeds, (v) => wanted.has(v) || reached.has(v));
  const gradients = await withSession(
    b.build(wrt.flatMap((i) => { const g = found.get(`x${i}`); return g === undefined ? [] : [[`g${i}`, g] as const]; })),
    (run) => run({ ...feeds, ...cotangents }),
  );
  await withSession(core, async (run) => {
    for (const i of wrt) {
      const x = sample.inputs[i]!.value;
      const direction = like(x.shape);
      const at = async (h: number): Promise<number> => {
        const moved = float32(toNumbers(x).map((v, k) => v + h * direction.data[k]!), x.shape);
        const values = await run({ ...feeds, [`x${i}`]: moved });
        return [...seeds.keys()].reduce((sum, y) => sum + inner(values[y]!, cotangents[`d_${y}`]!), 0);
      };
      const slope = async (h: number): Promise<number> => ((await at(h)) - (await at(-h))) / (2 * h);
      const difference = (4 * (await slope(step / 2)) - (await slope(step))) / 3;
      const g = gradients[`g${i}`];
      const ours = g === undefined ? 0 : inner(g, direction);
      expect(Math.abs(ours - difference), `gradient of input ${i} of ${shapes(sample)}: ${ours} against ${difference}`)
        .toBeLessThanOrEqual(2e-3 * Math.max(1, Math.abs(difference), Math.sqrt(sizeOf(x.shape))));
    }
  });
}

const inner = (a: Tensor, c: Tensor): number => toNumbers(a).reduce((sum, v, i) => sum + v * Number(c.data[i]), 0);
