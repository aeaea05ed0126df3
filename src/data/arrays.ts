import { GhostgradError } from '../errors.ts';
import { decodeSafetensors } from '../tensor/safetensors.ts';
import { type DType, type Tensor } from '../tensor/tensor.ts';
import { unknownName } from '../suggest.ts';
import { type AnyColumn, byteColumn, floatColumn, integerColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { readBytes } from './files.ts';
import { type Normalize, byteTables, normaliseFloats } from './normalise.ts';

const featureTypes: readonly DType[] = ['float32', 'float64', 'float16', 'bfloat16', 'uint8'];

/**
 * A column of features over an array [rows, ...]. Bytes stay bytes; other types become float32. An array of bytes is
 * not copied, and one of float32 is scaled in place.
 *
 * @param normalize default: `unit` for bytes, `none` else
 * @throws GhostgradError for an element type that is neither bytes nor floating-point
 */
export function featureColumn(t: Tensor, where: string, normalize?: Normalize): AnyColumn {
  const shape = t.shape.slice(1);
  if (t.shape.length === 0 || !featureTypes.includes(t.dtype)) {
    throw new GhostgradError({
      what: 'features of another kind than a model takes', where, found: `${t.dtype}[${t.shape.join(', ')}]`,
      expected: `[rows, …] of ${featureTypes.join(', ')}`,
    });
  }
  if (t.data instanceof Uint8Array) return byteColumn(t.data, shape, byteTables(normalize ?? 'unit', shape, where));
  const data = floats(t);
  normaliseFloats(data, normalize ?? 'none', shape, where);
  return floatColumn(data, shape);
}

/** A column of labels over an array [rows, ...]: whole numbers become int64, floating-point ones float32. */
export function labelColumn(t: Tensor, where: string): AnyColumn {
  if (t.shape.length === 0) {
    throw new GhostgradError({
      what: 'the labels are a single number', where, found: `${t.dtype}[]`, expected: 'one label for each row',
    });
  }
  const shape = t.shape.slice(1);
  if (featureTypes.includes(t.dtype) && t.dtype !== 'uint8') return floatColumn(floats(t), shape);
  if (t.data instanceof BigInt64Array) return integerColumn(t.data, shape);
  return integerColumn(BigInt64Array.from(t.data as ArrayLike<number | bigint>, BigInt), shape);
}

function floats({ dtype, data }: Tensor): Float32Array {
  if (data instanceof Float32Array) return data;
  if (dtype === 'float16') return Float32Array.from(data as Uint16Array, half);
  if (dtype === 'bfloat16') {
    const bits = Uint32Array.from(data as Uint16Array, (x) => x << 16);
    return new Float32Array(bits.buffer);
  }
  return Float32Array.from(data as ArrayLike<number>);
}

/** The value of an IEEE half: 1 sign, 5 exponent and 10 fraction bits. */
function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : Number.NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

export interface SafetensorsOptions {
  /** The array of features, [rows, ...]; default `x`. */
  readonly features?: string | undefined;
  /** The array of labels, [rows]; default `y`. */
  readonly label?: string | undefined;
  readonly normalize?: Normalize | undefined;
}

/** A dataset from two arrays of a safetensors file. Throws GhostgradError when it cannot be read or lacks one. */
export async function readSafetensorsData(
  path: string, { features = 'x', label = 'y', normalize }: SafetensorsOptions = {},
): Promise<Dataset> {
  const { tensors } = decodeSafetensors(await readBytes(path), path);
  const named = (name: string, option: string): Tensor => {
    const found = tensors.get(name);
    if (found === undefined) throw unknownName('array', name, [...tensors.keys()], `${path}, option ${option}`);
    return found;
  };
  const input = featureColumn(named(features, 'features'), `array "${features}" of ${path}`, normalize);
  return datasetOf({
    name: path,
    features: new Map([['input', input]]),
    labels: labelColumn(named(label, 'label'), `array "${label}" of ${path}`),
  });
}
