import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { traceBatch } from '../../src/autodiff/batch-independence.ts';
import { type Attributes, type Node, float, int, string } from '../../src/graph/ir.ts';
import type { BatchAxis } from '../../src/ops/batch.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type Tensor, float32, tensor, toNumbers, zeros } from '../../src/tensor/tensor.ts';
import { checkExpansion } from '../support/expansion-check.ts';
import { type Operand, type Sample, buildNode, feedsOf, shapes, withSession } from '../support/operator-sample.ts';
import { randomTensor, testRandom } from '../support/random-network.ts';

const kinds = {
  LSTM: { gates: 4, functions: 3, states: 2 },
  GRU: { gates: 3, functions: 2, states: 1 },
  RNN: { gates: 1, functions: 1, states: 1 },
} as const;
type Op = keyof typeof kinds;

const smooth = ['Tanh', 'Sigmoid', 'Affine', 'ScaledTanh', 'Softplus'];
/** Differences say nothing near a kink of the function, or, as Softsign has one, of its slope. */
const kinked = ['Softsign', 'Elu', 'Relu', 'LeakyRelu', 'ThresholdedRelu', 'HardSigmoid'];

/** A layer with every option that ONNX has for it. */
interface Layer {
  readonly op: Op;
  readonly seed: number;
  readonly direction: 'forward' | 'reverse' | 'bidirectional';
  readonly layout: 0 | 1;
  readonly steps: number;
  readonly rows: number;
  readonly inputs: number;
  readonly hidden: number;
  readonly bias: boolean;
  /** One for each row, or none given. */
  readonly lengths: readonly number[] | undefined;
  readonly initial: readonly boolean[];
  readonly peepholes: boolean;
  readonly clip: number | undefined;
  readonly activations: readonly string[] | undefined;
  readonly alpha: readonly number[] | undefined;
  readonly beta: readonly number[] | undefined;
  /** input_forget, or linear_before_reset */
  readonly variant: boolean;
  /** Which outputs the node names. */
  readonly outputs: readonly boolean[];
}

const layers = (op: Op, functions: readonly string[], layout: fc.Arbitrary<0 | 1>): fc.Arbitrary<Layer> => fc.record({
  direction: fc.constantFrom('forward' as const, 'reverse' as const, 'bidirectional' as const),
  steps: fc.integer({ min: 1, max: 4 }), rows: fc.integer({ min: 1, max: 3 }),
}).chain(({ direction, steps, rows }) => {
  const count = kinds[op].functions * (direction === 'bidirectional' ? 2 : 1);
  const constants = fc.array(fc.double({ min: 0.1, max: 1, noNaN: true }).map(Math.fround), {
    maxLength: count,
  });
  return fc.record<Layer>({
    op: fc.constant(op), direction: fc.constant(direction), steps: fc.constant(steps), rows: fc.constant(rows), layout,
    seed: fc.integer({ min: 1, max: 2 ** 30 }), inputs: fc.integer({ min: 1, max: 3 }), hidden: fc.integer({ min: 1, max: 3 }),
    bias: fc.boolean(), peepholes: fc.boolean(), variant: fc.boolean(),
    lengths: fc.option(fc.array(fc.nat({ max: steps }), { minLength: rows, maxLength: rows })
      .filter((lengths) => lengths.some((n) => n > 0)), { nil: undefined }),
    initial: fc.tuple(fc.boolean(), fc.boolean()),
    clip: fc.option(fc.double({ min: 0.2, max: 2, noNaN: true }).map(Math.fround), { nil: undefined }),
    activations: fc.option(fc.array(fc.constantFrom(...functions), { minLength: count, maxLength: count }), { nil: undefined }),
    alpha: fc.option(constants, { nil: undefined }), beta: fc.option(constants, { nil: undefined }),
    outputs: fc.tuple(fc.boolean(), fc.boolean(), fc.boolean()).map((named) => named.slice(0, kinds[op].states + 1))
      .filter((named) => named.some(Boolean)),
  });
});

const inLayout = (t: Tensor<'float32'>, axes: readonly [number, number], layout: 0 | 1): Tensor<'float32'> =>
  (layout === 0 ? t : swapAxes(t, axes));

/** t with two neighbouring axes swapped. */
function swapAxes(t: Tensor, [a]: readonly [number, number]): Tensor<'float32'> {
  const [outer, m, n, inner] = [
    t.shape.slice(0, a).reduce((p, k) => p * k, 1), t.shape[a]!, t.shape[a + 1]!, t.shape.slice(a + 2).reduce((p, k) => p * k, 1),
  ];
  const shape = [...t.shape.slice(0, a), n, m, ...t.shape.slice(a + 2)];
  return float32(Array.from({ length: outer * m * n * inner }, (_, i) => {
    const [k, j, l, o] = [i % inner, Math.floor(i / inner) % m, Math.floor(i / inner / m) % n, Math.floor(i / inner / m / n)];
    return Number(t.data[((o * m + j) * n + l) * inner + k]);
  }), shape);
}

