import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { feedsFor } from '../src/bench/feeds.ts';
import { benchAnalysis, stepOptions } from '../src/bench/workload.ts';
import { defaultRho } from '../src/clipping/norm.ts';
import type { Mode } from '../src/clipping/plan.ts';
import { liveBytes } from '../src/clipping/live.ts';
import { executionOrder, inOrder } from '../src/clipping/schedule.ts';
import { stepNames } from '../src/clipping/step-graph.ts';
import type { TypedGraph } from '../src/graph/ir.ts';
import { withBareOutputs } from '../src/runtime/bare-outputs.ts';
import { onnxruntimeEngine, programOf } from '../src/runtime/node.ts';
import { analyse, compileTask } from '../src/training/compile.ts';
import { openModel } from '../src/training/model.ts';
import { temporaryFolder } from './support/temp.ts';

const fixture = (name: string): string => fileURLToPath(new URL(`fixtures/models/${name}.onnx`, import.meta.url));

function stepOf(name: string, mode: Mode): TypedGraph {
  const model = openModel(fixture(name));
  const exampleShapes = Object.fromEntries(model.inputs.filter(({ dtype }) => dtype === 'int64').map((input) => [input.name, [6]]));
  const clipping = { function: 'abadi', gamma: 0.01 } as const;
  return compileTask(analyse({ model, loss: 'cross-entropy', exampleShapes }), 4, { mode, clipping, rho: defaultRho, rowsPerUnit: 1 }).graph;
}

/** The names of the nodes in the order in which ONNX Runtime says that it ran them. */
async function executed(graph: TypedGraph): Promise<readonly string[]> {
  const { folder } = temporaryFolder();
  const session = await onnxruntimeEngine().compile(graph, { threads: 1, profile: join(folder, 'profile') });
  await session.run(feedsFor(Object.fromEntries(graph.inputs.map(({ name }) => [name, graph.types.get(name)!])), new Map()));
  await session.release();
  const [file] = readdirSync(folder);
  const events = JSON.parse(readFileSync(join(folder, file!), 'utf8')) as { cat: string; name: string; ts: number }[];
  return events.filter(({ cat, name }) => cat === 'Node' && name.endsWith('_kernel_time')).sort((a, b) => a.ts - b.ts)
    .map(({ name }) => name.replace(/_kernel_time$/, ''));
}

describe('the order of execution is the one that is planned', () => {
  const names = ['vgg11-tiny-random', 'resnet18-gn-tiny-random', 'bert-tiny-random'];
  it.each(names.flatMap((name) => (['non-private', 'book-keeping', 'mixed-ghost'] as const).map((mode): [string, Mode] => [name, mode])))('%s, %s', async (name, mode) => {
    const graph = stepOf(name, mode);
    const ran = await executed(graph);
    const planned = executionOrder(await programOf(withBareOutputs(graph))).map((node) => node.name);
    // ONNX Runtime folds, fuses and renames some; the others keep their order.
    const [known, kept] = [new Set(planned), new Set(ran)];
    const found = ran.filter((node) => known.has(node));
    expect(found.length).toBeGreaterThan(0.85 * planned.length);
    const expected = planned.filter((node) => kept.has(node));
    const next = new Map(expected.map((node, i) => [node, expected[i + 1]]));
    const torn = found.filter((node, i) => found[i + 1] !== next.get(node)).length;
    expect(torn / found.length, `${torn} of ${found.length} nodes are followed by another`).toBeLessThan(0.01);
  });
});

it('the outputs are computed in the order that is asked for', () => {
  const graph = stepOf('mlp-random', 'non-private');
  const sums = graph.outputs.map(({ name }) => name).filter((name) => name.startsWith(stepNames.sum('')));
  for (const names of [sums, sums.toReversed()]) {
    const order = executionOrder(inOrder(graph, names)).flatMap(({ outputs }) => outputs);
    expect(order.filter((name) => sums.includes(name))).toEqual(names);
  }
});

it.each(['non-private', 'book-keeping', 'per-layer'] as const)('%s: what is executed computes its sums in the order that was planned', async (mode) => {
  const sumsOf = (graph: Pick<TypedGraph, 'nodes' | 'inputs'>): readonly string[] =>
    executionOrder(graph).flatMap(({ outputs }) => outputs).filter((name) => name.startsWith(stepNames.sum('')));
  for (const name of ['vgg11-tiny-random', 'resnet18-gn-tiny-random', 'bert-tiny-random', 'vit-tiny-random']) {
    const graph = stepOf(name, mode);
    expect(sumsOf(await programOf(withBareOutputs(graph))), name).toEqual(sumsOf(graph));
  }
});

it.each(['book-keeping', 'mixed-ghost'] as const)('%s frees what a layer\'s norm is made of before it makes the next one\'s', (mode) => {
  const analysis = benchAnalysis({ model: 'vit-tiny' });
  const bytes = (of: Mode): number => liveBytes(compileTask(analysis, 8, stepOptions(of, analysis)).graph);
  // Gradients that no sum needs, and that wait for a norm, would be half as much again.
  expect(bytes(mode)).toBeLessThan(1.15 * bytes('non-private'));
});

it('makes masks of activations when the gradients that they meet are there', () => {
  const analysis = benchAnalysis({ model: 'vgg11' });
  const { graph } = compileTask(analysis, 32, stepOptions('non-private', analysis));
  const order = executionOrder(graph).map(({ op }) => op);
  const masks = order.filter((op) => op === 'Cast').length;
  expect(masks).toBeGreaterThan(8);
  // The classifier's own come before the first convolution's gradient; those of all convolutions would be held at once.
  expect(order.slice(0, order.indexOf('ConvTranspose')).filter((op) => op === 'Cast').length).toBeLessThan(masks / 2);
});

it('executes nothing that no output needs', async () => {
  const analysis = benchAnalysis({ model: 'vgg11' }, { seed: 1 });
  for (const mode of ['non-private', 'book-keeping', 'per-layer'] as const) {
    const { graph } = compileTask(analysis, 8, stepOptions(mode, analysis));
    const program = await programOf(withBareOutputs(graph));
    const read = new Set([...program.nodes.flatMap(({ inputs }) => inputs), ...program.outputs.map(({ name }) => name)]);
    expect(program.nodes.filter(({ outputs }) => !outputs.some((o) => read.has(o))).map(({ op, name }) => `${op} ${name}`), mode).toEqual([]);
  }
});
