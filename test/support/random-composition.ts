import fc from 'fast-check';
import { type Attributes, type Graph, float, int, ints, latestOpset, string } from '../../src/graph/ir.ts';
import { type Shape, type Tensor, float32, int64, sizeOf } from '../../src/tensor/tensor.ts';
import { type Sketcher, sketcher } from './mixers.ts';
import { testRandom } from './random-network.ts';

/** Small networks of operators of the whole table in random composition, whose values stay in a tame range. */

/** What a network is composed of: fast-check's choice, so that failures shrink to few steps. */
export interface Composition {
  readonly seed: number;
  readonly tokens: boolean;
  readonly rowsPerUnit: number;
  /** Numbers that pick the steps, one after the other. */
  readonly steps: readonly number[];
}

export const composition: fc.Arbitrary<Composition> = fc.record({
  seed: fc.integer({ min: 1, max: 2 ** 30 }), tokens: fc.boolean(), rowsPerUnit: fc.constantFrom(1, 1, 2),
  steps: fc.array(fc.nat({ max: 2 ** 20 }), { minLength: 2, maxLength: 6 }),
});

/** A value [batch, ...shape], and what steps may ask for. */
interface Cursor extends Sketcher {
  readonly x: string;
  /** Without the batch, which is axis 0. */
  readonly shape: Shape;
  readonly random: () => number;
  /** A parameter of this shape, drawn anew or one that is in use already, reached directly or through a computation. */
  readonly parameter: (shape: Shape, scale?: number) => string;
}

interface Grown {
  readonly x: string;
  readonly shape: Shape;
}

/** Makes something of a value; undefined where it does not fit. */
type Step = (c: Cursor) => Grown | undefined;

const pickOf = <T>(random: () => number, xs: readonly T[]): T => xs[Math.floor(random() * xs.length)]!;
const upTo = (random: () => number, n: number): number => Math.floor(random() * n);
const list = (c: Sketcher, ...xs: number[]): string => c.constant(int64(xs));
const drawn = (random: () => number, shape: Shape, scale = 1): Tensor => float32(Array.from({ length: sizeOf(shape) }, () => (2 * random() - 1) * scale), shape);
const tanh = (c: Cursor, x: string): string => c.op('Tanh', [x]);
const fan = (n: number): number => 1.5 / Math.sqrt(n);
const at = (c: Cursor): number => upTo(c.random, c.shape.length);
const same = (c: Cursor, x: string): Grown => ({ x, shape: c.shape });
const whole = (c: Sketcher, x: number): string => c.constant(int64([x], []));
const reshaped = (c: Sketcher, x: string, shape: Shape): string => c.op('Reshape', [x, list(c, -1, ...shape)]);

const unary = (op: string, attributes: Attributes = {}): Step => (c) => same(c, c.op(op, [c.x], attributes));
/** For functions that are steep or undefined outside of a part of the line. */
const within = (op: string, low: number, high: number): Step => (c) => {
  const unit = c.op('Add', [c.op('Mul', [tanh(c, c.x), c.constant(float32([(high - low) / 2], []))]), c.constant(float32([(high + low) / 2], []))]);
  return same(c, c.op(op, [unit]));
};

