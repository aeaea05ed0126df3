/** Element types and the typed arrays that hold them. float16 and bfloat16 are stored as their bits. */
export interface TypedArrays {
  float32: Float32Array;
  float64: Float64Array;
  float16: Uint16Array;
  bfloat16: Uint16Array;
  int8: Int8Array;
  int16: Int16Array;
  int32: Int32Array;
  int64: BigInt64Array;
  uint8: Uint8Array;
  uint16: Uint16Array;
  uint32: Uint32Array;
  uint64: BigUint64Array;
  /** One byte an element, 0 or 1. */
  bool: Uint8Array;
}

export type DType = keyof TypedArrays;
export type Shape = readonly number[];

/** The element type and the shape of a value; what the compiler knows of it before it is computed. */
export interface TensorType {
  readonly dtype: DType;
  readonly shape: Shape;
}

/** A dense row-major array. `data.length` is the product of `shape` (1 for a scalar, shape `[]`). */
export interface Tensor<D extends DType = DType> extends TensorType {
  readonly dtype: D;
  readonly data: TypedArrays[D];
}

export type FloatTensor = Tensor<'float32'>;

const constructors: { readonly [D in DType]: new (content: number | ArrayBuffer) => TypedArrays[D] } = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bfloat16: Uint16Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, bool: Uint8Array,
};

export const dtypes = Object.keys(constructors) as readonly DType[];

/** The number of elements of a shape; 1 for `[]`. */
export const sizeOf = (shape: Shape): number => shape.reduce((product, n) => product * n, 1);

/** The bytes of one element. */
export const bytesPerElement = (dtype: DType): number => allocate(dtype, 1).BYTES_PER_ELEMENT;

/** A zeroed typed array of `length` elements of `dtype`. */
export const allocate = <D extends DType>(dtype: D, length: number): TypedArrays[D] =>
  new constructors[dtype](length);

/** The elements whose bytes a buffer holds, in the machine's order; not copied. */
export const arrayOn = <D extends DType>(dtype: D, buffer: ArrayBuffer): TypedArrays[D] => new constructors[dtype](buffer);

/** A tensor over `data` (not copied). Throws RangeError when its length is not that of `shape`. */
export function tensor<D extends DType>(dtype: D, shape: Shape, data: TypedArrays[D]): Tensor<D> {
  if (data.length !== sizeOf(shape)) {
    throw new RangeError(`a ${dtype} tensor of shape [${shape.join(', ')}] needs ${sizeOf(shape)} elements, found ${data.length}`);
  }
  return { dtype, shape: [...shape], data };
}

export const zeros = <D extends DType>(dtype: D, shape: Shape): Tensor<D> =>
  tensor(dtype, shape, allocate(dtype, sizeOf(shape)));

/** A float32 tensor from numbers; the shape is `[values.length]` unless given. */
export const float32 = (values: ArrayLike<number>, shape: Shape = [values.length]): FloatTensor =>
  tensor('float32', shape, Float32Array.from(values));

/** An int64 tensor from whole numbers; the shape is `[values.length]` unless given. */
export const int64 = (values: readonly (number | bigint)[], shape: Shape = [values.length]): Tensor<'int64'> =>
  tensor('int64', shape, BigInt64Array.from(values, (v) => BigInt(v)));

/** The elements as JavaScript numbers (int64 beyond 2^53 loses precision). */
export const toNumbers = (t: Tensor): number[] => Array.from(t.data as ArrayLike<number | bigint>, Number);

export const isFloat = (dtype: DType): boolean =>
  dtype === 'float32' || dtype === 'float64' || dtype === 'float16' || dtype === 'bfloat16';

export const sameShape = (a: Shape, b: Shape): boolean => a.length === b.length && a.every((n, i) => n === b[i]);
