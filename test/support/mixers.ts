import { type Attributes, type Graph, type Node, float, int, ints, string } from '../../src/graph/ir.ts';
import type { BatchAxis } from '../../src/ops/batch.ts';
import { type Shape, type Tensor, float32, int64, sizeOf } from '../../src/tensor/tensor.ts';
import { randomTensor, testRandom } from './random-network.ts';

/** Operations that mix the examples of a batch, to be put into models at any value that carries it. */

/** Appends nodes to a list. */
export interface Sketcher {
  readonly op: (op: string, inputs: readonly string[], attributes?: Attributes, domain?: string) => string;
  readonly constant: (t: Tensor) => string;
  /** A trainable parameter of random values. */
  readonly weight: (shape: Shape) => string;
}

export interface Sketched extends Sketcher {
  readonly nodes: readonly Node[];
  readonly initializers: ReadonlyMap<string, Tensor>;
  readonly literals: ReadonlySet<string>;
}

export function sketcher(prefix = 'mix'): Sketched {
  const nodes: Node[] = [];
  const initializers = new Map<string, Tensor>();
  const literals = new Set<string>();
  const random = testRandom(3);
  const keep = (t: Tensor): string => {
    const name = `${prefix}.c${initializers.size}`;
    initializers.set(name, t);
    return name;
  };
  return {
    nodes, initializers, literals,
    op: (op, inputs, attributes = {}, domain = '') => {
      const out = `${prefix}.v${nodes.length}`;
      nodes.push({ op, domain, name: `${prefix}.${op}.${nodes.length}`, inputs, outputs: op === 'TopK' ? [out, `${out}.places`] : [out], attributes });
      return out;
    },
    constant: (t) => {
      const name = keep(t);
      literals.add(name);
      return name;
    },
    weight: (shape) => keep(randomTensor(random, shape, 1 / Math.sqrt(Math.max(1, sizeOf(shape.slice(1)))))),
  };
}

/** A value as a matrix: the axis with the batch first, everything else behind. */
interface Rows extends Sketcher {
  /** The value itself. */
  readonly value: string;
  readonly axis: number;
  readonly rank: number;
  /** [rows, columns] */
  readonly matrix: string;
  readonly columns: number;
  /** [rows, columns] back in the value's own shape. */
  readonly restored: (matrix: string) => string;
  /** The int64 vector [rows]. */
  readonly count: string;
}

type Mixer = (rows: Rows) => string;

const last = 2 ** 40;
const whole = (b: Sketcher, x: number): string => b.constant(int64([x], []));
const list = (b: Sketcher, ...xs: number[]): string => b.constant(int64(xs));
const swapped = (b: Sketcher, x: string): string => b.op('Transpose', [x], { perm: ints([1, 0]) });
const slice = (b: Sketcher, x: string, start: number, end: number, axis: number, step = 1): string =>
  b.op('Slice', [x, list(b, start), list(b, end), list(b, axis), list(b, step)]);
const ones = (n: number): Tensor => float32(Array<number>(n).fill(1));
const toFloat = (b: Sketcher, x: string): string => b.op('Cast', [x], { to: int(1) });
/** [rows], float: 0, 1, 2, … */
const places = (b: Rows): string => toFloat(b, b.op('Range', [whole(b, 0), b.op('Squeeze', [b.count]), whole(b, 1)]));
const unsqueezed = (b: Sketcher, x: string, ...axes: number[]): string => b.op('Unsqueeze', [x, list(b, ...axes)]);
const reshaped = (b: Sketcher, x: string, ...shape: number[]): string => b.op('Reshape', [x, list(b, ...shape)]);

const reduced = (op: string): Mixer => (b) => b.op('Add', [b.value, b.op(op, [b.value, list(b, b.axis)])]);
const along = (op: string, attributes: Attributes = {}): Mixer => (b) => b.op(op, [b.value], { axis: int(b.axis), ...attributes });
/** Over the last axis, where a transposition has put the batch. */
const transposed = (f: (b: Rows, columns: string) => string): Mixer => (b) => b.restored(swapped(b, f(b, swapped(b, b.matrix))));
const onMatrix = (f: (b: Rows) => string): Mixer => (b) => b.restored(f(b));
/** One number for each row, or the same for all, added to every row. */
const added = (f: (b: Rows) => string): Mixer => (b) => b.restored(b.op('Add', [b.matrix, f(b)]));
const rolled = (b: Rows, x: string, axis: number): string =>
  b.op('Concat', [slice(b, x, 1, last, axis), slice(b, x, 0, 1, axis)], { axis: int(axis) });

