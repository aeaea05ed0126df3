import { GhostgradError } from '../errors.ts';
import { type Node, floatAttribute, int, intAttribute, showNode, showShape, showType, stringAttribute } from '../graph/ir.ts';
import { type Shape, type TensorType, sameShape, tensor, toNumbers } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, add, concat, matmul, mul, slice, sub, where } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { badOperands, operand } from './operands.ts';
import type { OperandContext, Operator } from './operator.ts';
import { type Activation, activationsOf } from './recurrent-activations.ts';
import { scalarLike } from './rules.ts';

/**
 * Longer sequences are refused: every step becomes nodes of its own. The limit also keeps a size that a damaged file
 * declares from being unrolled.
 */
const maximumSteps = 4096;

/** What LSTM, GRU and RNN have to tell them apart. */
interface Kind {
  /** Rows of W and R for each hidden unit. */
  readonly gates: number;
  /** Input indices of the initial states, in the order of {@link State}. */
  readonly initial: readonly number[];
  readonly peepholes?: number;
  /** Default activations of one direction. */
  readonly activations: readonly string[];
  readonly cell: (parts: Parts) => Cell;
}

/** What a layer carries from step to step: the hidden state, and the cell of an LSTM. Undefined stands for zeros. */
type State = readonly (Value | undefined)[];

/** One direction's recurrence. */
interface Cell {
  /** Values over the whole sequence, of which each step takes its share. */
  readonly inputs: readonly Value[];
  readonly step: (inputs: readonly Value[], state: State) => readonly Value[];
}

/** What a cell is made of: the operands of one direction. A step's values have size 1 along the axis of time. */
interface Parts {
  readonly b: GraphBuilder;
  readonly node: Node;
  readonly hidden: number;
  /** The whole sequence times the input weights: [steps, rows, gates · hidden], or rows first in layout 1. */
  readonly projected: Value;
  /** Rows `from` to `to` (in units of `hidden`) of the recurrence weights. */
  readonly recurrence: (from: number, to: number) => Value;
  /** The same of the input biases and of the recurrence biases, [1, n · hidden]; undefined where there are none. */
  readonly inputBias: (from: number, to: number) => Value | undefined;
  readonly recurrenceBias: (from: number, to: number) => Value | undefined;
  readonly peephole: ((gate: number) => Value) | undefined;
  readonly activations: readonly Activation[];
  /** Bounds what goes into an activation. */
  readonly clip: (x: Value) => Value;
}

/** Pieces of the last axis, `sizes` in units of `hidden`. */
const gatesOf = ({ b, hidden }: Parts, x: Value, sizes: readonly number[]): readonly Value[] =>
  b.ops('Split', [x, b.ints(sizes.map((n) => n * hidden))], sizes.length, { axis: int(-1) });

const plus = (b: GraphBuilder, x: Value, y: Value | undefined): Value => (y === undefined ? x : add(b, x, y));

/** Both biases of rows `from` to `to`, which always act together there. */
function bothBiases({ b, inputBias, recurrenceBias }: Parts, from: number, to: number): Value | undefined {
  const [w, r] = [inputBias(from, to), recurrenceBias(from, to)];
  return w === undefined || r === undefined ? undefined : add(b, w, r);
}

/** state · Rᵀ */
const recur = ({ b, recurrence }: Parts, state: Value, from: number, to: number): Value =>
  matmul(b, state, recurrence(from, to), { transposeY: true });

const rnnCell = (parts: Parts): Cell => ({
  inputs: [plus(parts.b, parts.projected, bothBiases(parts, 0, 1))],
  step: ([x], [h]) => {
    const { b, clip, activations: [f] } = parts;
    return [f!(b, clip(plus(b, x!, h && recur(parts, h, 0, 1))))];
  },
});

