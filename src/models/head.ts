import { GhostgradError } from '../errors.ts';
import { type Graph, type Node, int, showShape } from '../graph/ir.ts';
import { uniqueNames } from '../graph/order.ts';
import { prune } from '../graph/prune.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { nearest } from '../suggest.ts';
import { type FloatTensor, type Shape, sizeOf } from '../tensor/tensor.ts';
import { filled, normal, zero } from './initialisers.ts';
import { lastLayer } from './last-layer.ts';

/** How a head's weight is drawn: zeros, N(0, scale²), or U(±1/√features) as linear layers usually are. */
export const headInits = ['zero', 'near-zero', 'usual'] as const;
export type HeadInit = (typeof headInits)[number];

export interface HeadOptions {
  /** The value that the head is put on, whatever stood behind it; default: the model's only output. */
  readonly output?: string | undefined;
  readonly classes: number;
  /** Default `near-zero` (Mehta et al. 2022: what trains best under large noise). */
  readonly init?: HeadInit | undefined;
  /** Deviation of `near-zero`; default 1e-4. */
  readonly scale?: number | undefined;
  /** First value of every bias; default 0. About −log(classes) and below makes sigmoid heads start from "none of them". */
  readonly bias?: number | undefined;
}

/** Names of a head's parameters. */
export const headParameters = ['head.weight', 'head.bias'] as const;

const weights: { readonly [I in HeadInit]: (draws: InitialDraws, shape: Shape, scale: number) => FloatTensor } = {
  'zero': (draws, shape) => zero(draws, headParameters[0], shape),
  'near-zero': (draws, shape, scale) => normal(scale)(draws, headParameters[0], shape),
  'usual': (draws, shape) => draws.uniform(headParameters[0], shape, 1 / Math.sqrt(shape[1]!)),
};

/**
 * The model with a linear classifier on one of its values in place of all behind it: one output `logits`,
 * float32 [batch, classes], features of more than one axis flattened.
 *
 * @param features shape of the value for one example
 * @param seed of the weight, which is public; default: the operating system's randomness
 * @throws GhostgradError when there is no such value, or it has no features
 */
export function withHead(
  model: Graph, { output, classes, init = 'near-zero', scale = 1e-4, bias = 0 }: HeadOptions, features: Shape, seed?: number | string,
): Graph {
  const body = bodyOf(model, output);
  const [{ name }] = body.outputs as [Graph['outputs'][number]];
  const width = sizeOf(features);
  if (features.length === 0 || width === 0) {
    throw new GhostgradError({
      what: 'a head needs features', where: `head.output "${name}"`, found: `${showShape(features)} for each example`,
      expected: 'at least one axis beside the batch', fix: 'name a value before the features are averaged away',
    });
  }
  const unique = uniqueNames([
    ...body.initializers.keys(), ...body.inputs.map((input) => input.name), ...body.nodes.flatMap((node) => [node.name, ...node.outputs]),
  ]);
  const taken = headParameters.find((parameter) => unique(parameter) !== parameter);
  if (taken !== undefined) {
    throw new GhostgradError({
      what: 'the model has a head already', where: 'head', found: `"${taken}"`, expected: 'a value in front of it, to put another in its place',
      fix: behindLastLayer(body) ?? 'name the value before it: head.output',
    });
  }
  const [weight, shift] = headParameters;
  const [flat, logits] = [unique('head.features'), unique('logits')];
  const isFlat = features.length === 1;
  const nodes: Node[] = [
    ...(isFlat ? [] : [{ op: 'Flatten', domain: '', name: unique('head.flatten'), inputs: [name], outputs: [flat], attributes: { axis: int(1) } }]),
    { op: 'Gemm', domain: '', name: unique('head'), inputs: [isFlat ? name : flat, weight, shift], outputs: [logits], attributes: { transB: int(1) } },
  ];
  const draws = initialDraws(seed);
  return {
    ...body,
    nodes: [...body.nodes, ...nodes],
    outputs: [{ name: logits, dtype: 'float32', shape: ['batch', classes] }],
    initializers: new Map([
      ...body.initializers,
      [weight, weights[init](draws, [classes, width], scale)],
      [shift, filled(bias)(draws, shift, [classes])],
    ]),
  };
}

/**
 * The part of a model that a value needs, such as one that a head is put on.
 *
 * @param where what messages call the option that names it
 * @throws GhostgradError when it has several outputs and none is named, or none of the name
 */
export function bodyOf(model: Graph, output: string | undefined, where = 'head.output'): Graph {
  const [only, ...others] = model.outputs;
  const name = output ?? (others.length === 0 ? only?.name : undefined);
  if (name === undefined) {
    throw new GhostgradError({
      what: 'the model has several outputs', where, found: model.outputs.map((o) => o.name).join(', '),
      expected: 'one of them', fix: `e.g. output: ${only?.name ?? ''}`,
    });
  }
  const values = [...model.inputs.map((input) => input.name), ...model.nodes.flatMap((node) => node.outputs)];
  if (!values.includes(name)) {
    const meant = nearest(name, values);
    throw new GhostgradError({
      what: 'the model has no such value', where, found: `"${name}"`, expected: 'the name of a value in the model',
      fix: meant !== undefined ? `did you mean "${meant}"?` : where === 'head.output' ? behindLastLayer(model) : undefined,
    });
  }
  return prune(model, [name]);
}

/** How to put a head in place of a model's own last layer, where that can be told. */
export function behindLastLayer(model: Graph): string | undefined {
  const last = lastLayer(model);
  return last && `head.output: ${last.features} puts it in place of the last layer (${last.parameters.join(', ')})`;
}
