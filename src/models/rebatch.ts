import { GhostgradError } from '../errors.ts';
import {
  type Attributes, type Graph, type Node, type ValueInfo, int, intAttribute, ints, intsAttribute, showNode, showShape,
} from '../graph/ir.ts';
import { uniqueNames } from '../graph/order.ts';
import { prune } from '../graph/prune.ts';
import type { BatchAxis } from '../ops/batch.ts';
import { leading, rowsOf } from '../ops/batch.ts';
import { isComposite } from '../ops/composite.ts';
import { reshapeBatch } from '../ops/shape.ts';
import { entryOf, hasOperator, semantics } from '../ops/table.ts';
import { type Shape, type Tensor, type TensorType, int64, isFloat, sameShape, sizeOf, toNumbers } from '../tensor/tensor.ts';

/**
 * A model exported for a batch of one example, for batches of any size: the first dimension of its inputs becomes
 * symbolic, and where a node's operand holds the 1 of the batch (target of a Reshape, sizes of a Resize, end of a Slice,
 * a class token or a first state for one example), the batch size of the input takes its place. At batch size 1 the
 * result computes what the model did. Whether examples stay apart at other sizes is for the proof to say, as for any model.
 *
 * Left as it is when no input declares one example, and when operators without an entry hide what follows.
 *
 * @throws GhostgradError at the first node that works for one example only, for which no such rewriting is known
 */
export function withFreeBatch(graph: Graph): Graph {
  const isFixed = ({ shape }: ValueInfo): boolean => shape !== null && shape[0] === 1;
  if (!graph.inputs.some(isFixed) || !graph.nodes.every(hasOperator)) return graph;
  const walk = firstWalk(graph);
  if (walk === undefined) return graph;
  const pruned = prune(graph);
  pruned.nodes.forEach((node) => follow(walk, node));
  const batchFirst = ({ name, shape, dtype }: ValueInfo, at: BatchAxis | undefined): ValueInfo => ({
    name, dtype,
    shape: shape?.map((d, axis) => (axis !== at?.axis ? d : d === 1 ? symbol : typeof d === 'number' ? null : d)) ?? null,
  });
  return {
    ...graph, nodes: walk.nodes, initializers: new Map([...pruned.initializers, ...walk.added]),
    literals: new Set([...pruned.literals ?? [], ...walk.added.keys()]),
    inputs: graph.inputs.map((input) => (isFixed(input) ? batchFirst(input, leading) : input)),
    outputs: graph.outputs.map((output) => batchFirst(output, walk.many.batch.get(output.name))),
  };
}

/** What the batch's dimension is called. */
const symbol = 'batch';

/** A batch size that no dimension is likely to be a multiple of. */
const manyRows = 1009;

/** Sizes tried for dimensions of the inputs that are not fixed. */
const trialSizes = [16, 32, 64, 128, 224, 1];

/** Constants above this many elements are not followed. */
const maximumFolded = 100_000;

/** What is known of the values at one batch size. */
interface View {
  readonly types: Map<string, TensorType>;
  readonly constants: Map<string, Tensor>;
  readonly batch: Map<string, BatchAxis>;
}

/** The model at batch size 1, as it is, beside the rewritten one at many rows. */
interface Walk {
  readonly one: View;
  readonly many: View;
  readonly nodes: Node[];
  readonly initializers: Graph['initializers'];
  readonly added: Map<string, Tensor>;
  readonly unique: (hint: string) => string;
  /** Whether every dimension but the batch's is a number. */
  readonly isStatic: boolean;
  readonly input: string;
}

/** Types of the values of a model for one example; undefined where no size tried for its open dimensions works. */
export const trialTypes = (graph: Graph): ReadonlyMap<string, TensorType> | undefined =>
  (graph.nodes.every(hasOperator) ? firstWalk(graph)?.trial.types : undefined);

