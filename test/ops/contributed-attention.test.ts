import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, float, int, ints } from '../../src/graph/ir.ts';
import { expandComposites, runnable } from '../../src/ops/expand.ts';
import { type FloatTensor, type Tensor, float32, int64, tensor } from '../../src/tensor/tensor.ts';
import { checkExpansion, expectRowsApart } from '../support/expansion-check.ts';
import { type Operand, type Sample, buildNode, constantOperand, feedsOf, floats, given, shared, wholes, withSession } from '../support/operator-sample.ts';

const numRuns = 20;

const maybe = <T>(chance: boolean, value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> => (chance ? value : fc.constant(undefined));
const none: undefined = undefined;
const lead = (value: Tensor | undefined): Operand | undefined => value && given(value);
const common = (value: Tensor | undefined): Operand | undefined => value && shared(value);

interface Sizes {
  readonly rows: number;
  readonly heads: number;
  readonly queries: number;
  readonly keys: number;
  readonly past: number;
  readonly width: number;
}

const sizes: fc.Arbitrary<Sizes> = fc.record({
  rows: fc.integer({ min: 1, max: 3 }), heads: fc.integer({ min: 1, max: 2 }), queries: fc.integer({ min: 1, max: 3 }),
  keys: fc.integer({ min: 1, max: 4 }), past: fc.constantFrom(0, 0, 2), width: fc.constantFrom(2, 4),
});

type Form = 'none' | 'keys' | 'pairs' | 'lengths';

/** Masks in the forms that ONNX Runtime's attention takes: for each key, for each query and key, or lengths. */
const masks = (form: Form, rows: number, queries: number, keys: number): fc.Arbitrary<Tensor | undefined> => {
  if (form === 'keys') return wholes([rows, keys], 0, 1, 'int32');
  if (form === 'pairs') return wholes([rows, queries, keys], 0, 1, 'int32');
  return form === 'lengths' ? wholes([rows], 0, keys, 'int32') : fc.constant(none);
};

/** The same with a first key that every query sees. */
const sparing = (mask: Operand | undefined): Operand | undefined => {
  if (mask === undefined) return undefined;
  const { shape, data } = mask.value as Tensor<'int32'>;
  const isFirst = (i: number): boolean => shape.length === 1 || i % shape.at(-1)! === 0;
  return { ...mask, value: tensor('int32', shape, data.map((v, i) => (isFirst(i) ? Math.max(1, v) : v))) };
};

const seesFirst = (index: number) => (sample: Sample): Sample =>
  ({ ...sample, inputs: sample.inputs.map((o, i) => (i === index ? sparing(o) : o)) });

const settings = fc.record({
  form: fc.constantFrom('none', 'keys', 'pairs', 'lengths'), bias: fc.boolean(), added: fc.constantFrom('none', 'all', 'each'),
  unidirectional: fc.boolean(), scale: fc.constantFrom(undefined, 0.3), filter: fc.constantFrom(undefined, -7),
});

type Settings = typeof settings extends fc.Arbitrary<infer T> ? T : never;

const attributesOf = (heads: number, set: Settings): Attributes => ({
  num_heads: int(heads), unidirectional: int(set.unidirectional ? 1 : 0),
  ...(set.scale !== undefined && { scale: float(set.scale) }), ...(set.filter !== undefined && { mask_filter_value: float(set.filter) }),
});

const addedBias = (set: Settings, s: Sizes, queries: number, total: number): fc.Arbitrary<Tensor | undefined> =>
  maybe(set.added !== 'none', floats([set.added === 'each' ? s.rows : 1, s.heads, queries, total]));

const laidBias = (set: Settings, value: Tensor | undefined): Operand | undefined => (set.added === 'each' ? lead(value) : common(value));

/** Rows that are masked everywhere lose precision by the large number added, in ONNX Runtime and here alike. */
const closed = { tolerance: 2e-3, wrt: [] };

const packed: fc.Arbitrary<Sample> = fc.tuple(sizes, settings, fc.boolean()).chain(([s, set, narrow]) => {
  const past = set.form === 'lengths' ? 0 : s.past;
  const total = past + s.queries;
  // ONNX Runtime does not take both.
  const more = past > 0 ? { ...set, added: 'none' as const } : set;
  const hidden = s.heads * s.width;
  const values = narrow && past === 0 ? s.heads : hidden;
  const out = 2 * hidden + values;
  return fc.tuple(
    floats([s.rows, s.queries, 3]), floats([3, out]), floats([out]), masks(set.form, s.rows, s.queries, total),
    maybe(past > 0, floats([2, s.rows, s.heads, past, s.width])), addedBias(more, s, s.queries, total),
  ).map(([x, w, bias, mask, cache, added]): Sample => ({
    op: 'com.microsoft:Attention', outputs: cache === undefined ? 1 : 2,
    inputs: [given(x), shared(w), shared(bias), lead(mask), cache && { value: cache, batch: { axis: 1, before: 1, after: 1 } }, laidBias(set, added)],
    attributes: { ...attributesOf(s.heads, set), qkv_hidden_sizes: ints([hidden, hidden, values]) },
  }));
});

describe('com.microsoft:Attention', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(packed.map(seesFirst(3)), (sample) => checkExpansion(sample)), { numRuns: 2 * numRuns });
  });

  it('gives what ONNX Runtime does to queries that see no key', async () => {
    await fc.assert(fc.asyncProperty(packed, (sample) => checkExpansion(sample, closed)), { numRuns });
  });

  it('keeps the rows of the batch apart', () => {
    fc.assert(fc.property(packed.filter(({ outputs }) => outputs === 1), expectRowsApart), { numRuns });
  });

  it('refuses masks in other forms, rotary positions and shared buffers', () => {
    const x = (...shape: number[]): Operand => shared(float32(new Float32Array(shape.reduce((n, m) => n * m, 1)), shape));
    const node = (mask: Tensor | undefined, attributes: Attributes = {}): Sample => ({
      op: 'com.microsoft:Attention', inputs: [x(2, 3, 4), x(4, 12), x(12), common(mask)], attributes: { num_heads: int(2), ...attributes },
    });
    const ends = tensor('int32', [4], Int32Array.of(3, 3, 0, 1));
    expect(() => buildNode(node(ends))).toThrow(/a mask \[4\] for 2 rows, 3 queries and 3 keys[^]*length of each row/);
    expect(() => buildNode(node(none, { do_rotary: int(1) }))).toThrow(/RotaryEmbedding node/);
    expect(() => buildNode(node(none, { past_present_share_buffer: int(1) }))).toThrow(/shared buffer cannot be trained with[^]*use_past off/);
  });
});

