import { open } from 'node:fs/promises';
import { GhostgradError } from '../errors.ts';
import { halfValues } from '../tensor/half.ts';
import { decodeSafetensors, readSafetensorsHeader } from '../tensor/safetensors.ts';
import { type DType, type Shape, type Tensor, allocate, bytesPerElement, sizeOf } from '../tensor/tensor.ts';
import { unknownName } from '../suggest.ts';
import { type AnyColumn, byteColumn, floatColumn, integerColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { readBytes, unreadable } from './files.ts';
import { type Normalize, byteTables, normaliseFloats } from './normalise.ts';
import { type Decode, streamedColumn } from './streamed.ts';

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
  const values = new Float32Array(data.length);
  widen(dtype, data as Readonly<ArrayLike<number>>, values);
  return values;
}

function widen(dtype: DType, data: Readonly<ArrayLike<number>>, into: Float32Array): void {
  if (dtype === 'float16') {
    const values = halfValues();
    for (let i = 0; i < into.length; i++) into[i] = values[data[i]!]!;
  } else if (dtype === 'bfloat16') {
    const bits = new Uint32Array(into.buffer, into.byteOffset, into.length);
    for (let i = 0; i < bits.length; i++) bits[i] = data[i]! << 16;
  } else into.set(data);
}

export interface SafetensorsOptions {
  /** The array of features, [rows, ...]; default `x`. */
  readonly features?: string | undefined;
  /** The array of labels, [rows]; default `y`. */
  readonly label?: string | undefined;
  readonly normalize?: Normalize | undefined;
  /** Whether the features stay in the file and are read batch by batch; default: where they are larger than 256 MiB. */
  readonly stream?: boolean | undefined;
}

const largestInMemory = 2 ** 28;

/**
 * A dataset from two arrays of a safetensors file (plain or gzip), of which only the labels and smaller features are held in
 * memory. Throws GhostgradError when it cannot be read or lacks one.
 */
export async function readSafetensorsData(
  path: string, { features = 'x', label = 'y', normalize, stream }: SafetensorsOptions = {},
): Promise<Dataset> {
  const streamed = await streamedFrom(path, { features, label, normalize, stream });
  if (streamed !== undefined) return streamed;
  const { tensors, metadata } = decodeSafetensors(await readBytes(path), path);
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
    classNames: classesIn(metadata),
  });
}

/** The entry of a file's metadata that names the classes of its labels: a JSON list. */
export const classesEntry = 'ghostgrad.classes';

function classesIn(metadata: Readonly<Record<string, string>>): readonly string[] | undefined {
  try {
    const names: unknown = JSON.parse(metadata[classesEntry] ?? 'null');
    return Array.isArray(names) && names.every((name) => typeof name === 'string') ? names : undefined;
  } catch {
    // Another program's entry.
    return undefined;
  }
}

/** The dataset whose features stay in their file, where that is asked for or they are large; else undefined. */
async function streamedFrom(
  path: string, { features, label, normalize, stream }: SafetensorsOptions & { readonly features: string; readonly label: string },
): Promise<Dataset | undefined> {
  const { start, total } = await startOf(path);
  if (stream === false || start === undefined || (stream === undefined && total <= largestInMemory)) return undefined;
  const { entries, metadata, dataStart } = readSafetensorsHeader(start, path, total);
  const [x, y] = [entries.get(features), entries.get(label)];
  // What is missing or of another kind is told where all is read.
  if (x === undefined || y === undefined || x.shape.length === 0 || !featureTypes.includes(x.dtype)) return undefined;
  if (stream === undefined && x.end - x.begin <= largestInMemory) return undefined;
  const [rows, ...shape] = x.shape as [number, ...number[]];
  const where = `array "${features}" of ${path}`;
  const labels = allocate(y.dtype, sizeOf(y.shape));
  await readAt(path, dataStart + y.begin, new Uint8Array(labels.buffer));
  return datasetOf({
    name: path,
    features: new Map([['input', streamedColumn({ path, offset: dataStart + x.begin, dtype: x.dtype, rows, shape }, decoderOf(x.dtype, shape, where, normalize))]]),
    labels: labelColumn({ dtype: y.dtype, shape: y.shape, data: labels }, `array "${label}" of ${path}`),
    classNames: classesIn(metadata),
  });
}

/** Turns stored bytes into scaled float32, as {@link featureColumn} does; nothing where they are that already. */
function decoderOf(dtype: DType, shape: Shape, where: string, normalize?: Normalize): Decode | undefined {
  if (dtype === 'float32' && (normalize ?? 'none') === 'none') return undefined;
  if (dtype === 'uint8') {
    const tables = byteTables(normalize ?? 'unit', shape, where);
    const part = sizeOf(shape) / tables.length;
    return (bytes, into) => {
      for (let i = 0; i < into.length; i++) into[i] = tables[Math.floor(i / part) % tables.length]![bytes[i]!]!;
    };
  }
  const size = bytesPerElement(dtype);
  return (bytes, into) => {
    // A copy, since what was read may lie at any byte.
    const own = bytes.slice().buffer;
    const count = own.byteLength / size;
    widen(dtype, dtype === 'float32' ? new Float32Array(own, 0, count) : dtype === 'float64' ? new Float64Array(own, 0, count) : new Uint16Array(own, 0, count), into);
    normaliseFloats(into, normalize ?? 'none', shape, where);
  };
}

/** The beginning of a file, its header at least, and how large the file is; no beginning where it is gzip's. */
async function startOf(path: string): Promise<{ readonly start?: Uint8Array; readonly total: number }> {
  const file = await open(path, 'r').catch((error: unknown) => { throw unreadable(path, error); });
  try {
    const { size: total } = await file.stat();
    const first = new Uint8Array(8);
    await file.read(first, 0, 8, 0);
    const length = Number(new DataView(first.buffer).getBigUint64(0, true));
    if ((first[0] === 0x1f && first[1] === 0x8b) || length > Math.min(total, largestInMemory)) return { total };
    const start = new Uint8Array(8 + length);
    await file.read(start, 0, start.length, 0);
    return { start, total };
  } finally {
    await file.close();
  }
}

async function readAt(path: string, position: number, into: Uint8Array): Promise<void> {
  const file = await open(path, 'r');
  try {
    for (let done = 0; done < into.length;) {
      const { bytesRead } = await file.read(into, done, into.length - done, position + done);
      if (bytesRead === 0) throw unreadable(path, new Error('it ends too soon'));
      done += bytesRead;
    }
  } finally {
    await file.close();
  }
}
