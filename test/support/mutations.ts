import { type MessageInitShape, create, fromBinary, toBinary } from '@bufbuild/protobuf';
import {
  AttributeProto_AttributeType as AttributeType, type AttributeProto, AttributeProtoSchema, type ModelProto, ModelProtoSchema,
  NodeProtoSchema, StringStringEntryProtoSchema, TensorProto_DataLocation as DataLocation, TensorProto_DataType as DataType,
  type TensorProto, TensorProtoSchema, ValueInfoProtoSchema,
} from 'onnx-buf';
import { operators } from '../../src/ops/table.ts';

/** Damage to the bytes and to the fields of ONNX files, drawn from a generator of test data. */

type Random = () => number;
type GraphProto = NonNullable<ModelProto['graph']>;

const below = (random: Random, n: number): number => Math.floor(random() * n);
const one = <T>(random: Random, choices: readonly T[]): T => choices[below(random, choices.length)]!;

/** Sizes that no memory holds, that a product of two overflows, and that are none at all. */
const extremes = [0n, -1n, 1n, 2n, 3n, 7n, 1009n, 65536n, 2n ** 31n, 2n ** 40n, 2n ** 53n + 1n, 2n ** 62n, -(2n ** 40n), -(2n ** 63n)];
const floatExtremes = [0, -1, 1e-30, 1e30, NaN, Infinity, -Infinity, 0.5];
const words = ['', 'axis', 'NOTSET', 'SAME_UPPER', 'reflect', 'linear', 'nearest', 'cubic', 'max', 'bij,bjk->bik', 'ij->', '...', 'iij->->', 'constructor', '__proto__'];
const attributeNames = [
  'axis', 'axes', 'perm', 'kernel_shape', 'strides', 'pads', 'dilations', 'group', 'keepdims', 'to', 'num_groups', 'epsilon', 'alpha', 'beta',
  'equation', 'mode', 'hidden_size', 'direction', 'activations', 'num_heads', 'split', 'noop_with_empty_axes', 'transA', 'transB', 'blocksize',
  'largest', 'reduction', 'batch_dims', 'allowzero', 'start', 'end', 'num_outputs', 'auto_pad', 'output_shape', 'output_padding',
  'coordinate_transformation_mode', 'nearest_mode', 'layout', 'q_num_heads', 'kv_num_heads', 'is_causal', 'scale', 'interleaved',
  'rotary_embedding_dim', 'N', 'K', 'bits', 'block_size', 'upper', 'exclusive', 'reverse', 'ceil_mode', 'count_include_pad', 'p', 'size',
  'storage_order', 'linear_before_reset', 'clip', 'stash_type', 'ignore_index', 'approximate', 'dtype', 'value', 'value_ints', 'keep_aspect_ratio_policy',
  'antialias', 'k', 'fmod', 'bias', 'lambd', 'spatial_scale', 'training_mode', 'momentum', 'qkv_hidden_sizes', 'unidirectional', 'do_rotary', 'unknown',
];
const operatorNames = [...Object.keys(operators), 'Loop', 'If', 'NoSuchOperator', 'constructor', ''];

const bigints = (random: Random): bigint[] => Array.from({ length: below(random, 6) }, () => one(random, extremes));
/** A file's bytes. */
export type Bytes = Uint8Array<ArrayBuffer>;

const bytesOf = (values: readonly bigint[]): Bytes => new Uint8Array(BigInt64Array.from(values.map((v) => BigInt.asIntN(64, v))).buffer);

/** A tensor that may promise more than it holds, or be of a strange type. */
function strangeTensor(random: Random, name = ''): TensorProto {
  const values = bigints(random);
  const honest = random() < 0.7;
  return create(TensorProtoSchema, {
    name, dataType: honest ? one(random, [DataType.INT64, DataType.INT64, DataType.FLOAT]) : below(random, 26),
    dims: honest ? (values.length === 1 && random() < 0.5 ? [] : [BigInt(values.length)]) : bigints(random),
    ...(random() < 0.8 ? { rawData: bytesOf(values) } : { int64Data: values }),
  });
}

