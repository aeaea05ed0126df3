import { type Node, type TypedGraph, float, floatAttribute, int, intAttribute } from '../graph/ir.ts';
import { type Tensor, type TensorType, float32, int64, sizeOf, toNumbers } from '../tensor/tensor.ts';

/**
 * GroupNormalization as a standardisation, scale and shift. ONNX Runtime's CPU provider has no kernel for it, and puts a dozen
 * passes over memory in its place, some of them copies (BENCHMARKS.md). LayerNormalization with scale 1 standardises in
 * one, and the backward pass asks for the very same one: it is computed once, and kept in the place of its input.
 */
export function withStandardisedGroups(graph: TypedGraph): TypedGraph {
  const norms = graph.nodes.filter(({ op, domain }) => op === 'GroupNormalization' && domain === '');
  if (norms.length === 0) return graph;
  const types = new Map(graph.types);
  const initializers = new Map(graph.initializers);
  const nodes: Node[] = [];
  const placed = new Set<Node>();
  const place = (node: Node): void => {
    if (!placed.has(node)) nodes.push(node);
    placed.add(node);
  };
  const found = standardisations(graph);
  let counter = 0;
  const fresh = (type: TensorType): string => {
    let name: string;
    do name = `standardised_${counter++}`; while (types.has(name));
    types.set(name, type);
    return name;
  };
  const constant = (t: Tensor): string => {
    const name = fresh(t);
    initializers.set(name, t);
    return name;
  };
  const add = (op: string, inputs: readonly string[], outputs: readonly string[], attributes: Node['attributes'] = {}): string => {
    nodes.push({ op, domain: '', name: `${outputs[0]!}:made`, inputs, outputs, attributes });
    return outputs[0]!;
  };

  for (const node of graph.nodes) {
    const [x = '', scale = '', bias = ''] = node.inputs;
    const { shape, dtype } = types.get(x) ?? { shape: [0], dtype: 'float32' };
    if (!norms.includes(node) || dtype !== 'float32' || sizeOf(shape) === 0) {
      place(node);
      continue;
    }
    const [n, channels] = shape as [number, number];
    const groups = n * intAttribute(node, 'num_groups', 1);
    const rows = [groups, sizeOf(shape) / groups];
    const reshaped = (value: string, to: readonly number[], output = fresh({ dtype, shape: to })): string =>
      add('Reshape', [value, constant(int64([...to]))], [output], { allowzero: int(1) });
    const epsilon = floatAttribute(node, 'epsilon', 1e-5);
    const made = found.get(keyOf(x, rows, epsilon)) ?? [];
    made.forEach(place);
    const standard = made.at(-1)?.outputs[0] ?? add('LayerNormalization', [
      reshaped(x, rows), constant(float32(new Float32Array(rows[1]!).fill(1))),
    ], [fresh({ dtype, shape: rows })], { axis: int(1), epsilon: float(epsilon) });
    const apart = [n, channels, sizeOf(shape.slice(2))];
    const scaled = add('Mul', [reshaped(standard, apart), reshaped(scale, [channels, 1])], [fresh({ dtype, shape: apart })]);
    const shifted = add('Add', [scaled, reshaped(bias, [channels, 1])], [fresh({ dtype, shape: apart })]);
    reshaped(shifted, shape, node.outputs[0]);
  }
  const literals = new Set([...(graph.literals ?? []), ...[...initializers.keys()].filter((name) => !graph.initializers.has(name))]);
  return { ...graph, nodes, types, initializers, literals };
}

const keyOf = (x: string, rows: readonly number[], epsilon: number): string => `${x} ${rows.join()} ${epsilon}`;

/** The nodes that standardise a value in rows, with scale 1 and no bias, by {@link keyOf}: inputs first. */
function standardisations(graph: TypedGraph): ReadonlyMap<string, readonly Node[]> {
  const makers = new Map(graph.nodes.flatMap((node) => node.outputs.map((o) => [o, node] as const)));
  return new Map(graph.nodes.flatMap((norm) => {
    if (norm.op !== 'LayerNormalization' || norm.inputs.length !== 2 || intAttribute(norm, 'axis', -1) !== 1) return [];
    const [input, ones] = norm.inputs.map((value) => makers.get(value));
    const one = ones?.op === 'Expand' ? graph.initializers.get(ones.inputs[0]!) : undefined;
    if (ones === undefined || input?.op !== 'Reshape' || one?.data.length !== 1 || toNumbers(one)[0] !== 1) return [];
    const rows = graph.types.get(norm.inputs[0]!)?.shape ?? [];
    return [[keyOf(input.inputs[0]!, rows, floatAttribute(norm, 'epsilon', 1e-5)), [input, ones, norm]] as const];
  }));
}
