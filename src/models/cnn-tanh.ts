import { z } from 'zod';
import type { Graph } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { network } from './network.ts';
import { activation, initialisation, width } from './options.ts';

const schema = z.strictObject({
  channels: width.default(1),
  /** Height and width of the image. */
  size: width.default(28),
  classes: width.default(10),
  /** Filters of the two convolutions. */
  filters: z.tuple([width, width]).default([16, 32]),
  /** Width of the hidden linear layer. */
  hidden: width.default(32),
  activation: activation.default('tanh'),
  init: initialisation.default('kaiming-uniform'),
});

export type CnnTanhOptions = z.input<typeof schema>;

/**
 * The small convolutional network with bounded activations that Papernot et al. (AAAI 2021) and Tramèr & Boneh
 * (ICLR 2021) train privately on MNIST; 26,010 parameters at its defaults. input [batch, channels, size, size] →
 * logits [batch, classes].
 */
export function cnnTanh(options: CnnTanhOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, options, 'model cnn-tanh');
  const { channels, size, classes, filters, hidden, activation: kind, init } = read;
  const net = network('cnn-tanh', [channels, size, size], init, draws);
  net.conv('conv1', filters[0], { kernel: 8, stride: 2, padding: 2 });
  net.activation('activation1', kind);
  net.maxPool('pool1', { kernel: 2 });
  net.conv('conv2', filters[1], { kernel: 4, stride: 2 });
  net.activation('activation2', kind);
  net.maxPool('pool2', { kernel: 2 });
  net.flatten('flatten');
  net.linear('fc1', hidden);
  net.activation('activation3', kind);
  net.linear('fc2', classes);
  return net.build();
}
