import { createCipheriv, createHash, hkdfSync } from 'node:crypto';

/**
 * Uniform random numbers from the AES-256-CTR keystream of one key. Streams of different (key, label, index)
 * are independent, so that no two parameters, steps or purposes ever share a bit.
 *
 * Unused words of a block may be dropped: the numbers depend on the key and on the sequence of calls.
 * (node:crypto is confined to this file, the ratchet and the ledger; a browser will supply WebCrypto here.)
 */
export interface Stream {
  /** The next `count` uniform 32-bit words. The view is valid until the next call on the stream. */
  words(count: number): Uint32Array;
  /** One uniform 32-bit word. */
  word(): number;
  /** Uniform on the 2^53 midpoints (k + ½)·2^-53 (k up to 2^53 − 1, the last rounding to 1): in (0, 1], never 0. */
  uniform(): number;
  /**
   * A uniform real of (0, 1] rounded to the nearest double: relative, not absolute, precision 2^-53, as rare
   * events near 0 need.
   */
  preciseUniform(): number;
}

/** HKDF in node:crypto takes up to 1024 bytes of information, and a character has up to 3. A parameter's name may be longer. */
const mostInfo = 341;
/** Starts as no JSON array does. */
const digestOf = (info: string): string => `sha256:${createHash('sha256').update(info).digest('hex')}`;

/** Length of a stream's key. */
export const keyBytes = 32;

const firstBlockBytes = 512;
const largestBlockBytes = 1 << 16;
const zeros = new Uint8Array(largestBlockBytes);

/**
 * The stream of (key, label, index): the {@link keystream} of its {@link streamKey}.
 *
 * @param key secret of 32 bytes
 * @param label what the numbers are for, e.g. `noise:conv1.weight`
 * @param index tells apart streams of one label; a whole number below 2^53
 */
export function stream(key: Uint8Array, label: string, index = 0): Stream {
  const own = streamKey(key, label, index);
  try {
    return keystream(own);
  } finally {
    own.fill(0);
  }
}

/**
 * The 32-byte key of the stream of (key, label, index): HKDF-SHA256 of `key` with an unambiguous encoding of label and
 * index. `key` is only read; the result is as secret as the stream, and the caller's to erase.
 */
export function streamKey(key: Uint8Array, label: string, index = 0): Uint8Array {
  if (key.length !== keyBytes) throw new RangeError(`a stream needs a key of ${keyBytes} bytes, found ${key.length}`);
  if (!Number.isSafeInteger(index) || index < 0)
    throw new RangeError(`a stream's index is a whole number, found ${index}`);
  const info = JSON.stringify(['ghostgrad/stream/1', label, index]);
  return new Uint8Array(hkdfSync('sha256', key, new Uint8Array(0), info.length <= mostInfo ? info : digestOf(info), keyBytes));
}

/** The stream of a key of its own, as {@link streamKey} makes them. `key` is only read, and not needed any more. */
export function keystream(key: Uint8Array): Stream {
  const cipher = createCipheriv('aes-256-ctr', key, new Uint8Array(16));

  let block = new Uint32Array(0);
  let position = 0;
  // Small parameters need few words, large ones long blocks: blocks grow by doubling.
  let blockBytes = firstBlockBytes;

  const refill = (atLeast: number): void => {
    const bytes = Math.max(blockBytes, atLeast * 4);
    const output = cipher.update(bytes <= zeros.length ? zeros.subarray(0, bytes) : new Uint8Array(bytes));
    block =
      output.byteOffset % 4 === 0
        ? new Uint32Array(output.buffer, output.byteOffset, bytes >>> 2)
        : new Uint32Array(output.buffer.slice(output.byteOffset, output.byteOffset + bytes));
    position = 0;
    blockBytes = Math.min(blockBytes * 2, largestBlockBytes);
  };
  const words = (count: number): Uint32Array => {
    if (block.length - position < count) refill(count);
    position += count;
    return block.subarray(position - count, position);
  };
  const word = (): number => {
    if (position === block.length) refill(1);
    return block[position++] ?? 0;
  };

  return {
    words,
    word,
    uniform: () => (word() * 2 ** 21 + (word() >>> 11) + 0.5) * 2 ** -53,
    preciseUniform: () => {
      let scale = 2 ** -32;
      let leading = word();
      // A leading zero word has probability 2^-32; 31 of them in a row (2^-992) end the loop within doubles' range.
      for (let i = 0; leading === 0 && i < 30; i++) {
        scale *= 2 ** -32;
        leading = word();
      }
      return (leading + (word() + (word() + 0.5) * 2 ** -32) * 2 ** -32) * scale;
    },
  };
}
