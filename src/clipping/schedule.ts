import type { Node, TypedGraph } from '../graph/ir.ts';
import type { Value } from '../ops/builder.ts';

/**
 * Puts the nodes that depend on no data (the transposed kernels of input gradients, say) before all others.
 *
 * ONNX Runtime does not execute nodes in the order of the file: it walks back from the outputs, and of a node's inputs
 * it computes first the one whose maker stands last in the file. A kernel prepared for the backward pass would so be
 * made before the activations that it meets, and every layer's be held at once; standing first, it is made last.
 */
export function dataLast(graph: TypedGraph, data: ReadonlySet<Value>): TypedGraph {
  const dependent = new Set<Value>(data);
  const early: Node[] = [];
  const late: Node[] = [];
  for (const node of graph.nodes) {
    if (node.inputs.some((v) => dependent.has(v))) {
      node.outputs.forEach((o) => dependent.add(o));
      late.push(node);
    } else early.push(node);
  }
  return { ...graph, nodes: [...early, ...late] };
}
