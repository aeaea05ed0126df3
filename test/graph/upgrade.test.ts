import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../../src/errors.ts';
import { type Attributes, type Graph, float, int, ints, latestOpset, string } from '../../src/graph/ir.ts';
import { upgrade } from '../../src/graph/upgrade.ts';
import { verify } from '../../src/graph/verify.ts';
import { type Shape, type Tensor, float32, int64, sizeOf } from '../../src/tensor/tensor.ts';
import { graphOf, node, runGraph, value } from './onnxruntime.ts';

/** Numbers without ties or a pattern that an axis could hide in. */
const data = (shape: Shape): Tensor =>
  float32(
    Array.from({ length: sizeOf(shape) }, (_, i) => Math.sin(i * 1.7 + 0.3) * 3),
    shape,
  );

interface Case {
  readonly op: string;
  readonly opsets: readonly number[];
  readonly x: Shape;
  readonly attributes?: Attributes;
  /** Further operands, as initializers. */
  readonly operands?: readonly Tensor[];
  readonly outputs?: number;
  /** Leaves the rank of the input out of the file. */
  readonly unknownRank?: boolean;
}

const cases: readonly Case[] = [
  {
    op: 'Slice',
    opsets: [7, 9],
    x: [4, 5],
    attributes: { starts: ints([1, -3]), ends: ints([2 ** 63, 4]), axes: ints([0, 1]) },
  },
  { op: 'Slice', opsets: [8], x: [4, 5], attributes: { starts: ints([1]), ends: ints([3]) } },
  { op: 'TopK', opsets: [9], x: [3, 6], attributes: { axis: int(1), k: int(2) }, outputs: 2 },
  { op: 'Squeeze', opsets: [7, 12], x: [1, 3, 1], attributes: { axes: ints([2]) } },
  { op: 'Squeeze', opsets: [11], x: [1, 3, 1] },
  { op: 'Unsqueeze', opsets: [7, 12], x: [2, 3], attributes: { axes: ints([0, 3]) } },
  { op: 'ReduceSum', opsets: [7, 12], x: [2, 3, 4], attributes: { axes: ints([0, 2]), keepdims: int(0) } },
  { op: 'ReduceSum', opsets: [12], x: [2, 3] },
  ...[
    'ReduceMean',
    'ReduceMax',
    'ReduceMin',
    'ReduceProd',
    'ReduceL1',
    'ReduceL2',
    'ReduceSumSquare',
    'ReduceLogSumExp',
  ].map((op) => ({
    op,
    opsets: [7, 13, 17],
    x: [2, 3, 4],
    attributes: { axes: ints([1]), keepdims: int(1) },
  })),
  { op: 'ReduceMean', opsets: [13], x: [2, 3], attributes: { keepdims: int(0) } },
  ...['Softmax', 'LogSoftmax', 'Hardmax'].flatMap((op): Case[] => [
    { op, opsets: [7, 12], x: [3, 4] },
    { op, opsets: [7, 12], x: [2, 3, 4] },
    { op, opsets: [12], x: [2, 3, 4], attributes: { axis: int(2) } },
    { op, opsets: [12], x: [2, 3, 4], attributes: { axis: int(-1) } },
    { op, opsets: [12], x: [2, 3, 4], attributes: { axis: int(0) } },
    { op, opsets: [12], x: [2, 3, 4], unknownRank: true },
    { op, opsets: [12, 13, 17], x: [2, 4], attributes: { axis: int(1) } },
  ]),
  {
    op: 'BatchNormalization',
    opsets: [7, 8, 9, 13, 14],
    x: [2, 3, 2, 2],
    attributes: { epsilon: float(1e-3) },
    operands: [float32([1, 2, 3]), float32([0, 1, -1]), float32([0.1, 0.2, 0.3]), float32([1, 0.5, 2])],
  },
  { op: 'Dropout', opsets: [7, 10, 11], x: [2, 3], attributes: { ratio: float(0.3) } },
  { op: 'Clip', opsets: [7, 10], x: [2, 5], attributes: { min: float(-1), max: float(0.5) } },
  { op: 'Clip', opsets: [7], x: [2, 5], attributes: { max: float(0.5) } },
  { op: 'Clip', opsets: [7], x: [2, 5] },
  { op: 'Pad', opsets: [7, 10], x: [2, 3], attributes: { pads: ints([1, 0, 0, 2]), value: float(1.5) } },
  { op: 'Pad', opsets: [7], x: [2, 3], attributes: { pads: ints([0, 1, 0, 1]), mode: string('reflect') } },
  { op: 'Pad', opsets: [10], x: [2, 3], attributes: { pads: ints([0, -1, 0, 1]), mode: string('constant') } },
  { op: 'Split', opsets: [7, 12], x: [2, 6], attributes: { axis: int(1), split: ints([1, 5]) }, outputs: 2 },
  { op: 'Split', opsets: [7, 12, 13, 17], x: [2, 6], attributes: { axis: int(1) }, outputs: 3 },
  { op: 'Split', opsets: [13, 17], x: [2, 6], attributes: { axis: int(1) }, operands: [int64([2, 4])], outputs: 2 },
  { op: 'Upsample', opsets: [7, 8], x: [1, 2, 2, 3], attributes: { scales: { type: 'floats', value: [1, 1, 2, 2] } } },
  {
    op: 'Upsample',
    opsets: [7],
    x: [1, 2, 2, 3],
    attributes: { mode: string('linear'), scales: { type: 'floats', value: [1, 1, 2, 3] } },
  },
  {
    op: 'Upsample',
    opsets: [9],
    x: [1, 2, 2, 3],
    attributes: { mode: string('nearest') },
    operands: [float32([1, 1, 1.5, 2])],
  },
  {
    op: 'Resize',
    opsets: [10],
    x: [1, 1, 3, 4],
    attributes: { mode: string('nearest') },
    operands: [float32([1, 1, 2.5, 2])],
  },
  {
    op: 'Resize',
    opsets: [10],
    x: [1, 1, 6, 7],
    attributes: { mode: string('nearest') },
    operands: [float32([1, 1, 0.5, 0.6])],
  },
  {
    op: 'Resize',
    opsets: [10],
    x: [1, 1, 3, 4],
    attributes: { mode: string('linear') },
    operands: [float32([1, 1, 2, 0.5])],
  },
  {
    op: 'Resize',
    opsets: [11, 12],
    x: [1, 1, 3, 4],
    operands: [float32([]), float32([1, 1, 2, 3])],
    attributes: {
      mode: string('nearest'),
      coordinate_transformation_mode: string('tf_half_pixel_for_nn'),
      nearest_mode: string('floor'),
    },
  },
  {
    op: 'Resize',
    opsets: [11, 17],
    x: [1, 1, 3, 4],
    attributes: { mode: string('cubic') },
    operands: [float32([]), float32([1, 1, 2, 3])],
  },
  {
    op: 'Scatter',
    opsets: [9, 10],
    x: [3, 3],
    attributes: { axis: int(1) },
    operands: [int64([0, 2], [1, 2]), float32([7, 8], [1, 2])],
  },
  {
    op: 'GroupNormalization',
    opsets: [18, 20],
    x: [2, 6, 2, 3],
    attributes: { num_groups: int(2), epsilon: float(1e-3) },
    operands: [float32([1, 2]), float32([0.5, -1])],
  },
  { op: 'GridSample', opsets: [16], x: [1, 1, 3, 3], operands: [float32([0.1, 0.2, -0.4, 0.9], [1, 1, 2, 2])] },
  { op: 'DFT', opsets: [17, 19], x: [2, 4, 1] },
  { op: 'DFT', opsets: [17], x: [2, 4, 3, 2], attributes: { axis: int(2) } },
  // These changed in name only; they must come through as they are.
  ...[false, true].map((ceil): Case => ({
    op: 'MaxPool',
    opsets: ceil ? [10, 12] : [7, 8, 12],
    x: [1, 2, 5, 5],
    attributes: { kernel_shape: ints([2, 2]), strides: ints([2, 2]), ...(ceil && { ceil_mode: int(1) }) },
  })),
  {
    op: 'AveragePool',
    opsets: [7, 11],
    x: [1, 2, 5, 5],
    attributes: { kernel_shape: ints([3, 3]), pads: ints([1, 1, 1, 1]), count_include_pad: int(1) },
  },
  {
    op: 'AveragePool',
    opsets: [10, 11, 18],
    x: [1, 2, 5, 5],
    attributes: { kernel_shape: ints([2, 2]), strides: ints([2, 2]), ceil_mode: int(1) },
  },
  {
    op: 'Gemm',
    opsets: [7, 9, 11],
    x: [2, 3],
    attributes: { transB: int(1) },
    operands: [data([4, 3]), float32([1, 2, 3, 4])],
  },
  { op: 'Reshape', opsets: [7, 13], x: [2, 6], operands: [int64([0, 3, 2])] },
  { op: 'Flatten', opsets: [7, 11], x: [2, 3, 4] },
  { op: 'Concat', opsets: [7, 12], x: [2, 3], attributes: { axis: int(1) }, operands: [data([2, 2])] },
  { op: 'PRelu', opsets: [7, 15], x: [2, 3], operands: [float32([0.1, 0.2, 0.3])] },
  {
    op: 'Conv',
    opsets: [7, 12, 22],
    x: [1, 2, 5, 5],
    attributes: { pads: ints([1, 1, 1, 1]) },
    operands: [data([3, 2, 3, 3])],
  },
  { op: 'LayerNormalization', opsets: [17, 24], x: [2, 4], operands: [float32([1, 2, 3, 4])] },
  { op: 'InstanceNormalization', opsets: [7, 22], x: [2, 2, 3], operands: [float32([1, 2]), float32([0, 1])] },
  { op: 'Transpose', opsets: [13, 25], x: [2, 3], attributes: { perm: ints([1, 0]) } },
];