const separate: fc.Arbitrary<Sample> = fc.tuple(sizes, settings, fc.boolean(), fc.boolean()).chain(([s, set, wide, asHeads]) => {
  const past = set.form === 'lengths' || asHeads ? 0 : s.past;
  const keys = set.unidirectional ? s.queries : s.keys;
  const total = past + keys;
  const [hidden, values] = [s.heads * s.width, s.heads * (wide && past === 0 && !asHeads ? 3 : s.width)];
  const laid = (features: number): number[] => (asHeads ? [s.rows, s.heads, keys, s.width] : [s.rows, keys, features]);
  return fc.tuple(
    floats([s.rows, s.queries, hidden]), floats(laid(hidden)), floats(laid(values)), maybe(set.bias && !asHeads, floats([2 * hidden + values])),
    masks(set.form, s.rows, s.queries, total), addedBias(set, s, s.queries, total),
    maybe(past > 0, floats([s.rows, s.heads, past, s.width])), maybe(past > 0, floats([s.rows, s.heads, past, s.width])),
  ).map(([q, k, v, bias, mask, added, pastKey, pastValue]): Sample => ({
    op: 'com.microsoft:MultiHeadAttention', outputs: pastKey === undefined ? 1 : 3, attributes: attributesOf(s.heads, set),
    inputs: [given(q), given(k), given(v), common(bias), lead(mask), laidBias(set, added), lead(pastKey), lead(pastValue)],
  }));
});