const elementwise: Readonly<Record<string, Step>> = {
  ...Object.fromEntries(['Tanh', 'Sigmoid', 'Softplus', 'Softsign', 'Erf', 'Sin', 'Cos', 'Atan', 'Gelu', 'Mish', 'Neg', 'Identity', 'Elu', 'Selu', 'Relu', 'LeakyRelu', 'Abs']
    .map((op) => [op, unary(op)])),
  ...Object.fromEntries(['Exp', 'Sinh', 'Cosh', 'Asinh'].map((op) => [op, within(op, -1, 1)])),
  ...Object.fromEntries(['Log', 'Sqrt', 'Reciprocal'].map((op) => [op, within(op, 0.5, 2)])),
  ...Object.fromEntries(['Asin', 'Acos', 'Atanh'].map((op) => [op, within(op, -0.7, 0.7)])),
  Clip: (c) => same(c, c.op('Clip', [c.x, c.constant(float32([-0.8], [])), c.constant(float32([0.9], []))])),
  Pow: (c) => same(c, c.op('Pow', [c.x, c.constant(float32([pickOf(c.random, [2, 3])], []))])),
  residual: (c) => same(c, c.op('Add', [c.x, tanh(c, c.x)])),
  difference: (c) => same(c, c.op('Sub', [c.op('Sigmoid', [c.x]), c.op('Sin', [c.x])])),
  product: (c) => same(c, c.op('Mul', [c.x, tanh(c, c.x)])),
  quotient: (c) => same(c, c.op('Div', [c.x, c.op('Softplus', [c.x])])),
  Max: (c) => same(c, c.op('Max', [c.x, c.op('Neg', [c.x]), c.constant(float32([0.1], []))])),
  Mean: (c) => same(c, c.op('Mean', [c.x, tanh(c, c.x)])),
  Where: (c) => same(c, c.op('Where', [c.op('Greater', [c.x, c.constant(float32([0], []))]), tanh(c, c.x), c.op('Mul', [c.x, c.constant(float32([0.3], []))])])),
  'scaled by a constant': (c) => same(c, c.op('Mul', [c.x, c.constant(drawn(c.random, c.shape))])),
};

/** Parameters that are broadcast: of the shape of the last axes, of one axis, of the whole, or a single number. */
const broadcastShape = (c: Cursor): Shape => {
  const from = upTo(c.random, c.shape.length + 1);
  return c.shape.slice(from).map((n) => (c.random() < 0.3 ? 1 : n));
};
const broadcast = (op: string): Step => (c) => {
  const p = c.parameter(broadcastShape(c), 0.5);
  const operands = c.random() < 0.5 ? [c.x, p] : [p, c.x];
  return same(c, c.op(op, operands));
};
const parameters: Readonly<Record<string, Step>> = {
  'Add parameter': broadcast('Add'), 'Sub parameter': broadcast('Sub'), 'Mul parameter': broadcast('Mul'),
  'Div by parameter': (c) => same(c, c.op('Div', [c.x, c.op('Add', [c.op('Softplus', [c.parameter(broadcastShape(c), 0.5)]), c.constant(float32([0.5], []))])])),
  PRelu: (c) => same(c, c.op('PRelu', [c.x, c.parameter(broadcastShape(c), 0.5)])),
  'class token': (c) => {
    if (c.shape.length < 2) return undefined;
    const [n, ...rest] = c.shape as [number, ...number[]];
    const count = c.op('Shape', [c.x], { start: int(0), end: int(1) });
    const token = c.op('Expand', [c.parameter([1, 1, ...rest]), c.op('Concat', [count, list(c, 1, ...rest)], { axis: int(0) })]);
    return { x: c.op('Concat', c.random() < 0.5 ? [token, c.x] : [c.x, token], { axis: int(1) }), shape: [n + 1, ...rest] };
  },
};

const reduction = (op: string): Step => (c) => {
  if (c.shape.length < 2) return undefined;
  const axis = at(c);
  const keep = c.random() < 0.4;
  return { x: c.op(op, [c.x, list(c, axis + 1)], { keepdims: int(keep ? 1 : 0) }), shape: keep ? c.shape.with(axis, 1) : c.shape.toSpliced(axis, 1) };
};
const alongAxis = (op: string, attributes: Attributes = {}): Step => (c) => same(c, c.op(op, [c.x], { axis: int(at(c) + 1), ...attributes }));
const reductions: Readonly<Record<string, Step>> = {
  ...Object.fromEntries(['ReduceSum', 'ReduceMean', 'ReduceMax', 'ReduceMin', 'ReduceLogSumExp', 'ReduceSumSquare', 'ReduceL1', 'ReduceL2'].map((op) => [op, reduction(op)])),
  Softmax: alongAxis('Softmax'), LogSoftmax: alongAxis('LogSoftmax'),
  CumSum: (c) => same(c, c.op('CumSum', [c.x, whole(c, at(c) + 1)], { reverse: int(upTo(c.random, 2)), exclusive: int(upTo(c.random, 2)) })),
  TopK: (c) => {
    const axis = at(c);
    const k = 1 + upTo(c.random, c.shape[axis]!);
    return { x: c.op('TopK', [c.x, list(c, k)], { axis: int(axis + 1) }), shape: c.shape.with(axis, k) };
  },
};

