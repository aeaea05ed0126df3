import { GhostgradError } from '../errors.ts';
import {
  type Attributes, type Graph, type Node, type OperatorSemantics, type TypedGraph, int, ints, latestOpset, showNode, showShape,
} from '../graph/ir.ts';
import { type DType, type Shape, type Tensor, type TensorType, float32, int64, isFloat, sameShape, sizeOf, tensor } from '../tensor/tensor.ts';

/** The name of a value in the graph under construction. */
export type Value = string;

/**
 * Grows a typed graph node by node. Each `op` infers its outputs' types at once, and an operation that
 * already stands in the graph with the same operands is reused, so that rules need not pass intermediate
 * values (an unfold, a transpose) to one another.
 */
export interface GraphBuilder {
  readonly type: (value: Value) => TensorType;
  readonly shape: (value: Value) => Shape;
  /** Whether the size of a value may depend on that of the batch, so that no choice may be made by it. */
  readonly varies: (value: Value) => boolean;
  /** The tensor behind a value, when it is constant. */
  readonly constantOf: (value: Value) => Tensor | undefined;
  /** The node that makes a value; undefined for inputs and constants. */
  readonly producerOf: (value: Value) => Node | undefined;
  readonly input: (name: string, type: TensorType) => Value;
  readonly constant: (t: Tensor) => Value;
  /** A float constant of shape []. */
  readonly scalar: (x: number, dtype?: DType) => Value;
  /** An int64 vector. */
  readonly ints: (values: readonly number[]) => Value;
  /** Appends a node with one output. */
  readonly op: (op: string, inputs: readonly Value[], attributes?: Attributes, domain?: string) => Value;
  /** Appends a node with `count` outputs. */
  readonly ops: (op: string, inputs: readonly Value[], count: number, attributes?: Attributes, domain?: string) => readonly Value[];
  /** Copies an existing node (its output names are kept). */
  readonly add: (node: Node, inferred?: readonly TensorType[]) => void;
  /** Names an optional output of the node that made `value`, adding it when the node did not have it. */
  readonly optionalOutput: (value: Value, index: number) => Value;
  /** The finished graph with these outputs: [name to give, value]. Nodes that lead to no output are dropped. */
  readonly build: (outputs: readonly (readonly [string, Value])[], name?: string) => TypedGraph;
}

/**
 * @param varying values of `base` whose size depends on the batch where the same graph is to be built for any batch:
 * what is computed from them takes no short cuts that only some sizes allow. Default: none
 */
