import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { modes } from '../src/clipping/plan.ts';
import { type Attributes, type Graph, type Node, float, int } from '../src/graph/ir.ts';
import { buildModel } from '../src/models/index.ts';
import { type Tensor, float32, int64 } from '../src/tensor/tensor.ts';
import { type Analysis, analyse, requireTrainable } from '../src/training/compile.ts';
import { trainableOf } from '../src/training/trainable.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(41);

/** `com.microsoft:Op`, its inputs, its outputs (with commas between), its attributes. */
type Line = readonly [op: string, inputs: readonly string[], outputs: string, attributes?: Attributes];
type Shapes = Readonly<Record<string, readonly number[]>>;

const epsilon = { epsilon: float(1e-3) };
const mean = (of: string, out: string): Line => ['ReduceMean', [of, 'last'], out, { keepdims: int(1) }];

/** From h [batch, 4, 6] to y of the same shape; scales and shifts are what starts with `g` and `s`. */
const normalisations: Readonly<Record<string, { readonly weights: Shapes; readonly lines: readonly Line[] }>> = {
  'LayerNormalization': { weights: { g: [6], s: [6] }, lines: [['LayerNormalization', ['h', 'g', 's'], 'y', epsilon]] },
  'RMSNormalization': { weights: { g: [6] }, lines: [['RMSNormalization', ['h', 'g'], 'y', epsilon]] },
  'SkipLayerNormalization, whose bias is of a layer before': {
    weights: { g: [6], s: [6], layerBias: [6] },
    lines: [['com.microsoft:SkipLayerNormalization', ['h', 'x', 'g', 's', 'layerBias'], 'y', epsilon]],
  },
  'GroupNormalization': { weights: { g: [4], s: [4] }, lines: [['GroupNormalization', ['h', 'g', 's'], 'y', { ...epsilon, num_groups: int(2) }]] },
  'a frozen BatchNormalization': {
    weights: { g: [4], s: [4] }, lines: [['BatchNormalization', ['h', 'g', 's', 'zeros', 'ones'], 'y', epsilon]],
  },
  'LayerNorm written out, as PyTorch exported it before it was an operator': {
    weights: { g: [6], s: [6] },
    lines: [
      mean('h', 'mean'), ['Sub', ['h', 'mean'], 'centred'], ['Pow', ['centred', 'two'], 'square'], mean('square', 'variance'),
      ['Add', ['variance', 'small'], 'safe'], ['Sqrt', ['safe'], 'deviation'], ['Div', ['centred', 'deviation'], 'standard'],
      ['Mul', ['standard', 'g'], 'scaled'], ['Add', ['scaled', 's'], 'y'],
    ],
  },
  'RMSNorm written out, with the scale in front': {
    weights: { g: [6] },
    lines: [
      ['Mul', ['h', 'h'], 'square'], mean('square', 'energy'), ['Add', ['energy', 'small'], 'safe'], ['Sqrt', ['safe'], 'rms'],
      ['Reciprocal', ['rms'], 'inverse'], ['Mul', ['h', 'inverse'], 'standard'], ['Mul', ['g', 'standard'], 'y'],
    ],
  },
  'GroupNorm as an InstanceNormalization of reshaped channels': {
    weights: { g: [4, 1], s: [4, 1] },
    lines: [
      ['Reshape', ['h', 'grouped'], 'groups'], ['InstanceNormalization', ['groups', 'ones2', 'zeros2'], 'standard', epsilon],
      ['Reshape', ['standard', 'back'], 'flat'], ['Mul', ['flat', 'g'], 'scaled'], ['Add', ['scaled', 's'], 'y'],
    ],
  },
};
const literals: Readonly<Record<string, Tensor>> = {
  last: int64([-1], [1]), two: float32([2], []), small: float32([1e-3], []), zeros: float32([0.1, -0.2, 0.3, 0], [4]), ones: float32([1, 2, 0.5, 1], [4]),
  ones2: float32([1, 1], [2]), zeros2: float32([0, 0], [2]), grouped: int64([0, 2, -1], [3]), back: int64([0, 4, 6], [3]),
};

