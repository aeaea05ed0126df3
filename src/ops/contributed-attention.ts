import { GhostgradError } from '../errors.ts';
import { type Node, floatAttribute, int, intAttribute, intsAttribute, showNode, showShape } from '../graph/ir.ts';
import { toNumbers } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, add, reshape, slice, transpose } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { rmsNormalised } from './fused-norms.ts';
import { additive, attend, both, causal, joinHeads, lowest, seesAny, shut, splitHeads, withPast, within } from './heads.ts';
import { badOperands } from './operands.ts';
import type { Operator } from './operator.ts';
import { rotate } from './rotary.ts';
import { castTo } from './rules.ts';

const refuse = (node: Node, what: string, fix: string): GhostgradError =>
  new GhostgradError({ what, where: showNode(node), found: `${node.op} for generating text, token by token`, fix });

const forTraining = 'export the model for whole sequences, without a cache of the past (use_past off)';

const has = (node: Node, index: number): boolean => (node.inputs[index] ?? '') !== '';

/** The attribute `scale`; 0 stands for the usual one. */
const factorOf = (node: Node): number | undefined => {
  const factor = floatAttribute(node, 'scale', 0);
  return factor === 0 ? undefined : factor;
};

interface Masks {
  readonly queries: number;
  readonly keys: number;
  readonly past: number;
}

/**
 * Numbers to add for a mask as ONNX Runtime's own attention takes it: 0 and 1 for each key [B, S], or for each query
 * and key [B, T, S], or the number of keys that count [B]. Order of positions shuts keys wholly, a mask by its filter value.
 */
function contributedBias({ b, node }: Pick<ExpandContext, 'b' | 'node'>, rows: number, mask: Value | undefined, { queries, keys, past }: Masks): Value | undefined {
  const filter = castTo(b, b.scalar(floatAttribute(node, 'mask_filter_value', -10000)), 'float32');
  const seen = intAttribute(node, 'unidirectional', 0) === 0 ? undefined : causal(b, { queries, keys, past });
  const kept = mask === undefined ? undefined : keptKeys();
  const padding = kept === undefined ? undefined : additive(b, kept, filter);
  return seen === undefined ? padding : additive(b, seen, lowest(b, { dtype: 'float32' }), padding);

  function keptKeys(): Value {
    const shape = b.shape(mask!);
    if (shape.length === 1 && shape[0] === rows) return within(b, mask!, keys);
    const fits = shape[0] === rows && shape.at(-1) === keys && (shape.length === 2 || (shape.length === 3 && shape[1] === queries));
    if (!fits) {
      throw badOperands({ node }, `a mask ${showShape(shape)} for ${rows} rows, ${queries} queries and ${keys} keys`,
        'a mask [B, keys] or [B, queries, keys] of 0 and 1, or the length of each row [B]');
    }
    const shown = b.op('Greater', [mask!, castTo(b, b.scalar(0, 'int64'), b.type(mask!).dtype)]);
    return reshape(b, shown, [rows, 1, shape.length === 3 ? queries : 1, keys]);
  }
}

/** Self-attention with the projections of queries, keys and values in one weight. */
const packedAttention: Composite = {
  learned: [1, 2],
  biases: [2],
  // ONNX Runtime 1.30 ends the process where the bias is omitted.
  lacksKernel: (node) => !has(node, 2),
  expand: (context) => {
    const { b, node, inputs: [x, weight, bias, mask, past, attentionBias] } = context;
    const heads = intAttribute(node, 'num_heads', 0);
    const width = b.shape(weight!)[1]!;
    const sizes = intsAttribute(node, 'qkv_hidden_sizes', [width / 3, width / 3, width / 3]);
    if (intAttribute(node, 'do_rotary', 0) !== 0) throw badOperands({ node }, 'do_rotary', 'rotary positions as a RotaryEmbedding node');
    if (intAttribute(node, 'past_present_share_buffer', 0) !== 0 || has(node, 6)) throw refuse(node, 'a cache of the past in a shared buffer cannot be trained with', forTraining);
    if (b.shape(x!).length !== 3 || heads < 1 || sizes.length !== 3 || sizes.reduce((sum, n) => sum + n, 0) !== width || sizes.some((n) => n % heads !== 0)) {
      throw badOperands({ node }, `input ${showShape(b.shape(x!))}, ${heads} heads, hidden sizes ${showShape(sizes)}`, 'an input [B, T, features] and sizes of Q, K and V that the heads divide');
    }
    const product = b.op('MatMul', [x!, weight!]);
    const projected = b.ops('Split', [bias === undefined ? product : add(b, product, bias), b.ints(sizes)], 3, { axis: int(-1) });
    const [q, k, v] = projected.map((part) => splitHeads(b, part, heads)) as [Value, Value, Value];
    const [pastKey, pastValue] = past === undefined ? [undefined, undefined] : [0, 1].map((i) => pastPart(b, past, i));
    const [keys, values] = [withPast(b, pastKey, k), withPast(b, pastValue, v)];
    const steps = b.shape(q)[2]!;
    const order = { queries: steps, keys: b.shape(keys)[2]!, past: b.shape(keys)[2]! - steps };
    const attended = attend(b, {
      q, k: keys, v: values, factor: factorOf(node), biases: [contributedBias(context, b.shape(x!)[0]!, mask, order), attentionBias],
    });
    const present = (node.outputs[1] ?? '') === '' ? undefined : b.op('Concat', [keys, values].map((t) => reshape(b, t, [1, ...b.shape(t)])), { axis: int(0) });
    return [joinHeads(b, attended.heads), present];
  },
};

