import { GhostgradError } from '../errors.ts';
import { joinBytes } from './bytes.ts';
import { type DType, type Tensor, type TensorType, allocate, bytesPerElement, dtypes, sizeOf } from './tensor.ts';

/** Names of the element types in the format. */
const codes: Readonly<Record<DType, string>> = {
  float32: 'F32',
  float64: 'F64',
  float16: 'F16',
  bfloat16: 'BF16',
  int8: 'I8',
  int16: 'I16',
  int32: 'I32',
  int64: 'I64',
  uint8: 'U8',
  uint16: 'U16',
  uint32: 'U32',
  uint64: 'U64',
  bool: 'BOOL',
};
const dtypeByCode = new Map(dtypes.map((dtype) => [codes[dtype], dtype]));

/** The format's own limit on the size of its JSON header, in bytes. */
const maximumHeader = 100_000_000;

/** A tensor as the header describes it. */
export interface SafetensorsEntry extends TensorType {
  /** Bytes from the end of the header. */
  readonly begin: number;
  readonly end: number;
}

export interface SafetensorsHeader {
  readonly entries: ReadonlyMap<string, SafetensorsEntry>;
  readonly metadata: Readonly<Record<string, string>>;
  /** Where the tensors' bytes start in the file. */
  readonly dataStart: number;
}

export interface Safetensors {
  readonly tensors: ReadonlyMap<string, Tensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

/** The bytes of a safetensors file. @see safetensorsChunks for large ones */
export function encodeSafetensors(
  tensors: ReadonlyMap<string, Tensor>, metadata: Readonly<Record<string, string>> = {},
): Uint8Array<ArrayBuffer> {
  return joinBytes(safetensorsChunks(tensors, metadata));
}

/**
 * A safetensors file in pieces, to be written one after another; all but the first are views of the tensors' own
 * memory. The header lists tensors in the order of the map; their bytes lie in the order of falling element size, so
 * that each is aligned in the file.
 */
export function safetensorsChunks(
  tensors: ReadonlyMap<string, Tensor>, metadata: Readonly<Record<string, string>> = {},
): readonly Uint8Array[] {
  const { header, places } = safetensorsLayout(tensors, metadata);
  const inOrder = [...tensors].sort(([a], [b]) => places.get(a)!.begin - places.get(b)!.begin);
  return [header, ...inOrder.map(([, { data }]) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength))];
}

/** Where everything lies in a file of some tensors, for those who write it piece by piece. */
export interface SafetensorsLayout {
  /** The file's first bytes, up to the tensors'. */
  readonly header: Uint8Array;
  /** Bytes from the start of the file. */
  readonly places: ReadonlyMap<string, { readonly begin: number; readonly end: number }>;
  /** Size of the file. */
  readonly total: number;
}

/** The layout that {@link safetensorsChunks} writes, which follows from names and types alone. */
export function safetensorsLayout(
  tensors: ReadonlyMap<string, TensorType>, metadata: Readonly<Record<string, string>> = {},
): SafetensorsLayout {
  if (tensors.has('__metadata__')) throw new RangeError('a tensor cannot be named "__metadata__"');
  const places = new Map<string, { readonly begin: number; readonly end: number }>();
  let offset = 0;
  for (const [name, { dtype, shape }] of [...tensors].sort(([, a], [, b]) => bytesPerElement(b.dtype) - bytesPerElement(a.dtype))) {
    const end = offset + sizeOf(shape) * bytesPerElement(dtype);
    places.set(name, { begin: offset, end });
    offset = end;
  }
  const entries = [...tensors].map(([name, { dtype, shape }]) => {
    const { begin, end } = places.get(name)!;
    return [name, { dtype: codes[dtype], shape, data_offsets: [begin, end] }] as const;
  });
  const described = Object.keys(metadata).length > 0 ? [['__metadata__', metadata] as const, ...entries] : entries;
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries(described)));
  // Spaces after the JSON align the data to 8 bytes.
  const header = new Uint8Array(8 + Math.ceil(json.length / 8) * 8).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(header.length - 8), true);
  header.set(json, 8);
  const at = header.length;
  return {
    header, total: at + offset,
    places: new Map([...places].map(([name, { begin, end }]) => [name, { begin: at + begin, end: at + end }])),
  };
}

/**
 * The tensors and the metadata of a safetensors file. Each tensor owns its memory.
 *
 * @param where what messages call the source, e.g. its path
 * @throws GhostgradError when the file is truncated or damaged, or has element types not supported
 */
