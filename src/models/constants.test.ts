import { describe, expect, it } from 'vitest';
import { graphOf, node, value } from '../../test/graph/onnxruntime.ts';
import { randomTensor, testRandom } from '../../test/support/random-network.ts';
import { type Graph, type Node, type ValueInfo, int } from '../graph/ir.ts';
import { dataTypeOf } from '../graph/onnx.ts';
import { type Tensor, float32, int64 } from '../tensor/tensor.ts';
import { asParameters, withLearnedConstants } from './constants.ts';

const random = testRandom(4);
const weights = (...shape: number[]): Tensor => randomTensor(random, shape);

/** A graph all of whose initializers are Constant nodes, but for those named. */
const written = (
  inputs: readonly ValueInfo[], nodes: readonly Node[], constants: Readonly<Record<string, Tensor>>, initializers: readonly string[] = [],
): Graph => graphOf({
  inputs, nodes, outputs: [value(nodes.at(-1)!.outputs[0]!, null)], initializers: new Map(Object.entries(constants)),
  literals: new Set(Object.keys(constants).filter((name) => !initializers.includes(name))),
});
const parametersOf = (graph: Graph): string[] =>
  [...withLearnedConstants(graph).initializers.keys()].filter((name) => withLearnedConstants(graph).literals?.has(name) !== true);

const image = value('image', ['batch', 3, 8, 8]);
const ids = value('ids', ['batch', 5], 'int64');

describe('withLearnedConstants', () => {
  it('finds the weights of a network whose exporter writes Constants only', () => {
    const graph = written([image], [
      node('Sub', ['image', 'mean'], ['s']), node('Div', ['s', 'std'], ['d']),
      node('Conv', ['d', 'kernel'], ['c']), node('Add', ['c', 'bias'], ['b']),
      node('BatchNormalization', ['b', 'scale', 'shift', 'average', 'variance'], ['n']),
      node('Mul', ['n', 'half'], ['h']), node('Div', ['h', 'root'], ['r']), node('Reshape', ['r', 'shape'], ['f']),
      node('MatMul', ['f', 'matrix'], ['m']), node('Add', ['m', 'offset'], ['y']),
    ], {
      mean: weights(1, 3, 1, 1), std: weights(1, 3, 1, 1), kernel: weights(4, 3, 3, 3), bias: weights(1, 4, 1, 1),
      scale: weights(4), shift: weights(4), average: weights(4), variance: weights(4), half: float32([0.5], []),
      root: float32([Math.SQRT2], [1]), shape: int64([-1, 4]), matrix: weights(4, 2), offset: weights(2),
    });
    expect(parametersOf(graph)).toEqual(['kernel', 'bias', 'scale', 'shift', 'matrix', 'offset']);
  });

  it('leaves masks, position codes and the constants of attention alone', () => {
    const graph = written([ids], [
      node('Gather', ['table', 'ids'], ['e']), node('Add', ['e', 'positions'], ['p']),
      node('MatMul', ['p', 'query'], ['q']), node('MatMul', ['q', 'key'], ['k']), node('Div', ['k', 'root'], ['a']),
      node('Add', ['a', 'causal'], ['b']), node('Add', ['b', 'padding'], ['c']), node('Mul', ['c', 'keep'], ['y']),
    ], {
      table: weights(10, 4), positions: weights(1, 5, 4), query: weights(4, 4), key: weights(4, 5), root: float32([2], []),
      causal: float32(Array.from({ length: 25 }, (_, i) => (i % 5 > i / 5 ? -1e9 : 0)), [1, 5, 5]),
      padding: float32([0, 0, -10000, -10000, -10000], [1, 1, 5]), keep: float32([1, 1, 0, 0, 1]),
    });
    expect(parametersOf(graph)).toEqual(['table', 'query', 'key']);
  });

  it('leaves tables that are not looked up by data, and angles of positions, alone', () => {
    const graph = written([ids], [
      node('Gather', ['table', 'ids'], ['e']), node('Gather', ['sinusoids', 'order'], ['s']), node('Add', ['e', 's'], ['p']),
      node('Cast', ['ids'], ['float'], { to: int(dataTypeOf.float32) }), node('MatMul', ['float', 'angles'], ['t']),
      node('Cos', ['t'], ['u']), node('Mul', ['p', 'u'], ['y']),
    ], { table: weights(10, 4), sinusoids: weights(7, 4), order: int64([0, 1, 2, 3, 4]), angles: weights(5, 4) });
    expect(parametersOf(graph)).toEqual(['table']);
  });

  it('takes biases of their own node for constants where the file has initializers for weights', () => {
    const nodes = [node('MatMul', ['x', 'w'], ['m']), node('Add', ['m', 'c'], ['y'])];
    const constants = { w: weights(3, 2), c: weights(2) };
    expect(parametersOf(written([value('x', ['b', 3])], nodes, constants))).toEqual(['w', 'c']);
    expect(parametersOf(written([value('x', ['b', 3])], nodes, constants, ['w']))).toEqual(['w']);
  });

  it('takes a scale of ones for what it is where the file has initializers for weights', () => {
    const nodes = [
      node('Conv', ['image', 'kernel'], ['c']), node('InstanceNormalization', ['c', 'ones', 'zeros'], ['n']),
      node('InstanceNormalization', ['n', 'scale', 'zeros'], ['y']),
    ];
    const constants = { kernel: weights(4, 3, 1, 1), ones: float32([1, 1, 1, 1]), zeros: float32([0, 0, 0, 0]), scale: weights(4) };
    expect(parametersOf(written([image], nodes, constants))).toEqual(['kernel', 'ones', 'zeros', 'scale']);
    expect(parametersOf(written([image], nodes, constants, ['kernel']))).toEqual(['kernel', 'scale']);
  });

  it('changes nothing where there is nothing to find, or the second time', () => {
    const graph = written([value('x', ['b', 3])], [node('MatMul', ['x', 'w'], ['y'])], { w: weights(3, 2) });
    const once = withLearnedConstants(graph);
    expect(withLearnedConstants(once)).toBe(once);
  });
});

describe('asParameters', () => {
  it('makes a parameter of any float constant that is named', () => {
    const graph = written([value('x', ['b', 3])], [node('Mul', ['x', 'half'], ['y'])], { half: float32([0.5], []) });
    expect(asParameters(graph, ['half']).literals).toEqual(new Set());
    expect(asParameters(graph, ['h*', 'x'])).toBe(graph);
  });
});
