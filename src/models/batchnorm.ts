import { GhostgradError } from '../errors.ts';
import { type Graph, type Node, float, floatAttribute, int, showNode } from '../graph/ir.ts';
import { prune } from '../graph/prune.ts';
import { type TensorType, sizeOf } from '../tensor/tensor.ts';
import { trialTypes } from './rebatch.ts';

const mostGroups = 32;

/** Values that a group should hold for its mean and variance to mean something. */
const leastValues = 16;

/**
 * The model with every BatchNormalization, frozen or training, replaced by a GroupNormalization with the same epsilon
 * and with its scale and shift as initial values; running statistics are dropped. Each example is then normalised by
 * its own statistics: no example depends on another, and no statistics of earlier data are left in the model. It
 * computes something else than before, and has to be trained.
 *
 * There are 32 groups, or as many as the largest divisor of the channels below that, and fewer where a group would hold
 * less than 16 numbers of an example.
 *
 * @throws GhostgradError where the scale is computed, or something uses the statistics of a training BatchNormalization
 */
export function withGroupNorm(graph: Graph): Graph {
  const isBatchNorm = ({ op, domain }: Node): boolean => op === 'BatchNormalization' && domain === '';
  if (!graph.nodes.some(isBatchNorm)) return graph;
  const statistics = new Set(graph.nodes.filter(isBatchNorm).flatMap(({ outputs }) => outputs.slice(1)).filter((name) => name !== ''));
  const user = graph.nodes.find(({ inputs }) => inputs.some((name) => statistics.has(name)));
  if (user !== undefined) {
    throw new GhostgradError({
      what: 'the statistics of a BatchNormalization are used', where: showNode(user), found: 'a batch mean or variance as operand',
      expected: 'a model that uses the normalised values only', fix: 'export the model in evaluation mode',
    });
  }
  const types = trialTypes(graph);
  const outputs = graph.outputs.filter(({ name }) => !statistics.has(name));
  return prune({ ...graph, outputs, nodes: graph.nodes.map((node) => (isBatchNorm(node) ? groupNorm(graph, node, types) : node)) });
}

function groupNorm({ initializers }: Graph, node: Node, types: ReadonlyMap<string, TensorType> | undefined): Node {
  const [x = '', scale = '', shift = ''] = node.inputs;
  const channels = initializers.get(scale)?.shape[0];
  if (channels === undefined) {
    throw new GhostgradError({
      what: 'cannot convert a BatchNormalization', where: showNode(node), found: `a scale "${scale}" that the model computes`,
      expected: 'a scale that is an initializer', fix: 'export the model without folding or sharing its normalisation layers',
    });
  }
  const positions = sizeOf(types?.get(x)?.shape.slice(2) ?? [leastValues]);
  return {
    op: 'GroupNormalization', domain: '', name: node.name, inputs: [x, scale, shift], outputs: node.outputs.slice(0, 1),
    attributes: { num_groups: int(groupsOf(channels, positions)), epsilon: float(floatAttribute(node, 'epsilon', 1e-5)) },
  };
}

/** How many groups the channels of images with so many positions are normalised in. */
export function groupsOf(channels: number, positions: number): number {
  for (let groups = Math.min(mostGroups, channels); groups > 1; groups--) {
    if (channels % groups === 0 && (channels / groups) * positions >= leastValues) return groups;
  }
  return 1;
}