const views: Readonly<Record<string, Step>> = {
  Transpose: (c) => {
    const order = c.shape.map((_, i) => i).map((i) => ({ i, key: c.random() })).sort((a, b) => a.key - b.key).map(({ i }) => i);
    return { x: c.op('Transpose', [c.x], { perm: ints([0, ...order.map((i) => i + 1)]) }), shape: order.map((i) => c.shape[i]!) };
  },
  'Transpose with the batch, and back': (c) => {
    const rank = c.shape.length + 1;
    const perm = [...Array.from({ length: rank }, (_, i) => i).slice(1), 0];
    const turned = c.op('Softplus', [c.op('Transpose', [c.x], { perm: ints(perm) })]);
    return same(c, c.op('Transpose', [turned], { perm: ints([rank - 1, ...perm.slice(0, -1).map((i) => i - 1)]) }));
  },
  'Reshape flat': (c) => ({ x: reshaped(c, c.x, [sizeOf(c.shape)]), shape: [sizeOf(c.shape)] }),
  'Reshape split': (c) => {
    const axis = at(c);
    const n = c.shape[axis]!;
    if (n % 2 !== 0 || c.shape.length > 3) return undefined;
    const shape = c.shape.toSpliced(axis, 1, ...(c.random() < 0.5 ? [2, n / 2] : [n / 2, 2]));
    return { x: reshaped(c, c.x, shape), shape };
  },
  'Unsqueeze and Squeeze': (c) => {
    const axis = 1 + at(c);
    return same(c, c.op('Squeeze', [c.op('Erf', [c.op('Unsqueeze', [c.x, list(c, axis)])]), list(c, axis)]));
  },
  Slice: (c) => {
    const axis = at(c);
    const n = c.shape[axis]!;
    const step = c.random() < 0.3 ? -1 : 1 + upTo(c.random, 2);
    const start = upTo(c.random, n);
    const count = step < 0 ? start + 1 : Math.ceil((n - start) / step);
    return { x: c.op('Slice', [c.x, list(c, start), list(c, step < 0 ? -100 : 100), list(c, axis + 1), list(c, step)]), shape: c.shape.with(axis, count) };
  },
  Gather: (c) => {
    const axis = at(c);
    const indices = Array.from({ length: 1 + upTo(c.random, 4) }, () => upTo(c.random, c.shape[axis]!));
    return { x: c.op('Gather', [c.x, list(c, ...indices)], { axis: int(axis + 1) }), shape: c.shape.with(axis, indices.length) };
  },
  Pad: (c) => {
    const axis = at(c);
    const [mode, n] = [pickOf(c.random, ['constant', 'edge', 'reflect']), c.shape[axis]!];
    if (mode === 'reflect' && n < 3) return undefined;
    const side = (k: number): number[] => [0, ...c.shape.map((_, i) => (i === axis ? k : 0))];
    return { x: c.op('Pad', [c.x, list(c, ...side(1), ...side(2))], { mode: string(mode) }), shape: c.shape.with(axis, n + 3) };
  },
  Concat: (c) => {
    const axis = at(c);
    return { x: c.op('Concat', [c.x, tanh(c, c.x)], { axis: int(axis + 1) }), shape: c.shape.with(axis, 2 * c.shape[axis]!) };
  },
  Tile: (c) => {
    const axis = at(c);
    return { x: c.op('Tile', [c.x, list(c, 1, ...c.shape.map((_, i) => (i === axis ? 2 : 1)))]), shape: c.shape.with(axis, 2 * c.shape[axis]!) };
  },
  Trilu: (c) => (c.shape.length < 2 ? undefined : same(c, c.op('Trilu', [c.x], { upper: int(upTo(c.random, 2)) }))),
};