describe('com.microsoft:MultiHeadAttention', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(separate.map(seesFirst(4)), (sample) => checkExpansion(sample)), { numRuns: 2 * numRuns });
  });

  it('gives what ONNX Runtime does to queries that see no key', async () => {
    await fc.assert(fc.asyncProperty(separate, (sample) => checkExpansion(sample, closed)), { numRuns });
  });

  it('keeps the rows of the batch apart', () => {
    fc.assert(fc.property(separate, expectRowsApart), { numRuns });
  });

  it('takes queries, keys and values packed, which ONNX Runtime computes on GPUs alone', async () => {
    const run = async (inputs: Sample['inputs']): Promise<Tensor> => {
      const sample: Sample = { op: 'com.microsoft:MultiHeadAttention', inputs, attributes: { num_heads: int(2) } };
      return (await withSession(expandComposites(buildNode(sample).b.build([['y0', 'y0']])), (feed) => feed(feedsOf(sample))))['y0']!;
    };
    const [rows, steps, heads, width] = [2, 3, 2, 2];
    const parts = fc.sample(floats([3, rows, steps, heads, width]), { seed: 1, numRuns: 1 })[0]!;
    /** The parts interleaved behind the heads. */
    const pack = (chosen: readonly number[]): Operand => {
      const at = (part: number, row: number, head: number, i: number): number => parts.data[((part * rows * steps + row) * heads + head) * width + i]!;
      const values = Array.from({ length: rows * steps }, (_, row) => Array.from({ length: heads }, (__, head) =>
        chosen.map((part) => Array.from({ length: width }, (___, i) => at(part, row, head, i))))).flat(3);
      return shared(float32(values, [rows, steps, heads, chosen.length, width]));
    };
    const part = (i: number): Operand => shared(float32(parts.data.slice(i * 24, (i + 1) * 24), [rows, steps, heads * width]));
    const wanted = await run([part(0), part(1), part(2)]);
    expect(await run([pack([0, 1, 2])])).toEqual(wanted);
    expect(await run([part(0), pack([1, 2])])).toEqual(wanted);
  });
});

const grouped: fc.Arbitrary<Sample> = fc.tuple(sizes, fc.record({
  group: fc.integer({ min: 1, max: 2 }), packed: fc.boolean(), rotary: fc.boolean(), interleaved: fc.boolean(), places: fc.boolean(),
  window: fc.constantFrom(-1, -1, 1, 2), softcap: fc.constantFrom(0, 0, 2), smooth: fc.boolean(), sink: fc.boolean(),
  added: fc.constantFrom('none', 'all', 'each'), short: fc.boolean(), causal: fc.boolean(), qk: fc.constantFrom(0, 1, 2), scale: fc.constantFrom(undefined, 0.3),
})).chain(([s, set]) => {
  const [steps, size, heads] = [s.queries, 16, s.heads * set.group];
  const features = (n: number): number[] => [s.rows, steps, n * size];
  const inputs = set.packed ? fc.tuple(floats(features(heads + 2 * s.heads)), fc.constant(none), fc.constant(none))
    : fc.tuple(floats(features(heads)), floats(features(s.heads)), floats(features(s.heads)));
  const table = maybe(set.rotary, floats([steps + 2, size / 2]));
  return fc.tuple(
    inputs, wholes([s.rows], set.short && set.qk === 0 && set.window < 0 ? 0 : steps - 1, steps - 1, 'int32'), table, table, maybe(set.sink, floats([heads])),
    maybe(set.added !== 'none', floats([set.added === 'each' ? s.rows : 1, heads, steps, steps])),
    // ONNX Runtime counts on from the first position of the first row, for all rows.
    maybe(set.rotary && set.places, fc.nat({ max: 2 }).map((start) => int64(Array.from({ length: s.rows * steps }, (_, i) => start + (i % steps)), [s.rows, steps]))),
  ).map(([[q, k, v], lengths, cos, sin, sink, added, places]): Sample => ({
    op: 'com.microsoft:GroupQueryAttention', outputs: set.qk === 0 ? 3 : 4,
    inputs: [
      given(q), lead(k), lead(v), none, none, given(lengths), constantOperand(tensor('int32', [1], Int32Array.of(steps))), common(cos), common(sin),
      lead(places), set.added === 'each' ? lead(added) : common(added), common(sink),
    ],
    attributes: {
      num_heads: int(heads), kv_num_heads: int(s.heads), do_rotary: int(set.rotary ? 1 : 0), rotary_interleaved: int(set.interleaved ? 1 : 0),
      local_window_size: int(set.causal ? set.window : -1), causal: int(set.causal ? 1 : 0), smooth_softmax: int(set.smooth ? 1 : 0),
      ...(set.softcap > 0 && { softcap: float(set.softcap) }), ...(set.scale !== undefined && { scale: float(set.scale) }), qk_output: int(set.qk),
    },
  }));
});