/** Gates in the order of the weights: input, output, forget; then the candidate for the cell. */
const lstmCell = (parts: Parts): Cell => ({
  inputs: [plus(parts.b, parts.projected, bothBiases(parts, 0, 4))],
  step: ([x], [h, c]) => {
    const { b, node, clip, peephole, activations: [f, g, out] } = parts;
    const [open, candidate] = gatesOf(parts, plus(b, x!, h && recur(parts, h, 0, 4)), [3, 1]) as [Value, Value];
    // Gates that see the cell through peepholes are opened one by one, the others at once.
    const gates = gatesOf(parts, peephole === undefined ? f!(b, clip(open)) : open, [1, 1, 1]);
    const gate = (k: 0 | 1 | 2, cell: Value | undefined): Value => {
      if (peephole === undefined) return gates[k]!;
      return f!(b, clip(plus(b, gates[k]!, cell && mul(b, peephole(k), cell))));
    };
    const input = gate(0, c);
    const added = mul(b, input, g!(b, clip(candidate)));
    const coupled = intAttribute(node, 'input_forget', 0) !== 0;
    const kept = c && mul(b, coupled ? sub(b, scalarLike(b, 1, input), input) : gate(2, c), c);
    const cell = plus(b, added, kept);
    return [mul(b, gate(1, cell), out!(b, cell)), cell];
  },
});

/** Gates in the order of the weights: update, reset; then the candidate for the hidden state. */
function gruCell(parts: Parts): Cell {
  const { b, node, clip, projected, inputBias, recurrenceBias, activations: [f, g] } = parts;
  const [forGates, forCandidate] = gatesOf(parts, projected, [2, 1]) as [Value, Value];
  const resetsLast = intAttribute(node, 'linear_before_reset', 0) !== 0;
  const carriedBias = resetsLast ? recurrenceBias(2, 3) : undefined;
  /** What h gives to the gates and, where the reset comes after the product, to the candidate. */
  const products = (h: Value): readonly Value[] =>
    (resetsLast ? gatesOf(parts, recur(parts, h, 0, 3), [2, 1]) : [recur(parts, h, 0, 2)]);
  return {
    inputs: [
      plus(b, forGates, bothBiases(parts, 0, 2)),
      plus(b, forCandidate, resetsLast ? inputBias(2, 3) : bothBiases(parts, 2, 3)),
    ],
    step: ([gates, own], [h]) => {
      const [toGates, toCandidate] = h === undefined ? [] : products(h);
      const [update, reset] = gatesOf(parts, f!(b, clip(plus(b, gates!, toGates))), [1, 1]) as [Value, Value];
      const linear = toCandidate === undefined ? carriedBias : plus(b, toCandidate, carriedBias);
      const carried = resetsLast ? linear && mul(b, reset, linear) : h && recur(parts, mul(b, reset, h), 2, 3);
      const candidate = g!(b, clip(plus(b, own!, carried)));
      return [h === undefined
        ? sub(b, candidate, mul(b, update, candidate))
        : add(b, candidate, mul(b, update, sub(b, h, candidate)))];
    },
  };
}

/** The sizes of a layer. `time` is the axis of X that steps run along, and of the states' directions. */
interface Sizes {
  readonly time: number;
  readonly steps: number;
  readonly rows: number;
  readonly inputs: number;
  readonly hidden: number;
  readonly directions: number;
}

/** Reads the sizes and checks every operand against them. Throws GhostgradError where one does not fit. */
function sizesOf(context: OperandContext, kind: Kind): Sizes {
  const { node, inputs } = context;
  const [x, w, r] = [operand(context, 0), operand(context, 1), operand(context, 2)];
  const time = intAttribute(node, 'layout', 0) === 0 ? 0 : 1;
  const [steps, rows, size] = [x.shape[time] ?? 0, x.shape[1 - time] ?? 0, x.shape[2] ?? 0];
  const hidden = intAttribute(node, 'hidden_size', r.shape[2] ?? 0);
  const directions = directionsOf(node).length;
  const height = kind.gates * hidden;
  const state = time === 0 ? [directions, rows, hidden] : [rows, directions, hidden];
  const expected: (readonly [number, Shape])[] = [
    [0, time === 0 ? [steps, rows, size] : [rows, steps, size]],
    [1, [directions, height, size]], [2, [directions, height, hidden]], [3, [directions, 2 * height]], [4, [rows]],
    ...kind.initial.map((i) => [i, state] as const),
    ...(kind.peepholes === undefined ? [] : [[kind.peepholes, [directions, 3 * hidden]] as const]),
  ];
  for (const [i, shape] of expected) {
    const found = inputs[i];
    if (found === undefined) continue;
    const dtype = i === 4 ? 'int32' : x.dtype;
    if (found.dtype !== dtype || !sameShape(found.shape, shape)) {
      throw badOperands(context, `${showType(found)} as input ${i}`, `${dtype}${showShape(shape)}`);
    }
  }
  if (w.shape.length !== 3 || steps === 0) throw badOperands(context, showType(x), 'a sequence of at least one step');
  return { time, steps, rows, inputs: size, hidden, directions };
}

