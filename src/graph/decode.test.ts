import { create, toBinary } from '@bufbuild/protobuf';
import {
  AttributeProto_AttributeType as AttributeType,
  ModelProtoSchema,
  TensorProto_DataLocation as DataLocation,
  TensorProto_DataType as DataType,
} from 'onnx-buf';
import { describe, expect, it } from 'vitest';
import { type GraphInit, encoded, refused, relu, vector } from '../../test/graph/messages.ts';
import { toNumbers } from '../tensor/tensor.ts';
import { decodeModel, newestOpset, oldestOpset } from './decode.ts';
import { verify } from './verify.ts';

describe('names and order', () => {
  it('gives nodes unique names that say what they are', () => {
    const graph = decodeModel(encoded({
      node: [
        { opType: 'Relu', input: ['x'], output: ['a'] }, { opType: 'Relu', name: 'same', input: ['a'], output: ['b'] },
        { opType: 'Relu', name: 'same', input: ['b'], output: ['c'] }, { opType: 'Relu', input: ['c'], output: ['y'] },
      ],
    }));
    expect(graph.nodes.map(({ name }) => name)).toEqual(['Relu_0', 'same', 'same_1', 'Relu_3']);
    verify(graph);
  });

  it('sorts nodes that stand in the wrong order and keeps a right one', () => {
    const backwards = decodeModel(
      encoded({
        node: [
          { opType: 'Exp', input: ['b'], output: ['y'] },
          { opType: 'Abs', input: ['a'], output: ['b'] },
          { opType: 'Relu', input: ['x'], output: ['a'] },
        ],
      }),
    );
    expect(backwards.nodes.map(({ op }) => op)).toEqual(['Relu', 'Abs', 'Exp']);
    verify(backwards);
  });

  it('treats ai.onnx as the standard domain and keeps others with their versions', () => {
    const graph = decodeModel(
      encoded(
        {
          node: [
            { opType: 'Relu', domain: 'ai.onnx', input: ['x'], output: ['a'] },
            { opType: 'Gelu', domain: 'com.microsoft', input: ['a'], output: ['y'] },
          ],
        },
        {
          opsetImport: [
            { domain: 'ai.onnx', version: 13n },
            { domain: 'com.microsoft', version: 1n },
          ],
        },
      ),
    );
    expect(graph.opset).toBe(13);
    expect(graph.nodes.map(({ domain }) => domain)).toEqual(['', 'com.microsoft']);
    expect(graph.domains).toEqual({ 'com.microsoft': 1 });
  });

  it.each([oldestOpset, newestOpset])('reads opset %i', (version) => {
    expect(
      decodeModel(encoded({ node: [relu] }, { opsetImport: [{ domain: '', version: BigInt(version) }] })).opset,
    ).toBe(version);
  });

  it.each([oldestOpset - 1, newestOpset + 1])('refuses opset %i', (version) => {
    refused(
      encoded({ node: [relu] }, { opsetImport: [{ domain: '', version: BigInt(version) }] }),
      new RegExp(`opset ${version}`),
    );
  });

  it('refuses values that are missing, made twice or depend on themselves', () => {
    refused(encoded({ node: [{ ...relu, input: ['z'] }] }), /"z" in Relu node "Relu_0"/);
    refused(encoded({ node: [relu, { ...relu, opType: 'Abs' }] }), /"y" is made by Abs node "Abs_1"/);
    refused(encoded({ node: [relu, { opType: 'Abs', input: ['y'], output: ['x'] }] }), /is an input or initializer/);
    refused(
      encoded({
        node: [
          { opType: 'Add', input: ['x', 'b'], output: ['a'] },
          { opType: 'Abs', input: ['a'], output: ['b'] },
          relu,
        ],
      }),
      /cycle/,
    );
    refused(encoded({ node: [{ ...relu, output: ['z'] }] }), /output that nothing makes/);
    refused(encoded({ node: [relu], input: [vector('x'), vector('x')] }), /two inputs of one name/);
    refused(encoded({ node: [relu], output: [vector('y'), vector('y')] }), /two outputs of one name/);
    refused(
      encoded({
        node: [relu],
        initializer: [
          { name: 'w', dataType: 1 },
          { name: 'w', dataType: 1 },
        ],
      }),
      /4 bytes/,
    );
  });

  it('refuses a graph without operators or types it can read', () => {
    refused(encoded({ node: [{ ...relu, opType: '' }] }), /without an operator/);
    refused(encoded({ node: [relu], input: [{ name: 'x' }] }), /no type/);
    refused(encoded({ node: [relu], input: [vector('x', DataType.STRING)] }), /STRING/);
    refused(
      encoded({ node: [relu], input: [{ name: 'x', type: { value: { case: 'sequenceType', value: {} } } }] }),
      /sequenceType/,
    );
    refused(toBinary(ModelProtoSchema, create(ModelProtoSchema, { irVersion: 8n })), /no graph/);
  });
});

