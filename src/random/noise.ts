import { addGaussian } from './gaussian.ts';
import type { OneTimeKey } from './ratchet.ts';

/** An array that is to receive noise. */
export interface NoiseTarget {
  /** What the noise is for, apart from all else that one key serves. */
  readonly label: string;
  readonly values: Float32Array | Float64Array;
  /** Standard deviation of the noise on each number. */
  readonly deviation: number;
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

/** How `targets` are cut into chunks; follows from their lengths alone. */
export const chunksOf = (targets: readonly NoiseTarget[]): NoiseChunk[] =>
  targets.flatMap(({ label, values: { length } }, target) =>
    Array.from({ length: Math.ceil(length / noiseChunk) }, (_, index) => {
      const start = index * noiseChunk;
      return { target, start, end: Math.min(length, start + noiseChunk), label, index };
    }));

type StreamOf = Parameters<Parameters<OneTimeKey['use']>[0]>[0];

/**
 * values ← (values + N(0, deviation²))·scale for every target, on this thread. {@link NoiseThreads} come to the same
 * values bit by bit, however many there are.
 *
 * @throws GhostgradError when a value is not finite
 */
export function addNoise(targets: readonly NoiseTarget[], scale: number, streamOf: StreamOf): void {
  for (const { target, start, end, label, index } of chunksOf(targets)) {
    const { values, deviation } = targets[target]!;
    addGaussian(values.subarray(start, end), deviation, streamOf(label, index), scale);
  }
}