/** Whether each direction runs backward. */
function directionsOf(node: Node): readonly boolean[] {
  const direction = stringAttribute(node, 'direction', 'forward');
  if (direction === 'forward') return [false];
  if (direction === 'reverse') return [true];
  if (direction === 'bidirectional') return [false, true];
  throw badOperands({ node }, `direction ${direction}`, 'forward, reverse or bidirectional');
}

const shapeRule = (kind: Kind): Operator['shape'] => (context) => {
  const { time, steps, rows, hidden, directions } = sizesOf(context, kind);
  const { dtype } = operand(context, 0);
  const y: Shape = time === 0 ? [steps, directions, rows, hidden] : [rows, steps, directions, hidden];
  const last: Shape = time === 0 ? [directions, rows, hidden] : [rows, directions, hidden];
  return [{ dtype, shape: y }, ...kind.initial.map((): TensorType => ({ dtype, shape: last }))];
};

/** x[from_0:to_0, from_1:to_1, …]; x itself where that is all of it. */
function part(b: GraphBuilder, x: Value, ranges: readonly (readonly [number, number])[]): Value {
  const shape = b.shape(x);
  const axes = ranges.flatMap(([from, to], axis) => (from === 0 && to === shape[axis] ? [] : [axis]));
  if (axes.length === 0) return x;
  return slice(b, x, axes, axes.map((axis) => ranges[axis]![0]), axes.map((axis) => ranges[axis]![1]));
}

/** The operands of one direction. */
function partsOf({ b, node, inputs }: ExpandContext, kind: Kind, sizes: Sizes, direction: number): Parts {
  const { hidden } = sizes;
  const own = [direction, direction + 1] as const;
  const matrix = (x: Value, from: number, to: number): Value =>
    b.op('Squeeze', [part(b, x, [own, [from * hidden, to * hidden]]), b.ints([0])]);
  const vector = (x: Value | undefined, from: number, to: number): Value | undefined =>
    x && part(b, x, [own, [from * hidden, to * hidden]]);
  const [x, w, r, bias] = [inputs[0]!, inputs[1]!, inputs[2]!, inputs[3]];
  const peepholes = kind.peepholes === undefined ? undefined : inputs[kind.peepholes];
  const perDirection = kind.activations.length;
  const defaults = Array.from({ length: sizes.directions }, () => kind.activations).flat();
  const bound = clipBound(node);
  return {
    b, node, hidden,
    projected: matmul(b, x, matrix(w, 0, kind.gates), { transposeY: true }),
    recurrence: (from, to) => matrix(r, from, to),
    inputBias: (from, to) => vector(bias, from, to),
    recurrenceBias: (from, to) => vector(bias, kind.gates + from, kind.gates + to),
    peephole: peepholes === undefined ? undefined : (gate) => vector(peepholes, gate, gate + 1)!,
    activations: activationsOf(node, defaults).slice(direction * perDirection, (direction + 1) * perDirection),
    clip: (v) => (bound === undefined ? v : b.op('Clip', [v, scalarLike(b, -bound, v), scalarLike(b, bound, v)])),
  };
}

function clipBound(node: Node): number | undefined {
  const bound = floatAttribute(node, 'clip', -1);
  if (bound === 0) throw badOperands({ node }, 'clip 0', 'a bound above 0');
  return bound > 0 ? bound : undefined;
}

/** Each step's share of a sequence. One node, so that the gradient puts the shares together at once. */
const sharesOf = (b: GraphBuilder, x: Value, { time, steps }: Sizes): readonly Value[] =>
  (steps === 1 ? [x] : b.ops('Split', [x, b.ints(Array<number>(steps).fill(1))], steps, { axis: int(time) }));

/** For each step, whether a row's sequence reaches it; undefined where every sequence fills all steps. */
function reached({ b, inputs }: ExpandContext, { time, steps }: Sizes): Value | undefined {
  const lengths = inputs[4];
  if (lengths === undefined) return undefined;
  const known = b.constantOf(lengths);
  if (known !== undefined && toNumbers(known).every((n) => n >= steps)) return undefined;
  const places = tensor('int32', time === 0 ? [steps, 1, 1] : [1, steps, 1], Int32Array.from({ length: steps }, (_, t) => t));
  return b.op('Less', [b.constant(places), b.op('Unsqueeze', [lengths, b.ints([time, 2])])]);
}

