import fc from 'fast-check';
import { type Attributes, type Graph, type Node, float, int, ints, latestOpset } from '../../src/graph/ir.ts';
import { type FloatTensor, type Tensor, float32, int64, sizeOf, tensor } from '../../src/tensor/tensor.ts';

/** A small deterministic generator for test data (not for privacy). */
export function testRandom(seed: number): () => number {
  let state = seed >>> 0 || 1;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

export const randomTensor = (random: () => number, shape: readonly number[], scale = 1): FloatTensor =>
  float32(Array.from({ length: sizeOf(shape) }, () => (random() * 2 - 1) * scale), shape);

/** What a random network is made of; every choice is fast-check's, so that failures shrink. */
export interface NetworkChoice {
  readonly seed: number;
  readonly size: readonly [number, number];
  readonly channels: number;
  readonly blocks: readonly Block[];
  readonly hidden: number;
  readonly classes: number;
  readonly freeze: number;
}

export type Block =
  | { readonly kind: 'conv'; readonly kernel: readonly [number, number]; readonly stride: number; readonly dilation: number; readonly pad: number; readonly groups: number; readonly out: number; readonly bias: boolean }
  | { readonly kind: 'tanh' | 'relu' | 'residual' | 'scale' }
  | { readonly kind: 'maxpool'; readonly stride: number }
  | { readonly kind: 'groupnorm' };

const block: fc.Arbitrary<Block> = fc.oneof(
  { weight: 4, arbitrary: fc.record({
    kind: fc.constant('conv' as const),
    kernel: fc.tuple(fc.integer({ min: 1, max: 3 }), fc.integer({ min: 1, max: 3 })),
    stride: fc.integer({ min: 1, max: 2 }), dilation: fc.integer({ min: 1, max: 2 }), pad: fc.integer({ min: 0, max: 1 }),
    groups: fc.constantFrom(1, 1, 2), out: fc.constantFrom(2, 4, 6), bias: fc.boolean(),
  }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constantFrom('tanh' as const, 'relu' as const, 'residual' as const, 'scale' as const) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('maxpool' as const), stride: fc.integer({ min: 1, max: 2 }) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('groupnorm' as const) }) },
);

export const networkChoice: fc.Arbitrary<NetworkChoice> = fc.record({
  seed: fc.integer({ min: 1, max: 2 ** 30 }),
  size: fc.tuple(fc.integer({ min: 4, max: 8 }), fc.integer({ min: 4, max: 8 })),
  channels: fc.constantFrom(2, 4),
  blocks: fc.array(block, { minLength: 1, maxLength: 5 }),
  hidden: fc.constantFrom(0, 5),
  classes: fc.integer({ min: 2, max: 4 }),
  freeze: fc.constantFrom(0, 0, 3),
});

export interface RandomNetwork {
  readonly model: Graph;
  readonly trainable: 'all' | readonly string[];
  readonly inputShape: readonly number[];
  readonly classes: number;
}

/** Builds the network: input [batch, channels, h, w], output `logits` [batch, classes]. Blocks that do not fit are left out. */
export function randomNetwork(choice: NetworkChoice): RandomNetwork {
  const random = testRandom(choice.seed);
  const initializers = new Map<string, Tensor>();
  const literals = new Set<string>();
  const nodes: Node[] = [];
  let [h, w] = choice.size as [number, number];
  let channels = choice.channels;
  let x = 'input';
  const weight = (name: string, shape: readonly number[], scale: number) => {
    initializers.set(name, randomTensor(random, shape, scale));
    return name;
  };
  const literal = (name: string, t: Tensor) => {
    initializers.set(name, t);
    literals.add(name);
    return name;
  };
  const node = (op: string, inputs: string[], attributes: Attributes = {}): string => {
    const out = `v${nodes.length}`;
    nodes.push({ op, domain: '', name: `${op}_${nodes.length}`, inputs, outputs: [out], attributes });
    return out;
  };
  choice.blocks.forEach((b, i) => {
    if (b.kind === 'conv') {
      const out = (n: number, k: number) => Math.floor((n + 2 * b.pad - b.dilation * (k - 1) - 1) / b.stride) + 1;
      const [oh, ow] = [out(h, b.kernel[0]), out(w, b.kernel[1])];
      if (oh < 1 || ow < 1) return;
      const fan = (channels / b.groups) * b.kernel[0] * b.kernel[1];
      const inputs = [x, weight(`conv${i}.weight`, [b.out, channels / b.groups, ...b.kernel], 1.5 / Math.sqrt(fan))];
      if (b.bias) inputs.push(weight(`conv${i}.bias`, [b.out], 0.3));
      x = node('Conv', inputs, {
        kernel_shape: ints(b.kernel), strides: ints([b.stride, b.stride]), dilations: ints([b.dilation, b.dilation]),
        pads: ints([b.pad, b.pad, b.pad, b.pad]), group: int(b.groups),
      });
      [h, w, channels] = [oh, ow, b.out];
    } else if (b.kind === 'tanh') x = node('Tanh', [x]);
    else if (b.kind === 'relu') x = node('Relu', [x]);
    else if (b.kind === 'residual') x = node('Add', [x, node('Tanh', [x])]);
    else if (b.kind === 'scale') x = node('Mul', [x, weight(`scale${i}`, [channels, 1, 1], 1)]);
    else if (b.kind === 'maxpool' && h >= 2 && w >= 2) {
      x = node('MaxPool', [x], { kernel_shape: ints([2, 2]), strides: ints([b.stride, b.stride]) });
      [h, w] = [Math.floor((h - 2) / b.stride) + 1, Math.floor((w - 2) / b.stride) + 1];
    } else if (b.kind === 'groupnorm') {
      x = node('GroupNormalization', [x, weight(`norm${i}.scale`, [channels], 1), weight(`norm${i}.bias`, [channels], 0.2)], {
        num_groups: int(2), epsilon: float(1e-3),
      });
    }
  });
  x = node('Flatten', [x]);
  let features = channels * h * w;
  if (choice.hidden > 0) {
    x = node('MatMul', [x, weight('hidden.weight', [features, choice.hidden], 1 / Math.sqrt(features))]);
    x = node('Add', [x, weight('hidden.bias', [choice.hidden], 0.2)]);
    x = node('Tanh', [x]);
    features = choice.hidden;
  }
  nodes.push({
    op: 'Gemm', domain: '', name: 'head', attributes: { transB: int(1) }, outputs: ['logits'],
    inputs: [x, weight('head.weight', [choice.classes, features], 1 / Math.sqrt(features)), weight('head.bias', [choice.classes], 0.2)],
  });
  literal('unused', float32([1]));
  const inputShape = [choice.channels, ...choice.size];
  const names = [...initializers.keys()].filter((name) => name !== 'unused');
  return {
    inputShape, classes: choice.classes,
    trainable: choice.freeze === 0 ? 'all' : names.filter((_, i) => i % choice.freeze !== 1),
    model: {
      name: 'random', opset: latestOpset, metadata: {}, nodes, initializers, literals,
      inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', ...inputShape] }],
      outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', choice.classes] }],
    },
  };
}

export const randomLabels = (random: () => number, rows: number, classes: number): Tensor<'int64'> =>
  int64(Array.from({ length: rows }, () => Math.floor(random() * classes)));

/** Rows `start … start+count-1` of a tensor. */
export function rowsOf<T extends Tensor>(t: T, start: number, count: number): T {
  const each = sizeOf(t.shape.slice(1));
  return tensor(t.dtype, [count, ...t.shape.slice(1)], t.data.slice(start * each, (start + count) * each) as never) as T;
}
