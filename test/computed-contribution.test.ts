import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Contraction } from '../src/clipping/contraction.ts';
import { cutsFor, sumBound } from '../src/clipping/gram.ts';
import { roundingsOf } from '../src/clipping/cut.ts';
import { clipWeights, defaultRho, safeNorm } from '../src/clipping/norm.ts';
import { type NormMethod, type SumMethod, allowanceBites, modes } from '../src/clipping/plan.ts';
import { unitRoundoff as u } from '../src/clipping/rounding.ts';
import { normOf } from '../src/clipping/step-graph.ts';
import { contractionOf } from '../src/clipping/uses.ts';
import { type Graph, type Node, latestOpset } from '../src/graph/ir.ts';
import { type GraphBuilder, graphBuilder, reshape } from '../src/ops/builder.ts';
import { semantics } from '../src/ops/table.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Shape, type Tensor, float32, int64, tensor } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { groupNorms, runStep } from './support/oracle.ts';
import { randomTensor, testRandom } from './support/random-network.ts';

/** A graph that says what one example adds to the released sum, in norm, relative to its threshold: at most 1 + ρ. */
async function shareOf(parameter: (b: GraphBuilder) => Contraction, norm: NormMethod, sum: SumMethod) {
  const b = graphBuilder(semantics);
  const does = parameter(b);
  const costs = { ghost: 0, instantiate: 0, product: 0, weighted: 0 };
  const safe = safeNorm(b, [[normOf(b, { does, plan: { norm, sum, costs, reason: '' } })]], 1, defaultRho);
  const mask = b.input('mask', { dtype: 'bool', shape: [1] });
  const threshold = b.input('threshold', { dtype: 'float32', shape: [1] });
  const { groups: [weights] } = clipWeights(b, safe, mask, threshold, { function: 'normalize', gamma: 0.01 });
  const released = sum === 'product' && does.product !== undefined ? does.product(weights) : does.weightedSum(weights);
  const session = await onnxruntimeEngine().compile(b.build([['sum', released]]), { threads: 1 });
  return {
    run: async (feeds: Readonly<Record<string, Tensor>>, at: number): Promise<number> => {
      const { outputs } = await session.run({ ...feeds, threshold: float32([at]), mask: tensor('bool', [1], Uint8Array.of(1)) });
      return Math.hypot(...outputs['sum']!.data as Float32Array) / Math.fround(at);
    },
    release: () => session.release(),
  };
}

const input = (b: GraphBuilder, name: string, { dtype, shape }: Tensor) => b.input(name, { dtype, shape });

/**
 * T numbers that float32 adds up wrongly, each addition in the same direction: `first`, then what is just more than half of
 * its last place, then what cancels all but a share of it. A product that is added up in blocks starts anew with every `block`.
 */
function lopsided(T: number, first: number, block: number, rest: number): number[] {
  const place = 2 ** Math.floor(Math.log2(first)) * u * 1.01;
  const blocks = Math.ceil(T / block);
  return Array.from({ length: T }, (_, t) => (t === T - 1 ? -first * (blocks % 2 - rest)
    : t % block === 0 ? first * (Math.floor(t / block) % 2 === 0 ? 1 : -1) : place));
}

