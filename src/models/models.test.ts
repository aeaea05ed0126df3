import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { verify } from '../graph/verify.ts';
import { noDraws } from '../random/initial.ts';
import { type Tensor, sizeOf, toNumbers } from '../tensor/tensor.ts';
import { initialiserNames } from './initialisers.ts';
import { activationNames } from './network.ts';
import { type ModelSpec, buildModel, isModelName, modelNames } from './registry.ts';

const parameters = (graph: Graph): number =>
  [...graph.initializers.values()].reduce((sum, t) => sum + sizeOf(t.shape), 0);
const shapes = (graph: Graph): unknown =>
  Object.fromEntries([...graph.initializers].map(([name, { shape }]) => [name, shape]));
const parameter = (graph: Graph, name: string): Tensor => {
  const found = graph.initializers.get(name);
  if (found === undefined) throw new Error(`no parameter ${name}`);
  return found;
};
/** Root mean square, and the largest magnitude. */
const spread = (t: Tensor): { rms: number; largest: number } => {
  const values = toNumbers(t);
  const squares = values.reduce((sum, x) => sum + x * x, 0);
  return { rms: Math.sqrt(squares / values.length), largest: Math.max(...values.map(Math.abs)) };
};

describe('builders', () => {
  it('cnn-tanh is the network of 26,010 parameters', () => {
    const graph = buildModel('cnn-tanh');
    expect(parameters(graph)).toBe(26_010);
    expect(graph.nodes.map((n) => n.op)).toEqual(
      ['Conv', 'Tanh', 'MaxPool', 'Conv', 'Tanh', 'MaxPool', 'Flatten', 'Gemm', 'Tanh', 'Gemm'],
    );
    expect(graph.inputs).toEqual([{ name: 'input', dtype: 'float32', shape: ['batch', 1, 28, 28] }]);
    expect(graph.outputs).toEqual([{ name: 'logits', dtype: 'float32', shape: ['batch', 10] }]);
    expect(shapes(graph)).toEqual({
      'conv1.weight': [16, 1, 8, 8], 'conv1.bias': [16], 'conv2.weight': [32, 16, 4, 4], 'conv2.bias': [32],
      'fc1.weight': [32, 512], 'fc1.bias': [32], 'fc2.weight': [10, 32], 'fc2.bias': [10],
    });
  });

  it('cnn-tanh takes other images', () => {
    const graph = buildModel({
      name: 'cnn-tanh', channels: 3, size: 32, classes: 4, filters: [8, 12], hidden: 20, activation: 'relu',
    });
    expect(shapes(graph))
      .toMatchObject({ 'conv1.weight': [8, 3, 8, 8], 'fc1.weight': [20, 12 * 25], 'fc2.weight': [4, 20] });
    expect(graph.nodes.some((n) => n.op === 'Tanh')).toBe(false);
  });

  it('VGGs have the published sizes: features as Simonyan & Zisserman, one linear layer', () => {
    const features = { vgg11: 9_220_480, vgg13: 9_404_992, vgg16: 14_714_688, vgg19: 20_024_384 };
    for (const name of ['vgg11', 'vgg16', 'vgg19', 'vgg13'] as const) {
      const graph = buildModel({ name, classes: 100, init: 'zeros' });
      expect(parameters(graph)).toBe(features[name] + 512 * 100 + 100);
      expect(graph.nodes.filter((n) => n.op === 'Conv')).toHaveLength(Number(name.slice(3)) - 3);
      expect(graph.nodes.filter((n) => n.op === 'MaxPool')).toHaveLength(5);
    }
    const deep = buildModel({ name: 'vgg11', init: 'zeros', hidden: [7] });
    expect([...deep.initializers.keys()].filter((name) => name.endsWith('weight'))).toEqual([
      ...[0, 3, 6, 8, 11, 13, 16, 18].map((i) => `features.${i}.weight`), 'classifier.0.weight', 'classifier.2.weight',
    ]);
  });

  it('mlp takes vectors and images', () => {
    const vector = buildModel({ name: 'mlp', input: 784, hidden: [5, 6], classes: 3 });
    expect(vector.inputs[0]?.shape).toEqual(['batch', 784]);
    expect(vector.nodes.map((n) => n.op)).toEqual(['Gemm', 'Relu', 'Gemm', 'Relu', 'Gemm']);
    expect(shapes(vector)).toMatchObject({
      'hidden.0.weight': [5, 784], 'hidden.1.weight': [6, 5], 'classifier.weight': [3, 6], 'classifier.bias': [3],
    });
    expect(buildModel({ name: 'mlp', hidden: [] }).nodes.map((n) => n.op)).toEqual(['Flatten', 'Gemm']);
  });

  it('every model is a sound graph with unique node names', () => {
    for (const name of modelNames) {
      const graph = buildModel(name, { draws: noDraws });
      expect(() => verify(graph)).not.toThrow();
      expect(new Set(graph.nodes.map((n) => n.name)).size).toBe(graph.nodes.length);
    }
  });
});

