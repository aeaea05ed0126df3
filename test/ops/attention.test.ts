import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, float, int, intAttribute } from '../../src/graph/ir.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type Tensor, float32, int64, sizeOf, toNumbers, tensor } from '../../src/tensor/tensor.ts';
import { testRandom } from '../support/random-network.ts';
import { checkExpansion, expectRowsApart } from '../support/expansion-check.ts';
import { type Operand, type Sample, buildNode, differentiable, feedsOf, floats, given, shared, withSession } from '../support/operator-sample.ts';

const numRuns = 12;

const bools = (shape: readonly number[]): fc.Arbitrary<Tensor<'bool'>> =>
  fc.array(fc.boolean(), { minLength: sizeOf(shape), maxLength: sizeOf(shape) })
    .map((values) => tensor('bool', shape, Uint8Array.from(values, Number)));

/** Numbers to add, some of which mask. */
const floatMask = (shape: readonly number[]): fc.Arbitrary<Tensor<'float32'>> =>
  fc.tuple(floats(shape), fc.array(fc.constantFrom(false, false, true), { minLength: sizeOf(shape), maxLength: sizeOf(shape) }))
    .map(([t, masked]) => float32(Array.from(t.data, (v, i) => (masked[i] === true ? -Infinity : v)), shape));

/** Sizes of one attention: K heads of keys serve g·K heads of queries. */
const sizes = fc.record({
  rows: fc.integer({ min: 1, max: 3 }), keyHeads: fc.integer({ min: 1, max: 2 }), group: fc.integer({ min: 1, max: 2 }),
  queries: fc.integer({ min: 1, max: 4 }), keys: fc.integer({ min: 1, max: 4 }), past: fc.integer({ min: 0, max: 2 }),
  width: fc.constantFrom(2, 4), valueWidth: fc.constantFrom(2, 3), flat: fc.boolean(),
});

const settings = fc.record({
  causal: fc.boolean(), softcap: fc.constantFrom(0, 1.5), scale: fc.constantFrom(undefined, 0.4), mode: fc.integer({ min: 0, max: 3 }),
  masks: fc.constantFrom('none', 'bool', 'float', 'lengths'), maskRank: fc.constantFrom(2, 3, 4), perRow: fc.boolean(),
});

/** Attention nodes of every form, all of whose outputs are asked for. */
const attentions: fc.Arbitrary<Sample> = fc.tuple(sizes, settings)
  // One query after a past: ONNX Runtime takes its own key to be the last one, and masks none.
  .filter(([s, set]) => !(set.causal && s.queries === 1 && s.keys > 1 && s.past > 0)).chain(([s, set]) => {
  const heads = s.keyHeads * s.group;
  const usesLengths = set.masks === 'lengths';
  const past = usesLengths ? 0 : s.past;
  const total = past + s.keys;
  const laid = (count: number, steps: number, width: number): number[] =>
    (s.flat ? [s.rows, steps, count * width] : [s.rows, count, steps, width]);
  const maskShape = [set.perRow ? s.rows : 1, heads, s.queries, total].slice(4 - set.maskRank);
  const mask: fc.Arbitrary<Tensor | undefined> = set.masks === 'bool' ? bools(maskShape) : set.masks === 'float' ? floatMask(maskShape) : fc.constant(undefined);
  const lengths = usesLengths
    ? fc.array(fc.integer({ min: 1, max: s.keys }), { minLength: s.rows, maxLength: s.rows }).map((n): Tensor | undefined => int64(n))
    : fc.constant(undefined);
  const cache = (width: number): fc.Arbitrary<Tensor | undefined> =>
    (past === 0 ? fc.constant(undefined) : floats([s.rows, s.keyHeads, past, width]));
  return fc.tuple(
    floats(laid(heads, s.queries, s.width)), floats(laid(s.keyHeads, s.keys, s.width)), floats(laid(s.keyHeads, s.keys, s.valueWidth)),
    mask, cache(s.width), cache(s.valueWidth), lengths,
  ).map(([q, k, v, m, pastKey, pastValue, n]): Sample => {
    const inputs = [q, k, v].map((x): Operand | undefined => given(x));
    inputs.push(m && (set.maskRank === 4 && set.perRow ? given(m) : shared(m)), pastKey && given(pastKey), pastValue && given(pastValue), n && given(n));
    const attributes: Attributes = {
      ...(s.flat && { q_num_heads: int(heads), kv_num_heads: int(s.keyHeads) }), is_causal: int(set.causal ? 1 : 0),
      ...(set.softcap !== 0 && { softcap: float(set.softcap) }), ...(set.scale !== undefined && { scale: float(set.scale) }),
      qk_matmul_output_mode: int(set.mode),
    };
    return { op: 'Attention', inputs: inputs.slice(0, inputs.findLastIndex((x) => x !== undefined) + 1), attributes, outputs: 4 };
  });
});

/** Whether the scores are shown with what masks them added. */
const masksWithInfinity = ({ attributes }: Sample): boolean => intAttribute({ attributes: attributes ?? {} }, 'qk_matmul_output_mode', 0) === 2;

