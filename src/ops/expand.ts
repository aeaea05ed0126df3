import type { Node, TypedGraph } from '../graph/ir.ts';
import { graphBuilder } from './builder.ts';
import { expansion, fixedValue, isComposite } from './composite.ts';
import { entryOf, semantics } from './table.ts';

/**
 * The same graph with the composite nodes that `chosen` picks replaced by what they mean. A value that the node made
 * keeps its name; the nodes and values within are named after it by their places, so that one name is one value whatever
 * the size of the batch: what is known of a value at one size holds for the value of that name at another.
 */
export function expandComposites(graph: TypedGraph, chosen: (node: Node) => boolean = () => true): TypedGraph {
  const composite = (node: Node): boolean => isComposite(entryOf(node)) && chosen(node);
  if (!graph.nodes.some(composite)) return graph;
  const b = graphBuilder(semantics, { ...graph, nodes: [] });
  const varying = new Set<string>(graph.inputs.map(({ name }) => name));
  const copy = (node: Node): void => {
    if (node.inputs.some((v) => varying.has(v))) node.outputs.forEach((o) => varying.add(o));
    const entry = entryOf(node);
    if (!isComposite(entry) || !chosen(node)) {
      b.add(node, node.outputs.map((o) => graph.types.get(o) ?? { dtype: 'float32', shape: [] }));
      return;
    }
    const types = node.inputs.map((v) => (v === '' ? undefined : b.type(v)));
    expandInto(expansion(entry, node, types, node.inputs.map((v) => fixedValue(graph, v)), semantics, varying), node);
  };
  const expandInto = (inner: TypedGraph, whole: Node): void => {
    const kept = new Set([...whole.inputs, ...whole.outputs]);
    const renamed = new Map([...inner.initializers].filter(([name]) => !kept.has(name)).map(([name, t]) => [name, b.constant(t)]));
    for (const [at, node] of inner.nodes.entries()) {
      const name = `${whole.name}/${node.op}_${at}`;
      node.outputs.forEach((output, k) => {
        if (output !== '' && !kept.has(output)) renamed.set(output, k === 0 ? name : `${name}.${k}`);
      });
    }
    const rename = (value: string): string => renamed.get(value) ?? value;
    for (const [at, node] of inner.nodes.entries()) {
      const named: Node = {
        ...node, name: `${whole.name}/${node.op}_${at}`, inputs: node.inputs.map(rename), outputs: node.outputs.map(rename),
      };
      if (named.inputs.some((v) => varying.has(v))) named.outputs.forEach((o) => varying.add(o));
      const entry = entryOf(named);
      if (isComposite(entry)) {
        const fixed = node.inputs.map((v) => inner.initializers.get(v));
        expandInto(expansion(entry, named, node.inputs.map((v) => inner.types.get(v)), fixed, semantics, varying), named);
      } else {
        b.add(named, node.outputs.map((o) => inner.types.get(o) ?? { dtype: 'float32', shape: [] }));
      }
    }
  };
  graph.nodes.forEach(copy);
  return { ...b.build(graph.outputs.map(({ name }) => [name, name])), inputs: graph.inputs, domains: graph.domains ?? {} };
}

/** The same graph in nodes that the engine can run: those that it has no kernel for are expanded. */
export const runnable = (graph: TypedGraph): TypedGraph => expandComposites(graph, (node) => {
  const entry = entryOf(node);
  return isComposite(entry) && entry.lacksKernel?.(node) === true;
});
