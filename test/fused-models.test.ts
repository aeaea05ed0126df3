import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { readModel } from '../src/graph/file.ts';
import { type Attributes, type Graph, type Node, float, int, string } from '../src/graph/ir.ts';
import { upgrade } from '../src/graph/upgrade.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Tensor, float32, int64, sizeOf, tensor } from '../src/tensor/tensor.ts';
import { check } from '../src/training/check.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { parseExpected } from '../src/training/expected.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const fixture = (path: string): string => fileURLToPath(new URL(`fixtures/${path}`, import.meta.url));

describe('files that ONNX Runtime optimised', () => {
  it.each([
    ['bert-tiny-random', ['BiasGelu', 'FusedGemm', 'FusedMatMul']], ['vgg11-tiny-random', ['FusedConv', 'FusedGemm']],
  ])('%s has the gradients of the file it was made from', async (name, fused) => {
    const model = upgrade(readModel(fixture(`models/${name}.optimised.onnx`)));
    const operators = new Set(model.nodes.flatMap(({ op, domain }) => (domain === 'com.microsoft' ? [op] : [])));
    expect([...operators].sort()).toEqual(fused);
    const reference = parseExpected(readFileSync(fixture(`gradients/${name}.json`), 'utf8'), name);
    expect(await check(model, reference, onnxruntimeEngine())).toMatchObject({ ok: true });
  });
});

/** `com.microsoft:Op`, its inputs, its outputs (with commas between), its attributes. */
type Line = readonly [op: string, inputs: readonly string[], outputs: string, attributes?: Attributes];

interface Sketch {
  readonly opset: number;
  readonly inputs: Readonly<Record<string, { readonly dtype: 'float32' | 'int32'; readonly shape: readonly number[] }>>;
  readonly weights: Readonly<Record<string, readonly number[]>>;
  readonly literals?: Readonly<Record<string, Tensor>>;
  readonly lines: readonly Line[];
}

const random = testRandom(17);

function graphOf({ opset, inputs, weights, literals = {}, lines }: Sketch): Graph {
  const drawn = Object.entries(weights).map(([name, shape]) =>
    [name, randomTensor(random, shape, shape.length === 1 ? 1 : 2 / Math.sqrt(shape[0]!))] as const);
  return {
    name: 'sketch', opset, metadata: {}, initializers: new Map<string, Tensor>([...drawn, ...Object.entries(literals)]), literals: new Set(Object.keys(literals)),
    nodes: lines.map(([key, operands, outputs, attributes = {}], i): Node => ({
      op: key.slice(key.indexOf(':') + 1), domain: key.includes(':') ? key.slice(0, key.indexOf(':')) : '', name: `node${i}`,
      inputs: operands, outputs: outputs.split(','), attributes,
    })),
    inputs: Object.entries(inputs).map(([name, { dtype, shape }]) => ({ name, dtype, shape: ['batch', ...shape] })),
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
  };
}

/** Batches in which int32 inputs hold words 0 to 4, but `mask` 1 for a few positions in front and then 0. */
function batchOf({ inputs }: Sketch, rows: number): Batch {
  const drawn = Object.entries(inputs).map(([name, { dtype, shape }]) => {
    const full = [rows, ...shape];
    const word = (i: number): number => (name === 'mask' ? Number(i % shape[0]! < 1 + Math.floor(i / shape[0]!) % shape[0]!)
      : name === 'last' ? shape.length + i % 3 : Math.floor(random() * 5));
    return [name, dtype === 'int32' ? tensor('int32', full, Int32Array.from({ length: sizeOf(full) }, (_, i) => word(i))) : randomTensor(random, full)] as const;
  });
  return { rows, inputs: Object.fromEntries(drawn), labels: randomLabels(random, rows, 3) };
}

const small = { epsilon: float(1e-3) };
const heads = int(2);