describe('Attention', () => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(attentions, (sample) => checkExpansion(sample, {
      through: [0, 1, 2, ...(masksWithInfinity(sample) ? [] : [3])],
      wrt: differentiable(sample).filter((i) => toNumbers(sample.inputs[i]!.value).every(Number.isFinite)),
    })), { numRuns: 40 });
  });

  it.each(['bool', 'float'])('masks the keys that a %s mask does not reach', async (kind) => {
    const random = testRandom(5);
    const x = (...shape: number[]): Operand => shared(float32(Array.from({ length: sizeOf(shape) }, () => random() - 0.5), shape));
    const seen = (columns: number): Operand => shared(kind === 'bool'
      ? tensor('bool', [2, columns], Uint8Array.from({ length: 2 * columns }, (_, i) => (i % columns < 2 ? 1 : 0)))
      : float32(Array.from({ length: 2 * columns }, (_, i) => (i % columns < 2 ? 0.5 : -Infinity)), [2, columns]));
    const operands = [x(1, 1, 2, 2), x(1, 1, 4, 2), x(1, 1, 4, 2)];
    const run = async (mask: Operand): Promise<Tensor> => {
      const sample: Sample = { op: 'Attention', inputs: [...operands, mask] };
      const graph = expandComposites(buildNode(sample).b.build([['y0', 'y0']]));
      return (await withSession(graph, (feed) => feed(feedsOf(sample))))['y0']!;
    };
    expect(await run(seen(2))).toEqual(await run(seen(4)));
  });

  it('keeps the rows of the batch apart', () => {
    fc.assert(fc.property(attentions, expectRowsApart), { numRuns });
  });
});

interface Turning {
  readonly rows: number;
  readonly heads: number;
  readonly steps: number;
  readonly half: number;
  readonly rest: number;
  readonly flat: boolean;
  readonly interleaved: boolean;
  readonly places: 'none' | 'each' | 'start';
}

const turnings = (...places: readonly Turning['places'][]): fc.Arbitrary<Turning> => fc.record({
  rows: fc.integer({ min: 1, max: 3 }), heads: fc.integer({ min: 1, max: 2 }), steps: fc.integer({ min: 1, max: 3 }),
  half: fc.constantFrom(1, 2, 4), rest: fc.constantFrom(0, 0, 2), flat: fc.boolean(), interleaved: fc.boolean(), places: fc.constantFrom(...places),
});

const longest = 5;

/** x, cos, sin and positions for a rotation; tables where positions look angles up. */
const turned = (t: Turning): fc.Arbitrary<readonly [Operand, Operand, Operand, Operand | undefined]> => {
  const width = 2 * t.half + t.rest;
  const angles = floats(t.places === 'none' ? [t.rows, t.steps, t.half] : [longest, t.half]);
  const most = (n: number): fc.Arbitrary<number> => fc.integer({ min: 0, max: n });
  return fc.tuple(
    floats(t.flat ? [t.rows, t.steps, t.heads * width] : [t.rows, t.heads, t.steps, width]), angles, angles,
    fc.array(most(longest - 1), { minLength: t.rows * t.steps, maxLength: t.rows * t.steps }), most(longest - t.steps),
  ).map(([x, cos, sin, each, start]) => {
    const lead = t.places === 'none' ? given : shared;
    const places = t.places === 'none' ? undefined : t.places === 'each' ? given(int64(each, [t.rows, t.steps])) : shared(int64([start]));
    return [given(x), lead(cos), lead(sin), places] as const;
  });
};

const turningAttributes = (t: Turning): Attributes => ({
  interleaved: int(t.interleaved ? 1 : 0),
  ...((t.flat || t.rest > 0) && { num_heads: int(t.heads) }), ...(t.rest > 0 && { rotary_embedding_dim: int(2 * t.half) }),
});

const rotations: Readonly<Record<string, fc.Arbitrary<Sample>>> = {
  RotaryEmbedding: turnings('none', 'each').chain((t) => turned(t).map(([x, cos, sin, places]) => ({
    op: 'RotaryEmbedding', attributes: turningAttributes(t), inputs: places === undefined ? [x, cos, sin] : [x, cos, sin, places],
  }))),
  'com.microsoft:RotaryEmbedding': turnings('each', 'start').chain((t) => turned(t).map(([x, cos, sin, places]) => ({
    op: 'com.microsoft:RotaryEmbedding', attributes: turningAttributes(t), inputs: [x, places, cos, sin],
  }))),
};

const normalised: fc.Arbitrary<Sample> = fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 2, maxLength: 4 })
  .chain((shape) => fc.integer({ min: 1, max: shape.length - 1 }).chain((axis) => fc.boolean().chain((fromEnd) =>
    fc.tuple(floats(shape, { avoid: [0] }), floats(shape.slice(axis))).map(([x, scale]): Sample => ({
      op: 'RMSNormalization', inputs: [given(x), shared(scale)], attributes: { axis: int(fromEnd ? axis - shape.length : axis), epsilon: float(1e-3) },
    })))));

describe.each(Object.entries({ ...rotations, RMSNormalization: normalised }))('%s', (_, samples) => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample)), { numRuns: 2 * numRuns });
  });

  it('keeps the rows of the batch apart', () => {
    fc.assert(fc.property(samples, expectRowsApart), { numRuns });
  });
});
