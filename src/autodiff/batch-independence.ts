import type { Graph, Node, TypedGraph } from '../graph/ir.ts';
import { type BatchAxis, rowsOf } from '../ops/batch.ts';
import type { Value } from '../ops/builder.ts';
import { fixedValue, isComposite } from '../ops/composite.ts';
import type { BatchContext, OperandContext } from '../ops/operator.ts';
import { repeatsRows } from '../ops/rules.ts';
import { entryOf, operatorOf } from '../ops/table.ts';
import { type Tensor, sameShape, sizeOf } from '../tensor/tensor.ts';

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
  const [first] = inputs;
  const rows = first === undefined ? 0 : rowsOf(graph.types.get(first[0])?.shape ?? [], first[1]);
  const violations: Violation[] = [];
  for (const node of graph.nodes) {
    if (node.inputs.some((v) => mixed.has(v))) {
      node.outputs.forEach((o) => mixed.add(o));
      continue;
    }
    if (!node.inputs.some((v) => batch.has(v))) {
      spread(graph, node, batch, rows);
      continue;
    }
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

/**
 * A value that only parameters and constants make may have equal rows for all the batch: a class token repeated, a
 * table looked up at positions that are those of every row. No data is in it, so that its rows depend on no example; as
 * rows of the batch, each gives its example's share of the parameter's gradient.
 */
function spread(graph: TypedGraph, node: Node, batch: Map<Value, BatchAxis>, rows: number): void {
  // At a small batch size, any dimension may happen to be a multiple of it.
  if (rows < proofBatchSizes[0]) return;
  const context: OperandContext & Pick<BatchContext, 'outputs'> = {
    node, outputs: outputTypes(graph, node),
    inputs: node.inputs.map((v) => graph.types.get(v)), constants: node.inputs.map((v) => fixedValue(graph, v)),
  };
  const { spread: repeat, batch: follow } = operatorOf(node);
  const at = repeat?.({ ...context, rows });
  if (at !== undefined) {
    batch.set(node.outputs[0]!, at);
    return;
  }
  const repeated = context.constants.map((t) => t && repeatedAxis(t, rows));
  if (repeated.every((axis) => axis === undefined)) return;
  // A constant with equal rows for all the batch may as well be the rows' own.
  const result = follow({ ...context, batch: repeated });
  if ('violation' in result) return;
  node.outputs.forEach((output, i) => {
    const axis = result[i];
    if (output !== '' && axis !== undefined) batch.set(output, axis);
  });
}

/** Where a constant has equal rows for all the batch. */
function repeatedAxis(t: Tensor, rows: number): BatchAxis | undefined {
  const axis = t.shape.findIndex((n) => n > 0 && n % rows === 0);
  const at = { axis, before: 1, after: (t.shape[axis] ?? 0) / rows };
  return axis >= 0 && repeatsRows(t, at) ? at : undefined;
}

function outputTypes(graph: TypedGraph, node: Node) {
  return node.outputs.map((v) => graph.types.get(v) ?? { dtype: 'float32' as const, shape: [] });
}

/**
 * Lists where two specialisations of one model, at different batch sizes, do not compute the same of an example: where
 * another axis than the batch's, or the value of a constant, follows from the batch size. Rows would not mix, and yet
 * one example more in a batch could change the gradients of others, by the physical batch that they are computed in.
 */
export function sizeDependence(
  model: Graph, one: TypedGraph, other: TypedGraph, batch: ReadonlyMap<Value, BatchAxis>,
): Violation[] {
  const rows = (graph: TypedGraph): number => graph.types.get(model.inputs[0]?.name ?? '')?.shape[0] ?? 0;
  const fits = (value: Value, meetsData: boolean): boolean => {
    const at = batch.get(value);
    const [a, b] = [one.types.get(value)?.shape, other.types.get(value)?.shape];
    if (a === undefined || b === undefined) return true;
    if (at === undefined) return meetsData || sameShape(a, b);
    return rowsOf(a, at) === rows(one) && rowsOf(b, at) === rows(other) && sameShape(a.with(at.axis, 0), b.with(at.axis, 0));
  };
  const depends = (node: Node): boolean => {
    const meetsData = [...node.inputs, ...node.outputs].some((v) => batch.has(v));
    const entry = entryOf(node);
    const sizes = isComposite(entry) ? [] : entry.sizes ?? [];
    return !node.outputs.every((v) => fits(v, meetsData)) || node.inputs.some((v, i) => {
      const constant = one.initializers.get(v);
      // Only what was computed at compile time, a literal that the model does not have, can have come from the batch size.
      if (constant === undefined || one.literals?.has(v) !== true || constant === model.initializers.get(v)) return false;
      if (meetsData && sizes.includes(i)) return false;
      return !alike(constant, other.initializers.get(v), meetsData);
    });
  };
  return one.nodes.filter(depends).map((node) => ({
    node: node.name, operator: node.op, axis: 0, reason: 'what it computes of an example depends on the size of the batch',
    fix: 'let only shapes follow from the batch size; divide by a fixed number, and let the loss be that of each example',
  }));
}

/** Whether two constants agree; where they may have a place for each row, in the places that both have. */
function alike(a: Tensor, b: Tensor | undefined, perRow: boolean): boolean {
  if (b === undefined || a.dtype !== b.dtype || a.shape.length !== b.shape.length) return false;
  if (a.data === b.data) return true;
  if (!perRow && !sameShape(a.shape, b.shape)) return false;
  const shared = a.shape.map((n, axis) => Math.min(n, b.shape[axis] ?? 0));
  return Array.from({ length: sizeOf(shared) }, (_, i) => i).every((i) => {
    let rest = i;
    let [inA, inB, strideA, strideB] = [0, 0, 1, 1];
    for (let axis = shared.length - 1; axis >= 0; axis--) {
      const at = rest % shared[axis]!;
      rest = Math.floor(rest / shared[axis]!);
      inA += at * strideA;
      inB += at * strideB;
      strideA *= a.shape[axis]!;
      strideB *= b.shape[axis]!;
    }
    return Object.is(a.data[inA], b.data[inB]);
  });
}