function sampleOf(layer: Layer): Sample {
  const { op, direction, layout, steps, rows, inputs, hidden } = layer;
  const { gates, states } = kinds[op];
  const directions = direction === 'bidirectional' ? 2 : 1;
  const random = testRandom(layer.seed);
  const draw = (shape: readonly number[]): Tensor<'float32'> => randomTensor(random, shape);
  const batch = (axis: number): BatchAxis => ({ axis, before: 1, after: 1 });
  const given = (present: boolean, value: Tensor, at?: number): Operand | undefined =>
    (present ? { value, ...(at === undefined ? {} : { batch: batch(at) }) } : undefined);
  const row = 1 - layout;
  const state = () => inLayout(draw([directions, rows, hidden]), [0, 1], layout);
  const operands = [
    given(true, inLayout(draw([steps, rows, inputs]), [0, 1], layout), row),
    given(true, draw([directions, gates * hidden, inputs])), given(true, draw([directions, gates * hidden, hidden])),
    given(layer.bias, draw([directions, 2 * gates * hidden])),
    given(layer.lengths !== undefined, tensor('int32', [rows], Int32Array.from(layer.lengths ?? Array<number>(rows).fill(0))), 0),
    ...Array.from({ length: states }, (_, i) => given(layer.initial[i]!, state(), row)),
    ...(op === 'LSTM' ? [given(layer.peepholes, draw([directions, 3 * hidden]))] : []),
  ];
  const attributes: Attributes = {
    direction: string(direction), layout: int(layout), hidden_size: int(hidden),
    ...(layer.clip !== undefined && { clip: float(layer.clip) }),
    ...(layer.activations !== undefined && { activations: { type: 'strings', value: layer.activations } }),
    ...(layer.alpha !== undefined && { activation_alpha: { type: 'floats', value: layer.alpha } }),
    ...(layer.beta !== undefined && { activation_beta: { type: 'floats', value: layer.beta } }),
    ...(op === 'LSTM' && { input_forget: int(layer.variant ? 1 : 0) }),
    ...(op === 'GRU' && { linear_before_reset: int(layer.variant ? 1 : 0) }),
  };
  const omitted = layer.outputs.flatMap((named, i) => (named ? [] : [i]));
  return { op, inputs: operands, attributes, outputs: layer.outputs.length, omitted };
}

const all = [...smooth, ...kinked];
const runs = { numRuns: 40 };

describe.each(Object.keys(kinds) as Op[])('%s', (op) => {
  it('expands into what ONNX Runtime computes, with every option', async () => {
    await fc.assert(fc.asyncProperty(layers(op, all, fc.constant(0)), (layer) =>
      checkExpansion(sampleOf(layer), { wrt: [] })), { numRuns: 100 });
  });

  it('computes with rows first what it computes with time first', async () => {
    await fc.assert(fc.asyncProperty(layers(op, all, fc.constant(0)), async (layer) => {
      const found = await outputsOf(sampleOf(layer), false);
      const swapped = await outputsOf(sampleOf({ ...layer, layout: 1 }), true);
      expect(Object.keys(swapped)).toEqual(Object.keys(found));
      for (const [y, t] of Object.entries(found)) {
        const inRows = y === 'y0' ? swapAxes(swapAxes(t, [1, 2]), [0, 1]) : swapAxes(t, [0, 1]);
        expect(swapped[y]!.shape, shapes(sampleOf(layer))).toEqual(inRows.shape);
        toNumbers(inRows).forEach((v, i) => { expect(Number(swapped[y]!.data[i])).toBeCloseTo(v, 4); });
      }
    }), runs);
  });

  it('has the gradients of finite differences', async () => {
    await fc.assert(fc.asyncProperty(layers(op, smooth, fc.constantFrom(0, 1)), ({ clip: _, ...layer }) =>
      checkExpansion(sampleOf({ ...layer, clip: undefined }), { kernel: false })), runs);
  });

  it('keeps rows apart wherever the layout puts them, and refuses a batch along time', () => {
    fc.assert(fc.property(layers(op, all, fc.constantFrom(0, 1)), (drawn) => {
      const lengths = drawn.lengths && [0, 1, 2, 1, 0, 2, 1].map((n) => Math.min(n, drawn.steps));
      const layer = { ...drawn, rows: 7, lengths };
      const place = (axis: number): BatchAxis => ({ axis, before: 1, after: 1 });
      const { batch, violations } = traced(sampleOf(layer));
      expect(violations).toEqual([]);
      const [y, last] = layer.layout === 0 ? [2, 1] : [0, 0];
      layer.outputs.forEach((named, i) => { if (named) expect(batch.get(`y${i}`)).toEqual(place(i === 0 ? y : last)); });

      const along = { ...sampleOf({ ...layer, rows: 2, steps: 7, lengths: undefined, initial: [false, false] }) };
      const wrong = { ...along, inputs: along.inputs.map((o, i) => (i === 0 ? { ...o!, batch: place(layer.layout) } : o)) };
      expect(new Set(traced(wrong).violations.map(({ operator, axis }) => `${operator} ${axis}`)))
        .toEqual(new Set([`Split ${layer.layout}`]));
    }), runs);
  });
});

