import type { Node, TypedGraph } from '../graph/ir.ts';
import type { BatchAxis, } from '../ops/batch.ts';
import type { Value } from '../ops/builder.ts';
import { operatorOf } from '../ops/table.ts';
import { type Tensor, isFloat } from '../tensor/tensor.ts';

export interface Violation {
  /** Name of the node that lets examples mix. */
  readonly node: string;
  readonly operator: string;
  readonly axis: number;
  readonly reason: string;
  readonly fix: string;
}

export interface BatchTrace {
  /** Where each value carries the batch; values that do not depend on it are absent. */
  readonly batch: ReadonlyMap<Value, BatchAxis>;
  readonly violations: readonly Violation[];
}

/**
 * The batch sizes that proofs are run at: primes that no other dimension is likely to be a multiple of, so that the
 * batch's factor of a merged axis is not mistaken for another; two, so that a mistake at one shows at the other.
 */
export const proofBatchSizes = [1009, 1013] as const;

/**
 * Follows the axes that carry the batch from the inputs through every node, and lists each node after which
 * a row of a value would depend on more than one row of the batch (invariant 3). What follows a violation is
 * not judged, so that one mistake is told once.
 */
export function traceBatch(graph: TypedGraph, inputs: ReadonlyMap<Value, BatchAxis>): BatchTrace {
  const batch = new Map<Value, BatchAxis>(inputs);
  const mixed = new Set<Value>();
  const violations: Violation[] = [];
  for (const node of graph.nodes) {
    if (node.inputs.some((v) => mixed.has(v))) {
      node.outputs.forEach((o) => mixed.add(o));
      continue;
    }
    if (!node.inputs.some((v) => batch.has(v))) continue;
    const result = operatorOf(node).batch({
      node,
      inputs: node.inputs.map((v) => graph.types.get(v)),
      outputs: outputTypes(graph, node),
      constants: node.inputs.map((v) => fixedValue(graph, v)),
      batch: node.inputs.map((v) => batch.get(v)),
    });
    if ('violation' in result) {
      violations.push({ node: node.name, operator: node.op, axis: result.axis, reason: result.violation, fix: result.fix });
      node.outputs.forEach((o) => mixed.add(o));
      continue;
    }
    node.outputs.forEach((output, i) => {
      const axis = result[i];
      if (output !== '' && axis !== undefined) batch.set(output, axis);
    });
  }
  return { batch, violations };
}

/** A constant, unless it may be a parameter: what a rule concludes from its values must hold after training too. */
function fixedValue(graph: TypedGraph, value: Value): Tensor | undefined {
  const t = graph.initializers.get(value);
  return t !== undefined && (graph.literals?.has(value) === true || !isFloat(t.dtype)) ? t : undefined;
}

function outputTypes(graph: TypedGraph, node: Node) {
  return node.outputs.map((v) => graph.types.get(v) ?? { dtype: 'float32' as const, shape: [] });
}