describe('what float32 makes of an example, beside its true gradient', () => {
  it('goes beyond the bound in a sum over thousands of positions unless its rounding is allowed for', async () => {
    // A table of one row that is read at all positions but one: its rows are added one after the other, and each addition
    // rounds up. The Gram matrices see none of it, and the true gradient is within the bound.
    const T = 3136;
    const dY = lopsided(T - 1, 1, Infinity, 0.18);
    const feeds = {
      at: int64(new Array<number>(T - 1).fill(0), [1, T - 1]), dY: float32(dY, [1, T - 1, 1]),
      x: float32([0], [1, 1, 1]), dZ: float32([0], [1, 1, 1]),
    };
    const truth = Float32Array.from(dY).reduce((sum, y) => sum + y, 0);
    const parameter = (b: GraphBuilder) => contractionOf(b, [
      { kind: 'gather', indices: input(b, 'at', feeds.at), outputGradient: input(b, 'dY', feeds.dY) },
      { kind: 'outer', transposed: false, input: input(b, 'x', feeds.x), outputGradient: input(b, 'dZ', feeds.dZ) },
    ], [1, 1], 1, true);
    // Weights a little above a power of two leave the last places where they were made.
    const { run, release } = await shareOf(parameter, 'ghost', 'product');
    const found = await run(feeds, truth / 2 * 1.001);
    await release();
    expect(found).toBeLessThanOrEqual(1 + defaultRho);
    expect(found).toBeGreaterThan(0.99);
  }, 120_000);

  /** Of what sizes a parameter's use is, and its variant. */
  interface Layout { readonly T: number; readonly d: number; readonly p: number; readonly odd: boolean }
  interface Hard { readonly inInput: boolean; readonly block: number; readonly rest: number; readonly scales: readonly number[] }
  const layouts: readonly Layout[] = [{ T: 512, d: 1, p: 2, odd: false }, { T: 768, d: 8, p: 3, odd: true }];
  const hard: fc.Arbitrary<Hard> = fc.record({
    inInput: fc.boolean(), block: fc.constantFrom(16, 64, 128, 256, Infinity), rest: fc.constantFrom(1e-4, 0.01, 0.1, 0.2, 0.5),
    scales: fc.array(fc.constantFrom(1, 2, 2 ** -6, 2 ** 9), { minLength: 1, maxLength: 3 }),
  });

  /** [1, T, n]: the same lopsided numbers, or ones, in every column, up to a power of two. */
  const columns = ({ block, rest, scales }: Hard, T: number, n: number, isLopsided: boolean): Tensor => {
    const column = isLopsided ? lopsided(T, 1.5, block, rest) : new Array<number>(T).fill(1);
    return float32(column.flatMap((x) => Array.from({ length: n }, (_, i) => x * scales[i % scales.length]!)), [1, T, n]);
  };
  const channelsFirst = ({ data, shape: [, T, n] }: Tensor): Tensor =>
    float32(Array.from({ length: n! * T! }, (_, i) => Number(data[(i % T!) * n! + Math.floor(i / T!)])), [1, n!, T! / 64, 64]);
  const pixels = (kernel: Shape, groups: number) =>
    ({ kernel, strides: [1, 1], dilations: [1, 1], pads: [...kernel, ...kernel].map((k) => (k - 1) / 2), groups });

  interface Kind {
    readonly feeds: (layout: Layout, hard: Hard) => Readonly<Record<string, Tensor>>;
    readonly parameter: (b: GraphBuilder, layout: Layout) => Contraction;
  }
  const floats = (b: GraphBuilder, name: string, shape: Shape) => b.input(name, { dtype: 'float32', shape });
  const bothSides = ({ T, d, p }: Layout, h: Hard) => ({ x: columns(h, T, d, h.inInput), dY: columns(h, T, p, !h.inInput) });
  const images = ({ T, d, p }: Layout, h: Hard) =>
    ({ x: channelsFirst(columns(h, T, d, h.inInput)), dY: channelsFirst(columns(h, T, p, !h.inInput)) });
  const image = (b: GraphBuilder, name: string, T: number, n: number) => floats(b, name, [1, n, T / 64, 64]);
  const kinds: Readonly<Record<string, Kind>> = {
    'a matrix': {
      feeds: bothSides,
      parameter: (b, { T, d, p, odd }) => contractionOf(b, [{
        kind: 'outer', transposed: odd, scale: odd ? 0.3 : 1, input: floats(b, 'x', [1, T, d]), outputGradient: floats(b, 'dY', [1, T, p]),
      }], odd ? [p, d] : [d, p], 1, true),
    },
    'a bias beside a matrix': {
      feeds: ({ T, p }, h) => ({ dY: columns(h, T, p, true) }),
      parameter: (b, { T, d, p }) => {
        const outputGradient = floats(b, 'dY', [1, T, p]);
        const x = b.constant(float32(new Array<number>(T * d).fill(1), [1, T, d]));
        const { outputGram } = contractionOf(b, [{ kind: 'outer', transposed: false, input: x, outputGradient }], [d, p], 1, true);
        const bias = contractionOf(b, [{ kind: 'broadcast', gradient: outputGradient }], [p], 1, true);
        return { ...bias, ...bias.fromGram!(outputGram!) };
      },
    },
    'a scale': {
      feeds: ({ T, p }, h) => ({ dY: columns(h, T, p, true) }),
      parameter: (b, { T, p }) => contractionOf(b, [{ kind: 'broadcast', gradient: floats(b, 'dY', [1, T, p]) }], [p], 1, true),
    },
    'a table': {
      feeds: ({ T, p }, h) => ({ at: int64(Array.from({ length: T }, (_, t) => (t % 97 === 5 ? 1 : 0)), [1, T]), dY: columns(h, T, p, true) }),
      parameter: (b, { T, p }) => contractionOf(b, [
        { kind: 'gather', indices: b.input('at', { dtype: 'int64', shape: [1, T] }), outputGradient: floats(b, 'dY', [1, T, p]) },
      ], [3, p], 1, true),
    },
    'a matrix and a scale of one tensor': {
      feeds: ({ T, p }, h) => ({ x: columns(h, T, p, false), dY: columns(h, T, p, true) }),
      parameter: (b, { T, p }) => {
        const [x, dY] = [floats(b, 'x', [1, T, p]), floats(b, 'dY', [1, T, p])];
        return contractionOf(b, [
          { kind: 'outer', transposed: false, input: x, outputGradient: dY }, { kind: 'broadcast', gradient: reshape(b, b.op('Mul', [dY, x]), [1, T / p, p, p]) },
        ], [p, p], 1, true);
      },
    },
    'a kernel': {
      feeds: images,
      parameter: (b, { T, d, p, odd }) => contractionOf(b, [{
        kind: 'convolution', geometry: pixels(odd ? [3, 3] : [1, 1], 1), input: image(b, 'x', T, d), outputGradient: image(b, 'dY', T, p),
      }], [p, d, ...(odd ? [3, 3] : [1, 1])], 1, true),
    },
    'a kernel of groups': {
      feeds: ({ p, ...layout }, h) => images({ ...layout, d: 2, p: 2 * p }, h),
      parameter: (b, { T, p, odd }, d = 2) => contractionOf(b, [{
        kind: 'convolution', geometry: pixels(odd ? [3, 1] : [1, 1], d), input: image(b, 'x', T, d), outputGradient: image(b, 'dY', T, d * p),
      }], [d * p, 1, ...(odd ? [3, 1] : [1, 1])], 1, true),
    },
    'a tensor, differentiated for each example': {
      feeds: ({ T, p }, h) => ({ g: columns(h, T, p, true) }),
      parameter: (b, { T, p }) => contractionOf(b, [{ kind: 'opaque', perExample: floats(b, 'g', [1, T, p]) }], [T, p], 1, true),
    },
  };
  const methods = (['ghost', 'instantiate'] as const).flatMap((norm) => (['product', 'weighted'] as const).map((sum) => [norm, sum] as const));

  it.each(Object.keys(kinds).flatMap((kind) => methods.map(([norm, sum]) => [kind, norm, sum] as const)))('is within R(1+ρ) for %s: %s, %s', async (kind, norm, sum) => {
    for (const layout of layouts) {
      const { feeds, parameter } = kinds[kind]!;
      const { run, release } = await shareOf((b) => parameter(b, layout), norm, sum);
      await fc.assert(fc.asyncProperty(hard, fc.constantFrom(0.5, 1.0001, 1e-6, 300), async (h, threshold) => {
        const found = await run(feeds(layout, h), threshold);
        expect(found).toBeLessThanOrEqual(1 + defaultRho);
        expect(found).toBeGreaterThan(0);
      }), { numRuns: 6 });
      await release();
    }
  });
});

