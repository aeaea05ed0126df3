import type { Graph, Node, TypedGraph } from '../graph/ir.ts';
import type { Value } from '../ops/builder.ts';

/**
 * The nodes in the order in which ONNX Runtime executes them, which is not that of the file: it walks back depth-first
 * from the nodes that nothing consumes, the last in the file first, and computes first that input of a node whose maker
 * stands last in the file. Nodes that depend on constants alone are left out: they are computed once, when the session
 * is made. (Two nodes that ONNX Runtime fuses are one that stands behind all others, which now and then puts a
 * neighbour of theirs elsewhere.)
 */
export function executionOrder(graph: Pick<Graph, 'nodes' | 'inputs'>): readonly Node[] {
  const { nodes } = graph;
  const makers = new Map(nodes.flatMap(({ outputs }, i) => outputs.map((o) => [o, i] as const)));
  const before = nodes.map(({ inputs }) => [...new Set(inputs.flatMap((v) => makers.get(v) ?? []))].sort((a, b) => a - b));
  const consumed = new Set(before.flat());
  const walk = nodes.flatMap((_, i) => (consumed.has(i) ? [] : [{ i, done: false }]));
  const seen = new Set<number>();
  const order: Node[] = [];
  for (let at = walk.pop(); at !== undefined; at = walk.pop()) {
    if (at.done) order.push(nodes[at.i]!);
    else if (!seen.has(at.i)) {
      seen.add(at.i);
      walk.push({ i: at.i, done: true }, ...before[at.i]!.filter((i) => !seen.has(i)).map((i) => ({ i, done: false })));
    }
  }
  const fed = dependents(graph, graph.inputs.map(({ name }) => name));
  return order.filter(({ outputs }) => outputs.some((o) => fed.has(o)));
}

/** The given values and all that is computed from them. */
function dependents({ nodes }: Pick<Graph, 'nodes'>, values: Iterable<Value>): ReadonlySet<Value> {
  const found = new Set<Value>(values);
  for (const { inputs, outputs } of nodes) if (inputs.some((v) => found.has(v))) outputs.forEach((o) => found.add(o));
  return found;
}

/**
 * Has the graph's outputs computed in the order of these names: what makes an output that nothing else reads stands at the
 * end of the file, the maker of the first name last.
 */
export function inOrder(graph: TypedGraph, names: readonly string[]): TypedGraph {
  const read = new Set(graph.nodes.flatMap(({ inputs }) => inputs));
  const isLast = ({ outputs }: Node): boolean => outputs.every((o) => !read.has(o));
  const place = ({ outputs }: Node): number => Math.min(...outputs.map((o) => names.indexOf(o)).filter((i) => i >= 0));
  const last = graph.nodes.filter(isLast).sort((one, other) => place(other) - place(one));
  return { ...graph, nodes: [...graph.nodes.filter((node) => !isLast(node)), ...last] };
}

/**
 * Puts the nodes that depend on none of the given inputs before all others.
 *
 * With the batch given, these are the transposed kernels of input gradients, say: one would otherwise be made before the
 * activations that it meets ({@link executionOrder}), and every layer's be held at once; standing first, it is made last.
 * With what the gradients start from, what is made of activations alone is made after the gradient that it meets.
 */
export function dataLast(graph: TypedGraph, data: ReadonlySet<Value>): TypedGraph {
  const dependent = dependents(graph, data);
  const late = ({ inputs }: Node): boolean => inputs.some((v) => dependent.has(v));
  return { ...graph, nodes: [...graph.nodes.filter((node) => !late(node)), ...graph.nodes.filter(late)] };
}
