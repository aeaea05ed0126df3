import { describe, expect, it } from 'vitest';
import type { Node } from '../graph/ir.ts';
import { buildModel } from '../models/index.ts';
import { type Tensor, float32, sizeOf } from '../tensor/tensor.ts';
import { type Grouping, partitionOf } from './groups.ts';

const node = (op: string, inputs: readonly string[], output: string, name = output): Node =>
  ({ op, domain: '', name, inputs, outputs: [output], attributes: {} });

const zeros = (shape: readonly number[]): Tensor => float32(new Float32Array(sizeOf(shape)), shape);

function model(shapes: Readonly<Record<string, readonly number[]>>, nodes: readonly Node[]) {
  const initializers = new Map(Object.entries(shapes).map(([name, shape]) => [name, zeros(shape)]));
  return { graph: { nodes, initializers }, parameters: Object.keys(shapes) };
}

/** Two blocks as PyTorch exports them: matrices lose their names, biases are added by a node of their own. */
const exported = model({
  'bert.embeddings.word.weight': [5, 4], 'bert.encoder.layer.0.query.bias': [4], 'onnx::MatMul_7': [4, 4],
  'bert.encoder.layer.0.norm.weight': [4], 'bert.encoder.layer.0.norm.bias': [4],
  'bert.encoder.layer.1.query.bias': [4], 'onnx::MatMul_9': [4, 4], 'head.weight': [2, 4], 'head.bias': [2],
}, [
  node('Gather', ['bert.embeddings.word.weight', 'ids'], 'e'),
  node('MatMul', ['e', 'onnx::MatMul_7'], 'm0', '/encoder/layer.0/query/MatMul'), node('Add', ['bert.encoder.layer.0.query.bias', 'm0'], 'q0'),
  node('Add', ['q0', 'e'], 'r0'), node('LayerNormalization', ['r0', 'bert.encoder.layer.0.norm.weight', 'bert.encoder.layer.0.norm.bias'], 'n0'),
  node('MatMul', ['n0', 'onnx::MatMul_9'], 'm1', '/encoder/layer.1/query/MatMul'), node('Add', ['bert.encoder.layer.1.query.bias', 'm1'], 'q1'),
  node('Gemm', ['q1', 'head.weight', 'head.bias'], 'logits'),
]);

const of = ({ graph, parameters }: typeof exported, grouping: Grouping) =>
  Object.fromEntries(partitionOf(grouping, graph, parameters).map((group) => [group.name, group.parameters]));

