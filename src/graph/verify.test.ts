import { describe, expect, it } from 'vitest';
import { type Shape, type Tensor, type TensorType, float32 } from '../tensor/tensor.ts';
import type { Graph, Node, TypedGraph } from './ir.ts';
import { verify } from './verify.ts';

const relu: Node = {
  op: 'Relu',
  domain: '',
  name: 'r',
  inputs: ['x'],
  outputs: ['y'],
  attributes: { axis: { type: 'int', value: 1 } },
};
const valid: Graph = {
  name: 'g',
  opset: 21,
  inputs: [{ name: 'x', dtype: 'float32', shape: [2] }],
  outputs: [{ name: 'y', dtype: 'float32', shape: [2] }],
  nodes: [relu],
  initializers: new Map([['w', float32([1])]]),
  literals: new Set(['w']),
  metadata: {},
};
const vector = { dtype: 'float32', shape: [2] } as const;
const typed: TypedGraph = {
  ...valid,
  types: new Map<string, TensorType>([
    ['x', vector],
    ['y', vector],
    ['w', { dtype: 'float32', shape: [1] }],
  ]),
};
const withShape = (shape: Shape): Tensor => ({ ...float32([1]), shape });

describe('verify', () => {
  it('accepts valid graphs, and optional operands left out', () => {
    verify(valid);
    verify(typed);
    verify({ ...valid, nodes: [{ ...relu, inputs: ['x', ''], outputs: ['y', ''] }] });
  });

  it.each<[string, Graph | TypedGraph, RegExp]>([
    [
      'a use before the definition',
      { ...valid, nodes: [{ ...relu, name: 'late', inputs: ['y'], outputs: ['z'] }, relu] },
      /uses "y" before/,
    ],
    ['two definitions', { ...valid, nodes: [relu, { ...relu, name: 'again' }] }, /"y" is defined twice/],
    [
      'an input that is an initializer',
      { ...valid, initializers: new Map([['x', float32([1])]]), literals: new Set() },
      /"x" is defined twice/,
    ],
    ['an undefined output', { ...valid, nodes: [] }, /output "y" is not defined/],
    [
      'a node without outputs',
      { ...valid, nodes: [relu, { ...relu, name: 'none', outputs: [''] }] },
      /"none" has no output/,
    ],
    ['a literal that does not exist', { ...valid, literals: new Set(['v']) }, /literal "v"/],
    ['nodes of one name', { ...valid, nodes: [relu, { ...relu, outputs: ['z'] }] }, /two nodes are named "r"/],
    ['a node without a name', { ...valid, nodes: [{ ...relu, name: '' }] }, /without a name/],
    ['outputs of one name', { ...valid, outputs: [...valid.outputs, ...valid.outputs] }, /two outputs are named "y"/],
    [
      'an input without a name',
      { ...valid, inputs: [...valid.inputs, { name: '', dtype: 'float32', shape: [] }] },
      /input or initializer without a name/,
    ],
    [
      'data that does not match the shape',
      { ...valid, initializers: new Map([['w', withShape([3])]]) },
      /"w", float32\[3\], holds 1/,
    ],
    [
      'data of another type',
      { ...valid, initializers: new Map([['w', { ...float32([1]), dtype: 'float64' } as unknown as Tensor]]) },
      /stored as Float32Array/,
    ],
    [
      'an attribute of another type',
      { ...valid, nodes: [{ ...relu, attributes: { axis: { type: 'int', value: 1.5 } } }] },
      /"axis" of Relu node "r" is not of type int/,
    ],
    [
      'a value without a type',
      {
        ...typed,
        types: new Map<string, TensorType>([
          ['x', vector],
          ['w', { dtype: 'float32', shape: [1] }],
        ]),
      },
      /"y" has no type/,
    ],
    [
      'an impossible type',
      { ...typed, types: new Map<string, TensorType>([...typed.types, ['y', { dtype: 'float32', shape: [-1] }]]) },
      /impossible type/,
    ],
    [
      "a type that is not its initializer's",
      { ...typed, types: new Map<string, TensorType>([...typed.types, ['w', vector]]) },
      /initializer "w" is float32\[1\]/,
    ],
    [
      'a declaration that is not its type',
      { ...typed, inputs: [{ name: 'x', dtype: 'int64', shape: [2] }] },
      /"x" is declared int64\[2\]/,
    ],
    [
      "a rank that is not its type's",
      { ...typed, outputs: [{ name: 'y', dtype: 'float32', shape: null }] },
      /"y" is declared float32/,
    ],
  ])('reports %s', (_, graph, message) => {
    expect(() => {
      verify(graph);
    }).toThrow(message);
  });

  it('lists every violation at once', () => {
    expect(() => {
      verify({ ...valid, nodes: [{ ...relu, name: '', inputs: ['a', 'b'] }] });
    }).toThrow(/"a"[^]*"b"[^]*without a name/);
  });
});