/** The normalisation between two frozen products, with biases and a scale that are none of its own. */
function modelOf({ weights, lines }: (typeof normalisations)[string]): Graph {
  const all: readonly Line[] = [
    ['MatMul', ['x', 'w'], 'p'], ['Add', ['p', 'bias'], 'biased'], ['Mul', ['biased', 'layerScale'], 'h'], ...lines, ['Tanh', ['y'], 'z'],
    ['MatMul', ['z', 'w2'], 'q'], ['Add', ['q', 'bias2'], 'r'], ['Flatten', ['r'], 'f'], ['Gemm', ['f', 'head', 'headBias'], 'logits'],
  ];
  const shapes: Shapes = { w: [6, 6], bias: [6], layerScale: [6], ...weights, w2: [6, 5], bias2: [5], head: [20, 3], headBias: [3] };
  const used = new Set(all.flatMap(([, inputs]) => inputs));
  return {
    name: 'sketch', opset: 23, metadata: {}, domains: { 'com.microsoft': 1 },
    initializers: new Map<string, Tensor>([
      ...Object.entries(shapes).map(([name, shape]) => [name, randomTensor(random, shape)] as const),
      ...Object.entries(literals).filter(([name]) => used.has(name)),
    ]),
    literals: new Set(Object.keys(literals).filter((name) => used.has(name))),
    nodes: all.map(([key, inputs, outputs, attributes = {}], i): Node => ({
      op: key.slice(key.indexOf(':') + 1), domain: key.includes(':') ? key.slice(0, key.indexOf(':')) : '', name: `node${i}`,
      inputs, outputs: outputs.split(','), attributes,
    })),
    inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 4, 6] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
  };
}

/** Norms and sums of every mode against gradients of one example at a time. */
async function expectOracle(analysis: Analysis, batch: Batch): Promise<void> {
  requireTrainable(analysis);
  const truth = await oracle(analysis, batch);
  expect(Math.min(...truth.norms)).toBeGreaterThan(0);
  const threshold = truth.norms.reduce((sum, norm) => sum + norm, 0) / batch.rows;
  for (const mode of modes.filter((m) => m !== 'non-private' && m !== 'per-layer')) {
    const found = await runStep(analysis, batch, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 }, threshold);
    truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm), mode).toBeLessThanOrEqual(1e-3 * norm));
    expect(relativeDifference(found.sums, weightedSum(truth.gradients, [...found.weights])), mode).toBeLessThan(1e-4);
  }
}

describe.each(Object.entries(normalisations))('trainable: norm on %s', (_, sketch) => {
  const model = modelOf(sketch);
  const expected = Object.keys(sketch.weights).filter((name) => /^[gs]$/.test(name));

  it('is scale and shift, and nothing else', () => {
    expect([...trainableOf(model, 'norm')].sort()).toEqual([...expected].sort());
  });

  it('has the norms and gradients of the oracle in every mode', async () => {
    const batch: Batch = { rows: 5, inputs: { x: randomTensor(random, [5, 4, 6]) }, labels: randomLabels(random, 5, 3) };
    await expectOracle(analyse({ model, loss: 'cross-entropy', trainable: trainableOf(model, 'norm'), exampleShapes: { x: [4, 6] } }), batch);
  });
});

describe('trainable: norm', () => {
  it.each(['resnet18-gn', 'vit-tiny', 'bert-base', 'gpt2-small'] as const)('is what %s calls so', (name) => {
    const small = { 'bert-base': { depth: 1, width: 12, heads: 2, vocabulary: 20 }, 'gpt2-small': { depth: 1, width: 12, heads: 2, vocabulary: 20 }, 'resnet18-gn': { blocks: [1, 1], filters: 4, groups: 2 }, 'vit-tiny': { depth: 1, width: 12, heads: 2 } }[name];
    const model = buildModel({ name, ...small }, { seed: 1 });
    const isNorm = (key: string): boolean => /norm|ln_|downsample\.1/i.test(key);
    const expected = [...model.initializers.keys()].filter((key) => isNorm(key) && !model.literals?.has(key));
    expect(expected.length).toBeGreaterThan(2);
    expect([...trainableOf(model, 'norm')].sort()).toEqual(expected.sort());
  });

  it('is refused where nothing is normalised', () => {
    expect(() => trainableOf(buildModel('mlp', {}), 'norm')).toThrow('no normalisation with scale or shift');
  });
});
