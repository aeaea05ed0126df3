import { BinaryReader } from '@bufbuild/protobuf/wire';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { crc32c, eventFileHeader, scalarsRecord, tfRecord } from './tensorboard.ts';

/** Reads the fields of a message with an independent reader of the wire format. */
function fields(bytes: Uint8Array, read: Readonly<Record<number, (r: BinaryReader) => unknown>>): [number, unknown][] {
  const reader = new BinaryReader(bytes);
  const found: [number, unknown][] = [];
  while (reader.pos < reader.len) {
    const [field] = reader.tag();
    const value = read[field]?.(reader);
    if (value === undefined) throw new Error(`unexpected field ${field}`);
    found.push([field, value]);
  }
  return found;
}

const payload = (record: Uint8Array): Uint8Array => record.subarray(12, record.length - 4);

describe('CRC-32C', () => {
  it('gives the check values of RFC 3720, B.4', () => {
    expect(crc32c(new TextEncoder().encode('123456789'))).toBe(0xe3069283);
    expect(crc32c(new Uint8Array(32))).toBe(0x8a9136aa);
    expect(crc32c(new Uint8Array(32).fill(255))).toBe(0x62a8ab43);
    expect(crc32c(Uint8Array.from({ length: 32 }, (_, i) => i))).toBe(0x46dd794e);
    expect(crc32c(new Uint8Array(0))).toBe(0);
  });
});

describe('event files', () => {
  it('frame their records with length and masked checksums', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (data) => {
        const record = tfRecord(data);
        const view = new DataView(record.buffer);
        const unmask = (masked: number): number => {
          const rotated = (masked - 0xa282ead8) >>> 0;
          return ((rotated >>> 17) | (rotated << 15)) >>> 0;
        };
        expect(record.length).toBe(data.length + 16);
        expect(view.getBigUint64(0, true)).toBe(BigInt(data.length));
        expect(unmask(view.getUint32(8, true))).toBe(crc32c(record.subarray(0, 8)));
        expect(payload(record)).toEqual(data);
        expect(unmask(view.getUint32(12 + data.length, true))).toBe(crc32c(data));
      }),
    );
  });

  it('begin with their version', () => {
    expect(fields(payload(eventFileHeader(1700000000.5)), { 1: (r) => r.double(), 3: (r) => r.string() })).toEqual([
      [1, 1700000000.5],
      [3, 'brain.Event:2'],
    ]);
  });

  it('hold the scalars of a step', () => {
    fc.assert(
      fc.property(
        fc.nat(2 ** 40),
        fc.dictionary(fc.string({ minLength: 1, maxLength: 200 }), fc.float({ noNaN: true })),
        (step, scalars) => {
          const event = fields(payload(scalarsRecord(12.25, step, scalars)), {
            1: (r) => r.double(),
            2: (r) => Number(r.int64()),
            5: (r) => r.bytes(),
          });
          expect(event.slice(0, 2)).toEqual([
            [1, 12.25],
            [2, step],
          ]);
          const values = fields(event[2]?.[1] as Uint8Array, { 1: (r) => r.bytes() }).map(([, value]) =>
            fields(value as Uint8Array, { 1: (r) => r.string(), 2: (r) => r.float() }).map(([, v]) => v),
          );
          expect(values).toEqual(Object.entries(scalars));
        },
      ),
    );
  });
});
