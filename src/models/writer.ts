import { type Attributes, type Dimension, type Graph, type Node, type ValueInfo, latestOpset } from '../graph/ir.ts';
import type { InitialDraws } from '../random/initial.ts';
import { type FloatTensor, type Shape, type Tensor, int64 } from '../tensor/tensor.ts';

/** A graph under construction: what the builders write nodes and parameters with. */
export interface GraphWriter {
  readonly model: string;
  /** Appends a node; its output is the value that is given back. */
  readonly node: (op: string, name: string, inputs: readonly string[], attributes?: Attributes) => string;
  /** Appends a node with `count` outputs. */
  readonly nodes: (op: string, name: string, inputs: readonly string[], count: number, attributes?: Attributes) => readonly string[];
  /** A new parameter under its name. */
  readonly parameter: (name: string, shape: Shape, draw: (draws: InitialDraws, name: string, shape: Shape) => FloatTensor) => string;
  /** A constant of the program, which is never trained. */
  readonly constant: (t: Tensor) => string;
  /** An int64 vector. */
  readonly ints: (...values: number[]) => string;
  /** The finished graph; `value` becomes its output `logits` of shape [batch, ...shape]. */
  readonly build: (inputs: readonly ValueInfo[], value: string, shape: readonly Dimension[]) => Graph;
}

export function graphWriter(model: string, draws: InitialDraws): GraphWriter {
  const written: Node[] = [];
  const initializers = new Map<string, Tensor>();
  const literals = new Map<string, string>();

  const nodes: GraphWriter['nodes'] = (op, name, inputs, count, attributes = {}) => {
    const outputs = Array.from({ length: count }, (_, i) => (i === 0 ? `${name}.output` : `${name}.output.${i}`));
    written.push({ op, domain: '', name, inputs, outputs, attributes });
    return outputs;
  };
  const constant = (t: Tensor): string => {
    const key = `${t.dtype}[${t.shape.join()}]:${t.data.join()}`;
    const name = literals.get(key) ?? `constant.${literals.size}`;
    literals.set(key, name);
    initializers.set(name, t);
    return name;
  };
  return {
    model,
    nodes,
    node: (op, name, inputs, attributes) => nodes(op, name, inputs, 1, attributes)[0]!,
    parameter: (name, shape, draw) => {
      initializers.set(name, draw(draws, name, shape));
      return name;
    },
    constant,
    ints: (...values) => constant(int64(values)),
    build: (inputs, value, shape) => ({
      name: model,
      opset: latestOpset,
      inputs,
      outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', ...shape] }],
      initializers: new Map(initializers),
      literals: new Set(literals.values()),
      nodes: written.map((node) => (node.outputs[0] === value ? { ...node, outputs: ['logits'] } : node)),
      metadata: {},
    }),
  };
}
