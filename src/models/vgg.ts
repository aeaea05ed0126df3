import { z } from 'zod';
import type { Graph } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { network } from './network.ts';
import { activation, initialisation, width } from './options.ts';

const schema = z.strictObject({
  channels: width.default(3),
  /** Height and width of the image; at least 32, since five poolings halve it. */
  size: width.default(32),
  classes: width.default(10),
  /** Widths of hidden layers between the features and the logits; none is usual at 32 × 32. */
  hidden: z.array(width).default([]),
  activation: activation.default('relu'),
  /** He's rule by default: without normalisation layers, PyTorch's default draws let the signal die out in depth. */
  init: initialisation.default('he-normal'),
});

export type VggOptions = z.input<typeof schema>;

/** 3×3 convolutions in each of five stages, max pooling after each (Simonyan & Zisserman 2015, columns A, B, D, E). */
const stages = {
  vgg11: [1, 1, 2, 2, 2],
  vgg13: [2, 2, 2, 2, 2],
  vgg16: [2, 2, 3, 3, 3],
  vgg19: [2, 2, 4, 4, 4],
} as const;
const filters = [64, 128, 256, 512, 512] as const;

export type VggName = keyof typeof stages;

/**
 * VGG without BatchNorm for small images: input [batch, channels, size, size] → logits [batch, classes]. Layers are
 * numbered as torchvision does: `features.0`, `features.3`, …, then `classifier`, or `classifier.0`, … with hidden
 * layers.
 */
export function vgg(name: VggName, options: VggOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const { channels, size, classes, hidden, activation: kind, init } = parseWith(schema, options, `model ${name}`);
  const net = network(name, [channels, size, size], init, draws);
  let index = 0;
  stages[name].forEach((convolutions, stage) => {
    for (let i = 0; i < convolutions; i++) {
      net.conv(`features.${index++}`, filters[stage] ?? 512, { kernel: 3, padding: 1 });
      net.activation(`features.${index++}`, kind);
    }
    net.maxPool(`features.${index++}`, { kernel: 2, stride: 2 });
  });
  net.flatten('flatten');
  hidden.forEach((features, i) => {
    net.linear(`classifier.${2 * i}`, features);
    net.activation(`classifier.${2 * i + 1}`, kind);
  });
  net.linear(hidden.length === 0 ? 'classifier' : `classifier.${2 * hidden.length}`, classes);
  return net.build();
}
