import { GhostgradError } from '../errors.ts';
import type { Graph, Node } from '../graph/ir.ts';
import { headParameters } from '../models/head.ts';
import { entryOf, hasOperator } from '../ops/table.ts';

/** What of a model is trained: all parameters, those of its last layer, its biases (BiTFiT), or names and patterns of names. */
export type Trainable = 'all' | 'head' | 'bias' | readonly string[];

/**
 * The parameters that a word stands for, as {@link trainableParameters} takes them.
 *
 * `head` is the classifier that the recipe appends, or the last layer: the parameters met first on the way back from the
 * output, up to a matrix. `bias` is what is added somewhere by the meaning of its operator (Zaken et al. 2022), and the
 * head's where the recipe appends one.
 *
 * @param options the output that the loss is taken of, where it is not the only one; whether a head was appended
 * @throws GhostgradError where there is no such parameter
 */
export function trainableOf(
  model: Graph, trainable: Trainable, { output, hasHead = false }: { readonly output?: string | undefined; readonly hasHead?: boolean } = {},
): 'all' | readonly string[] {
  if (trainable === 'all' || typeof trainable !== 'string') return trainable;
  const own = hasHead ? headParameters : [];
  const found = trainable === 'bias' ? [...new Set([...biasesOf(model), ...own])] : own.length > 0 ? own : lastLayer(model, output);
  if (found.length > 0) return found;
  throw new GhostgradError({
    what: trainable === 'bias' ? 'the model has no biases' : 'the model has no last layer that can be told',
    where: 'trainable', found: trainable, expected: 'names or patterns of names of parameters',
    fix: '`ghostgrad explain MODEL` lists the parameters',
  });
}

const isParameter = ({ initializers, literals }: Graph, name: string): boolean =>
  initializers.get(name)?.dtype === 'float32' && literals?.has(name) !== true;

const biasPlaces = (node: Node): readonly number[] => (hasOperator(node) ? entryOf(node).biases ?? [] : []);

function biasesOf(model: Graph): readonly string[] {
  const isByChannel = (name: string): boolean => model.initializers.get(name)!.shape.filter((n) => n !== 1).length <= 1;
  return model.nodes.flatMap((node) => biasPlaces(node).map((i) => node.inputs[i] ?? ''))
    .filter((name) => isParameter(model, name) && isByChannel(name));
}

/** Parameters on the way back from the output, as long as it does not fork, up to the node that holds a matrix. */
function lastLayer(model: Graph, output = model.outputs[0]?.name): readonly string[] {
  const makers = new Map(model.nodes.flatMap((node) => node.outputs.map((o) => [o, node] as const)));
  const found: string[] = [];
  for (let at = output; at !== undefined;) {
    const node = makers.get(at);
    if (node === undefined) return [];
    const own = node.inputs.filter((name) => isParameter(model, name));
    found.push(...own);
    if (own.some((name) => model.initializers.get(name)!.shape.length >= 2)) return found;
    const [next, ...others] = node.inputs.filter((name) => makers.has(name));
    at = others.length === 0 ? next : undefined;
  }
  return [];
}