const sketches: Readonly<Record<string, Sketch>> = {
  'an encoder as the optimizer for transformers writes it': {
    opset: 21, inputs: { ids: { dtype: 'int32', shape: [4] }, mask: { dtype: 'int32', shape: [4] } },
    weights: {
      words: [5, 6], positions: [7, 6], g0: [6], b0: [6], qkv: [6, 18], qkvBias: [18], out: [6, 6], outBias: [6], g1: [6], b1: [6],
      up: [6, 8], upBias: [8], down: [8, 6], downBias: [6], g2: [6], b2: [6], pool: [6, 6], poolBias: [6], head: [6, 3], headBias: [3],
    },
    literals: { first: int64([0], []) },
    lines: [
      ['com.microsoft:EmbedLayerNormalization', ['ids', '', 'words', 'positions', '', 'g0', 'b0', 'mask'], 'e,count', { ...small, mask_index_type: int(1) }],
      ['com.microsoft:Attention', ['e', 'qkv', 'qkvBias', 'mask'], 'a', { num_heads: heads }],
      ['MatMul', ['a', 'out'], 'o'], ['com.microsoft:SkipLayerNormalization', ['o', 'e', 'g1', 'b1', 'outBias'], 'n1', small],
      ['MatMul', ['n1', 'up'], 'u'], ['com.microsoft:BiasGelu', ['u', 'upBias'], 'v'], ['MatMul', ['v', 'down'], 'd'],
      ['com.microsoft:SkipLayerNormalization', ['d', 'n1', 'g2', 'b2', 'downBias'], 'n2', small],
      ['Gather', ['n2', 'first'], 'cls', { axis: int(1) }],
      ['com.microsoft:FusedGemm', ['cls', 'pool', 'poolBias'], 'p', { activation: string('Tanh') }], ['Gemm', ['p', 'head', 'headBias'], 'logits'],
    ],
  },
  'cross-attention with biases of the projections in one vector': {
    opset: 21, inputs: { x: { dtype: 'float32', shape: [3, 4] }, y: { dtype: 'float32', shape: [5, 4] } },
    weights: { q: [4, 4], k: [4, 4], v: [4, 4], bias: [12], relative: [1, 2, 3, 5], head: [12, 3], headBias: [3] },
    lines: [
      ['MatMul', ['x', 'q'], 'xq'], ['MatMul', ['y', 'k'], 'yk'], ['MatMul', ['y', 'v'], 'yv'],
      ['com.microsoft:MultiHeadAttention', ['xq', 'yk', 'yv', 'bias', '', 'relative'], 'a', { num_heads: heads }],
      ['Flatten', ['a'], 'f'], ['Gemm', ['f', 'head', 'headBias'], 'logits'],
    ],
  },
  'a decoder as the tools for language models write it': {
    opset: 21, inputs: { ids: { dtype: 'int32', shape: [4] }, last: { dtype: 'int32', shape: [] } },
    weights: { words: [5, 32], g0: [32], qkv: [32, 64], out: [32, 32], g1: [32], gate: [32, 8], up: [32, 8], down: [8, 32], g2: [32], sink: [2], head: [32, 3], headBias: [3] },
    literals: { total: tensor('int32', [1], Int32Array.of(4)), cos: angles(Math.cos), sin: angles(Math.sin), final: int64([3], []) },
    lines: [
      ['Gather', ['words', 'ids'], 'e'], ['SimplifiedLayerNormalization', ['e', 'g0'], 'n0', { axis: int(-1) }], ['MatMul', ['n0', 'qkv'], 'p'],
      ['com.microsoft:GroupQueryAttention', ['p', '', '', '', '', 'last', 'total', 'cos', 'sin', '', '', 'sink'], 'a', { num_heads: heads, kv_num_heads: int(1), do_rotary: int(1) }],
      ['MatMul', ['a', 'out'], 'o'], ['com.microsoft:SkipSimplifiedLayerNormalization', ['e', 'o', 'g1'], 'n1,,,s1', small],
      ['MatMul', ['n1', 'gate'], 'gt'], ['com.microsoft:QuickGelu', ['gt'], 'ga', { alpha: float(1) }], ['MatMul', ['n1', 'up'], 'u'], ['Mul', ['ga', 'u'], 'm'],
      ['MatMul', ['m', 'down'], 'd'], ['com.microsoft:SkipSimplifiedLayerNormalization', ['s1', 'd', 'g2'], 'n2', small],
      ['Gather', ['n2', 'final'], 'z', { axis: int(1) }], ['Gemm', ['z', 'head', 'headBias'], 'logits'],
    ],
  },
  'a decoder in opset 23': {
    opset: 23, inputs: { ids: { dtype: 'int32', shape: [4] } },
    weights: { words: [5, 8], g0: [8], q: [8, 8], k: [8, 4], v: [8, 4], out: [8, 8], g1: [8], head: [32, 3], headBias: [3] },
    literals: { cos: angles(Math.cos, 2), sin: angles(Math.sin, 2), positions: int64([0, 1, 2, 3], [1, 4]) },
    lines: [
      ['Gather', ['words', 'ids'], 'e'], ['RMSNormalization', ['e', 'g0'], 'n0', small],
      ['MatMul', ['n0', 'q'], 'xq'], ['MatMul', ['n0', 'k'], 'xk'], ['MatMul', ['n0', 'v'], 'xv'],
      ['RotaryEmbedding', ['xq', 'cos', 'sin', 'positions'], 'rq', { num_heads: heads }], ['RotaryEmbedding', ['xk', 'cos', 'sin', 'positions'], 'rk', { num_heads: int(1) }],
      ['Attention', ['rq', 'rk', 'xv'], 'a', { q_num_heads: heads, kv_num_heads: int(1), is_causal: int(1) }],
      ['MatMul', ['a', 'out'], 'o'], ['Add', ['o', 'e'], 's'], ['RMSNormalization', ['s', 'g1'], 'n1', small], ['Gelu', ['n1'], 'h'],
      ['Flatten', ['h'], 'f'], ['Gemm', ['f', 'head', 'headBias'], 'logits'],
    ],
  },
};

