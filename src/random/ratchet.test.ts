import { describe, expect, it, vi } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { type Ratchet, type StepKeys, ratchet, restoreRatchet } from './ratchet.ts';

/** Every key that the ratchet derived, by the HKDF label, as the very buffers it holds. */
const derived: { label: string; from: Uint8Array; bytes: Uint8Array; copy: Uint8Array }[] = [];

vi.mock('node:crypto', async (original) => {
  const crypto = await original<typeof import('node:crypto')>();
  return {
    ...crypto,
    hkdfSync: (digest: string, from: Uint8Array, salt: Uint8Array, label: string, length: number) => {
      const result = crypto.hkdfSync(digest, from, salt, label, length);
      derived.push({ label, from, bytes: new Uint8Array(result), copy: new Uint8Array(result.slice(0)) });
      return result;
    },
  };
});

const noise = (keys: StepKeys): string => keys.noise.use((streamOf) => streamOf('noise:w').words(8).join());
const keyIn = (r: Ratchet): string => Buffer.from(r.serialise().subarray(18)).toString('hex');

describe('ratchet', () => {
  it('reproduces a seeded run, and tells seeds apart, numbers from text too', () => {
    const first = (seed: number | string): string => noise(ratchet(seed).advance());
    expect(first(7)).toBe(first(7));
    expect(new Set([first(7), first(8), first('7'), first('')]).size).toBe(4);
    for (const bad of [NaN, Infinity]) expect(() => ratchet(bad)).toThrow(RangeError);
    expect(ratchet(7).seeded).toBe(true);
    expect(ratchet(7).advance().seeded).toBe(true);
  });

  it('starts from fresh randomness without a seed', () => {
    expect(noise(ratchet().advance())).not.toBe(noise(ratchet().advance()));
    expect(ratchet().seeded).toBe(false);
  });

  it('gives sampling and noise of every step different keys', () => {
    const r = ratchet(1);
    const seen = Array.from({ length: 5 }, () => r.advance()).flatMap((keys) => [
      noise(keys),
      keys.sampling.use((streamOf) => streamOf('noise:w').words(8).join()),
    ]);
    expect(new Set(seen).size).toBe(10);
    expect(r.step).toBe(5);
  });

  it('continues from its serialised state as if it had not stopped', () => {
    for (const r of [ratchet(), ratchet(3)]) {
      r.advance();
      const restored = restoreRatchet(r.serialise());
      expect([restored.step, restored.seeded]).toEqual([1, r.seeded]);
      expect(noise(restored.advance())).toBe(noise(r.advance()));
    }
  });

  it('keeps nothing after a step from which its noise could be made again', () => {
    derived.length = 0;
    const r = ratchet();
    const before = keyIn(r);
    const keys = r.advance();
    noise(keys);
    keys.sampling.use((streamOf) => streamOf('poisson').word());
    // The state is the next key and nothing else; it comes from the old key by HKDF, which has no inverse.
    const byLabel = (part: string) => derived.filter(({ label }) => label.includes(part));
    const [next] = byLabel('ratchet/1/next');
    expect(keyIn(r)).toBe(Buffer.from(next?.copy ?? []).toString('hex'));
    expect(keyIn(r)).not.toBe(before);
    expect(Buffer.from(r.serialise()).toString('hex')).not.toContain(before);
    // The old key, the sampling key, the noise key and the streams' own keys are erased where they lay.
    expect(next?.from).toEqual(new Uint8Array(32));
    const used = [...byLabel('ratchet/1/sampling'), ...byLabel('ratchet/1/noise'), ...byLabel('stream/1')];
    expect(used).toHaveLength(4);
    for (const { bytes, copy } of used) {
      expect(copy).not.toEqual(new Uint8Array(32));
      expect(bytes).toEqual(new Uint8Array(32));
    }
    // What the state can still make is the noise of later steps only.
    const old = noise(ratchetAt(before));
    const later = restoreRatchet(r.serialise());
    expect(Array.from({ length: 20 }, () => noise(later.advance()))).not.toContain(old);
  });

  it('lends a key once, even when its user fails', () => {
    const keys = ratchet(1).advance();
    expect(() =>
      keys.noise.use(() => {
        throw new Error('stopped');
      }),
    ).toThrow('stopped');
    expect(keys.noise.used).toBe(true);
    expect(() => noise(keys)).toThrow(GhostgradError);
    expect(() => noise(keys)).toThrow('the noise key of step 0 was used twice');
    expect(keys.sampling.used).toBe(false);
  });

  it('cannot be used once erased', () => {
    const r = ratchet(1);
    r.erase();
    expect(() => r.advance()).toThrow(GhostgradError);
    expect(() => r.serialise()).toThrow(GhostgradError);
  });

  it('refuses states it did not write', () => {
    const state = ratchet(1).serialise();
    for (const bad of [
      state.subarray(1),
      new Uint8Array(50),
      new Uint8Array(0),
      state.map((b, i) => (i === 8 ? 2 : b)),
      state.map((b, i) => (i === 10 ? 255 : b)),
    ]) {
      expect(() => restoreRatchet(bad)).toThrow('unreadable state of the random ratchet');
    }
  });
});

/** The step keys of the ratchet whose key is `hex`. */
function ratchetAt(hex: string): StepKeys {
  const state = ratchet(1).serialise();
  state.set(Buffer.from(hex, 'hex'), 18);
  return restoreRatchet(state).advance();
}
