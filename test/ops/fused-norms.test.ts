import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, float, int } from '../../src/graph/ir.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type FloatTensor, type Tensor, float32, sizeOf } from '../../src/tensor/tensor.ts';
import { checkExpansion, expectRowsApart } from '../support/expansion-check.ts';
import { type Sample, buildNode, feedsOf, floats, given, shared, wholes, withSession } from '../support/operator-sample.ts';

const numRuns = 15;
const none: undefined = undefined;

const sequences = fc.record({
  rows: fc.integer({ min: 1, max: 3 }), steps: fc.integer({ min: 1, max: 3 }), width: fc.integer({ min: 2, max: 5 }),
  bias: fc.boolean(), beta: fc.boolean(), skip: fc.constantFrom('each', 'all', 'flat'), outputs: fc.integer({ min: 1, max: 4 }),
});

/** Skip normalisations; a skip may be one for all rows. */
const skips = (op: string, hasBeta: boolean): fc.Arbitrary<Sample> => sequences.chain((s) => {
  const shape = [s.rows, s.steps, s.width];
  return fc.tuple(floats(shape, { avoid: [0] }), floats(s.skip === 'each' ? shape : s.skip === 'all' ? [1, ...shape.slice(1)] : shape.slice(1)),
    floats([s.width]), floats([s.width]), floats([s.width])).map(([x, skip, gamma, beta, bias]): Sample => {
    const shift = hasBeta ? [s.beta ? shared(beta) : none] : [];
    return {
      op, outputs: s.outputs, attributes: { epsilon: float(1e-2) },
      inputs: [given(x), s.skip === 'each' ? given(skip) : shared(skip), shared(gamma), ...shift, s.bias ? shared(bias) : none],
    };
  });
});

const embeddings: fc.Arbitrary<Sample> = fc.record({
  rows: fc.integer({ min: 1, max: 3 }), steps: fc.integer({ min: 1, max: 3 }), width: fc.integer({ min: 2, max: 5 }),
  segments: fc.boolean(), mask: fc.boolean(), places: fc.constantFrom('none', 'each', 'all'), spare: fc.constantFrom(0, 2),
}).chain((s) => {
  const shape = [s.rows, s.steps];
  const longest = s.steps + s.spare;
  return fc.tuple(
    wholes(shape, 0, 4, 'int32'), wholes(shape, 0, 1, 'int32'), floats([5, s.width]), floats([longest, s.width]), floats([2, s.width]),
    floats([s.width]), floats([s.width]), wholes(shape, 0, 1, 'int32'), wholes(s.places === 'all' ? [1, s.steps] : shape, 0, longest - 1, 'int32'),
  ).map(([ids, segments, words, positions, kinds, gamma, beta, mask, places]): Sample => ({
    op: 'com.microsoft:EmbedLayerNormalization', outputs: 3, attributes: { epsilon: float(1e-2), mask_index_type: int(1) },
    inputs: [
      given(ids), s.segments ? given(segments) : none, shared(words), shared(positions), s.segments ? shared(kinds) : none, shared(gamma), shared(beta),
      s.mask ? given(mask) : none, s.places === 'none' ? none : s.places === 'each' ? given(places) : shared(places),
    ],
  }));
});

const gated: fc.Arbitrary<Sample> = fc.record({ rows: fc.integer({ min: 1, max: 3 }), groups: fc.integer({ min: 1, max: 2 }), size: fc.integer({ min: 2, max: 4 }) })
  .chain((s) => fc.tuple(floats([s.rows, 2, s.groups * s.size], { avoid: [0] }), floats([s.size]), floats([s.rows, 2, s.groups * s.size])))
  .map(([x, scale, gate]): Sample => ({ op: 'com.microsoft:GatedRMSNorm', attributes: { epsilon: float(1e-2) }, inputs: [given(x), shared(scale), given(gate)] }));

const cases: Readonly<Record<string, fc.Arbitrary<Sample>>> = {
  'com.microsoft:SkipLayerNormalization': skips('com.microsoft:SkipLayerNormalization', true),
  'com.microsoft:SkipSimplifiedLayerNormalization': skips('com.microsoft:SkipSimplifiedLayerNormalization', false),
  'com.microsoft:EmbedLayerNormalization': embeddings,
  'com.microsoft:GatedRMSNorm': gated,
};

describe.each(Object.entries(cases))('%s', (_, samples) => {
  it('expands into what ONNX Runtime computes, with its gradients', async () => {
    await fc.assert(fc.asyncProperty(samples, (sample) => checkExpansion(sample, {
      // Statistics given out beside the normalised values have no gradient.
      ...(sample.op === 'com.microsoft:SkipLayerNormalization' && { through: [0, 3] }),
    })), { numRuns });
  });

  it('keeps the rows of the batch apart', () => {
    fc.assert(fc.property(samples, expectRowsApart), { numRuns });
  });
});