const linear: Readonly<Record<string, Step>> = {
  MatMul: (c) => {
    const [d, p] = [c.shape.at(-1)!, 2 + upTo(c.random, 4)];
    return { x: c.op('MatMul', [c.x, c.parameter([d, p], fan(d))]), shape: c.shape.with(-1, p) };
  },
  'MatMul with a square weight': (c) => {
    const d = c.shape.at(-1)!;
    return d > 12 ? undefined : same(c, c.op('MatMul', [c.x, c.parameter([d, d], fan(d))]));
  },
  'MatMul from the left': (c) => {
    if (c.shape.length < 2) return undefined;
    const [d, p] = [c.shape.at(-2)!, 2 + upTo(c.random, 3)];
    return { x: c.op('MatMul', [c.parameter([p, d], fan(d)), c.x]), shape: c.shape.with(-2, p) };
  },
  'MatMul of many matrices': (c) => {
    if (c.shape.length < 2 || sizeOf(c.shape) > 200) return undefined;
    const [outer, d, p] = [c.shape.slice(0, -2), c.shape.at(-1)!, 3];
    return { x: c.op('MatMul', [c.x, c.parameter([...outer, d, p], fan(d))]), shape: c.shape.with(-1, p) };
  },
  'Gemm on merged rows': (c) => {
    const [d, p] = [c.shape.at(-1)!, 2 + upTo(c.random, 4)];
    const turned = c.random() < 0.5;
    const y = c.op('Gemm', [c.op('Reshape', [c.x, list(c, -1, d)]), c.parameter(turned ? [p, d] : [d, p], fan(d)), c.parameter([p], 0.3)],
      { transB: int(turned ? 1 : 0), alpha: float(0.8), beta: float(1.3) });
    return { x: reshaped(c, y, c.shape.with(-1, p)), shape: c.shape.with(-1, p) };
  },
  Einsum: (c) => {
    const d = c.shape.at(-1)!;
    if (c.shape.length === 1) return { x: c.op('Einsum', [c.x, c.parameter([d, 3], fan(d))], { equation: string('bi,ij->bj') }), shape: [3] };
    if (c.shape.length > 2) return undefined;
    const [t] = c.shape as [number, number];
    return pickOf<() => Grown>(c.random, [
      () => ({ x: c.op('Einsum', [c.x, c.parameter([2, d, 3], fan(d))], { equation: string('btd,hde->bhte') }), shape: [2, t, 3] }),
      () => ({ x: c.op('Einsum', [c.parameter([t, 4], fan(t)), c.x], { equation: string('tk,btd->bdk') }), shape: [d, 4] }),
      () => ({ x: c.op('Einsum', [c.x, c.parameter([t, d], 0.5)], { equation: string('btd,td->bt') }), shape: [t] }),
      () => ({ x: c.op('Einsum', [c.x, tanh(c, c.x)], { equation: string('btd,bsd->bts') }), shape: [t, t] }),
    ])();
  },
};

