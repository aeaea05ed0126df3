import { AttributeProto_AttributeType as AttributeType } from 'onnx-buf';
import { describe, expect, it } from 'vitest';
import { encoded, refused } from '../../test/graph/messages.ts';
import { decodeModel } from './decode.ts';
import { verify } from './verify.ts';

describe('local functions', () => {
  const call = { opType: 'Twice', domain: 'local', name: 'call', input: ['x'], output: ['y'] };
  const twice = {
    name: 'Twice',
    domain: 'local',
    input: ['a'],
    output: ['c'],
    attribute: ['alpha'],
    opsetImport: [{ domain: '', version: 17n }],
    attributeProto: [{ name: 'beta', type: AttributeType.FLOAT, f: 3 }],
    node: [
      {
        opType: 'Elu',
        input: ['a'],
        output: ['b'],
        attribute: [{ name: 'alpha', refAttrName: 'alpha', type: AttributeType.FLOAT }],
      },
      {
        opType: 'Foo',
        input: ['b', 'b'],
        output: ['c'],
        attribute: [{ name: 'b', refAttrName: 'beta', type: AttributeType.FLOAT }],
      },
    ],
  };

  it('are inlined, with values and attributes of the call', () => {
    const graph = decodeModel(
      encoded(
        { node: [{ ...call, attribute: [{ name: 'alpha', type: AttributeType.FLOAT, f: 2 }] }] },
        { functions: [twice] },
      ),
    );
    expect(graph.nodes.map(({ name, op, inputs, outputs }) => [name, op, inputs, outputs])).toEqual([
      ['call/Elu', 'Elu', ['x'], ['call/b']], ['call/Foo', 'Foo', ['call/b', 'call/b'], ['y']],
    ]);
    expect(graph.nodes.map(({ attributes }) => attributes)).toEqual([
      { alpha: { type: 'float', value: 2 } },
      { b: { type: 'float', value: 3 } },
    ]);
    verify(graph);
  });

  it('may call one another and be called more than once', () => {
    const outer = {
      name: 'Outer',
      domain: 'local',
      input: ['p'],
      output: ['q', 'p'],
      node: [{ ...call, name: '', input: ['p'], output: ['q'] }],
    };
    const graph = decodeModel(
      encoded(
        {
          node: [
            { opType: 'Outer', domain: 'local', name: 'one', input: ['x'], output: ['m', 'same'] },
            { opType: 'Outer', domain: 'local', name: 'two', input: ['same'], output: ['y'] },
          ],
        },
        { functions: [outer, twice] },
      ),
    );
    expect(graph.nodes.map(({ op }) => op)).toEqual(['Elu', 'Foo', 'Identity', 'Elu', 'Foo']);
    verify(graph);
  });

  it('are refused when they call themselves, hold subgraphs, need another version, or explode', () => {
    refused(
      encoded({ node: [call] }, { functions: [{ ...twice, node: [{ ...call, input: ['a'], output: ['c'] }] }] }),
      /calls itself/,
    );
    refused(
      encoded({ node: [call] }, { functions: [{ ...twice, opsetImport: [{ domain: '', version: 12n }] }] }),
      /version 12/,
    );
    refused(
      encoded(
        { node: [call] },
        {
          functions: [
            {
              ...twice,
              node: [
                {
                  opType: 'If',
                  input: ['a'],
                  output: ['c'],
                  attribute: [{ name: 'then_branch', type: AttributeType.GRAPH }],
                },
              ],
            },
          ],
        },
      ),
      /subgraph/,
    );
    const bomb = Array.from({ length: 60 }, (_, i) => ({
      name: `F${i}`,
      domain: 'local',
      input: ['a'],
      output: ['c'],
      node: [
        { opType: `F${i + 1}`, domain: 'local', input: ['a'], output: ['b'] },
        { opType: `F${i + 1}`, domain: 'local', input: ['b'], output: ['c'] },
      ],
    }));
    const invoke = (i: number, output: string): object => ({
      opType: `F${i}`,
      domain: 'local',
      input: ['x'],
      output: [output],
    });
    refused(encoded({ node: [invoke(0, 'y')] }, { functions: bomb }), /nodes after inlining/);
    const chain = Array.from({ length: 5000 }, (_, i) => ({
      ...twice,
      name: `F${i}`,
      node: [{ ...invoke(i + 1, 'c'), input: ['a'] }],
    }));
    const deepestFirst = Array.from({ length: 100 }, (_, i) => invoke(4950 - 50 * i, i === 99 ? 'y' : `v${i}`));
    refused(encoded({ node: deepestFirst }, { functions: chain }), /nested more than 100 deep/);
  });
});
