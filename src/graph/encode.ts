import { create, toBinary } from '@bufbuild/protobuf';
import {
  type AttributeProto, AttributeProto_AttributeType as AttributeType, AttributeProtoSchema, GraphProtoSchema,
  ModelProtoSchema, type NodeProto, NodeProtoSchema, TensorProto_DataLocation as DataLocation, type TensorProto,
  TensorProtoSchema, type ValueInfoProto, ValueInfoProtoSchema,
} from 'onnx-buf';
import { GhostgradError } from '../errors.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { type Attribute, type Graph, type Node, type ValueInfo, showNode } from './ir.ts';
import { bytesOf, dataTypeOf, toInt64 } from './onnx.ts';

/** Where a file beside the model holds an initializer's bytes. */
export interface ExternalLocation {
  /** Path relative to the model's folder, with forward slashes. */
  readonly location: string;
  /** Bytes from the start of that file. */
  readonly offset: number;
}

export interface EncodeOptions {
  /** Initializers whose bytes are written elsewhere (by the caller), by name. Default: none, all are in the model. */
  readonly externalData?: ReadonlyMap<string, ExternalLocation> | undefined;
}

/** The IR version that is written; onnxruntime 1.30 reads 3 to 13. */
const irVersion = 10n;

/** Protobuf readers refuse messages of 2 GiB and more. */
const maximumBytes = 2 ** 31 - 1;

/**
 * The graph as the bytes of an ONNX model. Initializers are stored as raw data; those in `graph.literals` as
 * Constant nodes, so that reading the file again tells them from parameters.
 *
 * @throws GhostgradError when the model needs 2 GiB or more (write it with `writeModel`, which moves weights to a
 * file beside it), or when a node has an attribute that this package does not keep (a subgraph).
 */
export function encodeModel(graph: Graph, options: EncodeOptions = {}): Uint8Array<ArrayBuffer> {
  return concatenate(encodeChunks(graph, options));
}

/**
 * The same bytes in pieces, to be written one after another. The pieces that hold initializers are views of the
 * tensors' own memory, so that a large model costs no second copy of its weights.
 */
export function encodeChunks(graph: Graph, { externalData }: EncodeOptions = {}): readonly Uint8Array[] {
  const isLiteral = (name: string): boolean => graph.literals?.has(name) ?? false;
  const literals = [...graph.initializers].filter(([name]) => isLiteral(name));
  const skeleton = toBinary(GraphProtoSchema, create(GraphProtoSchema, {
    name: graph.name,
    node: [...literals.map(([name, value]) => constantNode(name, value)), ...graph.nodes.map(encodeNode)],
    input: graph.inputs.map(encodeValueInfo),
    output: graph.outputs.map(encodeValueInfo),
  }));
  const weights = [...graph.initializers].filter(([name]) => !isLiteral(name))
    .flatMap(([name, value]) => initializerChunks(name, value, externalData?.get(name)));
  const body = [skeleton, ...weights];
  const chunks = [modelHeader(graph), lengthDelimited(ModelProtoSchema.field.graph.number, totalBytes(body)), ...body];
  const total = totalBytes(chunks);
  if (total > maximumBytes) {
    throw new GhostgradError({
      what: 'the model is too large for one ONNX file',
      where: `graph "${graph.name}"`,
      found: `${total} bytes`,
      expected: `at most ${maximumBytes} bytes`,
      fix: 'write it with writeModel, which puts the weights into a file beside the model',
    });
  }
  return chunks;
}

/** Everything of the model but its graph; protobuf allows fields in any order, so the large one can come last. */
function modelHeader(graph: Graph): Uint8Array {
  const domains = new Set(graph.nodes.map((node) => node.domain).filter((domain) => domain !== ''));
  return toBinary(ModelProtoSchema, create(ModelProtoSchema, {
    irVersion,
    producerName: 'ghostgrad',
    opsetImport: [
      { domain: '', version: BigInt(graph.opset) },
      ...[...domains].map((domain) => ({ domain, version: BigInt(graph.domains?.[domain] ?? 1) })),
    ],
    metadataProps: Object.entries(graph.metadata).map(([key, value]) => ({ key, value })),
  }));
}