/** Axes as channels and up to three spatial ones. */
function imageOf(c: Cursor): Grown | undefined {
  const shape = c.shape.length === 1 ? [1, ...c.shape] : c.shape;
  return shape.length > 4 ? undefined : { shape, x: c.shape.length === 1 ? c.op('Unsqueeze', [c.x, list(c, 1)]) : c.x };
}
const spatial = (shape: Shape): Shape => shape.slice(1);
const convolution: Step = (c) => {
  const image = imageOf(c);
  if (image === undefined) return undefined;
  const [channels, ...sizes] = image.shape as [number, ...number[]];
  const groups = pickOf(c.random, [1, 1, 2, channels]);
  if (channels % groups !== 0) return undefined;
  const out = groups * (1 + upTo(c.random, 2));
  const [kernel, stride, dilation, pad] = [sizes.map(() => 1 + upTo(c.random, 3)), 1 + upTo(c.random, 2), 1 + upTo(c.random, 2), upTo(c.random, 2)];
  const counts = sizes.map((n, i) => Math.floor((n + 2 * pad - dilation * (kernel[i]! - 1) - 1) / stride) + 1);
  if (counts.some((n) => n < 1)) return undefined;
  const w = c.parameter([out, channels / groups, ...kernel], fan(channels / groups * sizeOf(kernel)));
  const all = (n: number): number[] => sizes.map(() => n);
  return {
    x: c.op('Conv', [image.x, w, ...(c.random() < 0.5 ? [c.parameter([out], 0.3)] : [])], {
      kernel_shape: ints(kernel), strides: ints(all(stride)), dilations: ints(all(dilation)), pads: ints([...all(pad), ...all(pad)]), group: int(groups),
    }), shape: [out, ...counts],
  };
};
const transposedConvolution: Step = (c) => {
  const image = imageOf(c);
  if (image === undefined || sizeOf(image.shape) > 60) return undefined;
  const [channels, ...sizes] = image.shape as [number, ...number[]];
  const groups = channels % 2 === 0 ? pickOf(c.random, [1, 2]) : 1;
  const [kernel, stride] = [sizes.map(() => 1 + upTo(c.random, 2)), 1 + upTo(c.random, 2)];
  const w = c.parameter([channels, 2, ...kernel], fan(channels / groups * sizeOf(kernel)));
  return {
    x: c.op('ConvTranspose', [image.x, w], { kernel_shape: ints(kernel), strides: ints(sizes.map(() => stride)), group: int(groups) }),
    shape: [2 * groups, ...sizes.map((n, i) => (n - 1) * stride + kernel[i]!)],
  };
};
const pool = (op: string): Step => (c) => {
  const image = imageOf(c);
  if (image === undefined || spatial(image.shape).some((n) => n < 2)) return undefined;
  const stride = 1 + upTo(c.random, 2);
  const all = (n: number): Attributes[string] => ints(spatial(image.shape).map(() => n));
  return { x: c.op(op, [image.x], { kernel_shape: all(2), strides: all(stride) }), shape: [image.shape[0]!, ...spatial(image.shape).map((n) => Math.floor((n - 2) / stride) + 1)] };
};
const images: Readonly<Record<string, Step>> = {
  Conv: convolution, 'Conv again': convolution, ConvTranspose: transposedConvolution, MaxPool: pool('MaxPool'), AveragePool: pool('AveragePool'),
  Resize: (c) => {
    const image = imageOf(c);
    if (image === undefined || image.shape.length > 3) return undefined;
    const sizes = spatial(image.shape).map((n) => n + 1 + upTo(c.random, 2));
    const mode = pickOf(c.random, ['nearest', 'linear']);
    const scales = spatial(image.shape).map((n, i) => sizes[i]! / n);
    return { x: c.op('Resize', [image.x, '', c.constant(float32([1, 1, ...scales.map((s) => s + 1e-4)]))], { mode: string(mode) }), shape: [image.shape[0]!, ...sizes] };
  },
  GlobalAveragePool: (c) => {
    const image = imageOf(c);
    return image && { x: c.op('GlobalAveragePool', [image.x]), shape: [image.shape[0]!, ...spatial(image.shape).map(() => 1)] };
  },
  DepthToSpace: (c) => {
    const [channels, h, w] = c.shape as [number, number, number];
    return c.shape.length !== 3 || channels % 4 !== 0 ? undefined : { x: c.op('DepthToSpace', [c.x], { blocksize: int(2) }), shape: [channels / 4, 2 * h, 2 * w] };
  },
};

const epsilon = { epsilon: float(0.1) };
const norms: Readonly<Record<string, Step>> = {
  LayerNormalization: (c) => {
    const axis = at(c);
    const shape = c.shape.slice(axis);
    return same(c, c.op('LayerNormalization', [c.x, c.parameter(shape), c.parameter(shape, 0.3)], { axis: int(axis + 1), ...epsilon }));
  },
  RMSNormalization: (c) => same(c, c.op('RMSNormalization', [c.x, c.parameter(c.shape.slice(-1))], { axis: int(-1), ...epsilon })),
  GroupNormalization: (c) => {
    const image = imageOf(c);
    if (image === undefined || image.shape[0]! % 2 !== 0) return undefined;
    return { x: c.op('GroupNormalization', [image.x, c.parameter([image.shape[0]!]), c.parameter([image.shape[0]!], 0.3)], { num_groups: int(2), ...epsilon }), shape: image.shape };
  },
  InstanceNormalization: (c) => {
    const image = imageOf(c);
    return image && { x: c.op('InstanceNormalization', [image.x, c.parameter([image.shape[0]!]), c.parameter([image.shape[0]!], 0.3)], epsilon), shape: image.shape };
  },
  'frozen BatchNormalization': (c) => {
    const image = imageOf(c);
    if (image === undefined) return undefined;
    const n = image.shape[0]!;
    const variance = c.constant(float32(Array.from({ length: n }, () => 0.5 + c.random())));
    return { x: c.op('BatchNormalization', [image.x, c.parameter([n]), c.parameter([n], 0.3), c.constant(drawn(c.random, [n])), variance]), shape: image.shape };
  },
  LpNormalization: (c) => same(c, c.op('LpNormalization', [c.op('Add', [c.x, c.constant(float32([2], []))])], { axis: int(at(c) + 1), p: int(2) })),
};

