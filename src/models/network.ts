import { GhostgradError } from '../errors.ts';
import { type Attributes, type Graph, float, int, ints, showShape } from '../graph/ir.ts';
import type { InitialDraws } from '../random/initial.ts';
import { type Shape, sameShape, sizeOf } from '../tensor/tensor.ts';
import { type Fans, type InitialiserName, initialiser, one, zero } from './initialisers.ts';
import { graphWriter } from './writer.ts';

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

/** A place in a network: a value and the shape that it has for one example. */
export interface Place {
  readonly value: string;
  readonly shape: Shape;
}

/**
 * A chain of layers under construction, which may branch. Layers' parameters are `name.weight` and `name.bias`, in
 * PyTorch's layouts.
 */
export interface Network {
  /** Shape of one example's value at the end of the chain. */
  readonly shape: () => Shape;
  /** The end of the chain, to come back to. */
  readonly here: () => Place;
  /** Lets the chain go on from an earlier place. */
  readonly goTo: (place: Place) => void;
  /** Adds the value of a place of the same shape. */
  readonly add: (name: string, place: Place) => void;
  /** Square convolution of [channels, height, width], with bias unless told otherwise; weight [filters, channels, kernel, kernel]. */
  readonly conv: (name: string, filters: number, window: Window & { readonly bias?: boolean }) => void;
  /** Normalises the channels of each example in so many groups (epsilon 1e-5). */
  readonly groupNorm: (name: string, groups: number) => void;
  readonly maxPool: (name: string, window: Window) => void;
  /** The mean over height and width: [channels, height, width] → [channels]. */
  readonly globalPool: (name: string) => void;
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
  const g = graphWriter(name, draws);
  let value = 'input';
  let shape = input;

  const append = (op: string, layer: string, operands: readonly string[], attributes: Attributes, result: Shape): void => {
    [value, shape] = [g.node(op, layer, [value, ...operands], attributes), result];
  };
  const parameters = (layer: string, weight: Shape, fans: Fans, bias = true): readonly string[] => {
    const rule = initialiser(init);
    return [
      g.parameter(`${layer}.weight`, weight, rule.weight(fans)),
      ...(bias ? [g.parameter(`${layer}.bias`, weight.slice(0, 1), rule.bias(fans))] : []),
    ];
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
    here: () => ({ value, shape }),
    goTo: (place) => {
      ({ value, shape } = place);
    },
    add: (layer, place) => {
      if (!sameShape(place.shape, shape)) throw misfit(name, layer, place.shape, `${showShape(shape)}, to be added`);
      append('Add', layer, [place.value], {}, shape);
    },
    conv: (layer, filters, window) => {
      const [channels] = image(layer);
      const { kernel, bias } = window;
      const result = [filters, ...positions(layer, window)];
      const fans = { in: channels * kernel * kernel, out: filters * kernel * kernel };
      const names = parameters(layer, [filters, channels, kernel, kernel], fans, bias);
      append('Conv', layer, names, windowAttributes(window), result);
    },
    groupNorm: (layer, groups) => {
      const [channels] = image(layer);
      if (channels % groups !== 0) throw misfit(name, layer, shape, `a number of channels that ${groups} groups share evenly`, 'change groups or widths');
      const names = [g.parameter(`${layer}.weight`, [channels], one), g.parameter(`${layer}.bias`, [channels], zero)];
      append('GroupNormalization', layer, names, { num_groups: int(groups), epsilon: float(1e-5) }, shape);
    },
    maxPool: (layer, window) =>
      append('MaxPool', layer, [], windowAttributes(window), [image(layer)[0], ...positions(layer, window)]),
    globalPool: (layer) => {
      const [channels] = image(layer);
      append('GlobalAveragePool', layer, [], {}, [channels, 1, 1]);
      append('Flatten', `${layer}.flatten`, [], { axis: int(1) }, [channels]);
    },
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
    build: () => g.build([{ name: 'input', dtype: 'float32', shape: ['batch', ...input] }], value, shape),
  };
}

const misfit = (model: string, layer: string, shape: Shape, expected: string, fix?: string): GhostgradError =>
  new GhostgradError({
    what: 'a layer does not fit its input', where: `layer ${layer} of model ${model}`,
    found: showShape(shape), expected, fix,
  });
