import { floatAttribute, intAttribute, showShape } from '../graph/ir.ts';
import { float32 } from '../tensor/tensor.ts';
import { type Value, add, pad, sub } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { rmsNormalised } from './fused-norms.ts';
import {
  additive, attend, both, causal, joinHeads, lowest, perRow, seesAny, shut, splitHeads, withPast, within,
} from './heads.ts';
import { badOperands } from './operands.ts';
import type { Operator } from './operator.ts';
import { rotaryEmbedding } from './rotary.ts';
import { axisAttribute, castTo } from './rules.ts';

interface Heads {
  readonly q: Value;
  readonly k: Value;
  readonly v: Value;
  readonly past: number;
}

/** Queries, keys and values as heads, keys and values with those of the past in front. */
function headsOf({ b, node, inputs }: ExpandContext): Heads {
  const [query, key, value, , pastKey, pastValue] = inputs;
  const shapes = [query, key, value].map((v) => (v === undefined ? [] : b.shape(v)));
  const rank = shapes[0]!.length;
  const bad = (expected: string): Error => badOperands({ node }, shapes.map(showShape).join(', '), expected);
  if (query === undefined || key === undefined || value === undefined || (rank !== 3 && rank !== 4) || shapes.some((s) => s.length !== rank)) {
    throw bad('queries, keys and values, all [B, T, features] or all [B, heads, T, features]');
  }
  const heads = intAttribute(node, 'q_num_heads', 0);
  const shared = intAttribute(node, 'kv_num_heads', 0);
  const divides = (count: number, i: number): boolean => count > 0 && shapes[i]![2]! % count === 0;
  if (rank === 3 && !(divides(heads, 0) && divides(shared, 1) && divides(shared, 2))) throw bad('q_num_heads and kv_num_heads that divide the features');
  const asHeads = (x: Value, count: number): Value => (rank === 3 ? splitHeads(b, x, count) : x);
  const [q, k, v] = [asHeads(query, heads), withPast(b, pastKey, asHeads(key, shared)), withPast(b, pastValue, asHeads(value, shared))];
  const [sq, sk, sv] = [b.shape(q), b.shape(k), b.shape(v)];
  if (sq[1]! % sk[1]! !== 0 || sk[1] !== sv[1] || sq[3] !== sk[3] || sk[2] !== sv[2]) {
    throw bad('heads of one width for queries and keys, as many keys as values, and a multiple of their heads for queries');
  }
  return { q, k, v, past: pastKey === undefined ? 0 : b.shape(pastKey)[2]! };
}

/** A mask, bool or numbers to add, whose last axis covers all keys: those that it does not reach are masked. */
function overAll({ b }: ExpandContext, mask: Value, keys: number): Value {
  const shape = b.shape(mask);
  const missing = keys - shape.at(-1)!;
  if (missing === 0) return mask;
  const pads = [...shape.map(() => 0), ...shape.map((_, i) => (i === shape.length - 1 ? missing : 0))];
  if (b.type(mask).dtype === 'bool') return castTo(b, pad(b, castTo(b, mask, 'float32'), pads), 'bool');
  return b.op('Pad', [mask, b.ints(pads), castTo(b, b.constant(float32([-Infinity], [])), b.type(mask).dtype)]);
}

/** Numbers to add to the scores for everything that masks, and which queries are left with a key. */
interface Masking {
  /** As given, -∞ included. */
  readonly bias?: Value;
  /** The same without numbers below `lowest`. */
  readonly finite?: Value;
  readonly open?: Value;
}

function maskingOf(context: ExpandContext, { q, k, past }: Heads): Masking {
  const { b, node, inputs } = context;
  const [mask, pastKey, lengths] = [inputs[3], inputs[4], inputs[6]];
  const [queries, keys] = [b.shape(q)[2]!, b.shape(k)[2]!];
  const low = lowest(b, b.type(q));
  const given = mask === undefined ? undefined : overAll(context, mask, keys);
  const isBool = given !== undefined && b.type(given).dtype === 'bool';
  // Where rows say how many keys count, the last query is the last of those.
  const before = lengths !== undefined && pastKey === undefined ? sub(b, perRow(b, lengths), b.scalar(queries, 'int64')) : past;
  const order = intAttribute(node, 'is_causal', 0) === 0 ? undefined : causal(b, { queries, keys, past: before });
  const filled = lengths === undefined ? undefined : within(b, lengths, keys);
  const allowed = both(b, both(b, isBool ? given : undefined, order), filled);
  const numbers = isBool ? undefined : given;
  const bias = allowed === undefined ? numbers : additive(b, allowed, low, numbers);
  if (bias === undefined) return {};
  const finite = numbers === undefined ? bias : b.op('Max', [bias, low]);
  // By order alone, the first query sees the first key at least.
  const byOrderOnly = given === undefined && filled === undefined;
  return { bias, finite, ...(!byOrderOnly && { open: seesAny(b, finite) }) };
}

const attentionOperator: Composite = {
  expand: (context) => {
    const { b, node, inputs } = context;
    const parts = headsOf(context);
    const { bias, finite, open } = maskingOf(context, parts);
    const scale = node.attributes['scale'] && floatAttribute(node, 'scale', 1);
    const { products, capped, weights, heads } = attend(b, {
      ...parts, factor: scale, softcap: floatAttribute(node, 'softcap', 0), biases: [finite], open,
    });
    const shown = (): Value => {
      const mode = intAttribute(node, 'qk_matmul_output_mode', 0);
      if (mode < 2) return mode === 0 ? products : capped;
      if (mode === 2) return bias === undefined ? capped : add(b, capped, bias);
      return open === undefined ? weights : shut(b, open, weights);
    };
    const y = b.shape(inputs[0]!).length === 3 ? joinHeads(b, heads) : heads;
    return [y, parts.k, parts.v, (node.outputs[3] ?? '') === '' ? undefined : shown()];
  },
};

/** Division by the root of the mean square over the axes from `axis` on. */
const rmsNormalization: Composite = {
  learned: [1],
  normalises: [1],
  expand: ({ b, node, inputs }) => {
    const [x, scale] = [inputs[0]!, inputs[1]!];
    const axis = axisAttribute(node, b.shape(x).length, -1);
    return [rmsNormalised(b, x, { scale, axis, epsilon: floatAttribute(node, 'epsilon', 1e-5) }).y];
  },
};

/** Attention of the standard set, and the position encodings and normalisation that go with it. */
export const attention = {
  Attention: attentionOperator, RotaryEmbedding: rotaryEmbedding, RMSNormalization: rmsNormalization,
} satisfies Record<string, Operator | Composite>;
