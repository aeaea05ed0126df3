import type { Node, TypedGraph } from '../graph/ir.ts';
import type { GraphBuilder, Value } from '../ops/builder.ts';
import { fixedValue } from '../ops/composite.ts';
import { operatorOf } from '../ops/table.ts';
import { type View, wholeView } from '../ops/view.ts';
import { type GradientPath, backpropagate } from './reverse.ts';

/** How a value that meets the data comes from trainable parameters: the parameter itself, or something made of some. */
export interface Derivation {
  /** The parameters that it hangs on. */
  readonly roots: ReadonlySet<Value>;
  /** How it looks at its only root, where nothing but places is computed. */
  readonly view?: View;
}

/** The derivations of the parameters of a path and of every value derived from them. */
export function derivations(graph: TypedGraph, path: GradientPath): ReadonlyMap<Value, Derivation> {
  const found = new Map<Value, Derivation>();
  for (const parameter of path.parameters) {
    found.set(parameter, { roots: new Set([parameter]), view: wholeView(graph.types.get(parameter)!.shape) });
  }
  for (const node of graph.nodes) {
    if (!node.outputs.some((o) => path.derived.has(o))) continue;
    const sources = node.inputs.flatMap((v) => found.get(v) ?? []);
    const roots = new Set(sources.flatMap((source) => [...source.roots]));
    const views = sources.length === 1 ? viewsAfter(graph, node, found.get(node.inputs[0] ?? '')?.view) : [];
    node.outputs.forEach((output, i) => {
      const view = views[i];
      found.set(output, { roots, ...(view && { view }) });
    });
  }
  return found;
}

function viewsAfter(graph: TypedGraph, node: Node, view: View | undefined): readonly (View | undefined)[] {
  if (view === undefined) return [];
  return operatorOf(node).view?.({
    node, view, inputs: node.inputs.map((v) => graph.types.get(v)),
    constants: node.inputs.map((v) => fixedValue(graph, v)), outputs: node.outputs.map((v) => graph.types.get(v)!),
  }) ?? [];
}

/**
 * Takes gradients with respect to derived values back to the parameters they are made of, by the nodes between.
 * `b` must already hold the nodes of `graph`.
 */
export function throughDerivation(
  b: GraphBuilder, graph: TypedGraph, path: GradientPath, gradients: ReadonlyMap<Value, Value>,
): ReadonlyMap<Value, Value> {
  const behind = new Set<Value>(gradients.keys());
  const nodes: Node[] = [];
  for (const node of [...graph.nodes].reverse()) {
    if (!node.outputs.some((o) => behind.has(o) && path.derived.has(o))) continue;
    nodes.push(node);
    node.inputs.forEach((v) => behind.add(v));
  }
  return backpropagate(b, nodes.reverse(), gradients, (v) => path.parameters.has(v) || path.derived.has(v));
}
