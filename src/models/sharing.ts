import type { Graph, Node } from '../graph/ir.ts';
import { uniqueNames } from '../graph/order.ts';
import { entryOf, hasOperator } from '../ops/table.ts';
import { type Tensor, isFloat } from '../tensor/tensor.ts';

/**
 * The model with its settings apart from its parameters. Exporters write equal initializers once and hand them on by
 * Identity: in a network that was never trained, the scales of all BatchNormalizations of one width and their running
 * variances are the same ones. Uses that an operator's entry calls untrained (statistics, settings) get an initializer
 * of their own, named as the value that stood there, so that they stay as they are while the parameter is trained.
 * What remains shared stays one parameter, as the file says; uses through Identity become uses of the parameter itself.
 */
export function withOwnSettings(graph: Graph): Graph {
  const parameters = new Set([...graph.initializers].filter(([name, t]) => isFloat(t.dtype) && graph.literals?.has(name) !== true)
    .map(([name]) => name));
  const outputs = new Set(graph.outputs.map(({ name }) => name));
  const originals = new Map<string, string>();
  const originalOf = (value: string): string => originals.get(value) ?? value;
  const isAlias = ({ op, domain, inputs, outputs: [output = ''] }: Node): boolean =>
    op === 'Identity' && domain === '' && parameters.has(originalOf(inputs[0] ?? '')) && !outputs.has(output);
  const kept = graph.nodes.filter((node) => {
    if (!isAlias(node)) return true;
    originals.set(node.outputs[0]!, originalOf(node.inputs[0]!));
    return false;
  });

  const isSetting = (node: Node, i: number): boolean => settingPlaces(node).includes(i);
  const trained = new Set(kept.flatMap((node) => node.inputs.filter((_, i) => !isSetting(node, i)).map(originalOf)));
  const unique = uniqueNames([
    ...graph.inputs.map(({ name }) => name), ...graph.initializers.keys(), ...kept.flatMap((node) => node.outputs),
  ]);
  const copies = new Map<string, Tensor>();
  const copyNames = new Map<string, string>();
  const settingFor = (value: string): string => {
    const original = originalOf(value);
    if (!parameters.has(original) || !trained.has(original)) return original;
    const name = copyNames.get(value) ?? unique(value === original ? `${value}/setting` : value);
    copyNames.set(value, name);
    copies.set(name, graph.initializers.get(original)!);
    return name;
  };
  const nodes = kept.map((node): Node => {
    const inputs = node.inputs.map((value, i) => (isSetting(node, i) ? settingFor(value) : originalOf(value)));
    return inputs.every((value, i) => value === node.inputs[i]) ? node : { ...node, inputs };
  });
  if (originals.size === 0 && copies.size === 0) return graph;
  return { ...graph, nodes, initializers: new Map([...graph.initializers, ...copies]) };
}

const settingPlaces = (node: Node): readonly number[] => (hasOperator(node) ? entryOf(node).untrained ?? [] : []);