export function strangeAttribute(random: Random): AttributeProto {
  const base = { name: one(random, attributeNames) };
  return create(AttributeProtoSchema, one<() => MessageInitShape<typeof AttributeProtoSchema>>(random, [
    () => ({ ...base, type: AttributeType.INT, i: one(random, extremes) }),
    () => ({ ...base, type: AttributeType.INT, i: BigInt(below(random, 4)) - 1n }),
    () => ({ ...base, type: AttributeType.INTS, ints: bigints(random) }),
    () => ({ ...base, type: AttributeType.INTS, ints: Array.from({ length: below(random, 5) }, () => BigInt(below(random, 4))) }),
    () => ({ ...base, type: AttributeType.FLOAT, f: one(random, floatExtremes) }),
    () => ({ ...base, type: AttributeType.FLOATS, floats: [one(random, floatExtremes)] }),
    () => ({ ...base, type: AttributeType.STRING, s: new TextEncoder().encode(one(random, words)) }),
    () => ({ ...base, type: AttributeType.STRINGS, strings: [new TextEncoder().encode(one(random, words))] }),
    () => ({ ...base, type: AttributeType.TENSOR, t: strangeTensor(random) }),
    () => ({ ...base, type: AttributeType.GRAPH }),
    () => ({ ...base, type: below(random, 15) }),
  ])());
}

const external = (random: Random): readonly (readonly [string, string])[] => [
  ['location', one(random, ['missing.bin', '../../etc/passwd', '/etc/passwd', 'C:\\weights', '', '.', 'a\0b', 'no/such/folder/w'])],
  ['offset', one(random, ['0', '-1', '9007199254740993', '1e400', 'x', ''])],
  ['length', one(random, ['4', '-4', '1099511627776', 'NaN'])],
];

function damageTensor(random: Random, t: TensorProto, names: readonly string[]): void {
  one<() => void>(random, [
    () => { t.dims[below(random, t.dims.length)] = one(random, extremes); },
    () => { t.dims.push(one(random, extremes)); },
    () => { t.dims = []; },
    () => { t.rawData = t.rawData.slice(0, below(random, t.rawData.length + 1)); },
    () => { t.rawData = new Uint8Array(below(random, 64)); },
    () => { t.dataType = below(random, 26); },
    () => { t.name = one(random, ['', ...names, 'constructor', '__proto__']); },
    () => {
      t.dataLocation = DataLocation.EXTERNAL;
      t.externalData = external(random).filter(() => random() < 0.8).map(([key, value]) => create(StringStringEntryProtoSchema, { key, value }));
    },
    () => { t.int64Data = bigints(random); t.rawData = new Uint8Array(); },
    // What sizes are computed from, in whatever operator reads it.
    () => {
      if (t.dataType !== (DataType.INT64 as number)) return;
      const count = t.rawData.length / 8 || t.int64Data.length;
      const values = Array.from({ length: count }, () => one(random, extremes));
      t.int64Data = [];
      t.rawData = bytesOf(values);
    },
  ])();
}

function damageAttribute(random: Random, a: AttributeProto): void {
  one<() => void>(random, [
    () => { a.i = one(random, extremes); },
    () => { a.ints = a.ints.map((n) => (random() < 0.5 ? one(random, extremes) : n)); },
    () => { a.ints = bigints(random); },
    () => { a.f = one(random, floatExtremes); },
    () => { a.type = below(random, 15); },
    () => { a.s = new TextEncoder().encode(one(random, words)); },
    () => { a.name = one(random, attributeNames); },
    () => { if (a.t !== undefined) damageTensor(random, a.t, []); },
  ])();
}

