import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../../src/errors.ts';
import { type Attributes, type Graph, float, int, ints, latestOpset, string } from '../../src/graph/ir.ts';
import { upgrade } from '../../src/graph/upgrade.ts';
import { verify } from '../../src/graph/verify.ts';
import { type Shape, type Tensor, float32, int64, sizeOf } from '../../src/tensor/tensor.ts';
import { graphOf, node, runGraph, value } from './onnxruntime.ts';

interface Case {
  readonly opset: number;
  readonly op: string;
  readonly x: Shape;
  /** Further operands, as initializers. */
  readonly operands?: readonly Tensor[];
  readonly attributes?: Attributes;
  readonly shape: Shape;
  /** The element of the result at a place, for the input whose elements are -3, -2, -1, … in row-major order. */
  readonly at: (place: readonly number[]) => number;
}

const graphFor = ({ opset, op, x, operands = [], attributes = {} }: Omit<Case, 'shape' | 'at'>, rank = true): Graph => graphOf({
  opset, inputs: [value('x', rank ? x : null)], outputs: [value('y', null, op === 'Cast' ? 'int32' : 'float32')],
  initializers: new Map(operands.map((t, i) => [`operand${i}`, t])),
  nodes: [node(op, ['x', ...operands.map((_, i) => `operand${i}`)], ['y'], attributes)],
});

const places = (shape: Shape): number[][] => Array.from({ length: sizeOf(shape) }, (_, i) =>
  shape.map((n, axis) => Math.floor(i / sizeOf(shape.slice(axis + 1))) % n));

/** The element of the input at a place. */
const input = (x: Shape) => (place: readonly number[]): number =>
  place.reduce((flat, i, axis) => flat * x[axis]! + i, 0) - 3;

const x = [2, 3, 2];
const of = input(x);
const three = float32([10, 20, 30]);

const cases: readonly Case[] = [
  {
    op: 'Add', opset: 6, x, operands: [three], attributes: { broadcast: int(1), axis: int(1) }, shape: x,
    at: (p) => of(p) + 10 * (p[1]! + 1),
  },
  {
    op: 'Sub', opset: 1, x, operands: [three], attributes: { broadcast: int(1), axis: int(-2), consumed_inputs: ints([0, 0]) },
    shape: x, at: (p) => of(p) - 10 * (p[1]! + 1),
  },
  {
    op: 'Mul', opset: 6, x, operands: [float32([10, 20])], attributes: { broadcast: int(1) }, shape: x,
    at: (p) => of(p) * 10 * (p[2]! + 1),
  },
  {
    op: 'Div', opset: 6, x, operands: [float32([1, 2, 3, 4, 5, 6], [2, 3])], attributes: { broadcast: int(1), axis: int(0) },
    shape: x, at: (p) => of(p) / (p[0]! * 3 + p[1]! + 1),
  },
  { op: 'PRelu', opset: 6, x, operands: [three], shape: x, at: (p) => of(p) * (of(p) < 0 ? 10 * (p[1]! + 1) : 1) },
  { op: 'PRelu', opset: 6, x, operands: [float32([10])], shape: x, at: (p) => of(p) * (of(p) < 0 ? 10 : 1) },
  {
    op: 'Gemm', opset: 6, x: [1, 2], operands: [float32([1, 2, 3, 4], [2, 2]), float32([5, 6])],
    attributes: { broadcast: int(1) }, shape: [1, 2], at: (p) => [-3 - 2 * 3 + 5, -3 * 2 - 2 * 4 + 6][p[1]!]!,
  },
  {
    op: 'Reshape', opset: 1, x, attributes: { shape: ints([0, -1]), consumed_inputs: ints([0]) }, shape: [2, 6],
    at: input([2, 6]),
  },
  { op: 'Cast', opset: 1, x, attributes: { to: string('INT32') }, shape: x, at: of },
  {
    op: 'Tile', opset: 1, x, operands: [float32([2], []), float32([1], [])], shape: [2, 6, 2],
    at: ([i, j, k]) => of([i!, j! % 3, k!]),
  },
  { op: 'Tile', opset: 6, x, operands: [int64([1, 1, 2])], shape: [2, 3, 4], at: ([i, j, k]) => of([i!, j!, k! % 2]) },
  {
    op: 'Concat', opset: 1, x, operands: [float32([7, 8, 9, 10], [2, 1, 2])], shape: [2, 4, 2],
    at: ([i, j, k]) => (j === 3 ? 7 + i! * 2 + k! : of([i!, j!, k!])),
  },
  {
    op: 'Pad', opset: 1, x: [2, 2], attributes: { paddings: ints([0, 1, 0, 0]), value: float(9) }, shape: [2, 3],
    at: ([i, j]) => (j === 0 ? 9 : input([2, 2])([i!, j! - 1])),
  },
  {
    op: 'Selu', opset: 1, x: [1], shape: [1], at: () => 1.0507 * 1.6732 * (Math.exp(-3) - 1),
  },
  { op: 'Dropout', opset: 6, x, attributes: { is_test: int(1), ratio: float(0.5) }, shape: x, at: of },
  {
    op: 'BatchNormalization', opset: 6, x, operands: [three, three, float32([1, 2, 3]), float32([1, 1, 1])], shape: x,
    attributes: { is_test: int(1), epsilon: float(0) }, at: (p) => 10 * (p[1]! + 1) * (of(p) - p[1]! - 1 + 1),
  },
];

describe('graphs older than opset 7', () => {
  it.each(cases)('$op-$opset', async (test) => {
    const graph = upgrade(graphFor(test));
    expect(graph.opset).toBe(latestOpset);
    verify(graph);
    const feed = float32(Array.from({ length: sizeOf(test.x) }, (_, i) => i - 3), test.x);
    const { y } = await runGraph(graph, { x: feed });
    expect(y?.shape).toEqual(test.shape);
    places(test.shape).forEach((place, i) => { expect(y?.values[i]).toBeCloseTo(test.at(place), 4); });
  });

  it('are refused where the old form depends on what is not known', () => {
    const add = graphFor({ op: 'Add', opset: 6, x, operands: [three], attributes: { broadcast: int(1), axis: int(1) } }, false);
    expect(() => upgrade(add)).toThrow(GhostgradError);
    expect(() => upgrade(add)).toThrow(/rank of input 0[^]*opset 17/);
    const cast = graphFor({ op: 'Cast', opset: 1, x, attributes: { to: string('REAL') } });
    expect(() => upgrade(cast)).toThrow(/"REAL"/);
    const tile = graphFor({ op: 'Tile', opset: 1, x, operands: [float32([2], []), float32([1], [])] });
    const computed = { ...tile, initializers: new Map(), inputs: [...tile.inputs, value('operand0', []), value('operand1', [])] };
    expect(() => upgrade(computed)).toThrow(/Tile has no newer form/);
  });
});