const pastPart = (b: GraphBuilder, past: Value, index: number): Value =>
  reshape(b, slice(b, past, [0], [index], [index + 1]), b.shape(past).slice(1));

/** Queries, keys and values as heads, from any of the layouts that MultiHeadAttention takes. */
function multiHeads({ b, node, inputs }: ExpandContext): readonly [Value, Value, Value] {
  const [query, key, value, bias] = inputs;
  const heads = intAttribute(node, 'num_heads', 0);
  const shapes = [query, key, value].map((v) => (v === undefined ? [] : b.shape(v)));
  const bad = (): Error => badOperands({ node }, `${shapes.map(showShape).join(', ')} for ${heads} heads`,
    'Q, K and V [B, T, features]; packed [B, T, heads, 3, width]; or K and V packed [B, T, heads, 2, width] or as heads');
  if (query === undefined || heads < 1) throw bad();
  /** One of `parts` that are packed in axis 3 of [B, T, N, parts, H], as heads. */
  const unpacked = (x: Value, i: number): Value => {
    const [rows, steps, n, , width] = b.shape(x) as [number, number, number, number, number];
    return transpose(b, reshape(b, slice(b, x, [3], [i], [i + 1]), [rows, steps, n, width]), [0, 2, 1, 3]);
  };
  let from = 0;
  /** The next piece of the bias of the projections, for a value of `width` features. */
  const biased = (x: Value): Value => {
    const width = b.shape(x).at(-1)!;
    const start = from;
    from += width;
    return bias === undefined ? x : add(b, x, slice(b, bias, [0], [start], [start + width]));
  };
  const flat = (x: Value): Value => splitHeads(b, biased(x), heads);
  if (shapes[0]!.length === 5) {
    if (key !== undefined || value !== undefined || bias !== undefined) throw bad();
    return [unpacked(query, 0), unpacked(query, 1), unpacked(query, 2)];
  }
  if (key === undefined || shapes[0]!.length !== 3) throw bad();
  if (shapes[1]!.length === 5 && value === undefined && bias === undefined) return [flat(query), unpacked(key, 0), unpacked(key, 1)];
  if (value === undefined) throw bad();
  if (shapes[1]!.length === 4 && shapes[2]!.length === 4) return [flat(query), key, value];
  if (shapes[1]!.length !== 3 || shapes[2]!.length !== 3) throw bad();
  return [flat(query), flat(key), flat(value)];
}

const multiHeadAttention: Composite = {
  learned: [3],
  biases: [3],
  expand: (context) => {
    const { b, node, inputs: [query, , , , mask, attentionBias, pastKey, pastValue] } = context;
    if (has(node, 8) || has(node, 9)) throw refuse(node, 'a cache of the past in a shared buffer cannot be trained with', forTraining);
    const [q, k, v] = multiHeads(context);
    const [keys, values] = [withPast(b, pastKey, k), withPast(b, pastValue, v)];
    const [queries, total] = [b.shape(q)[2]!, b.shape(keys)[2]!];
    const order = { queries, keys: total, past: total - b.shape(k)[2]! };
    const { heads, scores } = attend(b, {
      q, k: keys, v: values, factor: factorOf(node), biases: [contributedBias(context, b.shape(query!)[0]!, mask, order), attentionBias],
    });
    return [joinHeads(b, heads), keys, values, scores];
  },
  lacksKernel: (node) => !has(node, 1) || !has(node, 2),
};