/** A walk before its first node, with sizes for open dimensions at which the model works for one example. */
function firstWalk(graph: Graph): (Walk & { readonly trial: View }) | undefined {
  const isStatic = graph.inputs.every(({ shape }) => shape?.slice(1).every((d) => typeof d === 'number') === true);
  if (graph.inputs.some(({ shape }) => shape === null || shape.length === 0)) return undefined;
  for (const size of isStatic ? [1] : trialSizes) {
    const start = (rows: number): View => ({
      types: new Map<string, TensorType>([
        ...[...graph.initializers].map(([name, { dtype, shape }]) => [name, { dtype, shape }] as const),
        ...graph.inputs.map(({ name, dtype, shape }) =>
          [name, { dtype, shape: [rows, ...shape!.slice(1).map((d) => (typeof d === 'number' ? d : size))] }] as const),
      ]),
      constants: new Map([...graph.initializers].filter(([name, t]) => !isFloat(t.dtype) || graph.literals?.has(name) === true)),
      batch: new Map(graph.inputs.map(({ name }) => [name, leading])),
    });
    try {
      const trial = start(1);
      for (const node of prune(graph).nodes) infer(trial, node);
      const taken = [...trial.types.keys(), ...graph.nodes.map(({ name }) => name)];
      return {
        one: start(1), many: start(manyRows), nodes: [], initializers: graph.initializers, added: new Map(), unique: uniqueNames(taken), isStatic,
        input: graph.inputs.find(({ shape }) => shape?.[0] === 1)?.name ?? '', trial,
      };
    } catch (error) {
      if (!(error instanceof GhostgradError)) throw error;
    }
  }
  return undefined;
}

/** Adds what a node makes to what is known. */
function infer(view: View, node: Node): void {
  const operands = node.inputs.map((name) => view.types.get(name));
  const known = node.inputs.map((name) => view.constants.get(name));
  const types = semantics.infer(node, operands, known);
  node.outputs.forEach((name, i) => {
    const type = types[i];
    if (name !== '' && type !== undefined) view.types.set(name, type);
  });
  if (types.some(({ shape }) => sizeOf(shape) > maximumFolded)) return;
  semantics.fold(node, operands, known)?.forEach((value, i) => {
    const name = node.outputs[i];
    if (name !== undefined && name !== '') view.constants.set(name, value);
  });
}

/** Takes one node of the model into the walk, rewritten where it holds to one example. */
function follow(walk: Walk, node: Node): void {
  infer(walk.one, node);
  try {
    const rewritten = rewrites[node.op]?.(walk, node) ?? node;
    infer(walk.many, rewritten);
    walk.nodes.push(rewritten);
    place(walk.many, rewritten);
  } catch (error) {
    if (!(error instanceof GhostgradError)) throw error;
    throw new GhostgradError({
      what: 'the model is made for a batch of one example, and cannot be rewritten for larger ones', where: showNode(node),
      found: [error.parts.what, error.parts.found].filter(Boolean).join(': '), expected: 'a batch axis of any size',
      fix: 'export the model with a dynamic batch axis (dynamic_axes or dynamic_shapes in PyTorch, -1 or None elsewhere)',
    }, { cause: error });
  }
}

/** Notes where a node's outputs carry the batch: by its operator's rule, or else by the axis that has the rows. */
function place(view: View, node: Node): void {
  const batch = node.inputs.map((name) => view.batch.get(name));
  if (batch.every((at) => at === undefined)) return;
  const entry = entryOf(node);
  const outputs = node.outputs.map((name) => view.types.get(name) ?? { dtype: 'float32' as const, shape: [] });
  const ruled = isComposite(entry) ? undefined : entry.batch({
    node, batch, outputs, inputs: node.inputs.map((name) => view.types.get(name)), constants: node.inputs.map((name) => view.constants.get(name)),
  });
  node.outputs.forEach((name, i) => {
    const axis = outputs[i]!.shape.indexOf(manyRows);
    const at = ruled !== undefined && !('violation' in ruled) ? ruled[i] : axis < 0 ? undefined : { ...leading, axis };
    if (name !== '' && at !== undefined) view.batch.set(name, at);
  });
}

/** A new node of the rewritten model, known at many rows. */
function emit({ many, nodes, unique }: Walk, op: string, inputs: readonly string[], attributes: Attributes = {}): string {
  const name = unique(`${symbol}/${op}`);
  const node: Node = { op, domain: '', name, inputs, outputs: [name], attributes };
  infer(many, node);
  nodes.push(node);
  return name;
}

function integers({ added, many, unique }: Walk, values: readonly number[]): string {
  const value = int64(values);
  const name = unique(`${symbol}/sizes`);
  added.set(name, value);
  many.types.set(name, { dtype: value.dtype, shape: value.shape });
  many.constants.set(name, value);
  return name;
}