/** A state that the layer starts from; undefined where it is zero. */
function initialState({ b, inputs }: ExpandContext, index: number, { time, rows, hidden }: Sizes, direction: number): Value | undefined {
  const value = inputs[index];
  if (value === undefined) return undefined;
  const known = b.constantOf(value);
  if (known !== undefined && toNumbers(known).every((v) => v === 0)) return undefined;
  const own = [direction, direction + 1] as const;
  const all = [0, rows] as const;
  return part(b, value, [...(time === 0 ? [own, all] : [all, own]), [0, hidden]]);
}

interface Run {
  /** The hidden state after each step, in the order of time. */
  readonly hidden: readonly Value[];
  readonly last: readonly Value[];
}

/** One direction, step by step. A row whose sequence has ended keeps its state, or has not begun when run backward. */
function unroll(context: ExpandContext, kind: Kind, sizes: Sizes, direction: number, backward: boolean, within: Value | undefined): Run {
  const { b } = context;
  const { inputs, step } = kind.cell(partsOf(context, kind, sizes, direction));
  const shares = inputs.map((x) => sharesOf(b, x, sizes));
  const present = within === undefined ? undefined : sharesOf(b, within, sizes);
  const start = kind.initial.map((i) => initialState(context, i, sizes, direction));
  const hidden: Value[] = [];
  let state: State = start;
  for (let n = 0; n < sizes.steps; n++) {
    const t = backward ? sizes.steps - 1 - n : n;
    const next = step(shares.map((x) => x[t]!), state);
    const before = state;
    state = present === undefined ? next
      : next.map((v, i) => where(b, present[t]!, v, before[i] ?? scalarLike(b, 0, v)));
    hidden[t] = state[0]!;
  }
  // A sequence of no steps ends in zeros, wherever it starts from.
  const last = state.map((v, i) => (present === undefined || start[i] === undefined ? v!
    : where(b, present[0]!, v!, scalarLike(b, 0, v!))));
  return { hidden, last };
}

const recurrentLayer = (kind: Kind): Composite => ({
  shape: shapeRule(kind),
  learned: [1, 2, 3, ...(kind.peepholes === undefined ? [] : [kind.peepholes])],
  // ONNX Runtime's kernels want the time first.
  lacksKernel: (node) => intAttribute(node, 'layout', 0) !== 0,
  expand: (context) => {
    const { b, node } = context;
    const types = context.inputs.map((v) => (v === undefined ? undefined : b.type(v)));
    const sizes = sizesOf({ node, inputs: types, constants: [] }, kind);
    if (sizes.steps > maximumSteps) throw tooLong(node, sizes.steps);
    const within = reached(context, sizes);
    const runs = directionsOf(node).map((backward, direction) => unroll(context, kind, sizes, direction, backward, within));
    const along = sizes.time + 1;
    const isNamed = (output: number): boolean => (node.outputs[output] ?? '') !== '';
    const sequence = ({ hidden }: Run): Value => {
      const joined = concat(b, hidden, sizes.time);
      const ended = within === undefined ? joined : where(b, within, joined, scalarLike(b, 0, joined));
      return b.op('Unsqueeze', [ended, b.ints([along])]);
    };
    return [
      isNamed(0) ? concat(b, runs.map(sequence), along) : undefined,
      ...kind.initial.map((_, i) => (isNamed(i + 1) ? concat(b, runs.map(({ last }) => last[i]!), sizes.time) : undefined)),
    ];
  },
});

const tooLong = (node: Node, steps: number): GhostgradError => new GhostgradError({
  what: `${node.op} over too long a sequence`, where: showNode(node), found: `${steps} steps`,
  expected: `at most ${maximumSteps}, since each step becomes nodes of the training graph`,
  fix: 'cut the sequences into shorter ones, or give the input its true shape',
});

/** Layers with a state that runs along a sequence; each use of the weights is a position of its own. */
export const recurrent = {
  RNN: recurrentLayer({
    gates: 1, initial: [5], activations: ['Tanh'], cell: rnnCell,
  }),
  GRU: recurrentLayer({
    gates: 3, initial: [5], activations: ['Sigmoid', 'Tanh'], cell: gruCell,
  }),
  LSTM: recurrentLayer({
    gates: 4, initial: [5, 6], peepholes: 7, activations: ['Sigmoid', 'Tanh', 'Tanh'], cell: lstmCell,
  }),
} satisfies Record<string, Operator | Composite>;
