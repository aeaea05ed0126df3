import { describe, expect, it } from 'vitest';
import { type Graph, type Node, float, ints, latestOpset } from '../graph/ir.ts';
import { specialise } from '../graph/specialise.ts';
import { semantics } from '../ops/table.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { type Tensor, float32 } from '../tensor/tensor.ts';
import { withFoldedBatchNorm } from './fold-batchnorm.ts';

const wave = (shape: readonly number[], shift = 0) =>
  float32(Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => Math.sin(i + shift)), shape);
const node = (op: string, inputs: string[], output: string, attributes = {}): Node =>
  ({ op, domain: '', name: output, inputs, outputs: [output], attributes });

const conv = { kernel_shape: ints([3, 3]), pads: ints([1, 1, 1, 1]) };
const model: Graph = {
  name: 'net', opset: latestOpset, metadata: {},
  inputs: [{ name: 'x', dtype: 'float32', shape: [2, 3, 5, 5] }], outputs: [{ name: 'y', dtype: 'float32', shape: [2, 4, 5, 5] }],
  nodes: [
    node('Conv', ['x', 'w1', 'b1'], 'c1', conv), node('BatchNormalization', ['c1', 'g', 'h', 'm', 'v'], 'n1', { epsilon: float(1e-3) }),
    node('Relu', ['n1'], 'r1'), node('Conv', ['r1', 'w2'], 'c2', conv), node('BatchNormalization', ['c2', 'g', 'h', 'm', 'v'], 'y'),
  ],
  initializers: new Map<string, Tensor>(Object.entries({
    w1: wave([4, 3, 3, 3]), b1: wave([4], 1), w2: wave([4, 4, 3, 3], 2), g: wave([4], 3), h: wave([4], 4), m: wave([4], 5), v: float32([0.5, 1, 2, 3]),
  })),
};
const typed = specialise(model, {}, semantics);

async function outputOf(graph: typeof typed): Promise<number[]> {
  const session = await onnxruntimeEngine().compile(graph);
  const { outputs } = await session.run({ x: wave([2, 3, 5, 5], 9) });
  await session.release();
  return [...outputs['y']!.data as Float32Array];
}

describe('folding frozen BatchNorm', () => {
  it('leaves no normalisation, with and without a bias, and computes the same', async () => {
    const folded = withFoldedBatchNorm(typed, new Set());
    expect(folded.nodes.map(({ op }) => op)).toEqual(['Conv', 'Relu', 'Conv']);
    const [found, expected] = [await outputOf(folded), await outputOf(typed)];
    found.forEach((value, i) => { expect(value).toBeCloseTo(expected[i]!, 4); });
  });

  it('leaves what is trained, and what something else needs', () => {
    const ops = (graph: typeof typed, trained: string[]) => withFoldedBatchNorm(graph, new Set(trained)).nodes.map(({ op }) => op).join(' ');
    expect(ops(typed, ['w2'])).toBe('Conv Relu Conv BatchNormalization');
    expect(ops(typed, ['g'])).toBe('Conv BatchNormalization Relu Conv BatchNormalization');
    expect(ops(typed, ['b1', 'w2'])).toBe('Conv BatchNormalization Relu Conv BatchNormalization');
    const both = { ...typed, outputs: [...typed.outputs, { name: 'c1', dtype: 'float32' as const, shape: [2, 4, 5, 5] }] };
    expect(ops(both, [])).toBe('Conv BatchNormalization Relu Conv');
    const training = { ...typed, nodes: typed.nodes.map((n) => ({ ...n, attributes: { ...n.attributes, ...(n.op !== 'Conv' && { training_mode: { type: 'int' as const, value: 1 } }) } })) };
    expect(withFoldedBatchNorm(training, new Set())).toBe(training);
  });
});
