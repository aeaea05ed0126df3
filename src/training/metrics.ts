import { closeSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { eventFileHeader, scalarsRecord } from './tensorboard.ts';

/** Numbers of a step that may be shown to anyone: public, or covered by ε. */
export interface PublicMetrics {
  /** Steps taken. */
  readonly step: number;
  /** ε spent by them; null in a run without privacy. */
  readonly epsilon: number | null;
  readonly learningRate: number;
  /**
   * Adaptive thresholds of the step, by clipping group: they follow from noised counts alone, which ε covers. Null where
   * thresholds are fixed, and without privacy.
   */
  readonly thresholds: Readonly<Record<string, number>> | null;
}

/** Numbers of a step that were computed from private data without noise. */
export interface UncoveredMetrics {
  /** Examples drawn. */
  readonly drawn: number;
  /** Mean loss of the examples drawn, before the step's update; null when none was drawn. */
  readonly loss: number | null;
  /** Median norm of their whole gradients; null without privacy or when none was drawn. */
  readonly medianNorm: number | null;
  /** Fraction of them whose gradient was above the threshold, the mean over the clipping groups; null likewise. */
  readonly clipFraction: number | null;
  /** The expected batch size over the time that the step took, which tells of the number drawn. */
  readonly examplesPerSecond: number;
}

/**
 * Means over the examples drawn whose values are finite (the others had no part in the step).
 *
 * @param norms [examples · thresholds]
 */
export function summaryOf(
  losses: Float32Array, norms: Float32Array, thresholds: readonly number[],
): Omit<UncoveredMetrics, 'examplesPerSecond'> {
  const finite = losses.filter(Number.isFinite);
  const K = thresholds.length;
  const wholes = Float64Array.from({ length: K === 0 ? 0 : norms.length / K }, (_, i) =>
    Math.hypot(...norms.subarray(i * K, (i + 1) * K)));
  const sorted = wholes.filter(Number.isFinite).sort();
  const clipped = norms.filter((norm, i) => Number.isFinite(wholes[Math.floor(i / K)]) && norm > (thresholds[i % K] ?? NaN));
  return {
    drawn: losses.length,
    loss: finite.length === 0 ? null : finite.reduce((sum, loss) => sum + loss, 0) / finite.length,
    medianNorm: sorted[sorted.length >> 1] ?? null,
    clipFraction: sorted.length === 0 ? null : clipped.length / (sorted.length * K),
  };
}

/** Files that grow by a line for each step. */
export interface MetricsLog {
  write(metrics: PublicMetrics, uncovered: UncoveredMetrics): void;
  close(): void;
}

/**
 * The logs of a run folder: `metrics.jsonl` and TensorBoard's events for what may be shown, `private/metrics.jsonl`
 * for what may not.
 */
export function metricsLog(folder: string, now: () => number = () => Date.now() / 1000): MetricsLog {
  const started = now();
  const files = {
    shown: openLog(join(folder, 'metrics.jsonl'), 0o644),
    events: openLog(join(folder, `events.out.tfevents.${Math.floor(started)}.ghostgrad`), 0o644),
    uncovered: openLog(join(folder, 'private', 'metrics.jsonl'), 0o600),
  };
  files.events.append(eventFileHeader(started));
  return {
    write: (metrics, uncovered) => {
      const { step, epsilon, learningRate, thresholds } = metrics;
      files.shown.append(line({ step, epsilon, learningRate, ...(thresholds !== null && { thresholds }) }));
      files.events.append(
        // All at the start of the run: the time that a step took tells of the number drawn.
        scalarsRecord(Math.floor(started), step, {
          ...(epsilon !== null && { 'privacy/epsilon': epsilon }),
          'training/learning_rate': learningRate,
          ...Object.fromEntries(
            Object.entries(thresholds ?? {}).map(([group, value]) => [`clipping/threshold/${group}`, value]),
          ),
        }),
      );
      files.uncovered.append(line({ step, ...uncovered }));
    },
    close: () => Object.values(files).forEach((file) => file.close()),
  };
}

const line = (record: object): Uint8Array => Buffer.from(`${JSON.stringify(record)}\n`);

function openLog(
  path: string,
  mode: number,
): { readonly append: (bytes: Uint8Array) => void; readonly close: () => void } {
  const attempt = <T>(operation: () => T): T => {
    try {
      return operation();
    } catch (cause) {
      throw new GhostgradError(
        {
          what: 'metrics cannot be written',
          where: path,
          found: cause instanceof Error ? cause.message : String(cause),
          fix: 'free some space, or choose another output folder',
        },
        { cause },
      );
    }
  };
  const file = attempt(() => openSync(path, 'wx', mode));
  return {
    append: (bytes) =>
      attempt(() => {
        for (let at = 0; at < bytes.length;) at += writeSync(file, bytes, at);
      }),
    close: () => closeSync(file),
  };
}
