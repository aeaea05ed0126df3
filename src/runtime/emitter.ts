import { type Attributes, type Graph, type Node, type TypedGraph, int } from '../graph/ir.ts';
import { type Shape, type Tensor, int64, tensor } from '../tensor/tensor.ts';

/** Appends what is executed to the nodes of a graph. What is asked for twice is computed once. */
export interface Emitter {
  /** Appends a node and names its only output. */
  readonly add: (op: string, inputs: readonly string[], attributes?: Attributes, domain?: string, output?: string) => string;
  readonly push: (node: Node) => void;
  readonly reshape: (value: string, shape: Shape, output?: string) => string;
  readonly ints: (values: readonly number[]) => string;
  readonly indices: (values: readonly number[]) => string;
  readonly build: () => Graph;
}

export function emitter(graph: TypedGraph): Emitter {
  const nodes: Node[] = [];
  /** Nodes that depend on parameters only; ONNX Runtime computes late what stands in front (clipping/schedule.ts). */
  const early: Node[] = [];
  const fromData = new Set(graph.nodes.flatMap(({ outputs }) => outputs));
  const constants = new Map<string, Tensor>();
  const known = new Map<string, string>();
  let counter = 0;
  const fresh = (): string => {
    let name: string;
    do name = `blocked_${counter++}`; while (graph.types.has(name));
    return name;
  };
  const once = (key: string, make: () => string): string => {
    const found = known.get(key) ?? make();
    known.set(key, found);
    return found;
  };
  const constant = (t: Tensor): string => once(`${t.dtype}:${t.data.join()}`, () => {
    const name = fresh();
    constants.set(name, t);
    return name;
  });
  const add: Emitter['add'] = (op, inputs, attributes = {}, domain = '', output) => {
    const make = (): string => {
      const name = output ?? fresh();
      const isEarly = output === undefined && !inputs.some((v) => fromData.has(v));
      if (!isEarly) fromData.add(name);
      (isEarly ? early : nodes).push({ op, domain, name: output ?? name, inputs, outputs: [name], attributes });
      return name;
    };
    return output === undefined ? once(`${domain}:${op}(${inputs.join()})${keyOf(attributes)}`, make) : make();
  };
  const intsOf = (values: readonly number[]): string => constant(int64(values));
  return {
    add,
    push: (node) => nodes.push(node),
    reshape: (value, shape, output) => add('Reshape', [value, intsOf(shape)], { allowzero: int(1) }, '', output),
    ints: intsOf,
    indices: (values) => constant(tensor('int32', [values.length], Int32Array.from(values))),
    build: () => ({
      ...graph,
      nodes: [...early, ...nodes],
      initializers: new Map([...graph.initializers, ...constants]),
      literals: new Set([...(graph.literals ?? []), ...constants.keys()]),
    }),
  };
}

const keyOf = (attributes: Attributes): string => JSON.stringify(attributes);