const images = fc.record({
  rows: fc.integer({ min: 1, max: 2 }), side: fc.integer({ min: 1, max: 2 }), groups: fc.integer({ min: 1, max: 2 }), size: fc.integer({ min: 1, max: 3 }),
  last: fc.boolean(), activation: fc.boolean(), skip: fc.constantFrom('none', 'image', 'pixel', 'flat'), bias: fc.boolean(),
}).chain((s) => {
  const channels = s.groups * s.size;
  const laid = (rows: number, side: number): number[] => (s.last ? [rows, side, side, channels] : [rows, channels, side, side]);
  const x = laid(s.rows, s.side);
  const skip = s.skip === 'image' ? x : s.skip === 'pixel' ? laid(s.rows, 1) : [s.rows, channels];
  return fc.tuple(fc.constant(s), floats(x), floats([channels]), floats([channels]), floats(skip), floats([channels]));
});

/** What GroupNorm says, one number at a time. */
function reference(x: FloatTensor, gamma: FloatTensor, beta: FloatTensor, groups: number, last: boolean, activation: boolean): FloatTensor {
  const [rows, channels] = [x.shape[0]!, gamma.shape[0]!];
  const pixels = sizeOf(x.shape) / (rows * channels);
  const at = (row: number, channel: number, pixel: number): number => (last ? (row * pixels + pixel) * channels + channel : (row * channels + channel) * pixels + pixel);
  const y = new Float32Array(x.data.length);
  const size = channels / groups;
  for (let row = 0; row < rows; row++) {
    for (let group = 0; group < groups; group++) {
      const places = Array.from({ length: size * pixels }, (_, i) => ({ channel: group * size + Math.floor(i / pixels), pixel: i % pixels }));
      const values = places.map(({ channel, pixel }) => x.data[at(row, channel, pixel)]!);
      const mean = values.reduce((sum, v) => sum + v, 0) / values.length;
      const variance = values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / values.length;
      places.forEach(({ channel, pixel }, i) => {
        const z = (values[i]! - mean) / Math.sqrt(variance + 0.1) * gamma.data[channel]! + beta.data[channel]!;
        y[at(row, channel, pixel)] = activation ? z / (1 + Math.exp(-z)) : z;
      });
    }
  }
  return float32(y, x.shape);
}

const close = (found: Tensor, wanted: Tensor): void => {
  expect(found.shape).toEqual(wanted.shape);
  wanted.data.forEach((v: number | bigint, i: number) => expect(Number(found.data[i])).toBeCloseTo(Number(v), 4));
};

describe('GroupNorm and SkipGroupNorm', () => {
  it('are computed as they say, with their gradients, where ONNX Runtime has no kernel', async () => {
    await fc.assert(fc.asyncProperty(images, async ([s, x, gamma, beta, skip, bias]) => {
      const attributes: Attributes = {
        groups: int(s.groups), epsilon: float(0.1), activation: int(s.activation ? 1 : 0), channels_last: int(s.last ? 1 : 0),
      };
      const sample: Sample = s.skip === 'none'
        ? { op: 'com.microsoft:GroupNorm', attributes, inputs: [given(x), shared(gamma), shared(beta)] }
        : { op: 'com.microsoft:SkipGroupNorm', attributes, outputs: 2, inputs: [given(x), shared(gamma), shared(beta), given(skip), s.bias ? shared(bias) : none] };
      await checkExpansion(sample, { kernel: false });
      expectRowsApart(sample);
      const names = ['y0', 'y1'].slice(0, sample.outputs ?? 1);
      const core = expandComposites(buildNode(sample).b.build(names.map((y) => [y, y])));
      const found = await withSession(core, (run) => run(feedsOf(sample)));
      const channels = gamma.shape[0]!;
      const pixels = s.side * s.side;
      const channelOf = (i: number): number => (s.last ? i % channels : Math.floor(i / pixels) % channels);
      const skipAt = (i: number): number => (s.skip === 'image' ? skip.data[i]! : skip.data[Math.floor(i / (channels * pixels)) * channels + channelOf(i)]!);
      const sum = s.skip === 'none' ? x
        : float32(Array.from(x.data, (v, i) => v + skipAt(i) + (s.bias ? bias.data[channelOf(i)]! : 0)), x.shape);
      close(found['y0']!, reference(sum, gamma, beta, s.groups, s.last, s.activation));
      if (names.length > 1) close(found['y1']!, sum);
    }), { numRuns });
  });
});