export function graphBuilder(semantics: OperatorSemantics, base?: TypedGraph, varying: ReadonlySet<Value> = new Set()): GraphBuilder {
  const varied = new Set(varying);
  const types = new Map<Value, TensorType>(base?.types);
  const constants = new Map<Value, Tensor>(base?.initializers);
  const inputs = [...(base?.inputs ?? [])];
  const nodes: Node[] = [...(base?.nodes ?? [])];
  const producer = new Map<Value, number>();
  const known = new Map<string, readonly Value[]>();
  /** Constants made here, by type, so that equal ones are one value. */
  const added = new Map<string, readonly Value[]>();
  nodes.forEach((node, i) => node.outputs.forEach((o) => producer.set(o, i)));
  // Nodes are numbered by themselves: which constants are equal, hence one, depends on sizes, and names must not.
  const counters = { nodes: 0, constants: 0 };

  const nodeNames = new Set(nodes.map((node) => node.name));
  /** A name that neither a value nor a node has. */
  const fresh = (hint: string, count: keyof typeof counters = 'nodes'): Value => {
    let name: string;
    do name = `${hint}_${counters[count]++}`; while (types.has(name) || nodeNames.has(name));
    return name;
  };
  const type = (value: Value | undefined): TensorType => {
    if (value === undefined || value === '') {
      throw new GhostgradError({ what: 'an input that is required is omitted', fix: 'export the model again, or repair the node' });
    }
    const t = types.get(value);
    if (t === undefined) throw new Error(`no value "${value}" in the graph under construction`);
    return t;
  };
  const constant = (t: Tensor): Value => {
    const key = `${t.dtype}[${t.shape.join()}]`;
    const alike = added.get(key) ?? [];
    const seen = alike.find((name) => sameData(constants.get(name)!, t));
    if (seen !== undefined) return seen;
    const name = fresh('constant', 'constants');
    types.set(name, { dtype: t.dtype, shape: t.shape });
    constants.set(name, t);
    added.set(key, [...alike, name]);
    return name;
  };
  const add = (node: Node, inferred?: readonly TensorType[]): void => {
    const found = inferred ?? semantics.infer(
      node, node.inputs.map((v) => (v === '' ? undefined : type(v))), node.inputs.map((v) => constants.get(v)),
    );
    node.outputs.forEach((output, i) => {
      if (output === '') return;
      const t = found[i];
      if (t === undefined) throw new GhostgradError({ what: `${showNode(node)} has no output ${i}` });
      types.set(output, t);
      producer.set(output, nodes.length);
      if (node.inputs.some((v) => varied.has(v))) varied.add(output);
    });
    nodes.push(node);
    nodeNames.add(node.name);
  };
  const ops = (op: string, operands: readonly Value[], count: number, attributes: Attributes = {}, domain = ''): readonly Value[] => {
    const key = `${domain}:${op}(${operands.join()})${JSON.stringify(attributes, (_, v: unknown) => (typeof v === 'bigint' ? String(v) : v))}#${count}`;
    const seen = known.get(key);
    if (seen !== undefined) return seen;
    const name = fresh(op);
    const outputs = Array.from({ length: count }, (_, i) => (i === 0 ? name : `${name}.${i}`));
    add({ op, domain, name, inputs: operands, outputs, attributes });
    known.set(key, outputs);
    return outputs;
  };

  return {
    type,
    shape: (value) => type(value).shape,
    varies: (value) => varied.has(value),
    constantOf: (value) => constants.get(value),
    producerOf: (value) => nodes[producer.get(value) ?? -1],
    input: (name, t) => {
      if (types.has(name)) throw new Error(`the graph already has a value "${name}"`);
      types.set(name, t);
      inputs.push({ name, ...t });
      return name;
    },
    constant,
    scalar: (x, dtype = 'float32') => constant(
      !isFloat(dtype) && !Number.isInteger(x) ? notWhole(x, dtype) :
      dtype === 'float64' ? tensor('float64', [], Float64Array.of(x)) : dtype === 'int64' ? int64([x], []) : float32([x], []),
    ),
    ints: (values) => constant(int64(wholeNumbers(values))),
    op: (op, operands, attributes, domain) => ops(op, operands, 1, attributes, domain)[0]!,
    ops,
    add,
    optionalOutput: (value, index) => {
      const at = producer.get(value);
      const node = at === undefined ? undefined : nodes[at];
      if (at === undefined || node === undefined) throw new Error(`"${value}" is not made by a node`);
      const existing = node.outputs[index];
      if (existing !== undefined && existing !== '') return existing;
      const outputs = Array.from({ length: Math.max(node.outputs.length, index + 1) }, (_, i) => node.outputs[i] ?? '');
      const name = fresh(node.op);
      outputs[index] = name;
      const widened = { ...node, outputs };
      nodes[at] = widened;
      const found = semantics.infer(widened, widened.inputs.map((v) => (v === '' ? undefined : type(v))), widened.inputs.map((v) => constants.get(v)));
      types.set(name, found[index]!);
      producer.set(name, at);
      return name;
    },
    build: (outputs, name = base?.name ?? 'graph') => finish(name, base, inputs, nodes, types, constants, outputs),
  };
}

function notWhole(x: number, dtype: DType): never {
  throw new GhostgradError({
    what: `${dtype} operands of an operator on real numbers`, found: `${x} among them`, fix: 'export the model with float32 operands',
  });
}

