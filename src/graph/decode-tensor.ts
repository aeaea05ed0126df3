import { TensorProto_DataLocation as DataLocation, TensorProto_DataType as DataType, type TensorProto } from 'onnx-buf';
import { GhostgradError } from '../errors.ts';
import {
  type DType,
  type Shape,
  type Tensor,
  type TypedArrays,
  allocate,
  arrayOn,
  bytesPerElement,
  sizeOf,
} from '../tensor/tensor.ts';
import { bytesOf, dataTypeName, dtypeOf } from './onnx.ts';

/**
 * Fetches bytes that a model keeps outside itself: `length` bytes from `offset` of the file at `location`, a path
 * relative to the model's folder. Bytes that fill a buffer of their own become the tensor's memory.
 */
export type ExternalData = (location: string, offset: number, length: number) => Uint8Array;

/**
 * The tensor of a message. It owns its memory, so that moving one tensor to another thread leaves the others
 * alone. Integers of four bits become integers of eight. Declared sizes are compared with the bytes at hand before anything is allocated.
 */
export function decodeTensor(proto: TensorProto, where: string, externalData?: ExternalData): Tensor {
  const fail = (what: string, found: string, expected?: string, fix?: string): never => {
    throw new GhostgradError({ what, where, found, expected, fix });
  };
  const dtype = dtypeOf(proto.dataType) ?? halfByteType(proto) ?? fail(
    'unsupported element type', dataTypeName(proto.dataType), 'a number type of at least four bits, or bool',
    'export the model without quantised, string or complex tensors',
  );
  const shape = proto.dims.map(Number);
  if (!shape.every((n) => Number.isSafeInteger(n) && n >= 0)) {
    fail('impossible shape', `[${proto.dims.join(', ')}]`, 'dimensions of at least 0');
  }
  const elements = sizeOf(shape);
  if (proto.segment) fail('unsupported tensor in segments', `dims [${shape.join(', ')}]`, 'one whole tensor');
  if (halfByteType(proto) !== undefined) return decodeHalfBytes(proto, shape, where, externalData);
  const typed = typedField(proto, dtype);
  if (proto.dataLocation !== DataLocation.EXTERNAL && proto.rawData.length === 0 && typed.length > 0) {
    if (typed.length !== elements) {
      fail('tensor data does not match its shape', `${typed.length} elements`, expectedElements(dtype, shape));
    }
    return { dtype, shape, data: fromNumbers(dtype, typed) };
  }
  const bytes = elements * bytesPerElement(dtype);
  const raw = proto.dataLocation === DataLocation.EXTERNAL
    ? externalBytes(proto, bytes, where, externalData) : proto.rawData;
  if (raw.length !== bytes) {
    fail(
      'tensor data does not match its shape',
      `${raw.length} bytes`,
      `${bytes} bytes for ${dtype}[${shape.join(', ')}]`,
      'the file is damaged or truncated: export or download it again',
    );
  }
  const value = owned(dtype, shape, raw) ?? copied(dtype, shape, raw);
  if (dtype === 'bool') normaliseBool(value);
  return value;
}

/** A tensor on the bytes themselves, where nothing else lies in their memory (external data). */
const owned = (dtype: DType, shape: Shape, raw: Uint8Array): Tensor | undefined =>
  (raw.length > 0 && raw.buffer.byteLength === raw.length && raw.buffer instanceof ArrayBuffer
    ? { dtype, shape, data: arrayOn(dtype, raw.buffer) } : undefined);

function copied(dtype: DType, shape: Shape, raw: Uint8Array): Tensor {
  const value: Tensor = { dtype, shape, data: allocate(dtype, sizeOf(shape)) };
  bytesOf(value).set(raw);
  return value;
}

/** The type that holds integers of four bits here: one a byte. */
const halfByteType = ({ dataType }: TensorProto): 'int8' | 'uint8' | undefined =>
  dataType === Number(DataType.INT4) ? 'int8' : dataType === Number(DataType.UINT4) ? 'uint8' : undefined;

/** Whether a message holds integers of four bits. */
export const hasHalfBytes = (proto: TensorProto): boolean => halfByteType(proto) !== undefined;

