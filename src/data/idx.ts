import { GhostgradError } from '../errors.ts';
import { type DType, type Tensor, allocate, bytesPerElement, sizeOf } from '../tensor/tensor.ts';

const types: Readonly<Record<number, DType>> = {
  0x08: 'uint8', 0x09: 'int8', 0x0b: 'int16', 0x0c: 'int32', 0x0d: 'float32', 0x0e: 'float64',
};

/**
 * The array of an IDX file (the format of MNIST: two zero bytes, a type, the number of axes, big-endian sizes and
 * values). Bytes are not copied; wider elements are.
 *
 * @throws GhostgradError when it is no IDX file, or is shorter or longer than its header says
 */
export function decodeIdx(bytes: Uint8Array, where = 'IDX data'): Tensor {
  const [first, second, code, axes] = bytes;
  const dtype = code === undefined ? undefined : types[code];
  if (first !== 0 || second !== 0 || dtype === undefined || axes === undefined) {
    throw damaged(where, 'another beginning of the file', 'two zero bytes, an element type, a number of axes');
  }
  const begin = 4 + 4 * axes;
  if (bytes.length < begin) throw damaged(where, `${bytes.length} bytes`, `a header of ${begin} bytes`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const shape = Array.from({ length: axes }, (_, axis) => view.getUint32(4 + 4 * axis));
  const expected = begin + sizeOf(shape) * bytesPerElement(dtype);
  if (bytes.length !== expected) {
    throw damaged(where, `${bytes.length} bytes`, `${expected} bytes for ${dtype}[${shape.join(', ')}]`);
  }
  if (dtype === 'uint8') return { dtype, shape, data: bytes.subarray(begin) };
  const data = allocate(dtype, sizeOf(shape));
  const width = data.BYTES_PER_ELEMENT;
  const native = new Uint8Array(data.buffer);
  native.set(bytes.subarray(begin));
  // Typed arrays are little-endian on every platform that Node supports here; swap each element.
  for (let at = 0; at < native.length; at += width) native.subarray(at, at + width).reverse();
  return { dtype, shape, data };
}

const damaged = (where: string, found: string, expected: string): GhostgradError => new GhostgradError({
  what: 'not a whole IDX file', where, found, expected,
  fix: 'the file is damaged, truncated or of another format: get it again',
});
