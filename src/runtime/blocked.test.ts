import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { expect, it } from 'vitest';
import { encodeModel } from '../graph/encode.ts';
import { type Graph, type TypedGraph, int, ints } from '../graph/ir.ts';
import {
  type GraphBuilder, type Value, add, graphBuilder, matmul, mul, reduceSum, reduceSumSquare, reshape, transpose, where,
} from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { type Shape, type Tensor, sizeOf, tensor, toNumbers } from '../tensor/tensor.ts';
import { blockSize, withFastConvolutions } from './blocked.ts';

type Run = (graph: Graph, feeds: Readonly<Record<string, Tensor>>) => Promise<Record<string, Tensor>>;

/** ONNX Runtime without anything of ours between it and the graph. */
const run: Run = async (graph, feeds) => {
  const session = await InferenceSession.create(encodeModel(graph), { intraOpNumThreads: 1, logSeverityLevel: 3 });
  const found = await session.run(Object.fromEntries(Object.entries(feeds).map(([name, { dtype, shape, data }]) =>
    [name, new OrtTensor(dtype as 'float32', data as Float32Array, shape)])));
  await session.release();
  return Object.fromEntries(Object.entries(found).map(([name, t]) => [name, tensor('float32', [...t.dims], t.data as Float32Array)]));
};

function uniform(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
}

const block = await blockSize(run);

/** Compares what a graph computes with what it computes in blocks, and tells the operators of the latter. */
async function compare(graph: TypedGraph, seed: number): Promise<readonly string[]> {
  const random = uniform(seed);
  const feeds = Object.fromEntries(graph.inputs.map(({ name }) => {
    const { shape } = graph.types.get(name)!;
    return [name, tensor('float32', shape, Float32Array.from({ length: sizeOf(shape) }, random))];
  }));
  const fast = withFastConvolutions(graph, block);
  const [expected, found] = [await run(graph, feeds), await run(fast, feeds)];
  for (const { name } of graph.outputs) {
    const [a, b] = [expected[name]!, found[name]!];
    expect(b.shape, name).toEqual(a.shape);
    const scale = Math.max(1e-3, ...toNumbers(a).map(Math.abs));
    const worst = toNumbers(a).reduce((most, x, i) => Math.max(most, Math.abs(x - Number(b.data[i]))), 0);
    expect(worst / scale, name).toBeLessThan(2e-5);
  }
  return fast.nodes.map(({ op, domain }) => (domain === '' ? op : `${domain}:${op}`));
}

const blocks = 'com.microsoft.nchwc';
const image = (b: GraphBuilder, name: string, shape: Shape): Value => b.input(name, { dtype: 'float32', shape });

it('a processor of today has kernels for blocks', () => {
  expect(block === undefined || block === 8 || block === 16).toBe(true);
  if (process.arch === 'x64') expect(block).toBeDefined();
});

it('knows when there are none', async () => {
  expect(await blockSize(() => Promise.reject(new Error('no such operator')))).toBeUndefined();
});

it.each(Array.from({ length: 24 }, (_, i) => i))('convolutions and their adjoints of any geometry, %i', async (seed) => {
  const random = uniform(seed * 7919 + 1);
  const pick = <T>(values: readonly T[]): T => values[Math.floor(((random() + 1) / 2) * values.length)]!;
  const b = graphBuilder(semantics);
  const [channels, filters, groups] = [pick([3, 16, 20, 32]), pick([16, 32, 48]), pick([1, 1, 1, 4])];
  const kernel = [pick([1, 2, 3]), pick([1, 3, 5])];
  const strides = pick([[1, 1], [1, 1], [2, 1], [2, 3]]);
  const dilations = pick([[1, 1], [1, 1], [2, 1]]);
  const pads = kernel.flatMap(() => [0, 1]).map((n, i) => pick([0, n, (kernel[i % 2]! - 1) * dilations[i % 2]!]));
  const grouped = channels % groups === 0 ? groups : 1;
  const attributes = { kernel_shape: ints(kernel), strides: ints(strides), dilations: ints(dilations), pads: ints(pads), group: int(grouped) };
  const w = image(b, 'w', [filters, channels / grouped, ...kernel]);
  const y = b.op('Conv', [image(b, 'x', [pick([1, 3]), channels, 7, 9]), w, image(b, 'bias', [filters])], attributes);
  const dY = b.op(pick(['Relu', 'Tanh']), [y]);
  await compare(b.build([['y', dY], ['dx', b.op('ConvTranspose', [dY, w], attributes)]]), seed);
});

it.each(Array.from({ length: 16 }, (_, i) => i))('convolutions and adjoints over few positions as products, %i', async (seed) => {
  const random = uniform(seed * 6151 + 3);
  const pick = <T>(values: readonly T[]): T => values[Math.floor(((random() + 1) / 2) * values.length)]!;
  const b = graphBuilder(semantics);
  const [channels, filters, n] = [pick([3, 16, 20]), 96, pick([1, 2, 3])];
  const kernel = pick([[3, 3], [1, 1], [3, 2], [2, 3]]);
  const strides = pick([[1, 1], [1, 1], [2, 1], [2, 3]]);
  const dilations = pick([[1, 1], [1, 1], [2, 1]]);
  const pads = [...kernel, ...kernel].map((size, i) => pick([size - 1, (size - 1) * dilations[i % 2]!]));
  const plane = strides.map((step) => Math.max(pick([1, 2, 3]), step));
  const attributes = { kernel_shape: ints(kernel), strides: ints(strides), dilations: ints(dilations), pads: ints(pads) };
  const w = image(b, 'w', [filters, channels, ...kernel]);
  const y = b.op('Relu', [b.op('Conv', [image(b, 'x', [n, channels, ...plane]), w, image(b, 'bias', [filters])], attributes)]);
  const ops = await compare(b.build([['y', y], ['dx', b.op('ConvTranspose', [y, w, image(b, 'other', [channels])], attributes)]]), seed);
  const positions = n * sizeOf(b.shape(y).slice(2));
  expect(ops.includes('MatMul')).toBe(positions * 4 <= filters);
});