/** A table of angles [5, half]. */
function angles(wave: (x: number) => number, half = 8): Tensor {
  return float32(Array.from({ length: 5 * half }, (_, i) => wave(Math.floor(i / half) / 3 ** (i % half))), [5, half]);
}

describe('private steps of models in fused operators', () => {
  const cases = Object.keys(sketches).flatMap((name) => (['book-keeping', 'ghost', 'instantiate'] as const).map((mode) => [name, mode] as const));

  it.each(cases)('%s, %s: norms and clipped sums are those of one example at a time', async (name, mode) => {
    const sketch = sketches[name]!;
    const model = graphOf(sketch);
    const analysis = analyse({ model: upgrade(model), loss: 'cross-entropy' });
    requireTrainable(analysis);
    expect([...analysis.parameters].sort()).toEqual(Object.keys(sketch.weights).sort());
    const batch = batchOf(sketch, 5);
    const alone = await oracle(analysis, batch);
    const threshold = [...alone.norms].sort((a, b) => a - b)[2]!;
    const options = { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 } as const;
    const { norms, weights, sums } = await runStep(analysis, batch, options, threshold);
    alone.norms.forEach((norm, i) => expect(norms[i]! / norm).toBeCloseTo(1, 3));
    expect(relativeDifference(sums, weightedSum(alone.gradients, Array.from(weights)))).toBeLessThan(1e-4);
  });
});

it.each(['a decoder as the tools for language models write it', 'a decoder in opset 23'])('tables of angles are settings, not parameters: %s', (name) => {
  const sketch = sketches[name]!;
  const graph = graphOf(sketch);
  const asStored = { ...graph, literals: new Set([...graph.literals ?? []].filter((literal) => literal !== 'cos' && literal !== 'sin')) };
  expect([...analyse({ model: upgrade(asStored), loss: 'cross-entropy' }).parameters].sort()).toEqual(Object.keys(sketch.weights).sort());
});
