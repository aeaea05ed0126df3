import { joinBytes } from '../tensor/bytes.ts';

/**
 * A model file without the bytes of its large tensors, which say instead where in the file they stand, as external
 * data does. So each of them is read once, straight to where it stays: a file decoded whole would lie in memory twice.
 */

/** Gives `length` bytes of the file from `offset`. */
export type ReadBytes = (offset: number, length: number) => Uint8Array;

/** Raw bytes of a tensor from this many on are left out. */
const large = 1 << 16;

/** Which fields of a message lead to tensors, by number; a tensor is where they end. */
type Path = { readonly [field: number]: Path | 'tensor' };

/** ModelProto.graph, its initializers, and the tensors of its nodes' attributes. */
const model: Path = { 7: { 5: 'tensor', 1: { 5: { 5: 'tensor' } } } };

/** TensorProto: raw_data, external_data and data_location. */
const [rawData, externalData, dataLocation] = [9, 13, 14];

/**
 * The outline of a model file of `size` bytes at `location`, the file's own name; undefined where it is not well
 * formed as far as it was read (decoding the whole file says what is wrong).
 */
export function outline(read: ReadBytes, size: number, location: string): Uint8Array | undefined {
  const window = windowed(read, size);
  try {
    return joinBytes(message(window, 0, size, model, location));
  } catch (error) {
    if (error instanceof Malformed) return undefined;
    throw error;
  }
}

class Malformed extends Error {}

interface Field {
  readonly number: number;
  readonly wire: number;
  /** Where the content starts, for a field of bytes; else where the field ends. */
  readonly content: number;
  readonly end: number;
}

/** The message between two offsets, again as bytes. */
function message(read: ReadBytes, start: number, end: number, path: Path | 'tensor', location: string): Uint8Array[] {
  const chunks: Uint8Array[] = [];
  let copied = start;
  for (let at = start; at < end;) {
    const field = fieldAt(read, at, end);
    const inner = path === 'tensor' ? undefined : path[field.number];
    const replaced = field.wire !== bytesWire ? undefined
      : inner !== undefined ? nested(field.number, message(read, field.content, field.end, inner, location))
        : path === 'tensor' && field.number === rawData && field.end - field.content >= large
          ? elsewhere(location, field.content, field.end - field.content) : undefined;
    if (replaced !== undefined) {
      if (copied < at) chunks.push(read(copied, at - copied));
      chunks.push(...replaced);
      copied = field.end;
    }
    at = field.end;
  }
  if (copied < end) chunks.push(read(copied, end - copied));
  return chunks;
}

const bytesWire = 2;

function fieldAt(read: ReadBytes, at: number, end: number): Field {
  const tag = varint(read, at, end);
  const [number, wire] = [Math.floor(tag.value / 8), tag.value % 8];
  const sized = (length: number): Field => {
    if (tag.end + length > end) throw new Malformed();
    return { number, wire, content: tag.end + length, end: tag.end + length };
  };
  if (wire === 0) return { number, wire, content: at, end: varint(read, tag.end, end).end };
  if (wire === 1) return sized(8);
  if (wire === 5) return sized(4);
  if (wire !== bytesWire) throw new Malformed();
  const length = varint(read, tag.end, end);
  if (length.end + length.value > end) throw new Malformed();
  return { number, wire, content: length.end, end: length.end + length.value };
}

function varint(read: ReadBytes, at: number, end: number): { readonly value: number; readonly end: number } {
  const bytes = read(at, Math.min(10, end - at));
  let [value, scale] = [0, 1];
  for (let i = 0; i < bytes.length; i++) {
    value += (bytes[i]! & 127) * scale;
    scale *= 128;
    if (bytes[i]! < 128) return { value, end: at + i + 1 };
  }
  throw new Malformed();
}

/** What stands in a tensor instead of its raw bytes. */
function elsewhere(location: string, offset: number, length: number): Uint8Array[] {
  const entry = (key: string, value: string) => nested(externalData, [...text(1, key), ...text(2, value)]);
  return [
    ...entry('location', location), ...entry('offset', String(offset)), ...entry('length', String(length)),
    Uint8Array.of(...encoded(8 * dataLocation), 1),
  ];
}

const text = (field: number, value: string): Uint8Array[] => nested(field, [new TextEncoder().encode(value)]);

function nested(field: number, content: readonly Uint8Array[]): Uint8Array[] {
  const length = content.reduce((sum, chunk) => sum + chunk.length, 0);
  return [Uint8Array.of(...encoded(8 * field + bytesWire), ...encoded(length)), ...content];
}

function encoded(value: number): number[] {
  return value < 128 ? [value] : [(value % 128) + 128, ...encoded(Math.floor(value / 128))];
}

/** Reads small pieces out of a window of the file, so that scanning it takes few reads. */
function windowed(read: ReadBytes, size: number): ReadBytes {
  const width = 1 << 16;
  let [start, bytes] = [0, new Uint8Array(0)];
  return (offset, length) => {
    if (length > width) return read(offset, length);
    if (offset < start || offset + length > start + bytes.length) {
      [start, bytes] = [offset, Uint8Array.from(read(offset, Math.min(width, size - offset)))];
    }
    return bytes.slice(offset - start, offset - start + length);
  };
}