/** Two elements a byte, the first in the lower bits. */
function decodeHalfBytes(
  proto: TensorProto, shape: Shape, where: string, externalData: ExternalData | undefined,
): Tensor {
  const elements = sizeOf(shape);
  const bytes = Math.ceil(elements / 2);
  const packed = proto.dataLocation === DataLocation.EXTERNAL ? externalBytes(proto, bytes, where, externalData)
    : proto.rawData.length > 0 ? proto.rawData : Uint8Array.from(proto.int32Data);
  if (packed.length !== bytes) {
    throw new GhostgradError({
      what: 'tensor data does not match its shape', where, found: `${packed.length} bytes`,
      expected: `${bytes} bytes for ${elements} elements of four bits`,
      fix: 'the file is damaged or truncated: export or download it again',
    });
  }
  const dtype = halfByteType(proto) ?? 'uint8';
  const data = allocate(dtype, elements);
  for (let i = 0; i < elements; i++) {
    const bits = (packed[i >> 1]! >> (4 * (i & 1))) & 15;
    data[i] = dtype === 'int8' && bits > 7 ? bits - 16 : bits;
  }
  return { dtype, shape, data };
}

const expectedElements = (dtype: DType, shape: Shape): string =>
  `${sizeOf(shape)} elements for ${dtype}[${shape.join(', ')}]`;

/** The list of the message that holds elements of this type when they are not raw bytes. */
function typedField(proto: TensorProto, dtype: DType): readonly number[] | readonly bigint[] {
  switch (dtype) {
    case 'float32': return proto.floatData;
    case 'float64': return proto.doubleData;
    case 'int64': return proto.int64Data;
    case 'uint32': case 'uint64': return proto.uint64Data;
    default: return proto.int32Data;
  }
}

function fromNumbers<D extends DType>(dtype: D, values: readonly number[] | readonly bigint[]): TypedArrays[D] {
  const data = allocate(dtype, values.length);
  const big = data instanceof BigInt64Array || data instanceof BigUint64Array;
  for (let i = 0; i < values.length; i++) data[i] = big ? BigInt(values[i] ?? 0) : Number(values[i]);
  if (dtype === 'bool') normaliseBool({ dtype, shape: [values.length], data });
  return data;
}

/** Any byte but 0 means true. */
function normaliseBool({ data }: Tensor): void {
  for (let i = 0; i < data.length; i++) data[i] = data[i] === 0 ? 0 : 1;
}

function externalBytes(
  proto: TensorProto,
  bytes: number,
  where: string,
  externalData: ExternalData | undefined,
): Uint8Array {
  const entries = new Map(proto.externalData.map(({ key, value }) => [key, value]));
  const location = entries.get('location') ?? '';
  const offset = Number(entries.get('offset') ?? 0);
  const length = Number(entries.get('length') ?? bytes);
  if (!isInside(location)) {
    throw new GhostgradError({
      what: "external data outside the model's folder",
      where,
      found: `location "${location}"`,
      expected: 'a relative path below the folder of the model',
    });
  }
  if (!Number.isSafeInteger(offset) || offset < 0 || length !== bytes) {
    throw new GhostgradError({
      what: 'external data does not match the tensor',
      where,
      found: `offset ${entries.get('offset') ?? 0}, length ${entries.get('length') ?? bytes} in "${location}"`,
      expected: `a non-negative offset, and ${bytes} bytes`,
    });
  }
  if (externalData === undefined) {
    throw new GhostgradError({
      what: 'the model keeps weights in another file',
      where,
      found: `data in "${location}"`,
      expected: 'the bytes of that file',
      fix: 'read the model from disk with readModel, or pass externalData',
    });
  }
  return externalData(location, offset, length);
}

/** Whether a path stays below the folder that it is relative to, on any platform. */
function isInside(location: string): boolean {
  const parts = location.split(/[/\\]/);
  return (
    location !== '' &&
    !parts.includes('..') &&
    parts[0] !== '' &&
    !/^[a-z]:/i.test(location) &&
    !location.includes('\0')
  );
}