it.each([
  { kernel: [3, 3], pads: [1, 1, 1, 1], plane: [8, 8] }, { kernel: [1, 1], pads: [0, 0, 0, 0], plane: [8, 8] },
  { kernel: [3, 3], pads: [1, 1, 1, 1], plane: [7, 9] }, { kernel: [2, 5], pads: [0, 2, 0, 2], plane: [9, 6] },
])('adjoints of strided convolutions by phases: $kernel on $plane', async ({ kernel, pads, plane }) => {
  const b = graphBuilder(semantics);
  const attributes = { kernel_shape: ints(kernel), strides: ints([2, 2]), pads: ints(pads) };
  const w = image(b, 'w', [32, 48, ...kernel]);
  const y = b.op('Conv', [image(b, 'x', [2, 48, ...plane]), w], attributes);
  const remainder = plane.map((n, i) => (n + pads[i]! + pads[i + 2]! - kernel[i]!) % 2);
  const dX = b.op('ConvTranspose', [y, w], { ...attributes, output_padding: ints(remainder) });
  const ops = await compare(b.build([['dx', dX], ['last', transpose(b, dX, [0, 2, 3, 1])], ['input', transpose(b, 'x', [0, 2, 3, 1])]]), 3);
  expect(ops.includes('ConvTranspose')).toBe(block === undefined);
  expect(ops.includes('Transpose')).toBe(block === undefined);
});

it('keeps in blocks what lies between convolutions, and nothing else', async () => {
  const b = graphBuilder(semantics);
  const [n, c, size] = [3, 32, 6];
  const attributes = { kernel_shape: ints([3, 3]), pads: ints([1, 1, 1, 1]) };
  const conv = (x: Value, name: string, filters: number) => b.op('Conv', [x, image(b, name, [filters, b.shape(x)[1]!, 3, 3])], attributes);
  const x = conv(image(b, 'x', [n, 3, size, size]), 'first', c);
  const y = b.op('Relu', [conv(x, 'second', c)]);
  const mask = b.op('Cast', [b.op('Cast', [y], { to: int(9) })], { to: int(1) });
  const sum = add(b, mul(b, mask, x), b.scalar(0.5));
  const rows = reshape(b, sum, [n, c * size * size]);
  const selected = where(b, b.op('Less', [image(b, 'row', [n, 1]), b.scalar(0)]), rows, b.scalar(0));
  const weighed = mul(b, b.op('Gather', [selected, b.ints([0, 2, 2])], { axis: int(0) }), image(b, 'weight', [n, 1]));
  const pieces = reshape(b, weighed, [n, 8, 1, 144]);
  const z = conv(reshape(b, weighed, [n, c, size, size]), 'third', 16);
  const ops = await compare(b.build([
    ['z', transpose(b, z, [0, 2, 3, 1])],
    ['length', reduceSum(b, reduceSumSquare(b, reshape(b, weighed, [n, 8, 144]), [2]), [1])],
    ['product', reduceSum(b, matmul(b, pieces, pieces, { transposeY: true }), [1, 2, 3])],
    ['bias', reduceSum(b, z, [0, 2, 3])],
    ['biases', reduceSum(b, reshape(b, z, [n, 1, 16, size, size]), [3, 4])],
  ]), 5);
  if (block === undefined) return;
  const count = (op: string): number => ops.filter((other) => other === op).length;
  expect([count('Conv'), count(`${blocks}:Conv`), count('Relu'), count('Transpose')]).toEqual([0, 3, 0, 0]);
  // Kernels are reordered; of images only z, to channels last.
  expect([count(`${blocks}:ReorderInput`), count(`${blocks}:ReorderOutput`)]).toEqual([3, 1]);
});

it('gives back the plain value wherever something else asks for it', async () => {
  const b = graphBuilder(semantics);
  const attributes = { kernel_shape: ints([1, 1]) };
  const y = b.op('Relu', [b.op('Conv', [image(b, 'x', [4, 16, 4, 4]), image(b, 'w', [16, 16, 1, 1])], attributes)]);
  const mask = b.op('Cast', [y], { to: int(9) });
  const flat = reshape(b, y, [4, 256]);
  // Other cuts of a row are other numbers, and another image of the same size is no convolution's input as it stands.
  const parts = reduceSum(b, reshape(b, y, [4, 4, 64]), [2]);
  const other = b.op('Conv', [reshape(b, y, [4, 16, 2, 8]), image(b, 'v', [16, 16, 1, 1])], attributes);
  await compare(b.build([
    ['channels', mul(b, y, image(b, 'scale', [1, 16, 1, 1]))], ['product', b.op('MatMul', [flat, image(b, 'm', [256, 2])])],
    ['parts', parts], ['other', other], ['total', b.op('ReduceSum', [y, b.ints([-1, -2])], { keepdims: int(0) })],
    ['mask', b.op('Cast', [b.op('Concat', [mask, mask], { axis: int(1) })], { to: int(1) })],
    ['y', y], ['columns', reduceSum(b, y, [0])], ['merged', reduceSum(b, reshape(b, y, [2, 2, 16, 4, 4]), [1])],
  ]), 9);
});