export const mixers: Readonly<Record<string, Mixer>> = {
  ...Object.fromEntries(['Sum', 'Mean', 'Max', 'Min', 'L1', 'L2', 'LogSumExp', 'SumSquare', 'Prod', 'LogSum']
    .map((name) => [`Reduce${name} over the batch`, reduced(`Reduce${name}`)])),
  'a mean over everything': (b) => b.op('Sub', [b.value, b.op('ReduceMean', [b.value], { keepdims: int(0) })]),
  'Softmax over the batch': along('Softmax'), 'LogSoftmax over the batch': along('LogSoftmax'), 'Hardmax over the batch': along('Hardmax'),
  'LpNormalization over the batch': along('LpNormalization', { p: int(2) }),
  'Softmax where a transposition put the batch': transposed((b, x) => b.op('Softmax', [x], { axis: int(-1) })),
  'CumSum over the batch': (b) => b.op('CumSum', [b.value, whole(b, b.axis)]),
  'CumSum where a transposition put the batch': transposed((b, x) => b.op('CumSum', [x, whole(b, 1)], { reverse: int(1) })),
  'ArgMax over the batch': (b) => b.op('Add', [b.value, toFloat(b, b.op('ArgMax', [b.value], { axis: int(b.axis) }))]),
  'TopK over the batch': (b) => b.op('Add', [b.value, b.op('TopK', [b.value, list(b, 1)], { axis: int(b.axis) })]),
  'TopK where a transposition put the batch': transposed((b, x) => b.op('Sub', [x, b.op('TopK', [x, list(b, 1)])])),
  'the order of the rows': transposed((b, x) => b.op('TopK', [x, b.count])),
  'MeanVarianceNormalization over the batch': (b) => b.op('MeanVarianceNormalization', [b.value], { axes: ints([b.axis]) }),
  'the first row for all': (b) => b.op('Add', [b.value, b.op('Gather', [b.value, list(b, 0)], { axis: int(b.axis) })]),
  'the rows in reverse, by Gather': (b) => b.op('Gather', [b.value, b.op('Sub', [b.count, b.op('Range', [whole(b, 1), b.op('Squeeze', [b.op('Add', [b.count, list(b, 1)])]), whole(b, 1)])])], { axis: int(b.axis) }),
  'the rows in reverse, by Slice': (b) => slice(b, b.value, -1, -last, b.axis, -1),
  'the last row for all, by Slice': (b) => b.op('Add', [b.value, slice(b, b.value, -1, last, b.axis)]),
  'the rows moved by one': (b) => b.op('Add', [b.value, rolled(b, b.value, b.axis)]),
  'the rows moved by one, by Pad': (b) => b.op('Add', [b.value, b.op('Pad', [slice(b, b.value, 0, -1, b.axis), b.constant(int64(Array.from({ length: 2 * b.rank }, (_, i) => Number(i === b.axis))))])]),
  'elements that come from other rows': onMatrix((b) => b.op('GatherElements', [b.matrix, b.op('Cast', [b.op('Mul', [b.matrix, b.constant(float32([0]))])], { to: int(7) })], { axis: int(0) })),
  'rows looked up by number': onMatrix((b) => b.op('GatherND', [b.matrix, unsqueezed(b, b.op('Cast', [b.op('Mul', [b.op('ReduceMax', [b.matrix, list(b, 1)], { keepdims: int(0) }), b.constant(float32([0]))])], { to: int(7) }), 1)])),
  'all numbers moved by one': onMatrix((b) => b.op('Reshape', [rolled(b, reshaped(b, b.matrix, -1), 0), b.op('Shape', [b.matrix])])),
  'transposed by a Reshape': onMatrix((b) => {
    const turned = b.op('Concat', [list(b, b.columns), b.count], { axis: int(0) });
    return swapped(b, b.op('Reshape', [b.matrix, turned]));
  }),
  'rows in pairs': onMatrix((b) => {
    const x = b.op('Concat', [b.matrix, b.matrix], { axis: int(1) });
    return slice(b, b.op('Reshape', [swapped(b, x), b.op('Shape', [x])]), 0, b.columns, 1);
  }),
  'a product that contracts the batch': onMatrix((b) => b.op('MatMul', [b.matrix, b.op('MatMul', [swapped(b, b.matrix), b.matrix])])),
  'a Gemm that contracts the batch': onMatrix((b) => b.op('Gemm', [b.matrix, b.op('Gemm', [b.matrix, b.matrix], { transA: int(1) })])),
  'attention among the rows': onMatrix((b) => b.op('MatMul', [b.op('Softmax', [b.op('MatMul', [b.matrix, swapped(b, b.matrix)])]), b.matrix])),
  'an Attention among the rows': onMatrix((b) => b.op('Squeeze', [b.op('Attention', [0, 1, 2].map(() => unsqueezed(b, b.matrix, 0, 1))), list(b, 0, 1)])),
  'an Attention whose keys are the rows': onMatrix((b) => b.op('Reshape', [b.op('Attention', [unsqueezed(b, b.matrix, 0), unsqueezed(b, b.matrix, 0), unsqueezed(b, b.matrix, 0)], { q_num_heads: int(1), kv_num_heads: int(1) }), b.op('Shape', [b.matrix])])),
  'Einsum that sums over the batch': added((b) => b.op('Einsum', [b.matrix], { equation: string('bn->n') })),
  'Einsum of rows with all rows': onMatrix((b) => b.op('Einsum', [b.matrix, b.matrix, b.matrix], { equation: string('bn,cn,cm->bm') })),
  'Einsum that multiplies the sums': onMatrix((b) => b.op('Einsum', [b.matrix, b.matrix], { equation: string('bn,cn->bn') })),
  'BatchNormalization in training mode': onMatrix((b) => b.op('BatchNormalization', [b.matrix, ...[1, 2, 3, 4].map(() => b.constant(ones(b.columns)))], { training_mode: int(1) })),
  'InstanceNormalization over the batch': transposed((b, x) => b.op('Squeeze', [b.op('InstanceNormalization', [unsqueezed(b, x, 0), b.constant(ones(b.columns)), b.constant(ones(b.columns))]), list(b, 0)])),
  'GroupNormalization over the batch': onMatrix((b) => b.op('Reshape', [b.op('GroupNormalization', [reshaped(b, b.matrix, 1, 1, -1), b.constant(ones(1)), b.constant(ones(1))], { num_groups: int(1) }), b.op('Shape', [b.matrix])])),
  'LayerNormalization over the batch': transposed((b, x) => b.op('LayerNormalization', [x, b.op('ConstantOfShape', [b.count], { value: { type: 'tensor', value: ones(1) } })])),
  'RMSNormalization over the batch': transposed((b, x) => b.op('RMSNormalization', [x, b.op('ConstantOfShape', [b.count], { value: { type: 'tensor', value: ones(1) } })])),
  'LRN with the batch as channels': onMatrix((b) => b.op('Reshape', [b.op('LRN', [unsqueezed(b, b.matrix, 0, 3)], { size: int(3), alpha: float(1) }), b.op('Shape', [b.matrix])])),
  'Conv along the batch': transposed((b, x) => b.op('Squeeze', [b.op('Conv', [unsqueezed(b, x, 1), b.weight([1, 1, 3])], { kernel_shape: ints([3]), pads: ints([1, 1]) }), list(b, 1)])),
  'ConvTranspose along the batch': transposed((b, x) => b.op('Squeeze', [b.op('ConvTranspose', [unsqueezed(b, x, 1), b.weight([1, 1, 3])], { kernel_shape: ints([3]), pads: ints([1, 1]) }), list(b, 1)])),
  'MaxPool along the batch': transposed((b, x) => b.op('Squeeze', [b.op('MaxPool', [unsqueezed(b, x, 1)], { kernel_shape: ints([3]), pads: ints([1, 1]) }), list(b, 1)])),
  'AveragePool along the batch': transposed((b, x) => b.op('Squeeze', [b.op('AveragePool', [unsqueezed(b, x, 1)], { kernel_shape: ints([3]), pads: ints([1, 1]) }), list(b, 1)])),
  'GlobalAveragePool over the batch': added((b) => b.op('Squeeze', [b.op('GlobalAveragePool', [unsqueezed(b, swapped(b, b.matrix), 0)]), list(b, 0, 2)])),
  'Resize along the batch': transposed((b, x) => b.op('Squeeze', [slice(b, b.op('Resize', [unsqueezed(b, x, 0), '', b.constant(float32([1, 1, 2]))], { mode: string('linear') }), 0, last, 2, 2), list(b, 0)])),
  'every row twice': onMatrix((b) => slice(b, b.op('Reshape', [b.op('Concat', [b.matrix, b.matrix], { axis: int(1) }), b.op('Concat', [list(b, -1), list(b, b.columns)], { axis: int(0) })]), 0, last, 0, 2)),
  'joined with itself along the batch': onMatrix((b) => slice(b, b.op('Concat', [b.matrix, b.matrix], { axis: int(0) }), 1, last, 0, 2)),
  'repeated along the batch': onMatrix((b) => slice(b, b.op('Tile', [b.matrix, list(b, 2, 1)]), 1, last, 0, 2)),
  'the last row written over the first': onMatrix((b) => b.op('ScatterND', [b.matrix, b.constant(int64([0], [1, 1])), slice(b, b.matrix, -1, last, 0)])),
  'the last row added to the first': onMatrix((b) => b.op('ScatterElements', [b.matrix, b.constant(int64(Array<number>(b.columns).fill(0), [1, b.columns])), slice(b, b.matrix, -1, last, 0)], { axis: int(0), reduction: string('add') })),
  'a sequence of the rows': added((b) => b.op('ReduceSum', [reshaped(b, b.op('RNN', [unsqueezed(b, b.op('ReduceMean', [b.matrix, list(b, 1)]), 1), b.weight([1, 1, 1]), b.weight([1, 1, 1])], { hidden_size: int(1) }), -1, 1), list(b, 1)])),
  'each row times its number': onMatrix((b) => b.op('Mul', [b.matrix, unsqueezed(b, places(b), 1)])),
  'the rows behind the first': onMatrix((b) => b.op('Where', [b.op('Greater', [unsqueezed(b, places(b), 1), b.constant(float32([0.5]))]), b.matrix, b.op('Neg', [b.matrix])])),
  'a triangle over the batch': transposed((b, x) => b.op('Trilu', [x])),
  'divided by the number of rows': (b) => b.op('Div', [b.value, toFloat(b, b.count)]),
  'multiplied by how many numbers there are': (b) => b.op('Mul', [b.value, toFloat(b, b.op('Size', [b.value]))]),
  'Reverse of each column': onMatrix((b) => b.op('ReverseSequence', [b.matrix, b.op('Expand', [b.count, list(b, b.columns)])], { time_axis: int(0), batch_axis: int(1) })),
};