describe('an ordinary example', () => {
  it.each([[128, 1e-3], [512, 4e-3]] as const)('over %d positions keeps its gradient but for a share of %d', async (T, lost) => {
    const random = testRandom(T);
    const [d, p] = [16, 16];
    const { run, release } = await shareOf((b) => contractionOf(b, [{
      kind: 'outer', transposed: false, input: b.input('x', { dtype: 'float32', shape: [1, T, d] }), outputGradient: b.input('dY', { dtype: 'float32', shape: [1, T, p] }),
    }], [d, p], 1, true), 'ghost', 'product');
    const found = await run({ x: randomTensor(random, [1, T, d]), dY: randomTensor(random, [1, T, p]) }, 0.7);
    await release();
    expect(Math.abs(found - 1)).toBeLessThan(lost);
    // The share of it that rounding of the summed gradient takes, of positions that neither align nor cancel.
    expect(sumBound(T) * Math.sqrt(T)).toBeLessThan(1e-3);
  });
});

describe('an example of long cancelling sums in a whole step', () => {
  const [T, wide, classes] = [512, 2, 3];
  const random = testRandom(8);
  const node = (op: string, inputs: readonly string[], output: string): Node => ({ op, domain: '', name: output, inputs, outputs: [output], attributes: {} });
  const model: Graph = {
    name: 'long', opset: latestOpset, metadata: {}, literals: new Set(),
    nodes: [node('MatMul', ['input', 'weight'], 'each'), node('Mul', ['each', 'scale'], 'scaled'), node('ReduceSum', ['scaled', 'axis'], 'sums'), node('Reshape', ['sums', 'shape'], 'logits')],
    initializers: new Map<string, Tensor>([
      ['weight', randomTensor(random, [wide, classes], 1e-3)], ['scale', randomTensor(random, [classes], 1)],
      ['axis', int64([1])], ['shape', int64([-1, classes])],
    ]),
    inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', T, wide] }],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', classes] }],
  };
  const analysis = analyse({ model, loss: 'cross-entropy', trainable: ['weight', 'scale'] });
  requireTrainable(analysis);
  const groups = analysis.parameters.map((name) => ({ name, parameters: [name] }));

  it.each(modes.filter((mode) => mode !== 'non-private'))('is within R(1+ρ) in every group, %s', async (mode) => {
    await fc.assert(fc.asyncProperty(
      fc.constantFrom(16, 64, 128, Infinity), fc.constantFrom(1e-4, 0.01, 0.1, 0.5), fc.constantFrom(1e-4, 1.0001), async (block, rest, threshold) => {
        const [one, other] = [lopsided(T, 1.5, block, rest), lopsided(T, 1.5, 2 * block, rest / 2)];
        const batch = {
          rows: 2, labels: int64([0, 1]),
          inputs: { input: float32([...one.flatMap((x, t) => [x, other[t]!]), ...new Array<number>(T * wide).fill(0.5)], [2, T, wide]) },
        };
        const options = { mode, clipping: { function: 'normalize', gamma: 0.01, groups }, rho: defaultRho, rowsPerUnit: 1 } as const;
        const { sums } = await runStep(analysis, batch, options, groups.map(() => threshold), [true, false]);
        const released = groupNorms(sums, groups);
        released.forEach((norm) => expect(norm).toBeLessThanOrEqual(Math.fround(threshold) * (1 + defaultRho)));
        expect(Math.max(...released)).toBeGreaterThan(0);
      },
    ), { numRuns: 6 });
  });
});

describe('rounding of summed gradients in the plan', () => {
  const sizeOfProduct = (T: number, d: number, p: number) => ({
    T, d, p, groups: 1, gramDepth: d, gramTerms: 1, unfolded: false,
    gramRoundings: cutsFor(T, [d, p]).reduce((sum, cut) => sum + roundingsOf(cut), 0),
  });

  it.each([128, 512])('instantiates nothing of a transformer at %d positions', (T) => {
    for (const [d, p] of [[768, 768], [768, 2304], [768, 3072], [3072, 768]] as const) expect(allowanceBites(sizeOfProduct(T, d, p))).toBe(false);
  });

  it('instantiates where both allowances together would take a hundredth of the norm', () => {
    const [shorter, longer] = [1024, 1600].map((T) => allowanceBites(sizeOfProduct(T, 1, 1)));
    expect([shorter, longer]).toEqual([false, true]);
  });
});