const batchSize = (walk: Walk): string => emit(walk, 'Shape', [walk.input], { start: int(0), end: int(1) });

/** Sizes (an int64 vector of the model) with the batch size in place `at`. */
function withBatchSize(walk: Walk, sizes: string, length: number, at: number): string {
  const part = (from: number, to: number): string[] =>
    (from === to ? [] : [emit(walk, 'Slice', [sizes, integers(walk, [from]), integers(walk, [to])])]);
  const parts = [...part(0, at), batchSize(walk), ...part(at + 1, length)];
  return parts.length === 1 ? parts[0]! : emit(walk, 'Concat', parts, { axis: int(0) });
}

/** A value for one example repeated for every row along an axis of size 1; itself where it has the rows already. */
function repeated(walk: Walk, name: string, axis: number): string {
  const shape = walk.many.types.get(name)?.shape;
  if (shape === undefined || shape[axis] !== 1 || walk.many.batch.has(name)) return name;
  const result = emit(walk, 'Expand', [name, withBatchSize(walk, integers(walk, shape.map(() => 1)), shape.length, axis)]);
  walk.many.batch.set(result, { ...leading, axis });
  return result;
}

type Rewrite = (walk: Walk, node: Node) => Node;

const withInput = (node: Node, index: number, value: string): Node =>
  ({ ...node, inputs: node.inputs.map((name, i) => (i === index ? value : name)) });

/** The axis of `shape`, a value at batch size 1, that is the batch's alone when `outer` elements lie before it. */
const ownAxis = (shape: Shape, outer: number): number =>
  shape.findIndex((n, j) => n === 1 && sizeOf(shape.slice(0, j)) === outer);

const reshape: Rewrite = (walk, node) => {
  const [x = '', target = ''] = node.inputs;
  const at = walk.many.batch.get(x);
  const asked = walk.many.constants.get(target);
  if (at === undefined || asked === undefined) return node;
  const [from, to] = [walk.one.types.get(x)!.shape, walk.one.types.get(node.outputs[0]!)!.shape];
  const outer = sizeOf(from.slice(0, at.axis)) * at.before;
  const own = ownAxis(to, outer);
  const now = shapeAtMany(walk, node);
  const wanted = own < 0 ? undefined : to.map((n, j) => (j === own ? manyRows : n));
  if (now !== undefined && (wanted === undefined ? reshapeBatch(at, walk.many.types.get(x)!.shape, now) !== undefined : sameShape(now, wanted))) {
    return node;
  }
  const values = toNumbers(asked);
  const isLiteral = walk.many.constants.has(target) && walk.nodes.every(({ outputs }) => !outputs.includes(target));
  const copies = own === at.axis && at.before * at.after === 1 && intAttribute(node, 'allowzero', 0) === 0;
  if (own >= 0) {
    if (isLiteral && copies) return withInput(node, 1, integers(walk, values.with(own, 0)));
    if (isLiteral && !values.includes(-1)) return withInput(node, 1, integers(walk, values.with(own, -1)));
    return withInput(node, 1, withBatchSize(walk, target, values.length, own));
  }
  // The batch is merged with a neighbour: that axis takes what is left.
  const merged = reshapeBatch({ ...at }, from, to)?.axis;
  if (merged === undefined || !isLiteral || (values.includes(-1) && !walk.isStatic)) return node;
  return withInput(node, 1, integers(walk, values.map((n, j) => (j === merged ? -1 : n === -1 ? to[j]! : n))));
};

function shapeAtMany({ many }: Walk, node: Node): Shape | undefined {
  try {
    return semantics.infer(node, node.inputs.map((name) => many.types.get(name)), node.inputs.map((name) => many.constants.get(name)))[0]?.shape;
  } catch (error) {
    if (error instanceof GhostgradError) return undefined;
    throw error;
  }
}

const concat: Rewrite = (walk, node) => {
  const carrier = node.inputs.find((name) => walk.many.batch.has(name));
  const at = walk.many.batch.get(carrier ?? '');
  const rank = walk.many.types.get(carrier ?? '')?.shape.length ?? 0;
  const axis = intAttribute(node, 'axis', 0);
  if (at === undefined || (axis < 0 ? axis + rank : axis) === at.axis) return node;
  return { ...node, inputs: node.inputs.map((name) => repeated(walk, name, at.axis)) };
};