/** Values as a sequence [T, d]. */
function sequenceOf(c: Cursor): Grown | undefined {
  if (sizeOf(c.shape) > 80) return undefined;
  if (c.shape.length === 2) return c;
  if (c.shape.length === 1) return { x: c.op('Unsqueeze', [c.x, list(c, 1)]), shape: [1, ...c.shape] };
  const shape = [c.shape[0]!, sizeOf(c.shape.slice(1))];
  return { x: reshaped(c, c.x, shape), shape };
}
const recurrent = (op: string, gates: number): Step => (c) => {
  const sequence = sequenceOf(c);
  if (sequence === undefined || sequence.shape[0]! > 6) return undefined;
  const [T, d] = sequence.shape as [number, number];
  const [hidden, both] = [2, c.random() < 0.4 ? 2 : 1];
  const turned = c.op('Transpose', [sequence.x], { perm: ints([1, 0, 2]) });
  const operands = [turned, c.parameter([both, gates * hidden, d], fan(d)), c.parameter([both, gates * hidden, hidden], fan(hidden)), c.parameter([both, 2 * gates * hidden], 0.3)];
  const y = c.op(op, operands, { hidden_size: int(hidden), direction: string(both === 2 ? 'bidirectional' : 'forward') });
  return { x: reshaped(c, c.op('Transpose', [y], { perm: ints([2, 0, 1, 3]) }), [T, both * hidden]), shape: [T, both * hidden] };
};
const attention: Step = (c) => {
  const sequence = sequenceOf(c);
  if (sequence === undefined) return undefined;
  const [T, d] = sequence.shape as [number, number];
  const [heads, size] = [2, 2];
  const width = heads * size;
  const [q, k, v] = [0, 1, 2].map(() => c.op('MatMul', [sequence.x, c.parameter([d, width], fan(d))]));
  return { x: c.op('Attention', [q!, k!, v!], { q_num_heads: int(heads), kv_num_heads: int(heads), is_causal: int(upTo(c.random, 2)) }), shape: [T, width] };
};
const contributed = (build: (c: Cursor, s: Grown, d: number) => string): Step => (c) => {
  const sequence = sequenceOf(c);
  return sequence && { x: build(c, sequence, sequence.shape[1]!), shape: sequence.shape };
};
const sequences: Readonly<Record<string, Step>> = {
  LSTM: recurrent('LSTM', 4), GRU: recurrent('GRU', 3), RNN: recurrent('RNN', 1), Attention: attention,
  BiasGelu: contributed((c, s, d) => c.op('BiasGelu', [s.x, c.parameter([d], 0.5)], {}, 'com.microsoft')),
  FastGelu: contributed((c, s, d) => c.op('FastGelu', [s.x, c.parameter([d], 0.5)], {}, 'com.microsoft')),
  QuickGelu: contributed((c, s) => c.op('QuickGelu', [s.x], { alpha: float(1.5) }, 'com.microsoft')),
  SkipLayerNormalization: contributed((c, s, d) => c.op('SkipLayerNormalization', [s.x, tanh(c, s.x), c.parameter([d]), c.parameter([d], 0.3), c.parameter([d], 0.3)], epsilon, 'com.microsoft')),
  FusedMatMul: contributed((c, s, d) => c.op('FusedMatMul', [s.x, c.parameter([d, d], fan(d))], { transB: int(1), alpha: float(0.9) }, 'com.microsoft')),
};

/** All steps by name. Families with parameters come up more often than their number. */
export const families: readonly Readonly<Record<string, Step>>[] =
  [elementwise, parameters, parameters, reductions, views, linear, linear, images, images, norms, sequences];

export interface ComposedNetwork {
  readonly model: Graph;
  readonly input: { readonly dtype: 'float32' | 'int64'; readonly shape: Shape };
  readonly classes: number;
  readonly vocabulary: number;
  /** The names of the steps, for messages. */
  readonly steps: readonly string[];
}

