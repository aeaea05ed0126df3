import type { Mode } from '../clipping/plan.ts';
import { isTwoPass } from '../clipping/plan.ts';
import type { StepLayer } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import { type Graph, type Node, int, ints, latestOpset } from '../graph/ir.ts';
import { type Tensor, int64, sizeOf, zeros } from '../tensor/tensor.ts';

export const layerKinds = ['linear', 'convolution'] as const;
export type LayerKind = (typeof layerKinds)[number];

/** One layer alone. */
export interface LayerShape {
  readonly layer: LayerKind;
  /** T: positions of an example; of a convolution the pixels of a square image. */
  readonly positions: number;
  /** Features, or channels, of the input and of the output alike. */
  readonly width: number;
}

/**
 * A model of one layer without bias whose output, squared and averaged over an example, is its loss: input [batch, T,
 * width] → [batch, T, width], or a 3×3 convolution of [batch, width, √T, √T] that keeps the size. Its output `loss` is
 * [batch].
 *
 * @throws GhostgradError where T is no square and the layer is a convolution
 */
export function layerModel({ layer, positions, width }: LayerShape): Graph {
  const side = Math.sqrt(positions);
  if (layer === 'convolution' && !Number.isInteger(side)) {
    throw new GhostgradError({
      what: 'not the number of pixels of a square image', where: '--positions', found: String(positions),
      expected: 'a square for a convolution', fix: `for example ${Math.ceil(side) ** 2}`,
    });
  }
  const isConvolution = layer === 'convolution';
  const shape = isConvolution ? [width, side, side] : [positions, width];
  const weight = isConvolution ? [width, width, 3, 3] : [width, width];
  const contraction: Pick<Node, 'op' | 'attributes'> = isConvolution
    ? { op: 'Conv', attributes: { kernel_shape: ints([3, 3]), pads: ints([1, 1, 1, 1]) } }
    : { op: 'MatMul', attributes: {} };
  const node = (op: string, inputs: readonly string[], output: string, attributes: Node['attributes'] = {}): Node =>
    ({ op, domain: '', name: output, inputs, outputs: [output], attributes });
  return {
    name: layer,
    opset: latestOpset,
    inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', ...shape] }],
    outputs: [{ name: 'loss', dtype: 'float32', shape: ['batch'] }],
    // What the weights are does not matter: a step is fed its own.
    initializers: new Map<string, Tensor>([['weight', zeros('float32', weight)], ['axes', int64(shape.map((_, i) => i + 1))]]),
    literals: new Set(['axes']),
    nodes: [
      node(contraction.op, ['input', 'weight'], 'output', contraction.attributes),
      node('Mul', ['output', 'output'], 'square'),
      node('ReduceMean', ['square', 'axes'], 'loss', { keepdims: int(0) }),
    ],
    metadata: {},
  };
}

/** What the complexity model says of a step of one layer alone. */
export interface LayerPrediction {
  /** How the norm is got, `none` without privacy. */
  readonly norm: string;
  /** Forward, norm and summed gradient: floating-point operations, memory traffic included as operations. */
  readonly flops: number;
  /** The layer's output, its gradient, what the norm needs (Bu et al. 2022, Table 2), and the summed gradient. */
  readonly MiB: number;
}

/** The complexity model's word on a step of `batch` examples: `costsOf`, whose choices `plan` holds. */
export function predictLayer({ contraction, plan }: Pick<StepLayer, 'contraction' | 'plan'>, batch: number, mode: Mode): LayerPrediction {
  const { T, d, p, groups } = contraction;
  const { norm, sum, costs } = plan;
  const gradient = sizeOf([d, p]) / groups;
  const isFormed = norm === 'instantiate' && !isTwoPass(mode);
  const summed = sum === 'product' ? costs.product : (isFormed ? 0 : costs.instantiate) + costs.weighted;
  const held = norm === 'ghost' ? (T === 1 ? 1 : 2 * groups * T * T) : norm === 'instantiate' ? gradient : 0;
  return {
    norm: norm ?? 'none',
    flops: batch * (2 * T * gradient + (norm === null ? 0 : costs[norm]) + summed),
    MiB: (4 * (batch * (2 * T * p + held) + gradient)) / 2 ** 20,
  };
}
