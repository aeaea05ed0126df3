import { z } from 'zod';
import type { Graph } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { type Network, network } from './network.ts';
import { activation, initialisation, width } from './options.ts';

const schema = z.strictObject({
  channels: width.default(3),
  /** Height and width of the image. */
  size: width.default(32),
  classes: width.default(10),
  /** Filters of the first stage; each later one has twice as many. */
  filters: width.default(64),
  /** Groups of every GroupNorm; they must divide the filters. */
  groups: width.default(32),
  /** Residual blocks of each stage; by default those of the name. */
  blocks: z.array(width).min(1).optional(),
  activation: activation.default('relu'),
  init: initialisation.default('he-normal'),
});

export type ResnetOptions = z.input<typeof schema>;

/** Blocks of two 3×3 convolutions, or of 1×1, 3×3 and 1×1, the last four times as wide (He et al. 2016, table 1). */
const variants = {
  'resnet18-gn': { blocks: [2, 2, 2, 2], bottleneck: false },
  'resnet50-gn': { blocks: [3, 4, 6, 3], bottleneck: true },
} as const;

export type ResnetName = keyof typeof variants;

interface Block {
  readonly filters: number;
  readonly stride: number;
  readonly groups: number;
  readonly bottleneck: boolean;
  readonly activation: z.output<typeof activation>;
}

/**
 * ResNet for small images with GroupNorm in place of BatchNorm: a first convolution of 3×3 and stride 1, no max
 * pooling, the stride of a later stage in its first block's 3×3 convolution. input [batch, channels, size, size] →
 * logits [batch, classes]. Parameters are named as torchvision does (`layer1.0.conv1.weight`, `fc.weight`), the norms
 * `norm1`, …; convolutions have no biases.
 */
export function resnet(name: ResnetName, options: ResnetOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, options, `model ${name}`);
  const { channels, size, groups, activation: kind } = read;
  const { bottleneck } = variants[name];
  const net = network(name, [channels, size, size], read.init, draws);
  net.conv('conv1', read.filters, { kernel: 3, padding: 1, bias: false });
  net.groupNorm('norm1', groups);
  net.activation('activation1', kind);
  (read.blocks ?? variants[name].blocks).forEach((blocks, stage) => {
    for (let i = 0; i < blocks; i++) {
      const stride = stage > 0 && i === 0 ? 2 : 1;
      residual(net, `layer${stage + 1}.${i}`, { filters: read.filters * 2 ** stage, stride, groups, bottleneck, activation: kind });
    }
  });
  net.globalPool('pool');
  net.linear('fc', read.classes);
  return net.build();
}

/** Convolutions whose result is added to their input, which a 1×1 convolution brings to the same shape where they differ. */
function residual(net: Network, name: string, { filters, stride, groups, bottleneck, activation: kind }: Block): void {
  const start = net.here();
  const layers = bottleneck
    ? [{ filters, kernel: 1 }, { filters, kernel: 3, stride }, { filters: 4 * filters, kernel: 1 }]
    : [{ filters, kernel: 3, stride }, { filters, kernel: 3 }];
  layers.forEach(({ filters: wide, kernel, ...strided }, i) => {
    net.conv(`${name}.conv${i + 1}`, wide, { kernel, ...strided, padding: (kernel - 1) / 2, bias: false });
    net.groupNorm(`${name}.norm${i + 1}`, groups);
    if (i < layers.length - 1) net.activation(`${name}.activation${i + 1}`, kind);
  });
  const end = net.here();
  net.goTo(start);
  if (stride > 1 || start.shape[0] !== end.shape[0]) {
    net.conv(`${name}.downsample.0`, end.shape[0] ?? filters, { kernel: 1, stride, bias: false });
    net.groupNorm(`${name}.downsample.1`, groups);
  }
  net.add(`${name}.add`, end);
  net.activation(`${name}.activation${layers.length}`, kind);
}