const plainLayer: Layer = {
  op: 'LSTM', seed: 5, direction: 'forward', layout: 0, steps: 4, rows: 3, inputs: 2, hidden: 2, bias: true, lengths: undefined,
  initial: [false, false], peepholes: false, clip: undefined, activations: undefined, alpha: undefined, beta: undefined,
  variant: false, outputs: [false, true, false],
};

function expandedNodes(layer: Layer): readonly Node[] {
  const { b, node } = buildNode(sampleOf(layer));
  return expandComposites(b.build(node.outputs.filter((y) => y !== '').map((y) => [y, y]))).nodes;
}

describe('the expansion of a recurrent layer', () => {
  it('multiplies by the input weights once, and grows by as many nodes with every step', () => {
    const sizes = [3, 4, 5].map((steps) => expandedNodes({ ...plainLayer, steps }));
    const products = sizes.map((nodes) => nodes.filter(({ op }) => op === 'FusedMatMul').length);
    // One product for the whole sequence, and one with the state of each step but the first, which starts from zeros.
    expect(products).toEqual([3, 4, 5]);
    expect(sizes[2]!.length - sizes[1]!.length).toBe(sizes[1]!.length - sizes[0]!.length);
    expect(sizes[1]!.length - sizes[0]!.length).toBeLessThanOrEqual(11);
  });

  it('reaches a layer\'s weights without cutting them where there is one direction', () => {
    const takers = (layer: Layer) => expandedNodes(layer).filter(({ inputs: [v] }) => v === 'x1' || v === 'x2').map(({ op }) => op);
    expect(takers(plainLayer)).toEqual(['Squeeze', 'Squeeze']);
    expect(takers({ ...plainLayer, direction: 'bidirectional' })).toEqual(['Slice', 'Slice', 'Slice', 'Slice']);
  });

  it('ignores initial states of zeros and lengths that fill every step', () => {
    const sample = sampleOf({ ...plainLayer, lengths: [4, 4, 4], initial: [true, true] });
    const known = sample.inputs.map((o, i) =>
      (i < 4 || o === undefined ? o : { value: i === 4 ? o.value : zeros('float32', o.value.shape), constant: true }));
    const { b } = buildNode({ ...sample, inputs: known });
    expect(expandComposites(b.build([['y1', 'y1']])).nodes.length).toBe(expandedNodes(plainLayer).length);
  });

  it.each([
    ['an unknown activation', { activations: ['Tanh', 'Gelu', 'Tanh'] }, /activation Gelu/],
    ['too few activations', { activations: ['Tanh'] }, /1 activations/],
    ['a bound of 0', { clip: 0 }, /clip 0/],
    ['more steps than a graph should hold', { steps: 5000 }, /5000 steps/],
  ] as const)('refuses %s', (_, change, found) => {
    expect(() => expandedNodes({ ...plainLayer, ...change })).toThrow(found);
  });

  it('refuses operands that do not fit, before anything is expanded', () => {
    const sample = sampleOf(plainLayer);
    const narrow = sample.inputs.map((o, i) => (i === 2 ? { value: float32(new Float32Array(16), [1, 8, 2]) } : o));
    expect(() => buildNode({ ...sample, inputs: narrow.with(1, { value: float32(new Float32Array(24), [1, 8, 3]) }) }))
      .toThrow(/cannot take these operands/);
    expect(() => buildNode({ ...sample, attributes: { ...sample.attributes, direction: string('sideways') } }))
      .toThrow(/cannot take these operands/);
  });
});

function traced(sample: Sample): ReturnType<typeof traceBatch> {
  const { b, node } = buildNode(sample);
  const core = expandComposites(b.build(node.outputs.filter((y) => y !== '').map((y) => [y, y])));
  return traceBatch(core, new Map(sample.inputs.flatMap((o, i) => (o?.batch === undefined ? [] : [[`x${i}`, o.batch]]))));
}

async function outputsOf(sample: Sample, expanded: boolean): Promise<Record<string, Tensor>> {
  const { b, node } = buildNode(sample);
  const whole = b.build(node.outputs.filter((y) => y !== '').map((y) => [y, y]));
  return withSession(expanded ? expandComposites(whole) : whole, (run) => run(feedsOf(sample)));
}