/** Sizes for the other axes only. */
const resize: Rewrite = (walk, node) => {
  const [x = '', roi = '', , sizes = ''] = node.inputs;
  const at = walk.many.batch.get(x);
  const values = walk.many.constants.get(sizes);
  const rank = walk.many.types.get(x)?.shape.length ?? 0;
  const axes = intsAttribute(node, 'axes', Array.from({ length: rank }, (_, i) => i)).map((axis) => (axis < 0 ? axis + rank : axis));
  const place = axes.indexOf(at?.axis ?? -1);
  if (values === undefined || place < 0 || Number(values.data[place]) !== 1 || roi !== '') return node;
  const kept = integers(walk, toNumbers(values).filter((_, i) => i !== place));
  const attributes = { ...node.attributes, axes: ints(axes.filter((_, i) => i !== place)) };
  return { ...withInput(node, 3, kept), attributes };
};

/** All of one example, `x[0:1]`, is all of every example. */
const slice: Rewrite = (walk, node) => {
  const at = walk.many.batch.get(node.inputs[0] ?? '');
  const rank = walk.many.types.get(node.inputs[0] ?? '')?.shape.length ?? 0;
  const numbers = (index: number): number[] | undefined => {
    const t = walk.many.constants.get(node.inputs[index] ?? '');
    return t && toNumbers(t);
  };
  const [starts, ends, axes, steps] = [1, 2, 3, 4].map(numbers);
  const place = (axes ?? starts?.map((_, i) => i) ?? []).findIndex((axis) => (axis < 0 ? axis + rank : axis) === at?.axis);
  if (at === undefined || place < 0 || starts?.[place] !== 0 || ends === undefined || (steps?.[place] ?? 1) !== 1) return node;
  if (ends[place]! < 1 || ends[place]! >= manyRows) return node;
  return withInput(node, 2, integers(walk, ends.with(place, 2 ** 31 - 1)));
};

/** First states [directions, batch, size] of a recurrent layer: left out where they are zeros, which is the default. */
const recurrent = (...states: readonly number[]): Rewrite => (walk, node) => {
  const axis = intAttribute(node, 'layout', 0) === 1 ? 0 : 1;
  const isZero = (name: string): boolean => walk.initializers.get(name)?.data.every((x: number | bigint) => x === 0) === true;
  return {
    ...node,
    inputs: node.inputs.map((name, i) => (!states.includes(i) ? name : isZero(name) ? '' : repeated(walk, name, axis))),
  };
};

/** What would take the batch axis away: rows can no longer be told apart behind it. */
const keepsBatch = (axesOf: (walk: Walk, node: Node, rank: number) => readonly number[]): Rewrite => (walk, node) => {
  const [x = ''] = node.inputs;
  const at = walk.many.batch.get(x);
  const shape = walk.many.types.get(x)?.shape ?? [];
  if (at === undefined || rowsOf(shape, at) !== manyRows) return node;
  const axes = axesOf(walk, node, shape.length).map((axis) => (axis < 0 ? axis + shape.length : axis));
  if (!axes.includes(at.axis)) return node;
  throw new GhostgradError({ what: `${node.op} takes the batch axis away`, found: `axis ${at.axis} of ${showShape(shape)}` });
};

const squeezedAxes = (walk: Walk, node: Node): readonly number[] => {
  const axes = walk.many.constants.get(node.inputs[1] ?? '');
  if (axes !== undefined) return toNumbers(axes);
  return (walk.one.types.get(node.inputs[0]!)?.shape ?? []).flatMap((n, i) => (n === 1 ? [i] : []));
};

/** By operator: how its operands are freed of the batch size. The others hold none, or repeat what has one row. */
const rewrites: Readonly<Record<string, Rewrite>> = {
  Reshape: reshape, Concat: concat, Resize: resize, Slice: slice,
  LSTM: recurrent(5, 6), GRU: recurrent(5), RNN: recurrent(5),
  Squeeze: keepsBatch(squeezedAxes), Gather: keepsBatch((_, node) => [intAttribute(node, 'axis', 0)]),
};
