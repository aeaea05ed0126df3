import { joinBytes } from '../tensor/bytes.ts';

/**
 * TensorBoard's event files, as much of them as scalars need: TFRecord framing (length, masked CRC-32C of the length,
 * data, masked CRC-32C of the data; all little-endian) around `Event` protocol buffers.
 */

/** The first record of a file. @param wallTime seconds since 1970 */
export const eventFileHeader = (wallTime: number): Uint8Array =>
  tfRecord(joinBytes([double(1, wallTime), bytes(3, new TextEncoder().encode('brain.Event:2'))]));

/** A record with scalars of one step. @param wallTime seconds since 1970 */
export function scalarsRecord(wallTime: number, step: number, scalars: Readonly<Record<string, number>>): Uint8Array {
  const values = Object.entries(scalars).map(([tag, value]) =>
    bytes(1, joinBytes([bytes(1, new TextEncoder().encode(tag)), float(2, value)])),
  );
  return tfRecord(joinBytes([double(1, wallTime), varint(2, step), bytes(5, joinBytes(values))]));
}

/** The bytes of a file's header and of the whole records of steps up to `step`, which come first; 0 where nothing is whole. */
export function recordsUpTo(file: Buffer, step: number): number {
  let kept = 0;
  for (const { start, end } of recordsOf(file)) {
    if (start > 0 && stepAt(file, start + 12 + 9) > step) break;
    kept = end;
  }
  return kept;
}

/** The wall time of a file's header; undefined where that was not written whole. */
export const startOf = (file: Buffer): number | undefined =>
  recordsOf(file).next().done === true ? undefined : file.readDoubleLE(12 + 1);

/** The whole records at the beginning of a file: data that their checksum confirms. */
function* recordsOf(file: Buffer): Generator<{ readonly start: number; readonly end: number }, void, undefined> {
  for (let start = 0; start + 16 <= file.length;) {
    const length = Number(file.readBigUInt64LE(start));
    const end = start + 16 + length;
    if (end > file.length || file.readUInt32LE(end - 4) !== masked(crc32c(file.subarray(start + 12, end - 4)))) return;
    yield { start, end };
    start = end;
  }
}

/** The step of an event: the field that {@link scalarsRecord} writes after the wall time. */
function stepAt(file: Buffer, at: number): number {
  let value = 0;
  for (let i = at + 1, scale = 1; ; i++, scale *= 128) {
    const byte = file[i]!;
    value += (byte & 127) * scale;
    if (byte < 128) return value;
  }
}

/** Data in TFRecord framing. */
export function tfRecord(data: Uint8Array): Uint8Array {
  const record = new Uint8Array(16 + data.length);
  const view = new DataView(record.buffer);
  view.setBigUint64(0, BigInt(data.length), true);
  view.setUint32(8, masked(crc32c(record.subarray(0, 8))), true);
  record.set(data, 12);
  view.setUint32(12 + data.length, masked(crc32c(data)), true);
  return record;
}

const polynomial = 0x82f63b78;
const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = (crc & 1) === 1 ? (crc >>> 1) ^ polynomial : crc >>> 1;
  return crc;
});

/** CRC-32C (Castagnoli, RFC 3720 §B.4), as an unsigned number. */
export function crc32c(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of data) crc = (crc >>> 8) ^ (table[(crc ^ byte) & 255] ?? 0);
  return (crc ^ 0xffffffff) >>> 0;
}

/** A checksum of data that may itself hold checksums: rotated and shifted, as TFRecord has it. */
const masked = (crc: number): number => (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;

// Protocol buffer fields: a key of number and wire type, then the value.
const key = (field: number, wireType: number): number => (field << 3) | wireType;

function fixed(field: number, wireType: number, size: number, write: (view: DataView) => void): Uint8Array {
  const out = new Uint8Array(1 + size);
  out[0] = key(field, wireType);
  write(new DataView(out.buffer, 1));
  return out;
}

const double = (field: number, value: number): Uint8Array =>
  fixed(field, 1, 8, (view) => view.setFloat64(0, value, true));
const float = (field: number, value: number): Uint8Array =>
  fixed(field, 5, 4, (view) => view.setFloat32(0, value, true));
const varint = (field: number, value: number): Uint8Array => Uint8Array.of(key(field, 0), ...base128(value));
const bytes = (field: number, value: Uint8Array): Uint8Array =>
  joinBytes([Uint8Array.of(key(field, 2), ...base128(value.length)), value]);

function base128(value: number): number[] {
  const digits: number[] = [];
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return [...digits, rest];
    digits.push((rest % 128) | 128);
  }
}
