import { GhostgradError } from '../errors.ts';
import type { Graph, Node, TypedGraph, ValueInfo } from './ir.ts';

/**
 * The part of a graph that its outputs need: nodes, initializers and types that lead to no output are dropped.
 *
 * @param outputs names of the values to output, in this order: outputs of the graph, or any other value in it (which
 * is declared float32 of unknown rank while the graph is not specialised). Inputs that they do not need are dropped.
 * Default: the graph's own outputs, and then all inputs stay.
 * @throws GhostgradError when there is no such value
 */
export function prune<G extends Graph | TypedGraph>(graph: G, outputs?: readonly string[]): G {
  const chosen = outputs === undefined ? graph.outputs : chooseOutputs(graph, outputs);
  const needed = new Set(chosen.map(({ name }) => name));
  const nodes: Node[] = [];
  for (const node of graph.nodes.toReversed()) {
    if (!node.outputs.some((output) => output !== '' && needed.has(output))) continue;
    nodes.push(node);
    node.inputs.forEach((input) => needed.add(input));
  }
  const inputs = outputs === undefined ? graph.inputs : graph.inputs.filter(({ name }) => needed.has(name));
  const initializers = new Map([...graph.initializers].filter(([name]) => needed.has(name)));
  const made = new Set([
    ...initializers.keys(),
    ...inputs.map(({ name }) => name),
    ...nodes.flatMap((node) => node.outputs),
  ]);
  return {
    ...graph,
    inputs,
    outputs: chosen,
    nodes: nodes.reverse(),
    initializers,
    ...(graph.literals && { literals: new Set([...graph.literals].filter((name) => initializers.has(name))) }),
    ...('types' in graph && { types: new Map([...graph.types].filter(([name]) => made.has(name))) }),
  };
}

function chooseOutputs(graph: Graph | TypedGraph, names: readonly string[]): readonly ValueInfo[] {
  const known = new Map<string, ValueInfo>();
  for (const node of graph.nodes) {
    for (const name of node.outputs) if (name !== '') known.set(name, { name, dtype: 'float32', shape: null });
  }
  for (const [name, { dtype, shape }] of graph.initializers) known.set(name, { name, dtype, shape });
  if ('types' in graph) for (const [name, { dtype, shape }] of graph.types) known.set(name, { name, dtype, shape });
  for (const value of [...graph.inputs, ...graph.outputs]) known.set(value.name, value);
  return names.map((name) => known.get(name) ?? unknownOutput(graph, name));
}

function unknownOutput(graph: Graph, name: string): never {
  throw new GhostgradError({
    what: 'the model has no such output',
    where: `graph "${graph.name}"`,
    found: `"${name}"`,
    expected: `${graph.outputs.map((output) => `"${output.name}"`).join(', ')} or another value in it`,
  });
}