function damageNode(random: Random, graph: GraphProto, names: readonly string[]): void {
  const at = below(random, graph.node.length);
  const node = graph.node[at]!;
  one<() => void>(random, [
    () => { node.opType = one(random, operatorNames); },
    () => { node.opType = one(random, operatorNames).split(':').at(-1)!; node.domain = one(random, ['com.microsoft', 'ai.onnx', 'x', '']); },
    () => { node.input[below(random, node.input.length + 1)] = one(random, ['', 'nothing', '__proto__', ...names, ...names]); },
    () => { node.input = node.input.slice(0, below(random, node.input.length)); },
    () => { node.input.push(one(random, names)); },
    () => { node.input.reverse(); },
    () => { node.input = Array.from({ length: below(random, 8) }, () => one(random, ['', ...names])); },
    // A cycle, or a value defined twice.
    () => { node.output[below(random, node.output.length)] = one(random, ['', ...names]); },
    () => { node.output.push(one(random, ['', 'extra', 'extra'])); },
    () => { node.output = []; },
    () => { node.name = one(random, ['', graph.node[0]!.name]); },
    () => { graph.node.push(node); },
    () => { graph.node.splice(at, 1); },
    () => { graph.node.reverse(); },
    () => { node.attribute.push(strangeAttribute(random)); },
    () => { node.attribute.splice(below(random, node.attribute.length), 1); },
    () => { if (node.attribute.length > 0) damageAttribute(random, one(random, node.attribute)); },
    () => { if (node.attribute.length > 0) damageAttribute(random, one(random, node.attribute)); },
  ])();
}

function damageValue(random: Random, graph: GraphProto, names: readonly string[]): void {
  const list = one(random, [graph.input, graph.output]);
  const at = below(random, list.length);
  const value = list[at];
  const tensorType = value?.type?.value.case === 'tensorType' ? value.type.value.value : undefined;
  one<() => void>(random, [
    () => { list.splice(at, 1); },
    () => { if (value !== undefined) list.push(value); },
    () => { list.push(create(ValueInfoProtoSchema, { name: one(random, ['', ...names]) })); },
    () => { if (value !== undefined) value.name = one(random, ['', 'nothing', ...names]); },
    () => { if (tensorType !== undefined) tensorType.elemType = below(random, 26); },
    () => { if (tensorType !== undefined) delete tensorType.shape; },
    () => { tensorType?.shape?.dim.pop(); },
    ...Array.from({ length: 3 }, () => () => {
      const dim = tensorType?.shape?.dim[below(random, tensorType.shape.dim.length)];
      if (dim !== undefined) dim.value = one(random, [
        { case: 'dimValue' as const, value: one(random, extremes) }, { case: 'dimParam' as const, value: one(random, ['', 'batch', '__proto__']) }, { case: undefined, value: undefined },
      ]);
    }),
  ])();
}

/** One or two changes of fields of a model that is well formed as a protobuf afterwards. */
export function damagedFields(random: Random, bytes: Bytes): Bytes {
  const model = fromBinary(ModelProtoSchema, bytes);
  const { graph } = model;
  if (graph === undefined) return bytes;
  const names = [...graph.input.map((v) => v.name), ...graph.initializer.map((t) => t.name), ...graph.node.flatMap((n) => n.output)];
  for (let n = below(random, 2); n >= 0; n--) {
    one<() => void>(random, [
      () => { if (graph.node.length > 0) damageNode(random, graph, names); },
      () => { if (graph.node.length > 0) damageNode(random, graph, names); },
      () => { if (graph.initializer.length > 0) damageTensor(random, one(random, graph.initializer), names); },
      () => {
        const tensors = graph.node.flatMap((node) => node.attribute.flatMap((a) => a.t ?? []));
        if (tensors.length > 0) damageTensor(random, one(random, tensors), names);
      },
      () => { damageValue(random, graph, names); },
      () => { graph.initializer.push(strangeTensor(random, one(random, names))); },
      () => { for (const { version } of model.opsetImport) model.opsetImport[0]!.version = random() < 0.5 ? BigInt(7 + below(random, 20)) : version + one(random, extremes); },
    ])();
  }
  return new Uint8Array(toBinary(ModelProtoSchema, model));
}

/** Bytes cut off, flipped, put in, or taken out. */
export function damagedBytes(random: Random, bytes: Bytes): Bytes {
  const at = below(random, bytes.length);
  const some = Uint8Array.from({ length: 1 + below(random, 12) }, () => below(random, 256));
  return one<() => Bytes>(random, [
    () => bytes.slice(0, at),
    () => bytes.map((b, i) => (i === at ? b ^ (1 << below(random, 8)) : b)),
    // The structure stands at the beginning and the end; weights lie between.
    () => bytes.map((b, i) => (i === at % 200 ? below(random, 256) : b)),
    () => bytes.map((b, i) => (i === bytes.length - 1 - (at % 400) ? below(random, 256) : b)),
    () => Uint8Array.from([...bytes.subarray(0, at), ...some, ...bytes.subarray(at)]),
    () => Uint8Array.from([...bytes.subarray(0, at), ...bytes.subarray(at + some.length)]),
    () => Uint8Array.from([...bytes.subarray(at), ...bytes.subarray(0, at)]),
  ])();
}

