import { hkdfSync, randomFillSync } from 'node:crypto';
import { GhostgradError } from '../errors.ts';
import { type Stream, stream, streamKey } from './stream.ts';

/**
 * A forward-secure source of step keys. The key of step t makes that step's sampling and noise keys and, by a
 * one-way function (HKDF-SHA256), the key of step t + 1; then it is erased. Whoever obtains the state after
 * step t can compute later steps, but no noise or sampling of step t or before.
 */
export interface Ratchet {
  /** The step that {@link advance} makes the keys of next; 0 at first. */
  readonly step: number;
  /** Whether the first key came from a user's seed: then nothing is secret and no guarantee holds. */
  readonly seeded: boolean;
  /** The keys of step {@link step}; moves to the next step and erases the key of this one. */
  advance(): StepKeys;
  /**
   * The state: format version, seeded, step, newest key (50 bytes). As secret as the noise: mode 0600, in no
   * export, wiped after use.
   */
  serialise(): Uint8Array;
  /** Overwrites the key; the ratchet cannot be used any more. */
  erase(): void;
}

/** The keys of one step. Each can be used once: using one twice would add the same noise to two sums. */
export interface StepKeys {
  readonly step: number;
  readonly seeded: boolean;
  /** For the draw of the examples. */
  readonly sampling: OneTimeKey;
  /** For the noise. */
  readonly noise: OneTimeKey;
}

/** A key that lends itself once and is then erased. */
export interface OneTimeKey {
  readonly used: boolean;
  /**
   * Calls `f` with a function that makes the key's streams, and one that makes the streams' own keys for other threads
   * to draw from (whoever takes them erases them); erases the key when `f` returns.
   * Throws GhostgradError when the key was used before.
   */
  use<T>(
    f: (streamOf: (label: string, index?: number) => Stream, keyOf: (label: string, index?: number) => Uint8Array) => T,
  ): T;
}

const version = 1;
const stateBytes = 10 + 32 + 8;
const magic = 'ghostrat';

/**
 * A new ratchet, from the operating system's random generator, or from `seed`, which makes a run reproducible and voids its
 * privacy guarantee.
 *
 * @param step the first whose keys it makes
 */
export function ratchet(seed?: number | string, step = 0): Ratchet {
  if (seed === undefined) return ratchetFrom(randomFillSync(secret()), step, false);
  if (typeof seed === 'number' && !Number.isFinite(seed))
    throw new RangeError(`a seed is a finite number or a text, found ${seed}`);
  // JSON keeps the number 7 and the text '7' apart.
  return ratchetFrom(expand(new TextEncoder().encode(JSON.stringify(seed)), 'seed'), step, true);
}

/** The ratchet whose {@link Ratchet.serialise} gave `state`. Throws GhostgradError for anything else. */
export function restoreRatchet(state: Uint8Array): Ratchet {
  const view = new DataView(state.buffer, state.byteOffset, state.byteLength);
  const valid =
    state.length === stateBytes &&
    new TextDecoder('latin1').decode(state.subarray(0, 8)) === magic &&
    state[8] === version &&
    (state[9] === 0 || state[9] === 1);
  const step = valid ? Number(view.getBigUint64(10)) : -1;
  if (!valid || !Number.isSafeInteger(step)) {
    throw new GhostgradError({
      what: 'unreadable state of the random ratchet',
      found: `${state.length} bytes`,
      expected: `${stateBytes} bytes of format version ${version}`,
      fix: 'resume from a checkpoint that this version of ghostgrad wrote',
    });
  }
  const key = secret();
  key.set(state.subarray(18, 50));
  return ratchetFrom(key, step, state[9] === 1);
}

function ratchetFrom(first: Uint8Array, start: number, seeded: boolean): Ratchet {
  let key = first;
  let step = start;
  let erased = false;
  const alive = (): void => {
    if (erased) throw new GhostgradError({ what: 'the random ratchet was erased', fix: 'start a new run' });
  };
  return {
    get step() {
      return step;
    },
    seeded,
    advance() {
      alive();
      const keys: StepKeys = {
        step,
        seeded,
        sampling: oneTimeKey(expand(key, 'sampling'), 'sampling', step),
        noise: oneTimeKey(expand(key, 'noise'), 'noise', step),
      };
      const next = expand(key, 'next');
      key.fill(0);
      key = next;
      step += 1;
      return keys;
    },
    serialise() {
      alive();
      const state = new Uint8Array(new ArrayBuffer(stateBytes));
      state.set(new TextEncoder().encode(magic));
      state.set([version, seeded ? 1 : 0], 8);
      new DataView(state.buffer).setBigUint64(10, BigInt(step));
      state.set(key, 18);
      return state;
    },
    erase() {
      key.fill(0);
      erased = true;
    },
  };
}

function oneTimeKey(key: Uint8Array, purpose: string, step: number): OneTimeKey {
  let used = false;
  return {
    get used() {
      return used;
    },
    use(f) {
      if (used) {
        throw new GhostgradError({
          what: `the ${purpose} key of step ${step} was used twice`,
          expected: 'one draw of examples and one addition of noise for each step',
          fix: 'advance the ratchet for each logical step',
        });
      }
      used = true;
      try {
        return f((label, index) => stream(key, label, index), (label, index) => streamKey(key, label, index));
      } finally {
        key.fill(0);
      }
    },
  };
}

// Small typed arrays live in the JavaScript heap, where garbage collection leaves copies behind that cannot be
// erased; an explicit ArrayBuffer lives outside of it.
const secret = (): Uint8Array => new Uint8Array(new ArrayBuffer(32));

const expand = (key: Uint8Array, label: string): Uint8Array =>
  new Uint8Array(hkdfSync('sha256', key, new Uint8Array(0), `ghostgrad/ratchet/1/${label}`, 32));