/** Sizes that a rule worked out; operands that do not fit one another give fractions, or nothing at all. */
function wholeNumbers(values: readonly number[]): readonly number[] {
  if (values.every(Number.isSafeInteger)) return values;
  throw new GhostgradError({
    what: 'sizes that do not fit one another', found: showShape(values), expected: 'whole numbers', fix: 'export the model again, or repair the node',
  });
}

/** Whether two tensors of one type hold the same bits (so that -0 is not 0, and NaN is NaN). */
const sameData = (a: Tensor, b: Tensor): boolean =>
  a.data === b.data || (a.data.length === b.data.length && a.data.every((x: number | bigint, i: number) => Object.is(x, b.data[i])));

function finish(
  name: string, base: Graph | undefined, inputs: readonly { name: string }[], nodes: readonly Node[],
  types: ReadonlyMap<Value, TensorType>, constants: ReadonlyMap<Value, Tensor>,
  outputs: readonly (readonly [string, Value])[],
): TypedGraph {
  const made = new Set(nodes.flatMap((node) => node.outputs));
  const renamed = new Map<Value, string>();
  for (const [to, value] of outputs) if (made.has(value) && !made.has(to) && !renamed.has(value)) renamed.set(value, to);
  const rename = (value: Value): Value => renamed.get(value) ?? value;
  // An output that is an input, a constant or an output already needs a node of its own to carry its name.
  const named = outputs.filter(([to, value]) => to !== value && renamed.get(value) !== to).map(([to, value]): Node => ({
    op: 'Identity', domain: '', name: `output:${to}`, inputs: [value], outputs: [to], attributes: {},
  }));
  const all = [...nodes, ...named].map((node) => ({
    ...node, inputs: node.inputs.map(rename), outputs: node.outputs.map(rename),
  }));
  const needed = new Set(outputs.map(([to]) => to));
  const kept: Node[] = [];
  for (let i = all.length - 1; i >= 0; i--) {
    const node = all[i]!;
    if (!node.outputs.some((o) => o !== '' && needed.has(o))) continue;
    kept.push(node);
    node.inputs.forEach((v) => needed.add(v));
  }
  const allTypes = new Map<Value, TensorType>();
  const present = new Set([...needed, ...kept.flatMap((node) => node.outputs)]);
  for (const [value, t] of types) if (present.has(rename(value))) allTypes.set(rename(value), t);
  for (const [to, value] of outputs) allTypes.set(to, types.get(value)!);
  for (const v of inputs) allTypes.set(v.name, types.get(v.name)!);
  return {
    name,
    opset: base?.opset ?? latestOpset,
    inputs: inputs.map((v) => ({ name: v.name, ...types.get(v.name)! })),
    outputs: outputs.map(([to]) => ({ name: to, ...allTypes.get(to)! })),
    initializers: new Map([...constants].filter(([value]) => needed.has(value))),
    literals: new Set([...constants.keys()].filter((value) => needed.has(value) && !parameterLike(base, value))),
    nodes: kept.reverse(),
    types: allTypes,
    metadata: base?.metadata ?? {},
  };
}

/** Whether a constant came as an initializer of the base graph: something that training may change. */
const parameterLike = (base: Graph | undefined, value: Value): boolean =>
  base?.initializers.has(value) === true && base.literals?.has(value) !== true;

/** Small words over {@link GraphBuilder} that gradient rules and the step's emitter are written in. */
export const add = (b: GraphBuilder, x: Value, y: Value): Value => b.op('Add', [x, y]);
export const sub = (b: GraphBuilder, x: Value, y: Value): Value => b.op('Sub', [x, y]);
export const mul = (b: GraphBuilder, x: Value, y: Value): Value => b.op('Mul', [x, y]);
export const div = (b: GraphBuilder, x: Value, y: Value): Value => b.op('Div', [x, y]);
export const neg = (b: GraphBuilder, x: Value): Value => b.op('Neg', [x]);
export const scale = (b: GraphBuilder, x: Value, factor: number): Value =>
  factor === 1 ? x : mul(b, x, b.scalar(factor, b.type(x).dtype));