/** The model with `mixer` between the value and all that uses it. */
export function mixedAt(model: Graph, value: string, shape: Shape, { axis }: Pick<BatchAxis, 'axis'>, mixer: Mixer): Graph {
  const b = sketcher();
  const rank = shape.length;
  const front = [axis, ...shape.map((_, i) => i).filter((i) => i !== axis)];
  const columns = sizeOf(shape.toSpliced(axis, 1));
  const turned = b.op('Transpose', [value], { perm: ints(front) });
  const count = b.op('Shape', [turned], { start: int(0), end: int(1) });
  const matrix = b.op('Reshape', [turned, b.op('Concat', [count, list(b, columns)], { axis: int(0) })]);
  const restored = (x: string): string =>
    b.op('Transpose', [b.op('Reshape', [x, b.op('Shape', [turned])])], { perm: ints(front.map((_, i) => front.indexOf(i))) });
  const mixed = mixer({ ...b, value, axis, rank, matrix, columns, restored, count });
  const at = model.nodes.findIndex(({ outputs }) => outputs.includes(value));
  const isOutput = model.outputs.some(({ name }) => name === value);
  // An output keeps its name: the value before it gets another.
  const hidden = isOutput ? `${value}.before` : value;
  const rename = (from: string, to: string) => (v: string): string => (v === from ? to : v);
  const head = model.nodes.slice(0, at + 1).map((node) => ({ ...node, outputs: node.outputs.map(rename(value, hidden)) }));
  const middle = b.nodes.map((node) => ({ ...node, inputs: node.inputs.map(rename(value, hidden)), outputs: isOutput ? node.outputs.map(rename(mixed, value)) : node.outputs }));
  const tail = model.nodes.slice(at + 1).map((node) => ({ ...node, inputs: node.inputs.map(rename(value, isOutput ? value : mixed)) }));
  return {
    ...model, nodes: [...head, ...middle, ...tail],
    initializers: new Map([...model.initializers, ...b.initializers]), literals: new Set([...model.literals ?? [], ...b.literals]),
  };
}
