import { fromBinary } from '@bufbuild/protobuf';
import {
  type AttributeProto,
  AttributeProto_AttributeType as AttributeType,
  type GraphProto,
  type ModelProto,
  ModelProtoSchema,
  type NodeProto,
  type ValueInfoProto,
} from 'onnx-buf';
import { GhostgradError } from '../errors.ts';
import { type Tensor, float32, int64, tensor } from '../tensor/tensor.ts';
import { type ExternalData, decodeTensor, hasHalfBytes } from './decode-tensor.ts';
import { inlineFunctions } from './functions.ts';
import { type Attribute, type Dimension, type Graph, type Node, type ValueInfo, showNode } from './ir.ts';
import { dataTypeName, dtypeOf } from './onnx.ts';
import { sortNodes, uniqueNames } from './order.ts';
import { plainSqueezes } from './squeezes.ts';

export interface DecodeOptions {
  /** Fetches weights that the model keeps in other files. Default: none, such a model is refused. */
  readonly externalData?: ExternalData | undefined;
  /** What messages call the source, e.g. its path. Default: `ONNX model`. */
  readonly where?: string | undefined;
}

/** The versions of the standard operator set that are read. */
export const oldestOpset = 1;
export const newestOpset = 26;

/**
 * The graph of an ONNX model, as the file has it: not upgraded, not specialised.
 *
 * Constant nodes become initializers listed in `literals`. Initializers that are also listed as inputs are no inputs.
 * Nodes get unique names (`Conv_3` when they have none) and an order of execution; local functions are inlined.
 *
 * @throws GhostgradError for bytes that are not ONNX, are truncated or damaged, and for models with a value that is
 * missing, defined twice or depends on itself, or with element types, sparse tensors or operator sets not supported
 */
export function decodeModel(bytes: Uint8Array, { externalData, where = 'ONNX model' }: DecodeOptions = {}): Graph {
  const model = parse(bytes, where);
  const { graph } = model;
  if (graph === undefined) throw notOnnx(bytes, where, 'no graph');
  const inlined = inlineFunctions(model, where);
  const constants = inlined.filter(isConstant);
  const stored = decodeInitializers(graph, constants, where, externalData);
  const { nodes, added } = plainSqueezes(inlined, stored, (node) => decodeConstant(node, where, externalData));
  const initializers = new Map([...stored, ...added]);
  const literals = new Set([...constants.flatMap((node) => node.output.slice(0, 1)), ...added.keys()]);
  const inputs = graph.input
    .filter(({ name }) => !initializers.has(name))
    .map((v) => decodeValueInfo(v, 'input', where));
  const outputs = graph.output.map((v) => decodeValueInfo(v, 'output', where));
  requireDistinct(inputs, 'input', where);
  requireDistinct(outputs, 'output', where);
  const given = new Set([...initializers.keys(), ...inputs.map(({ name }) => name)]);
  const sorted = sortNodes(decodeNodes(nodes.filter((node) => !isConstant(node)), where), given, where);
  refuseNarrowRounding(graph, constants, sorted, where);
  requireOutputs(outputs, new Set([...given, ...sorted.flatMap((node) => node.outputs)]), where);
  return {
    name: graph.name,
    opset: standardOpset(model, sorted, where),
    inputs, outputs, initializers, literals,
    nodes: sorted,
    domains: Object.fromEntries(model.opsetImport.filter(({ domain }) => normalDomain(domain) !== '')
      .map(({ domain, version }) => [domain, Number(version)])),
    metadata: Object.fromEntries(model.metadataProps.map(({ key, value }) => [key, value])),
  };
}

function parse(bytes: Uint8Array, where: string): ModelProto {
  if (bytes.length === 0) throw notOnnx(bytes, where, 'an empty file');
  try {
    return fromBinary(ModelProtoSchema, bytes, { readUnknownFields: false });
  } catch (cause) {
    throw notOnnx(
      bytes,
      where,
      `${bytes.length} bytes that do not parse (${cause instanceof Error ? cause.message : String(cause)})`,
      cause,
    );
  }
}