describe('clipping groups', () => {
  it('flat and per parameter', () => {
    expect(of(exported, { style: 'flat' })).toEqual({ all: exported.parameters });
    expect(of(exported, { style: 'per-parameter' })).toEqual(Object.fromEntries(exported.parameters.map((name) => [name, [name]])));
  });

  it('per layer: by name, by node, and a bias with what it is added to', () => {
    expect(of(exported, { style: 'per-layer' })).toEqual({
      'bert.embeddings.word': ['bert.embeddings.word.weight'],
      'bert.encoder.layer.0.query': ['bert.encoder.layer.0.query.bias', 'onnx::MatMul_7'],
      'bert.encoder.layer.0.norm': ['bert.encoder.layer.0.norm.weight', 'bert.encoder.layer.0.norm.bias'],
      'bert.encoder.layer.1.query': ['bert.encoder.layer.1.query.bias', 'onnx::MatMul_9'],
      'head': ['head.weight', 'head.bias'],
    });
    // Names without components: what one node takes, and a vector that meets what a node just made.
    const bare = model({ w: [3, 2], b: [2], v: [2, 2], c: [2], free: [2] }, [
      node('MatMul', ['x', 'w'], 'm'), node('Add', ['m', 'b'], 'a'), node('Tanh', ['a'], 't'),
      node('Gemm', ['t', 'v', 'c'], 'g'), node('Tanh', ['g'], 'u'), node('Mul', ['u', 'free'], 'y'),
    ]);
    expect(of(bare, { style: 'per-layer' })).toEqual({ w: ['w', 'b'], v: ['v', 'c'], free: ['free'] });
  });

  it('per block', () => {
    const blocks = of(exported, { style: 'per-block' });
    expect(Object.keys(blocks)).toEqual(['bert', 'bert.encoder.layer.0', 'bert.encoder.layer.1', 'head']);
    expect(blocks['bert.encoder.layer.0']).toHaveLength(4);
    const names = (...parameters: string[]) => Object.keys(of(model(Object.fromEntries(parameters.map((name) => [name, [1]])), []), { style: 'per-block' }));
    expect(names('conv1.weight', 'layer1.0.conv1.weight', 'layer1.0.conv2.weight', 'layer2.0.conv1.weight', 'fc.weight')).toEqual(['conv1', 'layer1.0', 'layer2.0', 'fc']);
    expect(names('encoder.layers.encoder_layer_3.ln.weight', 'encoder.layers.encoder_layer_3.mlp.0.weight')).toContain('encoder.layers.encoder_layer_3');
    expect(names('wte.weight', 'h.0.ln_1.weight', 'h.0.attn.c_attn.weight', 'h.11.ln_1.weight')).toEqual(['wte', 'h.0', 'h.11']);
  });

  it.each(['per-layer', 'per-block', 'per-parameter'] as const)('%s is a partition of every builder\'s parameters', (style) => {
    for (const name of ['cnn-tanh', 'resnet18-gn', 'vit-tiny'] as const) {
      const graph = buildModel(name, { seed: 1 });
      const parameters = [...graph.initializers.keys()].filter((key) => graph.literals?.has(key) !== true);
      const groups = partitionOf({ style }, graph, parameters);
      expect(groups.flatMap((group) => group.parameters).sort()).toEqual([...parameters].sort());
      expect(new Set(groups.map((group) => group.name)).size).toBe(groups.length);
      expect(groups.length).toBeGreaterThan(1);
    }
  });

  it('by name, the last taking the rest', () => {
    expect(of(exported, { style: 'groups', groups: { matrices: ['onnx::*', 'head.weight'], rest: ['*'] } })).toEqual({
      matrices: ['onnx::MatMul_7', 'onnx::MatMul_9', 'head.weight'],
      rest: exported.parameters.filter((name) => !name.startsWith('onnx') && name !== 'head.weight'),
    });
  });

  it.each<[Grouping, RegExp]>([
    [{ style: 'groups', groups: { a: ['head.wieght'], rest: ['*'] } }, /"head\.wieght" matches no parameter.*did you mean "head\.weight"/s],
    [{ style: 'groups', groups: { a: ['head.*'], b: ['*.bias'], rest: ['*'] } }, /"head\.bias" is in two clipping groups.*"a" and "b"/s],
    [{ style: 'groups', groups: { a: ['head.*'] } }, /"bert\.embeddings\.word\.weight" is in no clipping group.*last group have the pattern "\*"/s],
    [{ style: 'groups', groups: { all: ['head.*', 'bert.*', 'onnx::*'], rest: ['*'] } }, /"rest" has no parameters/],
    [{ style: 'groups' }, /in no clipping group/],
    [{ style: 'flat', groups: { a: ['*'] } }, /named, but not used/],
    [{ style: 'per-device' }, /in no clipping group/],
    [{ style: 'per-device', groups: { gpu0: ['head.weigth'] } }, /did you mean "head\.weight"/],
    [{ style: 'per-device', groups: { gpu0: ['head.weight'] } }, /in no clipping group/],
  ])('refuses %j', (grouping, message) => {
    expect(() => of(exported, grouping)).toThrow(message);
  });

  it('per device, as assigned', () => {
    const inBert = exported.parameters.filter((name) => name.startsWith('bert.'));
    const others = exported.parameters.filter((name) => !inBert.includes(name));
    expect(of(exported, { style: 'per-device', groups: { one: ['bert.*'], two: ['*'] } })).toEqual({ one: inBert, two: others });
  });
});
