import { TensorProto_DataType as DataType } from 'onnx-buf';
import type { DType, Tensor } from '../tensor/tensor.ts';

/** ONNX's numbers for the element types that a tensor can have here. */
export const dataTypeOf: Readonly<Record<DType, DataType>> = {
  float32: DataType.FLOAT, float64: DataType.DOUBLE, float16: DataType.FLOAT16, bfloat16: DataType.BFLOAT16,
  int8: DataType.INT8, int16: DataType.INT16, int32: DataType.INT32, int64: DataType.INT64,
  uint8: DataType.UINT8, uint16: DataType.UINT16, uint32: DataType.UINT32, uint64: DataType.UINT64,
  bool: DataType.BOOL,
};

const dtypeByNumber = new Map(Object.entries(dataTypeOf).map(([dtype, n]) => [n, dtype as DType]));

/** The element type behind an ONNX number; undefined for strings, complex numbers and types below a byte. */
export const dtypeOf = (dataType: number): DType | undefined => dtypeByNumber.get(dataType);

/** `STRING`, `INT4`, or the bare number when the format has no such type. */
export const dataTypeName = (dataType: number): string => DataType[dataType] ?? `number ${dataType}`;

/** The tensor's memory as bytes, not copied. ONNX and every platform that Node runs on here are little-endian. */
export const bytesOf = ({ data }: Tensor): Uint8Array => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

const int64Max = 2n ** 63n - 1n;
const int64Min = -(2n ** 63n);

/**
 * A number as an int64, clamped to its range: 2^63-1, which exporters write for "to the end", becomes 2^63 as a
 * JavaScript number and would wrap round to -2^63.
 */
export function toInt64(value: number): bigint {
  const n = BigInt(Math.trunc(value));
  return n > int64Max ? int64Max : n < int64Min ? int64Min : n;
}