function notOnnx(bytes: Uint8Array, where: string, found: string, cause?: unknown): GhostgradError {
  const start = String.fromCharCode(...bytes.subarray(0, 24));
  const other = [
    { start: 'version https://git-lfs', is: 'a Git LFS pointer', fix: 'fetch the file itself with "git lfs pull"' },
    {
      start: 'PK',
      is: 'a ZIP archive, as PyTorch and Keras save models',
      fix: 'export the model with torch.onnx.export or tf2onnx',
    },
    { start: '\x89HDF', is: 'an HDF5 file, as Keras saves models', fix: 'export the model with tf2onnx' },
  ].find((kind) => start.startsWith(kind.start));
  return new GhostgradError({
    what: 'not a readable ONNX model', where, found: other?.is ?? found, expected: 'an ONNX model with a graph',
    fix: other?.fix ?? 'the file is damaged, truncated or of another format: export or download it again',
  }, { cause });
}

const normalDomain = (domain: string): string => (domain === 'ai.onnx' ? '' : domain);

function standardOpset({ opsetImport }: ModelProto, nodes: readonly Node[], where: string): number {
  const version = opsetImport.find(({ domain }) => normalDomain(domain) === '')?.version;
  if (version === undefined && nodes.every((node) => node.domain !== '')) return newestOpset;
  if (version === undefined || version < oldestOpset || version > newestOpset) {
    throw new GhostgradError({
      what: 'unsupported version of the standard operator set',
      where,
      found: version === undefined ? 'none' : `opset ${version}`,
      expected: `opset ${oldestOpset} to ${newestOpset}`,
      fix: 'export the model again, with opset 17 for instance',
    });
  }
  return Number(version);
}

const isConstant = (node: NodeProto): boolean => node.opType === 'Constant' && normalDomain(node.domain) === '';

function decodeInitializers(
  graph: GraphProto, constants: readonly NodeProto[], where: string, externalData: ExternalData | undefined,
): ReadonlyMap<string, Tensor> {
  const sparse = graph.sparseInitializer[0];
  if (sparse !== undefined) {
    throw new GhostgradError({
      what: 'unsupported sparse initializer',
      where,
      found: `"${sparse.values?.name ?? ''}"`,
      expected: 'dense initializers',
      fix: 'export the model with dense weights',
    });
  }
  const initializers = new Map<string, Tensor>();
  const put = (name: string, value: Tensor): void => {
    if (name === '' || initializers.has(name)) {
      throw new GhostgradError({
        what: name === '' ? 'an initializer without a name' : 'a value is defined twice',
        where,
        found: `initializer "${name}"`,
        expected: 'initializers and constants with distinct names',
      });
    }
    initializers.set(name, value);
  };
  for (const proto of graph.initializer) {
    put(proto.name, decodeTensor(proto, `initializer "${proto.name}" of ${where}`, externalData));
  }
  for (const node of constants) put(node.output[0] ?? '', decodeConstant(node, where, externalData));
  return initializers;
}

function decodeConstant(node: NodeProto, where: string, externalData: ExternalData | undefined): Tensor {
  const at = `Constant node "${node.name}" of ${where}`;
  const attribute = node.attribute[0];
  const value = attribute && decodeAttribute(attribute, at, externalData);
  switch (attribute && value ? `${attribute.name}:${value.type}` : '') {
    case 'value_int:int':
      return int64Scalar(attribute?.i ?? 0n);
    case 'value_ints:ints':
      return tensor('int64', [attribute?.ints.length ?? 0], BigInt64Array.from(attribute?.ints ?? []));
  }
  if (value?.type === 'tensor' && attribute?.name === 'value') return value.value;
  if (value?.type === 'float' && attribute?.name === 'value_float') return float32([value.value], []);
  if (value?.type === 'floats' && attribute?.name === 'value_floats') return float32(value.value);
  throw new GhostgradError({
    what: 'unsupported constant',
    where: at,
    found: attribute ? `attribute ${attribute.name}` : 'no attribute',
    expected: 'value, value_int, value_ints, value_float or value_floats',
    fix: 'export the model with dense numeric constants',
  });
}