function graphFor(
  { op, x, attributes = {}, operands = [], outputs = 1, unknownRank = false }: Case,
  opset: number,
): Graph {
  const names = Array.from({ length: outputs }, (_, i) => `y${i}`);
  const dtypeOf = (i: number): Tensor['dtype'] => (i === 1 && op === 'TopK' ? 'int64' : 'float32');
  return graphOf({
    opset,
    inputs: [value('x', unknownRank ? null : x)],
    outputs: names.map((name, i) => value(name, null, dtypeOf(i))),
    initializers: new Map(operands.map((t, i) => [`operand${i}`, t])),
    nodes: [node(op, ['x', ...operands.map((_, i) => `operand${i}`)], names, attributes)],
  });
}

describe('upgrade', () => {
  for (const test of cases) {
    const settings = Object.entries(test.attributes ?? {})
      .map(([name, { value: v }]) => `${name}=${JSON.stringify(v)}`)
      .join(' ');
    for (const opset of test.opsets) {
      it(`${test.op}-${opset} [${test.x.join()}] ${settings}${test.unknownRank ? ' rank unknown' : ''}`, async () => {
        const old = graphFor(test, opset);
        const current = upgrade(old);
        expect(current.opset).toBe(latestOpset);
        verify(current);
        const feeds = { x: data(test.x) };
        const [before, after] = [await runGraph(old, feeds), await runGraph(current, feeds)];
        for (const [name, { shape, values }] of Object.entries(before)) {
          expect(after[name]?.shape).toEqual(shape);
          values.forEach((v, i) => {
            expect(after[name]?.values[i]).toBeCloseTo(v, 5);
          });
        }
      });
    }
  }

  it('leaves Softmax alone where its axis is the last one, through common operators', () => {
    const { nodes } = upgrade(
      graphOf({
        opset: 9,
        inputs: [value('x', ['batch', 3])],
        outputs: [value('y', null)],
        initializers: new Map([
          ['w', data([3, 2])],
          ['b', data([2])],
        ]),
        nodes: [node('MatMul', ['x', 'w'], ['h']), node('Add', ['h', 'b'], ['z']), node('Softmax', ['z'], ['y'])],
      }),
    );
    expect(nodes.map(({ op }) => op)).toEqual(['MatMul', 'Add', 'Softmax']);
    expect(nodes[2]?.attributes).toEqual({ axis: int(-1) });
  });

  it('marks what it adds as literals, not as parameters', () => {
    const graph = upgrade(graphFor({ op: 'Clip', opsets: [], x: [2], attributes: { min: float(0) } }, 7));
    expect(graph.initializers.size).toBe(1);
    expect([...graph.literals ?? []]).toEqual([...graph.initializers.keys()]);
  });

  it('gives bounds the element type of the data', async () => {
    const graph = upgrade(
      graphOf({
        opset: 10,
        inputs: [value('x', [3])],
        outputs: [value('y', null, 'float64')],
        nodes: [
          node('Cast', ['x'], ['d'], { to: int(11) }),
          node('Clip', ['d'], ['y'], { min: float(-1), max: float(1) }),
        ],
      }),
    );
    expect((await runGraph(graph, { x: float32([-2, 0.5, 3]) }))['y']?.values).toEqual([-1, 0.5, 1]);
  });

  it('gives Dropout its mask back in the type it had', async () => {
    const graph = upgrade(
      graphOf({
        opset: 7,
        inputs: [value('x', [2])],
        outputs: [value('y', null), value('m', null)],
        nodes: [node('Dropout', ['x'], ['y', 'm'])],
      }),
    );
    verify(graph);
    expect((await runGraph(graph, { x: float32([1, 2]) }))['m']?.values).toEqual([1, 1]);
  });

  it('keeps training-mode BatchNormalization in training mode', () => {
    const statistics = new Map(['s', 'b', 'm', 'v'].map((name) => [name, float32([1, 1])]));
    const graph = upgrade(graphOf({
      opset: 9, inputs: [value('x', [2, 2])], outputs: [value('y', null)], initializers: statistics,
      nodes: [node('BatchNormalization', ['x', 's', 'b', 'm', 'v'], ['y', 'm1', 'v1', 'sm', 'sv'])],
    }));
    expect(graph.nodes[0]?.attributes['training_mode']).toEqual(int(1));
    expect(graph.nodes[0]?.outputs).toEqual(['y', 'm1', 'v1']);
  });

  it.each<[string, Case, number]>([
    [
      'spatial',
      {
        op: 'BatchNormalization',
        opsets: [],
        x: [2, 2],
        attributes: { spatial: int(0) },
        operands: [1, 2, 3, 4].map(() => float32([1, 1])),
      },
      7,
    ],
    ['enlarges one axis', { op: 'Resize', opsets: [], x: [1, 1, 4, 4], operands: [float32([1, 1, 2, 0.5])] }, 10],
    [
      'removed',
      {
        op: 'Resize',
        opsets: [],
        x: [1, 1, 4, 4],
        operands: [float32([]), float32([1, 1, 2, 2])],
        attributes: { coordinate_transformation_mode: string('tf_half_pixel_for_nn'), nearest_mode: string('ceil') },
      },
      11,
    ],
  ])('refuses what has no newer form (%s)', (words, test, opset) => {
    expect(() => upgrade(graphFor(test, opset))).toThrow(GhostgradError);
    expect(() => upgrade(graphFor(test, opset))).toThrow(words);
  });

  it('keeps the version that newer operators need', async () => {
    const graph = upgrade(graphFor({ op: 'Swish', opsets: [], x: [2] }, 25));
    expect(graph.opset).toBe(24);
    const { y0 } = await runGraph(graph, { x: float32([0, 1]) });
    expect(y0?.values[1]).toBeCloseTo(1 / (1 + Math.exp(-1)), 5);
  });

  it('leaves graphs of the newest version and operators of other domains alone', () => {
    const graph = graphOf({
      opset: 9,
      inputs: [value('x', [2])],
      outputs: [value('y', null)],
      nodes: [node('Clip', ['x'], ['y'], { min: float(0) }, 'com.example')],
    });
    expect(upgrade(graph).nodes).toEqual(graph.nodes);
    const newest = graphFor({ op: 'Softmax', opsets: [], x: [2, 3, 4], attributes: { axis: int(1) } }, latestOpset);
    expect(upgrade(newest)).toEqual(newest);
  });
});
