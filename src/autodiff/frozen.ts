import type { Node, TypedGraph } from '../graph/ir.ts';
import { prune } from '../graph/prune.ts';
import { type BatchAxis, leading, sameBatch } from '../ops/batch.ts';
import type { Value } from '../ops/builder.ts';
import { isFloat, sizeOf } from '../tensor/tensor.ts';
import { dependentOn } from './reverse.ts';

/** Where the part of a graph that no trainable parameter has a say in ends. */
export interface FrozenCut {
  /** What the part behind it takes of it, values [rows, ...] of float32, and inputs of the graph as they are. */
  readonly values: readonly Value[];
  /** Those of the values that the frozen part computes. */
  readonly computed: readonly Value[];
  /** At least so many multiplications the frozen part takes for one example. */
  readonly products: number;
}

/**
 * The cut between what depends on data alone and what depends on `parameters` too; undefined where nothing is multiplied by weights in
 * front of the parameters. A value that takes no such products (a mask of the padding), does not have the rows of the batch as its
 * own rows, or is not of float32, is left to the part behind, which then computes it from what it is made of.
 *
 * @param batch where values carry the batch, as it was proved
 */
export function frozenCut(
  graph: TypedGraph, parameters: ReadonlySet<Value>, batch: ReadonlyMap<Value, BatchAxis>,
): FrozenCut | undefined {
  const inputs = new Set(graph.inputs.map(({ name }) => name));
  const moving = new Set([...inputs, ...dependentOn(graph, inputs)]);
  // What the part behind the cut computes, and what leads to it.
  const behindIt = dependentOn(graph, parameters);
  const wanted = new Set(graph.outputs.map(({ name }) => name));
  const values = new Set<Value>();
  const products = productsIn(graph, moving);
  const made = new Set(graph.nodes.filter((node) => products(node) > 0).flatMap(({ outputs }) => outputs));
  const weighed = new Set([...made, ...dependentOn(graph, made)]);
  const isFit = (value: Value): boolean => {
    const at = batch.get(value);
    return weighed.has(value) && graph.types.get(value)?.dtype === 'float32' && at !== undefined && sameBatch(at, leading);
  };
  for (const node of [...graph.nodes].reverse()) {
    const isBehind = node.outputs.some((v) => behindIt.has(v));
    if (!isBehind) {
      const taken = node.outputs.filter((v) => wanted.has(v) && moving.has(v));
      if (taken.length === 0) continue;
      if (taken.every(isFit)) {
        taken.forEach((v) => values.add(v));
        continue;
      }
    }
    node.inputs.forEach((v) => wanted.add(v));
  }
  const computed = [...values];
  if (computed.length === 0) return undefined;
  return {
    computed, values: [...[...inputs].filter((v) => wanted.has(v)), ...computed],
    products: prune(graph, computed).nodes.reduce((sum, node) => sum + products(node), 0),
  };
}

/**
 * Multiplications of one example by weights at a node, at least: a matrix of n numbers that meets an output of so many rows takes
 * n for each row. Where the data is whole numbers, weights are looked up and not multiplied by.
 */
function productsIn(graph: TypedGraph, moving: ReadonlySet<Value>): (node: Node) => number {
  const rows = graph.types.get(graph.inputs[0]?.name ?? '')?.shape[0] ?? 1;
  return ({ inputs, outputs }) => {
    if (!inputs.some((v) => moving.has(v) && isFloat(graph.types.get(v)?.dtype ?? 'bool'))) return 0;
    const made = sizeOf(graph.types.get(outputs[0] ?? '')?.shape ?? []) / rows;
    const weights = inputs.filter((v) => !moving.has(v)).map((v) => graph.types.get(v)?.shape ?? []).filter((shape) => shape.length >= 2);
    return weights.reduce((sum, shape) => sum + sizeOf(shape) * Math.max(1, made / Math.max(shape[0]!, shape.at(-1)!)), 0);
  };
}

/** The part of a graph behind some of its values, which become inputs. */
export function behind(graph: TypedGraph, values: readonly Value[]): TypedGraph {
  const fed = new Set(values);
  const nodes = graph.nodes.filter(({ outputs }) => !outputs.some((v) => fed.has(v)));
  const inputs = values.map((name) => ({ name, ...graph.types.get(name)! }));
  return prune({ ...graph, nodes, inputs }, graph.outputs.map(({ name }) => name));
}