/** The parameter itself, or one of another shape from which it is computed before it meets the data. */
function reached(b: Sketcher, random: () => number, weight: (shape: Shape, scale: number) => string, shape: Shape, scale: number): string {
  const rank = shape.length;
  const reversed = shape.toReversed();
  const ways: (() => string)[] = [
    () => b.op('Transpose', [weight(reversed, scale)], { perm: ints(shape.map((_, i) => rank - 1 - i)) }),
    () => b.op('Reshape', [weight([sizeOf(shape)], scale), list(b, ...shape)]),
    () => b.op('Mul', [weight(shape, scale), b.constant(drawn(random, rank > 0 && random() < 0.5 ? shape.slice(-1) : shape, 1.5))]),
    () => b.op('Slice', [weight(shape.map((n, i) => (i === 0 ? n + 2 : n)), scale), list(b, 1), list(b, -1), list(b, 0)]),
    () => b.op('Gather', [weight(shape.map((n, i) => (i === 0 ? n + 1 : n)), scale), list(b, ...Array.from({ length: shape[0] ?? 1 }, () => upTo(random, (shape[0] ?? 1) + 1)))], { axis: int(0) }),
    () => b.op('Tanh', [weight(shape, scale)]),
    () => b.op('Add', [weight(shape, scale), weight(shape, scale)]),
  ];
  return rank === 0 || random() < 0.55 ? weight(shape, scale) : pickOf(random, ways)();
}

/** Builds the network: input [batch, …], output `logits` [batch, classes]. Steps that do not fit are left out. */
export function composedNetwork({ seed, tokens, steps }: Omit<Composition, 'rowsPerUnit'>): ComposedNetwork {
  const random = testRandom(seed);
  const b = sketcher('n');
  const drawnParameters = new Map<string, Tensor>();
  const weight = (shape: Shape, scale: number): string => {
    const alike = [...drawnParameters].filter(([, t]) => t.shape.join() === shape.join());
    if (alike.length > 0 && random() < 0.4) return pickOf(random, alike)[0];
    const name = `p${drawnParameters.size}`;
    drawnParameters.set(name, drawn(random, shape, scale));
    return name;
  };
  const parameter = (shape: Shape, scale = 1): string => reached(b, random, weight, shape, scale);
  const vocabulary = 6;
  const inputShape = tokens ? [2 + upTo(random, 4)] : pickOf<Shape>(random, [[6], [4, 3], [3, 4], [2, 4, 4], [4, 3, 5], [2, 3, 3, 2]]);
  let state: Grown = { x: 'input', shape: inputShape };
  if (tokens) state = { x: b.op('Gather', [parameter([vocabulary, 4]), 'input'], { axis: int(0) }), shape: [...inputShape, 4] };
  const taken: string[] = tokens ? ['Gather by tokens'] : [];
  for (const number of steps) {
    const family = families[number % families.length]!;
    const names = Object.keys(family);
    const name = names[Math.floor(number / families.length) % names.length]!;
    const grown = family[name]!({ ...b, ...state, random, parameter });
    if (grown === undefined || sizeOf(grown.shape) > 300 || sizeOf(grown.shape) === 0) continue;
    taken.push(name);
    state = grown;
  }
  const features = sizeOf(state.shape);
  const classes = 3;
  const flat = reshaped(b, b.op('Tanh', [state.x]), [features]);
  const head = b.op('Gemm', [flat, parameter([classes, features], fan(features)), parameter([classes], 0.3)], { transB: int(1) });
  const nodes = [...b.nodes, { op: 'Identity', domain: '', name: 'end', inputs: [head], outputs: ['logits'], attributes: {} }];
  const used = new Set(nodes.flatMap(({ inputs }) => inputs));
  const dtype = tokens ? 'int64' as const : 'float32' as const;
  return {
    classes, vocabulary, steps: taken, input: { dtype, shape: inputShape },
    model: {
      name: 'composed', opset: latestOpset, metadata: {}, nodes, domains: { 'com.microsoft': 1 },
      initializers: new Map([...[...drawnParameters, ...b.initializers].filter(([name]) => used.has(name))]), literals: b.literals,
      inputs: [{ name: 'input', dtype, shape: ['batch', ...inputShape] }],
      outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', classes] }],
    },
  };
}
