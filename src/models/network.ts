import { GhostgradError } from '../errors.ts';
import { type Attributes, type Graph, type Node, float, int, ints, latestOpset, showShape } from '../graph/ir.ts';
import type { InitialDraws } from '../random/initial.ts';
import { type Shape, type Tensor, sizeOf } from '../tensor/tensor.ts';
import { type Fans, type InitialiserName, initialiser } from './initialisers.ts';

const activations = {
  relu: { op: 'Relu', attributes: {} },
  'leaky-relu': { op: 'LeakyRelu', attributes: { alpha: float(0.01) } },
  elu: { op: 'Elu', attributes: { alpha: float(1) } },
  gelu: { op: 'Gelu', attributes: {} },
  tanh: { op: 'Tanh', attributes: {} },
  sigmoid: { op: 'Sigmoid', attributes: {} },
  softplus: { op: 'Softplus', attributes: {} },
} satisfies Readonly<Record<string, { op: string; attributes: Attributes }>>;

export type Activation = keyof typeof activations;
export const activationNames = Object.keys(activations) as readonly Activation[];

interface Window {
  readonly kernel: number;
  readonly stride?: number;
  readonly padding?: number;
}

/** A chain of layers under construction. Layers' parameters are `name.weight` and `name.bias`, in PyTorch's layouts. */
export interface Network {
  /** Shape of one example's value at the end of the chain. */
  readonly shape: () => Shape;
  /** Square convolution with bias of [channels, height, width]; weight [filters, channels, kernel, kernel]. */
  readonly conv: (name: string, filters: number, window: Window) => void;
  readonly maxPool: (name: string, window: Window) => void;
  readonly activation: (name: string, kind: Activation) => void;
  /** Merges all axes of an example; nothing when there is one already. */
  readonly flatten: (name: string) => void;
  /** Affine map of a vector; weight [outputs, inputs]. */
  readonly linear: (name: string, outputs: number) => void;
  /** The finished graph; the end of the chain is its output `logits`. */
  readonly build: () => Graph;
}

/**
 * An empty chain whose graph takes `input`, float32 [batch, ...shape], with the batch left open.
 *
 * @param init how the layers' parameters are drawn
 */
export function network(name: string, input: Shape, init: InitialiserName, draws: InitialDraws): Network {
  const nodes: Node[] = [];
  const initializers = new Map<string, Tensor>();
  let value = 'input';
  let shape = input;

  const append = (
    op: string, layer: string, parameters: readonly string[], attributes: Attributes, result: Shape,
  ): void => {
    const output = `${layer}.output`;
    nodes.push({ op, domain: '', name: layer, inputs: [value, ...parameters], outputs: [output], attributes });
    [value, shape] = [output, result];
  };
  const parameters = (layer: string, weight: Shape, fans: Fans): readonly string[] => {
    const { weight: drawWeight, bias: drawBias } = initialiser(init);
    const names = [`${layer}.weight`, `${layer}.bias`] as const;
    initializers.set(names[0], drawWeight(draws, names[0], weight, fans));
    initializers.set(names[1], drawBias(draws, names[1], weight.slice(0, 1), fans));
    return names;
  };
  const image = (layer: string): readonly [number, number, number] => {
    const [channels, height, width, ...rest] = shape;
    if (channels === undefined || height === undefined || width === undefined || rest.length > 0) {
      throw misfit(name, layer, shape, 'an image, [channels, height, width]');
    }
    return [channels, height, width];
  };
  /** Positions of a window along both image axes. */
  const positions = (layer: string, { kernel, stride = 1, padding = 0 }: Window): readonly [number, number] => {
    const [, height, width] = image(layer);
    const count = (size: number): number => Math.floor((size + 2 * padding - kernel) / stride) + 1;
    if (count(height) < 1 || count(width) < 1) {
      const least = kernel - 2 * padding;
      throw misfit(name, layer, shape, `height and width of at least ${least} at this layer`, 'use a larger input');
    }
    return [count(height), count(width)];
  };
  const windowAttributes = ({ kernel, stride = 1, padding = 0 }: Window): Attributes => ({
    kernel_shape: ints([kernel, kernel]),
    strides: ints([stride, stride]),
    pads: ints([padding, padding, padding, padding]),
  });

  return {
    shape: () => shape,
    conv: (layer, filters, window) => {
      const [channels] = image(layer);
      const { kernel } = window;
      const result = [filters, ...positions(layer, window)];
      const fans = { in: channels * kernel * kernel, out: filters * kernel * kernel };
      const names = parameters(layer, [filters, channels, kernel, kernel], fans);
      append('Conv', layer, names, windowAttributes(window), result);
    },
    maxPool: (layer, window) =>
      append('MaxPool', layer, [], windowAttributes(window), [image(layer)[0], ...positions(layer, window)]),
    activation: (layer, kind) => append(activations[kind].op, layer, [], activations[kind].attributes, shape),
    flatten: (layer) => {
      if (shape.length !== 1) append('Flatten', layer, [], { axis: int(1) }, [sizeOf(shape)]);
    },
    linear: (layer, outputs) => {
      const [inputs, ...rest] = shape;
      if (inputs === undefined || rest.length > 0) throw misfit(name, layer, shape, 'a vector');
      const names = parameters(layer, [outputs, inputs], { in: inputs, out: outputs });
      append('Gemm', layer, names, { transB: int(1) }, [outputs]);
    },
    build: () => ({
      name,
      opset: latestOpset,
      inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', ...input] }],
      outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', ...shape] }],
      initializers: new Map(initializers),
      nodes: nodes.map((node) => (node.outputs[0] === value ? { ...node, outputs: ['logits'] } : node)),
      metadata: {},
    }),
  };
}

const misfit = (model: string, layer: string, shape: Shape, expected: string, fix?: string): GhostgradError =>
  new GhostgradError({
    what: 'a layer does not fit its input', where: `layer ${layer} of model ${model}`,
    found: showShape(shape), expected, fix,
  });