/** Integers of four bits are read as eight, which is all the same to whoever reads them, but not to who rounds to them. */
function refuseNarrowRounding(
  graph: GraphProto, constants: readonly NodeProto[], nodes: readonly Node[], where: string,
): void {
  const narrow = new Set([
    ...graph.initializer.filter(hasHalfBytes).map(({ name }) => name),
    ...constants.filter(({ attribute }) => attribute.some(({ t }) => t !== undefined && hasHalfBytes(t))).map(({ output }) => output[0]),
  ]);
  const node = nodes.find(({ op, inputs }) => op === 'QuantizeLinear' && narrow.has(inputs[2] ?? ''));
  if (node === undefined) return;
  throw new GhostgradError({
    what: 'activations rounded to integers of four bits are not supported', where: `${showNode(node)} of ${where}`,
    found: `zero point "${node.inputs[2]}"`, expected: 'integers of at least a byte',
    fix: 'bring the model from before quantisation, or one in which only the weights are quantised',
  });
}

const int64Scalar = (value: bigint): Tensor => int64([value], []);

function decodeNodes(protos: readonly NodeProto[], where: string): readonly Node[] {
  const unique = uniqueNames();
  return protos.map((proto, i) => {
    const name = unique(proto.name !== '' ? proto.name : `${proto.opType}_${i}`);
    const at = `${showNode({ op: proto.opType, name })} of ${where}`;
    if (proto.opType === '') throw new GhostgradError({ what: 'a node without an operator', where: at });
    return {
      op: proto.opType, domain: normalDomain(proto.domain), name, inputs: proto.input, outputs: proto.output,
      attributes: Object.fromEntries(proto.attribute.map((a) => [a.name, decodeAttribute(a, at)])),
    };
  });
}

function decodeAttribute(a: AttributeProto, where: string, externalData?: ExternalData): Attribute {
  switch (a.type) {
    case AttributeType.INT: return { type: 'int', value: Number(a.i) };
    case AttributeType.FLOAT: return { type: 'float', value: a.f };
    case AttributeType.STRING: return { type: 'string', value: text(a.s) };
    case AttributeType.INTS: return { type: 'ints', value: a.ints.map(Number) };
    case AttributeType.FLOATS: return { type: 'floats', value: a.floats };
    case AttributeType.STRINGS: return { type: 'strings', value: a.strings.map(text) };
    case AttributeType.TENSOR:
      if (a.t) return { type: 'tensor', value: decodeTensor(a.t, `attribute "${a.name}" of ${where}`, externalData) };
      break;
    default:
  }
  return { type: 'other', value: AttributeType[a.type] };
}

const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);

function decodeValueInfo({ name, type }: ValueInfoProto, kind: 'input' | 'output', where: string): ValueInfo {
  const at = `${kind} "${name}" of ${where}`;
  if (type?.value.case !== 'tensorType') {
    throw new GhostgradError({
      what: `unsupported ${kind}`,
      where: at,
      found: type?.value.case ?? 'no type',
      expected: 'a tensor with an element type',
    });
  }
  const { elemType, shape } = type.value.value;
  const dtype = dtypeOf(elemType);
  if (dtype === undefined) {
    throw new GhostgradError({
      what: `unsupported element type of an ${kind}`,
      where: at,
      found: dataTypeName(elemType),
      expected: 'a number type of at least one byte, or bool',
    });
  }
  return { name, dtype, shape: shape ? shape.dim.map(({ value }) => decodeDimension(value)) : null };
}

function decodeDimension(value: {
  readonly case: string | undefined;
  readonly value?: bigint | string | undefined;
}): Dimension {
  if (typeof value.value === 'string') return value.value === '' ? null : value.value;
  const n = Number(value.value ?? -1);
  return Number.isSafeInteger(n) && n >= 0 ? n : null;
}

function requireDistinct(values: readonly ValueInfo[], kind: string, where: string): void {
  const seen = new Set<string>();
  for (const { name } of values) {
    if (name === '' || seen.has(name)) {
      throw new GhostgradError({
        what: `two ${kind}s of one name, or one without`,
        where,
        found: `"${name}"`,
        expected: `${kind}s with distinct names`,
      });
    }
    seen.add(name);
  }
}

function requireOutputs(outputs: readonly ValueInfo[], defined: ReadonlySet<string>, where: string): void {
  const missing = outputs.find(({ name }) => !defined.has(name));
  if (missing === undefined) return;
  throw new GhostgradError({
    what: 'an output that nothing makes',
    where,
    found: `"${missing.name}"`,
    expected: 'the name of an input, initializer or node output',
  });
}
