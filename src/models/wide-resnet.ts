import { z } from 'zod';
import type { Graph } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { network } from './network.ts';
import { activation, initialisation, width } from './options.ts';

const schema = z.strictObject({
  channels: width.default(3),
  /** Height and width of the image. */
  size: width.default(32),
  classes: width.default(10),
  /** Convolutions on the longest way but for the shortcuts': 6·n + 4 for n blocks in each of three stages. */
  depth: width.refine((depth) => depth >= 10 && depth % 6 === 4, 'a depth of 10, 16, 22, …').default(16),
  /** The stages have 16, 32 and 64 times as many filters. */
  widening: width.default(4),
  /** Groups of every GroupNorm; they must divide 16, the filters of the first convolution. */
  groups: width.default(16),
  activation: activation.default('relu'),
  init: initialisation.default('he-normal'),
});

export type WideResnetOptions = z.input<typeof schema>;

const filters = [16, 32, 64] as const;

/**
 * Wide ResNet (Zagoruyko & Komodakis 2016) with GroupNorm in place of BatchNorm, as De et al. (2022) train it privately,
 * but for their weight standardisation: norm and activation in front of each 3×3 convolution, shortcuts of 1×1 where the
 * shape changes. input [batch, channels, size, size] → logits [batch, classes]. Parameters `conv1.weight`,
 * `stage1.0.norm1.weight`, `stage1.0.conv1.weight`, …, `fc.weight`; convolutions have no biases.
 */
export function wideResnet(options: WideResnetOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, options, 'model wrn-16-4-gn');
  const net = network('wrn-16-4-gn', [read.channels, read.size, read.size], read.init, draws);
  const normalised = (name: string, i: number | ''): void => {
    net.groupNorm(`${name}norm${i}`, read.groups);
    net.activation(`${name}activation${i}`, read.activation);
  };
  net.conv('conv1', 16, { kernel: 3, padding: 1, bias: false });
  filters.forEach((base, stage) => {
    const wide = base * read.widening;
    for (let i = 0; i < (read.depth - 4) / 6; i++) {
      const name = `stage${stage + 1}.${i}.`;
      const stride = stage > 0 && i === 0 ? 2 : 1;
      let start = net.here();
      normalised(name, 1);
      const middle = net.here();
      if (i === 0) {
        net.conv(`${name}shortcut`, wide, { kernel: 1, stride, bias: false });
        start = net.here();
        net.goTo(middle);
      }
      net.conv(`${name}conv1`, wide, { kernel: 3, stride, padding: 1, bias: false });
      normalised(name, 2);
      net.conv(`${name}conv2`, wide, { kernel: 3, padding: 1, bias: false });
      net.add(`${name}add`, start);
    }
  });
  normalised('', '');
  net.globalPool('pool');
  net.linear('fc', read.classes);
  return net.build();
}