/** Why a GroupQueryAttention node cannot be trained with; it is made for generating, and trained in its prompt form only. */
function checkGroupQuery({ b, node, inputs }: ExpandContext): void {
  const [query, , , pastKey, , , total] = inputs;
  if (pastKey !== undefined && b.shape(pastKey)[2] !== 0) {
    throw refuse(node, 'keys and values of the past are no part of training', `bind the length of the past to 0 (its input has ${b.shape(pastKey)[2]!} positions), or ${forTraining}`);
  }
  const quantised = ['k_quant_type', 'v_quant_type'].some((name) => {
    const a = node.attributes[name];
    return a?.type === 'string' && a.value !== 'NONE';
  });
  if (quantised || has(node, 12) || has(node, 13)) throw refuse(node, 'a quantised cache of keys and values has no gradient', forTraining);
  if (intAttribute(node, 'sliding_window_cache', 0) !== 0) throw refuse(node, 'a cache that slides has no gradient', forTraining);
  const known = total === undefined ? undefined : b.constantOf(total);
  const steps = b.shape(query!)[1]!;
  if (known !== undefined && toNumbers(known)[0] !== steps) {
    throw badOperands({ node }, `total_sequence_length ${toNumbers(known)[0]} for ${steps} positions`, 'as many keys as queries: the whole sequence at once');
  }
}

/** Grouped queries over a whole sequence, with rotary positions counted from its start. */
const groupQueryAttention: Composite = {
  learned: [11, 14, 15],
  normalises: [14, 15],
  expand: (context) => {
    const { b, node, inputs } = context;
    const [query, key, value, , , lengths, , cos, sin, places, attentionBias, sink] = inputs;
    checkGroupQuery(context);
    const [heads, shared] = [intAttribute(node, 'num_heads', 0), intAttribute(node, 'kv_num_heads', 0)];
    const [, steps, width] = b.shape(query!) as [number, number, number];
    const isPacked = key === undefined;
    const size = width / (isPacked ? heads + 2 * shared : heads);
    const parts = isPacked
      ? b.ops('Split', [query!, b.ints([heads, shared, shared].map((n) => n * size))], 3, { axis: int(-1) }) : [query!, key, value!];
    const normed = (x: Value, weight: Value | undefined): Value => (weight === undefined ? x
      : rmsNormalised(b, x, { scale: weight, axis: 3, epsilon: floatAttribute(node, 'qk_norm_epsilon', 1e-6) }).y);
    const turned = (x: Value): Value => {
      if (intAttribute(node, 'do_rotary', 0) === 0) return x;
      if (cos === undefined || sin === undefined) throw badOperands({ node }, 'do_rotary without tables', 'cos_cache and sin_cache');
      return rotate(b, x, { cos: angles(cos), sin: angles(sin), interleaved: intAttribute(node, 'rotary_interleaved', 0) !== 0 });
    };
    const angles = (table: Value): Value => (places === undefined ? slice(b, table, [0], [0], [steps])
      : reshape(b, b.op('Gather', [table, places], { axis: int(0) }), [...b.shape(places).with(1, 1), steps, b.shape(table)[1]!]));
    const q = turned(normed(splitHeads(b, parts[0]!, heads), inputs[14]));
    const k = turned(normed(splitHeads(b, parts[1]!, shared), inputs[15]));
    const v = splitHeads(b, parts[2]!, shared);
    const window = intAttribute(node, 'local_window_size', -1);
    const order = intAttribute(node, 'causal', 1) === 0 ? undefined
      : causal(b, { queries: steps, keys: steps, past: 0, window: window > 0 ? window : undefined });
    // The lengths stand as the index of the last key.
    const counted = lengths === undefined ? undefined : within(b, add(b, castTo(b, lengths, 'int64'), b.scalar(1, 'int64')), steps);
    const allowed = both(b, order, counted);
    const mask = allowed === undefined ? undefined : additive(b, allowed, lowest(b, b.type(q)));
    // A window may lie wholly in the padding.
    const open = mask === undefined || window <= 0 || counted === undefined ? undefined : seesAny(b, mask);
    const smooth = intAttribute(node, 'smooth_softmax', 0) !== 0 ? castTo(b, b.scalar(0), b.type(q).dtype) : undefined;
    const cap = floatAttribute(node, 'softcap', 0);
    const found = attend(b, {
      q, k, v, factor: factorOf(node), softcap: cap, sink: sink ?? smooth,
      biases: [attentionBias, mask], open,
    });
    const shown = intAttribute(node, 'qk_output', 0) === 2 ? found.weights : allowed === undefined ? found.scores : shut(b, allowed, found.scores);
    return [joinHeads(b, found.heads), k, v, shown];
  },
  untrained: [7, 8],
  // The engine's kernel takes the first row's positions for every row, and has no normalisation of heads.
  lacksKernel: (node) => has(node, 9) || has(node, 14),
};

/** Attention as ONNX Runtime's optimizer and its tools for language models write it. */
export const contributedAttention = {
  'com.microsoft:Attention': packedAttention,
  'com.microsoft:MultiHeadAttention': multiHeadAttention,
  'com.microsoft:GroupQueryAttention': groupQueryAttention,
} satisfies Record<string, Operator | Composite>;