/**
 * A model of a few nodes of any operators of the table, with operands and attributes that hardly ever fit, of small
 * sizes and of extreme ones.
 */
export function strangeModel(random: Random): Bytes {
  // Few sizes, so that operands fit more often than they would otherwise.
  const shapeOf = (): bigint[] => Array.from({ length: below(random, 5) }, () => (random() < 0.03 ? one(random, [2n ** 20n, 2n ** 31n, 2n ** 40n]) : one(random, [1n, 2n, 2n, 4n])));
  const size = (dims: readonly bigint[]): number => Number(dims.reduce((n, d) => n * d, 1n));
  const initializer = Array.from({ length: 5 }, (_, i) => {
    if (i === 3 && random() < 0.1) return strangeTensor(random, `w${i}`);
    if (i >= 3) {
      const values = random() < 0.3 ? bigints(random) : Array.from({ length: below(random, 5) }, () => BigInt(below(random, 5)) - 1n);
      return create(TensorProtoSchema, {
        name: `w${i}`, dataType: DataType.INT64, rawData: bytesOf(values), dims: values.length === 1 && random() < 0.5 ? [] : [BigInt(values.length)],
      });
    }
    const dims = shapeOf().map((n) => (n > 4n ? 4n : n));
    const dataType = one(random, [DataType.FLOAT, DataType.FLOAT, DataType.INT64, DataType.INT32, DataType.BOOL, DataType.FLOAT16, DataType.UINT8]);
    const bytes = { [DataType.FLOAT]: 4, [DataType.INT64]: 8, [DataType.INT32]: 4, [DataType.BOOL]: 1, [DataType.FLOAT16]: 2, [DataType.UINT8]: 1 }[dataType as number] ?? 1;
    return create(TensorProtoSchema, { name: `w${i}`, dims, dataType, rawData: new Uint8Array(bytes * size(dims)).map((_, k) => (k % bytes === 0 ? below(random, 3) : 0)) });
  });
  const input = ['x', 'y'].map((name) => create(ValueInfoProtoSchema, {
    name, type: { value: { case: 'tensorType', value: {
      elemType: one(random, [DataType.FLOAT, DataType.FLOAT, DataType.INT64]),
      shape: { dim: [{ value: { case: 'dimParam' as const, value: 'batch' } }, ...shapeOf().map((value) => ({ value: { case: 'dimValue' as const, value } }))] },
    } } },
  }));
  const names = [...input, ...initializer].map((v) => v.name);
  const node = Array.from({ length: 1 + below(random, 4) }, (_, i) => {
    const key = one(random, operatorNames);
    const outputs = Array.from({ length: 1 + (random() < 0.2 ? below(random, 4) : 0) }, (_, k) => `n${i}_${k}`);
    const made = create(NodeProtoSchema, {
      opType: key.split(':').at(-1)!, domain: key.includes(':') ? key.split(':')[0]! : '', output: outputs,
      input: Array.from({ length: one(random, [1, 1, 2, 2, 3, 3, 4, 5, 6, 9]) }, (_, k) => (random() < 0.05 ? '' : k === 0 ? one(random, ['x', names.at(-1)!]) : one(random, names))),
      attribute: Array.from({ length: below(random, 4) }, () => strangeAttribute(random)),
    });
    names.push(...outputs);
    return made;
  });
  return new Uint8Array(toBinary(ModelProtoSchema, create(ModelProtoSchema, {
    irVersion: 8n, opsetImport: [{ domain: '', version: random() < 0.9 ? 21n : BigInt(7 + below(random, 20)) }, { domain: 'com.microsoft', version: 1n }],
    graph: { name: 'g', input, initializer, node, output: [create(ValueInfoProtoSchema, {
      name: names.at(-1)!, type: { value: { case: 'tensorType', value: { elemType: DataType.FLOAT } } },
    })] },
  })));
}