export function decodeSafetensors(bytes: Uint8Array, where = 'safetensors data'): Safetensors {
  const { entries, metadata, dataStart } = readSafetensorsHeader(bytes, where, bytes.length);
  const tensors = new Map<string, Tensor>();
  for (const [name, { dtype, shape, begin, end }] of entries) {
    const data = allocate(dtype, sizeOf(shape));
    new Uint8Array(data.buffer).set(bytes.subarray(dataStart + begin, dataStart + end));
    tensors.set(name, { dtype, shape, data });
  }
  return { tensors, metadata };
}

/**
 * What a file holds, from its first bytes alone (8 + the length in those 8), so that single tensors of a large file
 * can be read.
 *
 * @param total the size of the whole file in bytes
 * @throws GhostgradError when the header is not valid, or describes anything but the whole rest of the file
 */
export function readSafetensorsHeader(start: Uint8Array, where: string, total: number): SafetensorsHeader {
  if (start.length < 8) throw damaged(where, `${start.length} bytes`, 'at least 8 bytes, the length of the header');
  const length = Number(new DataView(start.buffer, start.byteOffset, 8).getBigUint64(0, true));
  if (length > maximumHeader || 8 + length > start.length) {
    throw damaged(where, `a header of ${length} bytes in ${start.length} bytes`, 'a header within the file');
  }
  const described = parseHeader(start.subarray(8, 8 + length), where);
  const entries = new Map<string, SafetensorsEntry>();
  let metadata: Readonly<Record<string, string>> = {};
  for (const [name, value] of Object.entries(described)) {
    if (name === '__metadata__') metadata = metadataOf(value, where);
    else entries.set(name, entryOf(name, value, where));
  }
  requireGapless(entries, total - 8 - length, where);
  return { entries, metadata, dataStart: 8 + length };
}

const damaged = (where: string, found: string, expected: string, cause?: unknown): GhostgradError =>
  new GhostgradError(
    {
      what: 'not a readable safetensors file',
      where,
      found,
      expected,
      fix: 'the file is damaged, truncated or of another format: make or copy it again',
    },
    { cause },
  );

const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const isCounts = (value: unknown): value is readonly number[] =>
  Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);

function parseHeader(json: Uint8Array, where: string): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(json));
  } catch (cause) {
    throw damaged(where, 'a header that is not JSON', 'a JSON object', cause);
  }
  if (!isRecord(value)) throw damaged(where, 'a header that is not a JSON object', 'a JSON object');
  return value;
}

function metadataOf(value: unknown, where: string): Readonly<Record<string, string>> {
  const isText = (record: Readonly<Record<string, unknown>>): record is Readonly<Record<string, string>> =>
    Object.values(record).every((v) => typeof v === 'string');
  if (!isRecord(value) || !isText(value)) throw damaged(where, 'metadata that is not text', 'strings by name');
  return value;
}

function entryOf(name: string, value: unknown, where: string): SafetensorsEntry {
  const at = `tensor "${name}" of ${where}`;
  const { dtype: code, shape, data_offsets: offsets } = isRecord(value) ? value : {};
  const dtype = typeof code === 'string' ? dtypeByCode.get(code) : undefined;
  if (dtype === undefined) {
    throw damaged(
      at,
      `element type ${typeof code === 'string' ? code : 'missing'}`,
      `one of ${Object.values(codes).join(', ')}`,
    );
  }
  const [begin, end] = isCounts(offsets) && offsets.length === 2 ? offsets : [];
  if (!isCounts(shape) || begin === undefined || end === undefined) {
    throw damaged(
      at,
      'a shape or offsets that are not whole numbers',
      'dimensions of at least 0, and where its bytes begin and end',
    );
  }
  const bytes = sizeOf(shape) * bytesPerElement(dtype);
  if (end - begin !== bytes) {
    throw damaged(at, `${end - begin} bytes (${begin} to ${end})`, `${bytes} bytes for ${dtype}[${shape.join(', ')}]`);
  }
  return { dtype, shape, begin, end };
}

/** The tensors must cover the data exactly: no gap in which something could hide, no overlap, nothing missing. */
function requireGapless(entries: ReadonlyMap<string, SafetensorsEntry>, bytes: number, where: string): void {
  let at = 0;
  for (const [name, { begin, end }] of [...entries].sort(([, a], [, b]) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== at)
      throw damaged(
        `tensor "${name}" of ${where}`,
        `bytes from ${begin}`,
        `bytes from ${at}, where the one before it ends`,
      );
    at = end;
  }
  if (at !== bytes) throw damaged(where, `${bytes} bytes of data`, `${at} bytes, the sum of the tensors`);
}