describe('com.microsoft:GroupQueryAttention', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(grouped, (sample) => checkExpansion(sample)), { numRuns: 3 * numRuns });
  });

  it('keeps the rows of the batch apart', () => {
    fc.assert(fc.property(grouped, expectRowsApart), { numRuns });
  });

  it('is never run whole with positions for each row: the kernel takes those of the first row for all', () => {
    const x = (...shape: number[]): Operand => given(float32(Array.from({ length: shape.reduce((n, m) => n * m, 1) }, (_, i) => Math.sin(i)), shape));
    const table = shared(float32(Array.from({ length: 4 * 8 }, (_, i) => Math.cos(i)), [4, 8]));
    const node = (places: Tensor | undefined): Sample => ({
      op: 'com.microsoft:GroupQueryAttention', attributes: { num_heads: int(1), kv_num_heads: int(1), do_rotary: int(1) },
      inputs: [x(2, 2, 16), x(2, 2, 16), x(2, 2, 16), none, none, given(tensor('int32', [2], Int32Array.of(1, 1))),
        constantOperand(tensor('int32', [1], Int32Array.of(2))), table, table, lead(places)],
    });
    const whole = (places: Tensor | undefined) => buildNode(node(places)).b.build([['y0', 'y0']]);
    expect(runnable(whole(none)).nodes.map(({ op }) => op)).toEqual(['GroupQueryAttention']);
    expect(runnable(whole(int64([0, 1, 1, 2], [2, 2]))).nodes.map(({ op }) => op)).not.toContain('GroupQueryAttention');
  });

  it('normalises the heads of queries and keys, which ONNX Runtime does on GPUs alone', async () => {
    const [q, k, v, scale] = fc.sample(floats([4, 2, 3, 16]), { seed: 4, numRuns: 1 }).flatMap((t) =>
      [0, 1, 2, 3].map((i) => float32(t.data.slice(i * 96, (i + 1) * 96), [2, 3, 16]))) as [FloatTensor, FloatTensor, FloatTensor, FloatTensor];
    const weights = [0, 1].map((i) => float32(scale.data.slice(i * 16, (i + 1) * 16)));
    const lengths = given(tensor('int32', [2], Int32Array.of(2, 2)));
    const run = async (inputs: Sample['inputs']): Promise<Tensor> => {
      const sample: Sample = { op: 'com.microsoft:GroupQueryAttention', inputs, attributes: { num_heads: int(1), kv_num_heads: int(1), qk_norm_epsilon: float(0.25) } };
      return (await withSession(runnable(buildNode(sample).b.build([['y0', 'y0']])), (feed) => feed(feedsOf(sample))))['y0']!;
    };
    const rms = (x: FloatTensor, weight: FloatTensor): Tensor => float32(Array.from(x.data, (value, i) => {
      const row = x.data.slice(i - (i % 16), i - (i % 16) + 16);
      return value / Math.sqrt(row.reduce((sum, n) => sum + n * n, 0) / 16 + 0.25) * weight.data[i % 16]!;
    }), x.shape);
    const total = constantOperand(tensor('int32', [1], Int32Array.of(3)));
    const ours = await run([given(q), given(k), given(v), none, none, lengths, total, none, none, none, none, none, none, none, ...weights.map(shared)]);
    const wanted = await run([given(rms(q, weights[0]!)), given(rms(k, weights[1]!)), given(v), none, none, lengths, total]);
    ours.data.forEach((value: number | bigint, i: number) => expect(Number(value)).toBeCloseTo(Number(wanted.data[i]), 5));
  });

  it('refuses what belongs to generating text', () => {
    const x = (...shape: number[]): Operand => shared(float32(new Float32Array(shape.reduce((n, m) => n * m, 1)), shape));
    const node = (past: number, total: number): Sample => ({
      op: 'com.microsoft:GroupQueryAttention', attributes: { num_heads: int(2), kv_num_heads: int(1) },
      inputs: [x(1, 2, 16), x(1, 2, 8), x(1, 2, 8), x(1, 1, past, 8), x(1, 1, past, 8), shared(int64([1])), constantOperand(int64([total]))],
    });
    expect(() => buildNode(node(0, 2))).not.toThrow();
    expect(() => buildNode(node(3, 5))).toThrow(/no part of training[^]*bind the length of the past to 0 \(its input has 3 positions\)/);
    expect(() => buildNode(node(0, 3))).toThrow(/total_sequence_length 3 for 2 positions/);
  });
});