describe('initializers', () => {
  const initializer = (tensor: NonNullable<GraphInit['initializer']>[number]): Uint8Array =>
    encoded({ node: [relu], initializer: [{ name: 'w', ...tensor }] });

  it.each<[string, NonNullable<GraphInit['initializer']>[number], number[]]>([
    ['float_data', { dataType: DataType.FLOAT, floatData: [1.5, -2] }, [1.5, -2]],
    ['double_data', { dataType: DataType.DOUBLE, doubleData: [1e300, 2] }, [1e300, 2]],
    ['int64_data', { dataType: DataType.INT64, int64Data: [-1n, 5n] }, [-1, 5]],
    ['uint64_data of uint32', { dataType: DataType.UINT32, uint64Data: [1n, 2n ** 32n - 1n] }, [1, 2 ** 32 - 1]],
    ['uint64_data', { dataType: DataType.UINT64, uint64Data: [1n, 7n] }, [1, 7]],
    ['int32_data', { dataType: DataType.INT32, int32Data: [-3, 4] }, [-3, 4]],
    ['int32_data of int8', { dataType: DataType.INT8, int32Data: [-3, 4] }, [-3, 4]],
    ['int32_data of uint8', { dataType: DataType.UINT8, int32Data: [255, 4] }, [255, 4]],
    ['int32_data of int16', { dataType: DataType.INT16, int32Data: [-300, 4] }, [-300, 4]],
    ['int32_data of uint16', { dataType: DataType.UINT16, int32Data: [65535, 4] }, [65535, 4]],
    ['int32_data of bool', { dataType: DataType.BOOL, int32Data: [2, 0] }, [1, 0]],
    ['int32_data of float16', { dataType: DataType.FLOAT16, int32Data: [0x3c00, 0] }, [0x3c00, 0]],
    ['int32_data of bfloat16', { dataType: DataType.BFLOAT16, int32Data: [0x3f80, 0] }, [0x3f80, 0]],
    ['raw bool', { dataType: DataType.BOOL, rawData: Uint8Array.of(7, 0) }, [1, 0]],
  ])('reads %s', (_, tensor, values) => {
    const w = decodeModel(initializer({ ...tensor, dims: [2n] })).initializers.get('w');
    expect(w && toNumbers(w)).toEqual(values);
  });

  it('that are listed as inputs too are no inputs', () => {
    const graph = decodeModel(encoded({
      node: [{ opType: 'Add', input: ['x', 'w'], output: ['y'] }], input: [vector('x'), vector('w')],
      initializer: [{ name: 'w', dims: [1n], dataType: 1, floatData: [2] }],
    }));
    expect(graph.inputs.map(({ name }) => name)).toEqual(['x']);
    expect(graph.literals?.size).toBe(0);
  });

  it('are checked against the bytes at hand before anything is allocated', () => {
    const start = performance.now();
    refused(initializer({ dataType: 1, dims: [2n ** 40n], rawData: new Uint8Array(4) }), /4398046511104 bytes/);
    refused(
      initializer({ dataType: 1, dims: [2n ** 40n, 2n ** 40n, 2n ** 40n], rawData: new Uint8Array(4) }),
      /4 bytes/,
    );
    refused(initializer({ dataType: 1, dims: [2n ** 40n], floatData: [1] }), /1 elements/);
    refused(initializer({ dataType: 1, dims: [-1n], rawData: new Uint8Array(4) }), /impossible shape/);
    refused(initializer({ dataType: 1, dims: [2n ** 62n], rawData: new Uint8Array(4) }), /impossible shape/);
    refused(initializer({ dataType: 1, dims: [2n], rawData: new Uint8Array(7) }), /7 bytes/);
    expect(performance.now() - start).toBeLessThan(1000);
  });

  it('of types that are not numbers of whole bytes are refused by name', () => {
    refused(initializer({ dataType: DataType.STRING, dims: [0n] }), /STRING/);
    refused(initializer({ dataType: DataType.INT2, dims: [2n], rawData: Uint8Array.of(1) }), /INT2/);
    refused(initializer({ dataType: DataType.COMPLEX64, dims: [0n] }), /COMPLEX64/);
    refused(initializer({ dataType: 99, dims: [0n] }), /number 99/);
    refused(encoded({ node: [relu], sparseInitializer: [{ values: { name: 's' } }] }), /sparse/);
  });

  it('are fetched from outside when they are kept there', () => {
    const external = (entries: Readonly<Record<string, string>>): Uint8Array =>
      initializer({
        dataType: 1,
        dims: [2n],
        dataLocation: DataLocation.EXTERNAL,
        externalData: Object.entries(entries).map(([key, value]) => ({ key, value })),
      });
    const file = new Uint8Array(new Float32Array([0, 5, 6]).buffer);
    const decoded = decodeModel(external({ location: 'weights/w.bin', offset: '4', length: '8' }), {
      externalData: (location, offset, length) => {
        expect(location).toBe('weights/w.bin');
        return file.subarray(offset, offset + length);
      },
    });
    expect([...decoded.initializers.get('w')?.data ?? []]).toEqual([5, 6]);
    refused(external({ location: 'w.bin' }), /readModel/);
    refused(external({ location: 'w.bin', length: '12' }), /length 12/);
    refused(external({ location: 'w.bin', offset: '-4' }), /offset -4/);
    for (const location of [
      '',
      '../w.bin',
      '/etc/passwd',
      'a/../../b',
      '..\\w.bin',
      'C:\\w.bin',
      '\\\\host\\w.bin',
      'a\0b',
    ]) {
      refused(external({ location }), /outside the model's folder/);
    }
    expect(() => decodeModel(external({ location: 'w.bin' }), { externalData: () => new Uint8Array(4) })).toThrow(
      /4 bytes/,
    );
  });
});

describe('constants', () => {
  const constant = (attribute: object): Uint8Array =>
    encoded({
      node: [
        { opType: 'Constant', output: ['c'], attribute: [attribute] },
        { opType: 'Foo', input: ['x', 'c'], output: ['y'] },
      ],
    });

  it.each<[string, object, string, number[], number[]]>([
    [
      'value',
      { type: AttributeType.TENSOR, t: { dims: [2n], dataType: DataType.DOUBLE, doubleData: [1, 2] } },
      'float64',
      [2],
      [1, 2],
    ],
    ['value_int', { type: AttributeType.INT, i: -7n }, 'int64', [], [-7]],
    ['value_ints', { type: AttributeType.INTS, ints: [1n, 2n, 3n] }, 'int64', [3], [1, 2, 3]],
    ['value_float', { type: AttributeType.FLOAT, f: 0.5 }, 'float32', [], [0.5]],
    ['value_floats', { type: AttributeType.FLOATS, floats: [0.5, 2] }, 'float32', [2], [0.5, 2]],
  ])('of %s become literals', (name, attribute, dtype, shape, values) => {
    const graph = decodeModel(constant({ name, ...attribute }));
    const c = graph.initializers.get('c');
    expect({ dtype: c?.dtype, shape: c?.shape, values: c && toNumbers(c) }).toEqual({ dtype, shape, values });
    expect([...(graph.literals ?? [])]).toEqual(['c']);
    expect(graph.nodes.map(({ op }) => op)).toEqual(['Foo']);
    verify(graph);
  });

  it('keep every bit of an int64', () => {
    expect(
      decodeModel(constant({ name: 'value_int', type: AttributeType.INT, i: 2n ** 63n - 1n })).initializers.get('c')
        ?.data[0],
    ).toBe(2n ** 63n - 1n);
  });

  it('of other kinds are refused by name', () => {
    refused(constant({ name: 'value_string', type: AttributeType.STRING, s: Uint8Array.of(65) }), /value_string/);
    refused(constant({ name: 'sparse_value', type: AttributeType.SPARSE_TENSOR }), /sparse_value/);
    refused(encoded({ node: [{ opType: 'Constant', output: ['y'] }] }), /no attribute/);
  });
});

describe('attributes', () => {
  it('that are subgraphs are kept by kind, so that messages can name them', () => {
    const graph = decodeModel(
      encoded({
        node: [{ ...relu, opType: 'If', attribute: [{ name: 'then_branch', type: AttributeType.GRAPH, g: {} }] }],
      }),
    );
    expect(graph.nodes[0]?.attributes['then_branch']).toEqual({ type: 'other', value: 'GRAPH' });
  });
});
