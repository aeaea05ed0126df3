import { int } from '../graph/ir.ts';
import type { DType } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, add, matmul, mul, reduceMax, reshape, scale, sub, transpose, where } from './builder.ts';
import { castTo } from './rules.ts';

/** The parts that every attention is made of. Heads are [B, N, T, H] inside: batch, heads, positions, width of a head. */

/** [B, T, N·H] as heads. */
export function splitHeads(b: GraphBuilder, x: Value, heads: number): Value {
  const [rows, steps, width] = b.shape(x) as [number, number, number];
  return transpose(b, reshape(b, x, [rows, steps, heads, width / heads]), [0, 2, 1, 3]);
}

/** Heads side by side again: [B, T, N·H]. */
export function joinHeads(b: GraphBuilder, x: Value): Value {
  const [rows, heads, steps, width] = b.shape(x) as [number, number, number, number];
  return reshape(b, transpose(b, x, [0, 2, 1, 3]), [rows, steps, heads * width]);
}

/** Earlier keys or values, as heads, in front of new ones. */
export const withPast = (b: GraphBuilder, past: Value | undefined, x: Value): Value =>
  (past === undefined || b.shape(past)[2] === 0 ? x : b.op('Concat', [past, x], { axis: int(2) }));

const lowestOf: Partial<Record<DType, number>> = { float16: -65504, bfloat16: -3.3895313892515355e38 };

/** The finite number that stands for -∞ in masks, as in ONNX Runtime; added to a score it leaves nothing of it. */
export const lowest = (b: GraphBuilder, { dtype }: { readonly dtype: DType }): Value =>
  castTo(b, b.scalar(lowestOf[dtype] ?? -3.4028234663852886e38), dtype);

/** What each query may see by order of positions. */
export interface Order {
  readonly queries: number;
  readonly keys: number;
  /** How many keys come before the first query's own: a number, or one for each row, int64 [B, 1, 1, 1]. */
  readonly past: number | Value;
  /** How many keys a query sees, its own included; by default all up to its own. */
  readonly window?: number | undefined;
}

const count = (n: number): readonly number[] => Array.from({ length: n }, (_, i) => i);

/** bool [T, S], or [B, 1, T, S] where the past differs from row to row. */
export function causal(b: GraphBuilder, { queries, keys, past, window }: Order): Value {
  const key = b.ints(count(keys));
  const own = typeof past === 'number'
    ? reshape(b, b.ints(count(queries).map((i) => i + past)), [queries, 1])
    : add(b, reshape(b, b.ints(count(queries)), [queries, 1]), past);
  const before = b.op('LessOrEqual', [key, own]);
  if (window === undefined) return before;
  return b.op('And', [before, b.op('Greater', [key, sub(b, own, b.scalar(window, 'int64'))])]);
}

/** A number for each row, [B] of any integer type, as int64 [B, 1, 1, 1]. */
export const perRow = (b: GraphBuilder, numbers: Value): Value =>
  reshape(b, castTo(b, numbers, 'int64'), [b.shape(numbers)[0]!, 1, 1, 1]);

/** Which of `keys` positions lie before a length for each row: bool [B, 1, 1, S]. */
export const within = (b: GraphBuilder, lengths: Value, keys: number): Value =>
  b.op('Less', [b.ints(count(keys)), perRow(b, lengths)]);

/** Masks that must all hold; undefined ones do not mask. */
export const both = (b: GraphBuilder, x: Value | undefined, y: Value | undefined): Value | undefined =>
  (x === undefined || y === undefined ? x ?? y : b.op('And', [x, y]));

/** A bool mask as numbers to add: 0 (or `shown`) where it holds, `low` elsewhere. */
export const additive = (b: GraphBuilder, allowed: Value, low: Value, shown?: Value): Value =>
  where(b, allowed, shown ?? castTo(b, b.scalar(0), b.type(low).dtype), low);

/** Which queries see any key, where numbers to add mask: bool with one key axis left. */
export const seesAny = (b: GraphBuilder, bias: Value): Value =>
  b.op('Greater', [reduceMax(b, bias, [b.shape(bias).length - 1], true), lowest(b, b.type(bias))]);

export interface AttentionParts {
  /** [B, N, T, H], and keys and values [B, K, S, H]: each of the K heads serves N / K heads of queries. */
  readonly q: Value;
  readonly k: Value;
  readonly v: Value;
  /** What products are multiplied by; by default 1/√H. */
  readonly factor?: number | undefined;
  /** Scores s become cap·tanh(s / cap); 0 for none. */
  readonly softcap?: number | undefined;
  /** What is added to the scores [B, N, T, S], in this order. */
  readonly biases?: readonly (Value | undefined)[];
  /** Which queries give anything at all: bool that broadcasts to [B, N, T, 1]. Default all. */
  readonly open?: Value | undefined;
  /** A logit, [N] or a scalar, that takes its share of the weights and gives nothing. */
  readonly sink?: Value | undefined;
}

/** Everything that attention computes on the way. */
export interface Attended {
  readonly products: Value;
  readonly capped: Value;
  readonly scores: Value;
  readonly weights: Value;
  /** [B, N, T, H] */
  readonly heads: Value;
}

export function attend(b: GraphBuilder, { q, k, v, factor, softcap = 0, biases = [], open, sink }: AttentionParts): Attended {
  const [rows, heads, queries, width] = b.shape(q) as [number, number, number, number];
  const [, shared, keys] = b.shape(k) as [number, number, number];
  const alpha = factor ?? 1 / Math.sqrt(width);
  // Heads that share keys lie under one another, so that neither keys nor values are copied.
  const together = (x: Value): Value => reshape(b, x, [rows, shared, (heads / shared) * queries, b.shape(x)[3]!]);
  const apart = (x: Value): Value => reshape(b, x, [rows, heads, queries, b.shape(x)[3]!]);
  const products = apart(matmul(b, together(q), k, { transposeY: true, alpha }));
  const capped = softcap === 0 ? products : scale(b, b.op('Tanh', [scale(b, products, 1 / softcap)]), softcap);
  const scores = biases.reduce<Value>((sum, bias) => (bias === undefined ? sum : add(b, sum, bias)), capped);
  const weights = sunk(b, scores, b.op('Softmax', [scores], { axis: int(-1) }), sink);
  const given = apart(b.op('MatMul', [reshape(b, weights, [rows, shared, (heads / shared) * queries, keys]), v]));
  return { products, capped, scores, weights, heads: open === undefined ? given : shut(b, open, given) };
}

/** x where `open` holds, 0 elsewhere. */
export const shut = (b: GraphBuilder, open: Value, x: Value): Value =>
  where(b, open, x, castTo(b, b.scalar(0), b.type(x).dtype));

/** e^s / (Σ e^s + e^sink) = softmax(s) · sigmoid(log Σ e^s - sink). */
function sunk(b: GraphBuilder, scores: Value, weights: Value, sink: Value | undefined): Value {
  if (sink === undefined) return weights;
  const total = b.op('ReduceLogSumExp', [scores, b.ints([3])]);
  const column = b.shape(sink).length === 0 ? sink : reshape(b, sink, [b.shape(sink)[0]!, 1, 1]);
  return mul(b, weights, b.op('Sigmoid', [sub(b, total, column)]));
}