function initializerChunks(name: string, value: Tensor, external: ExternalLocation | undefined): readonly Uint8Array[] {
  const head = toBinary(TensorProtoSchema, create(TensorProtoSchema, {
    name, dims: value.shape.map(BigInt), dataType: dataTypeOf[value.dtype],
    ...(external && {
      dataLocation: DataLocation.EXTERNAL,
      externalData: [
        { key: 'location', value: external.location },
        { key: 'offset', value: String(external.offset) },
        { key: 'length', value: String(value.data.byteLength) },
      ],
    }),
  }));
  const raw = bytesOf(value);
  const body = external ? [head] : [head, lengthDelimited(TensorProtoSchema.field.rawData.number, raw.length), raw];
  return [lengthDelimited(GraphProtoSchema.field.initializer.number, totalBytes(body)), ...body];
}

const constantNode = (name: string, value: Tensor): NodeProto =>
  encodeNode({
    op: 'Constant',
    domain: '',
    name: `Constant/${name}`,
    inputs: [],
    outputs: [name],
    attributes: { value: { type: 'tensor', value } },
  });

const encodeNode = (node: Node): NodeProto => create(NodeProtoSchema, {
  name: node.name, opType: node.op, domain: node.domain, input: [...node.inputs], output: [...node.outputs],
  attribute: Object.entries(node.attributes).map(([name, attribute]) => encodeAttribute(node, name, attribute)),
});

function encodeAttribute(node: Node, name: string, attribute: Attribute): AttributeProto {
  switch (attribute.type) {
    case 'int':
      return create(AttributeProtoSchema, { name, type: AttributeType.INT, i: toInt64(attribute.value) });
    case 'float':
      return create(AttributeProtoSchema, { name, type: AttributeType.FLOAT, f: Math.fround(attribute.value) });
    case 'string':
      return create(AttributeProtoSchema, { name, type: AttributeType.STRING, s: utf8(attribute.value) });
    case 'tensor':
      return create(AttributeProtoSchema, { name, type: AttributeType.TENSOR, t: encodeTensor(attribute.value) });
    case 'ints':
      return create(AttributeProtoSchema, { name, type: AttributeType.INTS, ints: attribute.value.map(toInt64) });
    case 'floats':
      return create(AttributeProtoSchema, {
        name,
        type: AttributeType.FLOATS,
        floats: attribute.value.map(Math.fround),
      });
    case 'strings':
      return create(AttributeProtoSchema, { name, type: AttributeType.STRINGS, strings: attribute.value.map(utf8) });
    case 'other':
      throw new GhostgradError({
        what: 'cannot write an attribute that was not kept when the model was read',
        where: `attribute "${name}" of ${showNode(node)}`,
        found: attribute.value,
        expected: 'a number, a string, a tensor, or a list of numbers or strings',
        fix: 'export the model without control flow (If, Loop), or choose outputs that do not depend on this node',
      });
  }
}

const encodeTensor = (value: Tensor): TensorProto => create(TensorProtoSchema, {
  dims: value.shape.map(BigInt), dataType: dataTypeOf[value.dtype], rawData: Uint8Array.from(bytesOf(value)),
});

const encodeValueInfo = ({ name, dtype, shape }: ValueInfo): ValueInfoProto => create(ValueInfoProtoSchema, {
  name,
  type: {
    value: {
      case: 'tensorType',
      value: {
        elemType: dataTypeOf[dtype],
        ...(shape && {
          shape: {
            dim: shape.map((d) => ({
              value: d === null ? { case: undefined }
                : typeof d === 'number' ? { case: 'dimValue' as const, value: BigInt(d) }
                  : { case: 'dimParam' as const, value: d },
            })),
          },
        }),
      },
    },
  },
});

const utf8 = (text: string): Uint8Array<ArrayBuffer> => new TextEncoder().encode(text);

/** The head of a length-delimited protobuf field: its tag and the number of bytes that follow. */
const lengthDelimited = (field: number, length: number): Uint8Array =>
  Uint8Array.from([...varint(field * 8 + 2), ...varint(length)]);

function varint(n: number): number[] {
  const bytes: number[] = [];
  for (; n >= 128; n = Math.floor(n / 128)) bytes.push(n % 128 + 128);
  return [...bytes, n];
}

const totalBytes = (chunks: readonly Uint8Array[]): number => chunks.reduce((sum, chunk) => sum + chunk.length, 0);

function concatenate(chunks: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(totalBytes(chunks));
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}
