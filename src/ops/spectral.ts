import { type Node, int, intAttribute, showShape } from '../graph/ir.ts';
import { dtypeOf } from '../graph/onnx.ts';
import { type Shape, type TensorType, float32, int64 } from '../tensor/tensor.ts';
import { knownIntegers, requireTable } from './arranging.ts';
import { type GraphBuilder, type Value, add, concat, mul, pad, reshape, slice, sub, transpose } from './builder.ts';
import type { Composite } from './composite.ts';
import { badOperands } from './operands.ts';
import type { OperandContext, Operator } from './operator.ts';
import { fromFront, noGradientFlows, requiredIntegers, withoutBatch } from './rules.ts';

/** How a discrete Fourier transform is taken. */
interface Transform {
  readonly length: number;
  /** How many frequencies are given out. */
  readonly kept: number;
  readonly inverse: boolean;
}

/** cos and sin of 2π·j·k / length, [length, kept]. */
function waves(b: GraphBuilder, { length, kept, inverse }: Transform): readonly [Value, Value] {
  const share = inverse ? 1 / length : 1;
  const table = (f: (x: number) => number): Value => b.constant(float32(
    Array.from({ length: length * kept }, (_, i) => share * f((2 * Math.PI * ((Math.floor(i / kept) * (i % kept)) % length)) / length)), [length, kept],
  ));
  return [table(Math.cos), table((x) => (inverse ? -1 : 1) * Math.sin(x))];
}

/** x cut or padded with zeros to `length` along its last axis. */
function fitted(b: GraphBuilder, x: Value, length: number): Value {
  const shape = b.shape(x);
  const last = shape.length - 1;
  const missing = length - shape[last]!;
  if (missing <= 0) return missing === 0 ? x : slice(b, x, [last], [0], [length]);
  return pad(b, x, [...shape.map(() => 0), ...shape.map((_, i) => (i === last ? missing : 0))]);
}

/** The transform along an axis of a value whose last axis holds real and (when it is 2) imaginary parts. */
function transformed(b: GraphBuilder, x: Value, axis: number, transform: Transform): Value {
  const shape = b.shape(x);
  const order = shape.slice(0, -1).map((_, i) => i);
  const turned = [...order.filter((i) => i !== axis), axis];
  const part = (k: number): Value => {
    const real = reshape(b, slice(b, x, [shape.length - 1], [k], [k + 1]), shape.slice(0, -1));
    return fitted(b, transpose(b, real, turned), transform.length);
  };
  const [cosine, sine] = waves(b, transform);
  const [re, im] = [part(0), shape.at(-1) === 2 ? part(1) : undefined];
  const times = (value: Value, wave: Value): Value => b.op('MatMul', [value, wave]);
  const real = im === undefined ? times(re, cosine) : add(b, times(re, cosine), times(im, sine));
  const imaginary = im === undefined ? b.op('Neg', [times(re, sine)]) : sub(b, times(im, cosine), times(re, sine));
  const back = (value: Value): Value => {
    const straight = transpose(b, value, order.map((i) => turned.indexOf(i)));
    return reshape(b, straight, [...b.shape(straight), 1]);
  };
  return concat(b, [back(real), back(imaginary)], shape.length - 1);
}

const isOnesided = (node: Node, fallback: number): boolean => intAttribute(node, 'onesided', fallback) !== 0;
const keptOf = (length: number, onesided: boolean): number => (onesided ? Math.floor(length / 2) + 1 : length);

const dft: Composite = {
  expand: (context) => {
    const { b, node, inputs } = context;
    const x = inputs[0]!;
    const shape = b.shape(x);
    const given = inputs[2] === undefined ? -2 : knownIntegers(context, 2)[0] ?? -2;
    const axis = fromFront(node, given, shape.length);
    const inverse = intAttribute(node, 'inverse', 0) !== 0;
    const onesided = isOnesided(node, 0);
    if (shape.length < 2 || ![1, 2].includes(shape.at(-1)!) || axis === shape.length - 1 || (onesided && (inverse || shape.at(-1) === 2))) {
      throw badOperands({ node }, `${showShape(shape)} along axis ${axis}${onesided ? ', onesided' : ''}${inverse ? ', inverse' : ''}`,
        'real or complex numbers along another axis than the last; onesided only of real ones, forward');
    }
    const length = inputs[1] === undefined ? shape[axis]! : knownIntegers(context, 1)[0]!;
    const kept = keptOf(length, onesided);
    requireTable(node, length * kept);
    return [transformed(b, x, axis, { length, kept, inverse })];
  },
};

const stft: Composite = {
  expand: (context) => {
    const { b, node, inputs } = context;
    const [signal, window] = [inputs[0]!, inputs[2]];
    const shape = b.shape(signal);
    const step = knownIntegers(context, 1)[0]!;
    const length = inputs[3] === undefined ? (window === undefined ? 0 : b.shape(window)[0]!) : knownIntegers(context, 3)[0]!;
    const onesided = isOnesided(node, 1);
    const frames = Math.floor((shape[1]! - length) / step) + 1;
    if (shape.length !== 3 || ![1, 2].includes(shape[2]!) || length < 1 || step < 1 || frames < 1
      || (window !== undefined && b.shape(window).join() !== String(length)) || (onesided && shape[2] === 2)) {
      throw badOperands({ node }, `signals ${showShape(shape)} in frames of ${length}, ${step} apart`,
        'signals [N, time, 1 or 2] no shorter than a frame, and a window as long as one; onesided only of real ones');
    }
    requireTable(node, length * Math.max(frames, length));
    const places = Array.from({ length: frames * length }, (_, i) => Math.floor(i / length) * step + (i % length));
    const cut = b.op('Gather', [signal, b.constant(int64(places, [frames, length]))], { axis: int(1) });
    const faded = window === undefined ? cut : mul(b, cut, reshape(b, window, [length, 1]));
    return [transformed(b, faded, 2, { length, kept: keptOf(length, onesided), inverse: false })];
  },
};

const outputType = (context: OperandContext, shape: Shape): TensorType => {
  const code = intAttribute(context.node, 'output_datatype', 1);
  const dtype = dtypeOf(code);
  if (dtype === undefined || shape.some((n) => !(n >= 0))) throw badOperands(context, `type ${code}, shape ${showShape(shape)}`, 'numbers');
  return { dtype, shape };
};

/** Made of sizes alone; the engine computes it once. */
const made = (shapeOf: (context: OperandContext) => Shape): Operator => ({
  shape: (context) => [outputType(context, shapeOf(context))], batch: withoutBatch, gradient: noGradientFlows,
});

const window = made((context) => [requiredIntegers(context, 0)[0] ?? 0]);

const melWeightMatrix = made((context) => {
  const [bins = 0, length = 0] = [0, 1].map((i) => requiredIntegers(context, i)[0] ?? 0);
  return [Math.floor(length / 2) + 1, bins];
});

/** Spectra of signals. */
export const spectral = {
  DFT: dft, STFT: stft,
  HannWindow: window, HammingWindow: window, BlackmanWindow: window, MelWeightMatrix: melWeightMatrix,
} satisfies Record<string, Operator | Composite>;
