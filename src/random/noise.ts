import { type Lattice, addDiscrete } from './discrete-gaussian.ts';
import { addGaussian } from './gaussian.ts';
import type { OneTimeKey } from './ratchet.ts';
import type { Stream } from './stream.ts';

/**
 * Noise on each number: real numbers of some standard deviation, rounded to floats, or integers on a {@link Lattice} to whose
 * points the numbers are rounded first.
 */
export type NoiseLaw = { readonly deviation: number } | Lattice;

/** An array that is to receive noise. */
export interface NoiseTarget {
  /** What the noise is for, apart from all else that one key serves. */
  readonly label: string;
  readonly values: Float32Array | Float64Array;
  /** What rounding to `values` left over, if anything; it is noised with them. */
  readonly remainder?: Float32Array | undefined;
  readonly law: NoiseLaw;
}

/** Numbers that share a stream. Long arrays have several, so that threads can share the work. */
export const noiseChunk = 1 << 17;

/** The part of a target that one stream serves. */
export interface NoiseChunk {
  readonly target: number;
  readonly start: number;
  readonly end: number;
  readonly label: string;
  /** The stream's index beside its label. */
  readonly index: number;
}

/** How an array of `length` numbers is cut into chunks. */
export const chunksIn = (length: number): Pick<NoiseChunk, 'start' | 'end' | 'index'>[] =>
  Array.from({ length: Math.ceil(length / noiseChunk) }, (_, index) =>
    ({ start: index * noiseChunk, end: Math.min(length, (index + 1) * noiseChunk), index }));

/** How `targets` are cut into chunks; follows from their lengths alone. */
export const chunksOf = (targets: readonly NoiseTarget[]): NoiseChunk[] =>
  targets.flatMap(({ label, values }, target) => chunksIn(values.length).map((chunk) => ({ target, label, ...chunk })));

export type StreamOf = Parameters<Parameters<OneTimeKey['use']>[0]>[0];

/** values ← noised values·scale for the part of a target that `source` serves. */
export function addToChunk(targets: readonly NoiseTarget[], chunk: NoiseChunk, scale: number, source: Stream): void {
  const { start, end } = chunk;
  const { values, remainder, law } = targets[chunk.target]!;
  const [part, rest] = [values.subarray(start, end), remainder?.subarray(start, end)];
  if ('grid' in law) addDiscrete(part, rest, law, source, scale);
  else addGaussian(part, rest, law.deviation, source, scale);
}

/**
 * values ← noised values·scale for every target, on this thread. {@link NoiseThreads} come to the same values bit by bit,
 * however many there are.
 *
 * @throws GhostgradError when a value is not finite
 */
export function addNoise(targets: readonly NoiseTarget[], scale: number, streamOf: StreamOf): void {
  for (const chunk of chunksOf(targets)) addToChunk(targets, chunk, scale, streamOf(chunk.label, chunk.index));
}
