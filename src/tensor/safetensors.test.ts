import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { decodeSafetensors, encodeSafetensors, readSafetensorsHeader } from './safetensors.ts';
import { type Tensor, allocate, dtypes, float32, sizeOf, tensor } from './tensor.ts';

const anyTensor: fc.Arbitrary<Tensor> = fc.record({
  dtype: fc.constantFrom(...dtypes),
  shape: fc.array(fc.nat({ max: 4 }), { maxLength: 3 }),
  bytes: fc.uint8Array({ minLength: 8, maxLength: 8 }),
}).map(({ dtype, shape, bytes }) => {
  const data = allocate(dtype, sizeOf(shape));
  const raw = new Uint8Array(data.buffer);
  raw.forEach((_, i) => { raw[i] = dtype === 'bool' ? i % 2 : (bytes[i % 8] ?? 0); });
  return tensor(dtype, shape, data);
});

const bytesOf = (t: Tensor): Uint8Array => new Uint8Array(t.data.buffer, t.data.byteOffset, t.data.byteLength);
const comparable = (tensors: ReadonlyMap<string, Tensor>): unknown =>
  new Map([...tensors].map(([name, t]) => [name, { dtype: t.dtype, shape: t.shape, bytes: [...bytesOf(t)] }]));

/** A file with any header at all. */
function fileWith(header: unknown, data: number): Uint8Array {
  const json = new TextEncoder().encode(typeof header === 'string' ? header : JSON.stringify(header));
  const file = new Uint8Array(8 + json.length + data);
  new DataView(file.buffer).setBigUint64(0, BigInt(json.length), true);
  file.set(json, 8);
  return file;
}

describe('safetensors', () => {
  it('gives back every tensor and the metadata', () => {
    fc.assert(fc.property(
      fc.array(fc.tuple(fc.string().filter((name) => name !== '__metadata__'), anyTensor), { maxLength: 6 }),
      fc.dictionary(fc.string(), fc.string(), { maxKeys: 3 }),
      (entries, metadata) => {
        const tensors = new Map(entries);
        const decoded = decodeSafetensors(encodeSafetensors(tensors, metadata));
        expect(comparable(decoded.tensors)).toEqual(comparable(tensors));
        expect({ ...decoded.metadata }).toEqual({ ...metadata });
      },
    ));
  });

  it('keeps the bits of NaN, infinities and negative zero', () => {
    const odd = float32([NaN, Infinity, -Infinity, -0, 1e-45]);
    const back = decodeSafetensors(encodeSafetensors(new Map([['odd', odd]]))).tensors.get('odd');
    expect(back && [...bytesOf(back)]).toEqual([...bytesOf(odd)]);
  });

  it('aligns every tensor to its element size', () => {
    const tensors = new Map<string, Tensor>([
      ['a', tensor('uint8', [3], Uint8Array.of(1, 2, 3))],
      ['b', tensor('float64', [2], Float64Array.of(1, 2))],
      ['c', float32([1, 2, 3])],
    ]);
    const file = encodeSafetensors(tensors);
    const { entries, dataStart } = readSafetensorsHeader(file, 'file', file.length);
    expect([...entries.keys()]).toEqual(['a', 'b', 'c']);
    for (const [name, { begin }] of entries) {
      expect((dataStart + begin) % (tensors.get(name)?.data.BYTES_PER_ELEMENT ?? 1)).toBe(0);
    }
  });

  it('reads what another writer lays out in another order', () => {
    const file = fileWith(
      { y: { dtype: 'F32', shape: [1], data_offsets: [2, 6] }, x: { dtype: 'U8', shape: [2], data_offsets: [0, 2] } },
      6,
    );
    file.set([7, 8, 0, 0, 128, 63], file.length - 6);
    const { tensors } = decodeSafetensors(file);
    expect([...(tensors.get('x')?.data ?? [])]).toEqual([7, 8]);
    expect([...(tensors.get('y')?.data ?? [])]).toEqual([1]);
  });

  it.each([
    ['an empty file', new Uint8Array(0), /0 bytes/],
    ['a header longer than the file', new Uint8Array(16).fill(255), /header of \d+ bytes in 16 bytes/],
    ['a header that is not JSON', fileWith('{oops', 0), /not JSON/],
    ['a header that is not an object', fileWith('[1]', 0), /not a JSON object/],
    ['an unknown element type', fileWith({ x: { dtype: 'F8_E4M3', shape: [1], data_offsets: [0, 1] } }, 1), /F8_E4M3/],
    [
      'a negative dimension',
      fileWith({ x: { dtype: 'U8', shape: [-1], data_offsets: [0, 1] } }, 1),
      /dimensions of at least 0/,
    ],
    [
      'an absurd shape',
      fileWith({ x: { dtype: 'F32', shape: [2 ** 40, 2 ** 40], data_offsets: [0, 4] } }, 4),
      /4 bytes/,
    ],
    ['missing offsets', fileWith({ x: { dtype: 'F32', shape: [1] } }, 4), /offsets/],
    [
      'overlapping tensors',
      fileWith(
        {
          x: { dtype: 'U8', shape: [2], data_offsets: [0, 2] },
          y: { dtype: 'U8', shape: [2], data_offsets: [1, 3] },
        },
        3,
      ),
      /bytes from 1/,
    ],
    [
      'a gap between tensors',
      fileWith(
        {
          x: { dtype: 'U8', shape: [1], data_offsets: [0, 1] },
          y: { dtype: 'U8', shape: [1], data_offsets: [2, 3] },
        },
        3,
      ),
      /bytes from 2/,
    ],
    [
      'offsets beyond the file',
      fileWith({ x: { dtype: 'U8', shape: [9], data_offsets: [0, 9] } }, 3),
      /3 bytes of data/,
    ],
    ['metadata that is not text', fileWith({ __metadata__: { a: 1 } }, 0), /metadata/],
  ])('refuses %s', (_, file, message) => {
    expect(() => decodeSafetensors(file, 'weights.safetensors')).toThrow(GhostgradError);
    expect(() => decodeSafetensors(file, 'weights.safetensors')).toThrow(message);
    expect(() => decodeSafetensors(file, 'weights.safetensors')).toThrow(/weights\.safetensors/);
  });

  it('refuses a file cut short anywhere', () => {
    const file = encodeSafetensors(new Map([['x', float32([1, 2, 3])], ['y', float32([4])]]), { note: 'short' });
    for (let n = 0; n < file.length; n++) expect(() => decodeSafetensors(file.subarray(0, n))).toThrow(GhostgradError);
  });

  it('survives any change of a byte', () => {
    const file = encodeSafetensors(new Map([['x', float32([1, 2, 3])]]), { note: 'flip' });
    fc.assert(fc.property(fc.nat({ max: file.length - 1 }), fc.nat({ max: 255 }), (at, byte) => {
      const changed = file.slice();
      changed[at] = byte;
      try {
        decodeSafetensors(changed);
      } catch (error) {
        expect(error).toBeInstanceOf(GhostgradError);
      }
    }), { numRuns: 500 });
  });
});
