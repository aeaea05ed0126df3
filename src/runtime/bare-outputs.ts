import type { Node, TypedGraph } from '../graph/ir.ts';

/**
 * The graph with each output that a Reshape makes given as it was before: of the same elements in the same order, but
 * of another shape, which whoever reads the outputs puts right. ONNX Runtime reshapes in place within a graph, but copies
 * at its end, and the sums of a step are as large as the model.
 *
 * What makes an output stands where its last Reshape stood: outputs are computed in an order that their places in the file
 * tell (clipping/schedule.ts).
 */
export function withBareOutputs(graph: TypedGraph): TypedGraph {
  const uses = new Map<string, number>();
  const use = (value: string) => uses.set(value, (uses.get(value) ?? 0) + 1);
  graph.nodes.forEach(({ inputs }) => inputs.forEach(use));
  graph.outputs.forEach(({ name }) => use(name));
  const makers = new Map<string, Node>(graph.nodes.flatMap((node) => node.outputs.map((output) => [output, node])));

  const names = new Map<string, string>();
  const dropped = new Set<Node>();
  /** Makers of outputs, by the Reshape in whose place they go. */
  const moved = new Map<Node, Node>();
  const types = new Map(graph.types);
  const outputs = graph.outputs.map((output) => {
    let [value, type] = [output.name, graph.types.get(output.name)];
    for (;;) {
      const node = makers.get(value);
      const source = node?.op === 'Reshape' && node.domain === '' ? node.inputs[0]! : undefined;
      const known = source === undefined ? undefined : graph.types.get(source);
      // What something else reads as well, or no node makes, keeps its name.
      if (known === undefined || uses.get(value) !== 1 || uses.get(source!) !== 1 || !makers.has(source!)) break;
      dropped.add(node!);
      [value, type] = [source!, known];
    }
    if (value === output.name || type === undefined) return output;
    names.set(value, output.name);
    const maker = makers.get(value)!;
    if (maker.outputs.every((other) => other === value || !uses.has(other))) moved.set(makers.get(output.name)!, maker);
    types.set(output.name, type);
    return { ...output, shape: type.shape };
  });
  if (names.size === 0) return graph;
  const later = new Set(moved.values());
  const placed = graph.nodes.flatMap((node) => moved.get(node) ?? (dropped.has(node) || later.has(node) ? [] : [node]));
  const nodes = placed.map((node) => (
    node.outputs.some((name) => names.has(name)) ? { ...node, outputs: node.outputs.map((name) => names.get(name) ?? name) } : node
  ));
  return { ...graph, nodes, outputs, types };
}