/** x reshaped; x itself when the shape is already that. A reshape of a reshape is one of what was there before. */
export function reshape(b: GraphBuilder, x: Value, shape: Shape): Value {
  if (!b.varies(x) && sameShape(b.shape(x), shape)) return x;
  const made = b.producerOf(x);
  if (made?.op === 'Reshape') return reshape(b, made.inputs[0]!, shape);
  return b.op('Reshape', [x, b.ints(shape)], { allowzero: int(1) });
}

/** x with its axes permuted; moves no data when only axes of size 1 change places. */
export function transpose(b: GraphBuilder, x: Value, permutation: readonly number[]): Value {
  const shape = b.shape(x);
  const moved = permutation.filter((axis) => b.varies(x) || shape[axis] !== 1);
  if (permutation.every((axis, i) => axis === i)) return x;
  if (moved.every((axis, i) => i === 0 || axis > moved[i - 1]!)) return reshape(b, x, permutation.map((axis) => shape[axis]!));
  return b.op('Transpose', [x], { perm: ints(permutation) });
}

const reduce = (op: string) => (b: GraphBuilder, x: Value, axes: readonly number[], keepdims = false): Value => {
  if (axes.length === 0) return op === 'ReduceSumSquare' ? mul(b, x, x) : x;
  return b.op(op, [x, b.ints(axes)], { keepdims: int(keepdims ? 1 : 0) });
};
export const reduceSum = reduce('ReduceSum');
export const reduceSumSquare = reduce('ReduceSumSquare');
export const reduceMean = reduce('ReduceMean');
export const reduceMax = reduce('ReduceMax');

/** Batched matrix product over the last two axes, of x (or its transpose) with y (or its transpose), times alpha. */
export function matmul(
  b: GraphBuilder, x: Value, y: Value,
  { transposeX = false, transposeY = false, alpha = 1 }: { transposeX?: boolean; transposeY?: boolean; alpha?: number } = {},
): Value {
  if (!transposeX && !transposeY && alpha === 1) return b.op('MatMul', [x, y]);
  return b.op('FusedMatMul', [x, y], {
    transA: int(transposeX ? 1 : 0), transB: int(transposeY ? 1 : 0), alpha: { type: 'float', value: alpha },
  }, 'com.microsoft');
}

/** x[..., start:end:step, ...] along one axis. */
export const slice = (b: GraphBuilder, x: Value, axes: readonly number[], starts: readonly number[], ends: readonly number[], steps?: readonly number[]): Value =>
  b.op('Slice', [x, b.ints(starts), b.ints(ends), b.ints(axes), ...(steps?.some((s) => s !== 1) ? [b.ints(steps)] : [])]);

export const concat = (b: GraphBuilder, xs: readonly Value[], axis: number): Value =>
  xs.length === 1 ? xs[0]! : b.op('Concat', xs, { axis: int(axis) });

/** Zero padding; `pads` in ONNX order, all begins and then all ends, one for each axis of x. */
export const pad = (b: GraphBuilder, x: Value, pads: readonly number[]): Value =>
  pads.every((n) => n === 0) ? x : b.op('Pad', [x, b.ints(pads)]);

export const where = (b: GraphBuilder, condition: Value, x: Value, y: Value): Value => b.op('Where', [condition, x, y]);

/** A constant of one value everywhere; kept as a scalar expanded at run time so that graphs stay small. */
export const filled = (b: GraphBuilder, x: number, shape: Shape, dtype: DType = 'float32'): Value =>
  sizeOf(shape) === 1 ? reshape(b, b.scalar(x, dtype), shape) : b.op('Expand', [b.scalar(x, dtype), b.ints(shape)]);

/** Undoes broadcasting: sums `x` down to `shape`. */
export function sumTo(b: GraphBuilder, x: Value, shape: Shape): Value {
  const from = b.shape(x);
  const extra = from.length - shape.length;
  const axes = from.flatMap((n, i) => (i < extra || (shape[i - extra] === 1 && n !== 1) ? [i] : []));
  return axes.length === 0 ? x : reshape(b, reduceSum(b, x, axes, true), shape);
}