describe('initial weights', () => {
  // 200 × 300: fans in 300 and out 200; 60,000 draws put the root mean square within 2 % of the deviation.
  const layer = (init: (typeof initialiserNames)[number]): Graph =>
    buildModel({ name: 'mlp', input: 300, hidden: [200], init }, { seed: 1 });

  it('have the variance that each rule states, and zero biases but for the default', () => {
    const deviation = {
      'kaiming-uniform': 1 / Math.sqrt(3 * 300),
      'xavier-uniform': Math.sqrt(2 / 500), 'xavier-normal': Math.sqrt(2 / 500),
      'he-uniform': Math.sqrt(2 / 300), 'he-normal': Math.sqrt(2 / 300), zeros: 0,
    };
    for (const init of initialiserNames) {
      const graph = layer(init);
      const { rms, largest } = spread(parameter(graph, 'hidden.0.weight'));
      expect(Math.abs(rms - deviation[init])).toBeLessThanOrEqual(0.02 * deviation[init]);
      if (init.endsWith('uniform')) expect(largest).toBeLessThanOrEqual(Math.sqrt(3) * deviation[init]);
      if (init.endsWith('normal')) expect(largest).toBeGreaterThan(3 * deviation[init]);
      const bias = spread(parameter(graph, 'hidden.0.bias'));
      if (init === 'kaiming-uniform') expect(bias.rms).toBeCloseTo(deviation[init], 2);
      else expect(bias.largest).toBe(0);
    }
  });

  it("count a convolution's fan over its window", () => {
    expect(spread(parameter(buildModel('cnn-tanh', { seed: 2 }), 'conv2.weight')).largest).toBeLessThanOrEqual(1 / 16);
    const { rms } = spread(parameter(buildModel({ name: 'cnn-tanh', init: 'he-normal' }, { seed: 2 }), 'conv2.weight'));
    expect(rms / Math.sqrt(2 / 256)).toBeCloseTo(1, 1);
  });

  it('repeat with the seed, and differ without', () => {
    const weights = (seed?: number): readonly number[] =>
      toNumbers(parameter(buildModel('cnn-tanh', { seed }), 'fc1.weight'));
    expect(weights(3)).toEqual(weights(3));
    expect(weights(3)).not.toEqual(weights(4));
    expect(weights()).not.toEqual(weights());
  });
});

describe('buildModel refuses', () => {
  const build = (spec: unknown) => (): unknown => buildModel(spec as ModelSpec);

  it('unknown names and options, with the nearest', () => {
    expect(build('vgg1')).toThrow(/unknown model "vgg1"[^]*did you mean "vgg11"/);
    expect(build('cnn_tanh')).toThrow(/did you mean "cnn-tanh"/);
    expect(build('resnet50')).toThrow(/unknown model "resnet50"[^]*one of mlp, cnn-tanh, vgg11/);
    expect(build({ name: 'mlp', hiden: [3] })).toThrow(/unknown option "hiden" \(model mlp\)[^]*did you mean "hidden"/);
    expect(build({ classes: 3 })).toThrow(/a model needs a name/);
    expect(isModelName('toString')).toBe(false);
  });

  it('impossible values and sizes', () => {
    expect(build({ name: 'mlp', classes: 0 })).toThrow(/model mlp: classes[^]*more than 0/);
    expect(build({ name: 'mlp', activation: 'tanhh' })).toThrow(new RegExp(activationNames.join(', ')));
    expect(build({ name: 'cnn-tanh', filters: [3] })).toThrow(GhostgradError);
    expect(build({ name: 'vgg11', size: 16 })).toThrow(/layer features.20 of model vgg11[^]*found: +\[512, 1, 1\]/);
  });
});
