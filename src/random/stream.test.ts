import { createCipheriv, hkdfSync } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { stream } from './stream.ts';

const key = Uint8Array.from({ length: 32 }, (_, i) => i);

describe('stream', () => {
  it('is the AES-256-CTR keystream of the key derived for its label and index', () => {
    const derived = hkdfSync('sha256', key, '', '["ghostgrad/stream/1","noise",3]', 32);
    const raw = createCipheriv('aes-256-ctr', Buffer.from(derived), Buffer.alloc(16)).update(Buffer.alloc(400_000));
    const source = stream(key, 'noise', 3);
    const bytes = (words: Uint32Array): Buffer => Buffer.from(words.buffer, words.byteOffset, words.byteLength);
    // Word by word there is nothing to drop, whatever the block size.
    expect(bytes(Uint32Array.from({ length: 100_000 }, () => source.word())).equals(raw)).toBe(true);
    expect(bytes(stream(key, 'noise', 3).words(100_000)).equals(raw)).toBe(true);
  });

  it('gives every key, label and index a stream of its own', () => {
    const other = Uint8Array.from(key);
    other[31] = 0;
    const firsts = [stream(key, 'a'), stream(key, 'b'), stream(key, 'a', 1), stream(other, 'a'), stream(key, 'a",1]')];
    expect(new Set(firsts.map((s) => s.words(2).join())).size).toBe(firsts.length);
  });

  it('takes labels of any length', () => {
    const long = 'é'.repeat(400);
    const labels = [long, `${long}b`, `b${long}`, 'é'.repeat(5000), long.slice(0, 300)];
    expect(new Set(labels.map((label) => stream(key, label).words(2).join())).size).toBe(labels.length);
  });

  it('leaves the key as it was and refuses other lengths', () => {
    stream(key, 'a').word();
    expect(key[5]).toBe(5);
    expect(() => stream(key.subarray(1), 'a')).toThrow(RangeError);
    expect(() => stream(key, 'a', -1)).toThrow(RangeError);
  });

  it('draws uniforms of (0, 1] with the moments and bins of the uniform distribution', () => {
    const source = stream(key, 'uniform');
    for (const draw of [source.uniform, source.preciseUniform]) {
      const n = 200_000;
      const bins = new Float64Array(64);
      for (let i = 0; i < n; i++) {
        const u = draw();
        if (!(u > 0 && u <= 1)) throw new Error(`uniform ${u}`);
        const bin = Math.min(63, Math.floor(u * 64));
        bins[bin] = (bins[bin] ?? 0) + 1;
      }
      const chi2 = bins.reduce((sum, count) => sum + (count - n / 64) ** 2 / (n / 64), 0);
      // χ² with 63 degrees of freedom: mean 63, deviation 11.2.
      expect(chi2).toBeGreaterThan(25);
      expect(chi2).toBeLessThan(115);
    }
  });
});
