import { type Node, int, intAttribute, showNode, showShape } from '../graph/ir.ts';
import { type GraphBuilder, type Value, add, concat, mul, reshape, slice, sub } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { badOperands } from './operands.ts';

/** Rotary position encoding: pairs of features turned by an angle that grows with the position. */
export interface Rotation {
  readonly cos: Value;
  readonly sin: Value;
  /** Whether a pair is two neighbours; otherwise its parts are half of the turned features apart. */
  readonly interleaved: boolean;
}

/**
 * x turned: twice as many of its last axis' features as cos and sin have, from the front; the others stay. The angles
 * must broadcast against x as they are.
 */
export function rotate(b: GraphBuilder, x: Value, { cos, sin, interleaved }: Rotation): Value {
  const shape = b.shape(x);
  const last = shape.length - 1;
  const half = b.shape(cos).at(-1)!;
  const part = (v: Value, axis: number, from: number, to: number): Value => slice(b, v, [axis], [from], [to]);
  const turned = 2 * half === shape[last] ? x : part(x, last, 0, 2 * half);
  const pairs = interleaved ? reshape(b, turned, [...shape.slice(0, last), half, 2]) : turned;
  const flat = [...shape.slice(0, last), half];
  const [real, imaginary] = interleaved
    ? [reshape(b, part(pairs, last + 1, 0, 1), flat), reshape(b, part(pairs, last + 1, 1, 2), flat)]
    : [part(pairs, last, 0, half), part(pairs, last, half, 2 * half)];
  const first = sub(b, mul(b, real, cos), mul(b, imaginary, sin));
  const second = add(b, mul(b, real, sin), mul(b, imaginary, cos));
  const column = (v: Value): Value => reshape(b, v, [...flat, 1]);
  const joined = interleaved
    ? reshape(b, concat(b, [column(first), column(second)], last + 1), [...flat.slice(0, last), 2 * half])
    : concat(b, [first, second], last);
  return turned === x ? joined : concat(b, [joined, part(x, last, 2 * half, shape[last]!)], last);
}

/** Rows of a table of angles at positions [B, T], or the same ones [T] for all examples. */
export const anglesAt = (b: GraphBuilder, table: Value, places: Value): Value => b.op('Gather', [table, places], { axis: int(0) });

/** x by heads, [B, N, T, H] or [B, T, N, H], and how to bring angles [(B,) T, H/2] in line with it. */
function byHeads(b: GraphBuilder, node: Node, x: Value): { readonly x: Value; readonly align: (angles: Value) => Value } {
  const shape = b.shape(x);
  const headAxis = shape.length === 4 ? 1 : 2;
  const align = (angles: Value): Value => {
    const own = b.shape(angles);
    return reshape(b, angles, headAxis === 1 ? [...own.slice(0, -2), 1, ...own.slice(-2)] : [...own.slice(0, -1), 1, own.at(-1)!]);
  };
  if (headAxis === 1) return { x, align };
  const [rows, steps, width] = shape as [number, number, number];
  return { x: reshape(b, x, [rows, steps, headsOf(node, width), -1].with(3, width / headsOf(node, width))), align };
}

function headsOf(node: Node, width: number): number {
  const heads = intAttribute(node, 'num_heads', 0);
  if (heads > 0 && width % heads === 0) return heads;
  throw badOperands({ node }, `${heads} heads of ${width} features`, 'num_heads that divides the features of a 3-d input');
}

/** What the standard operator and ONNX Runtime's older one share. `angles` gives [(B,) T, half] for a table. */
function expandRotary({ b, node, inputs }: ExpandContext, cos: Value, sin: Value, angles: (table: Value) => Value): readonly Value[] {
  const whole = byHeads(b, node, inputs[0]!);
  const turned = rotate(b, whole.x, {
    cos: whole.align(angles(cos)), sin: whole.align(angles(sin)), interleaved: intAttribute(node, 'interleaved', 0) !== 0,
  });
  return [reshape(b, turned, b.shape(inputs[0]!))];
}

function checkInput({ b, node, inputs }: ExpandContext): void {
  const rank = inputs[0] === undefined ? 0 : b.shape(inputs[0]).length;
  if (rank !== 3 && rank !== 4) {
    throw badOperands({ node }, `${showNode(node)} with an input of rank ${rank}`, '[B, T, features] or [B, heads, T, features]');
  }
}

/** The standard operator: angles are given for each position, or looked up in a table. */
export const rotaryEmbedding: Composite = {
  expand: (context) => {
    const { b, node, inputs: [, cos, sin, places] } = context;
    checkInput(context);
    const rank = places === undefined ? 3 : 2;
    if (cos === undefined || sin === undefined || b.shape(cos).length !== rank || b.shape(sin).length !== rank) {
      throw badOperands({ node }, [cos, sin].map((v) => (v === undefined ? 'none' : showShape(b.shape(v)))).join(', '),
        'cos and sin [positions, half] with position_ids, or [B, T, half] without');
    }
    return expandRotary(context, cos, sin, (table) => (places === undefined ? table : anglesAt(b, table, places)));
  },
  untrained: [1, 2],
};

/** ONNX Runtime's own: positions are one number to start from, or given for each token. */
export const contributedRotaryEmbedding: Composite = {
  expand: (context) => {
    const { b, node, inputs: [x, places, cos, sin] } = context;
    checkInput(context);
    if (x === undefined || places === undefined || cos === undefined || sin === undefined || intAttribute(node, 'is_packed_batching', 0) !== 0) {
      throw badOperands({ node }, 'packed batching, or omitted inputs', 'an input [B, T, …], position_ids, and tables of cos and sin');
    }
    const steps = b.shape(x).at(-2)!;
    const own = b.shape(x).length === 4 ? steps : b.shape(x)[1]!;
    const starts = b.shape(places).length < 2;
    const at = starts ? add(b, b.ints(Array.from({ length: own }, (_, i) => i)), reshape(b, places, [1])) : places;
    return expandRotary(context, cos, sin, (table) => anglesAt(b, table, at));
  },
  untrained: [2, 3],
};
