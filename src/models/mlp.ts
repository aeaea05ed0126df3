import { z } from 'zod';
import type { Graph } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { network } from './network.ts';
import { activation, initialisation, width } from './options.ts';

const schema = z.strictObject({
  /** Features of a vector, or the shape of an example, which is flattened. */
  input: z.union([width, z.array(width).min(1)]).default([1, 28, 28]),
  /** Widths of the hidden layers. */
  hidden: z.array(width).default([256, 256]),
  classes: width.default(10),
  activation: activation.default('relu'),
  init: initialisation.default('kaiming-uniform'),
});

export type MlpOptions = z.input<typeof schema>;

/**
 * A multilayer perceptron: input [batch, ...input] → logits [batch, classes]. Layers `hidden.0`, `hidden.1`, …,
 * `classifier`.
 */
export function mlp(options: MlpOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const { input, hidden, classes, activation: kind, init } = parseWith(schema, options, 'model mlp');
  const net = network('mlp', typeof input === 'number' ? [input] : input, init, draws);
  net.flatten('flatten');
  hidden.forEach((features, i) => {
    net.linear(`hidden.${i}`, features);
    net.activation(`activation.${i}`, kind);
  });
  net.linear('classifier', classes);
  return net.build();
}
