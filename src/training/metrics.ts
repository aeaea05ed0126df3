import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { type Files, explained, nodeFiles, syncFolder, writeAll } from '../files.ts';
import { eventFileHeader, recordsUpTo, scalarsRecord, startOf } from './tensorboard.ts';

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
  /** Noised means over the step's examples, by name (the recipe's `privacy.metrics`), which ε covers; null where it has none. */
  readonly metrics?: Readonly<Record<string, number>> | null;
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
  // Loops: a full batch may be of millions, for which calls of functions would take as long as some of its micro-batches.
  let [finite, total] = [0, 0];
  for (const loss of losses) {
    if (!Number.isFinite(loss)) continue;
    finite += 1;
    total += loss;
  }
  const K = thresholds.length;
  const wholes = new Float64Array(K === 0 ? 0 : norms.length / K);
  let [counted, clipped] = [0, 0];
  for (let at = 0; at < wholes.length * K; at += K) {
    let [squares, above] = [0, 0];
    for (let k = 0; k < K; k++) {
      squares += norms[at + k]! ** 2;
      if (norms[at + k]! > thresholds[k]!) above += 1;
    }
    if (!Number.isFinite(squares)) continue;
    wholes[counted++] = Math.sqrt(squares);
    clipped += above;
  }
  return {
    drawn: losses.length,
    loss: finite === 0 ? null : total / finite,
    medianNorm: counted === 0 ? null : ranked(wholes.subarray(0, counted), counted >> 1),
    clipFraction: counted === 0 ? null : clipped / (counted * K),
  };
}

/** The value that would stand at place `rank` if all were sorted (Hoare's selection); they change places. */
function ranked(values: Float64Array, rank: number): number {
  let [low, high] = [0, values.length - 1];
  while (low < high) {
    const pivot = values[(low + high) >> 1]!;
    let [i, j] = [low, high];
    while (i <= j) {
      while (values[i]! < pivot) i++;
      while (values[j]! > pivot) j--;
      if (i > j) break;
      const value = values[i]!;
      values[i++] = values[j]!;
      values[j--] = value;
    }
    if (rank <= j) high = j;
    else if (rank >= i) low = i;
    else break;
  }
  return values[rank]!;
}

/** Files that grow by a line for each step. */
export interface MetricsLog {
  write(metrics: PublicMetrics, uncovered: UncoveredMetrics): void;
  /** Makes what was written durable: a resumed run goes on after it. */
  sync(): void;
  close(): void;
}

/**
 * The logs of a run folder: `metrics.jsonl` and TensorBoard's events for what may be shown, `private/metrics.jsonl`
 * for what may not. Logs that are there already are continued after the last line that an earlier process wrote of `step`.
 *
 * @param step steps taken before; default 0
 */
export function metricsLog(
  folder: string, step = 0, system: Files = nodeFiles, now: () => number = () => Date.now() / 1000,
): MetricsLog {
  const begun = eventsIn(folder);
  const started = begun?.started ?? now();
  const eventsName = begun?.name ?? `events.out.tfevents.${Math.floor(started)}.ghostgrad`;
  const files = {
    shown: openLog(join(folder, 'metrics.jsonl'), 0o644, linesUpTo(step), system),
    events: openLog(join(folder, eventsName), 0o644, (bytes) => recordsUpTo(bytes, step), system),
    uncovered: openLog(join(folder, 'private', 'metrics.jsonl'), 0o600, linesUpTo(step), system),
  };
  if (files.events.isEmpty) files.events.append(eventFileHeader(started));
  return {
    write: (metrics, uncovered) => {
      const { step, epsilon, learningRate, thresholds, metrics: privatised = null } = metrics;
      files.shown.append(line({ step, epsilon, learningRate, ...(thresholds !== null && { thresholds }), ...(privatised !== null && { metrics: privatised }) }));
      files.events.append(
        // All at the start of the run: the time that a step took tells of the number drawn.
        scalarsRecord(Math.floor(started), step, {
          ...(epsilon !== null && { 'privacy/epsilon': epsilon }),
          'training/learning_rate': learningRate,
          ...Object.fromEntries(
            Object.entries(thresholds ?? {}).map(([group, value]) => [`clipping/threshold/${group}`, value]),
          ),
          ...Object.fromEntries(Object.entries(privatised ?? {}).map(([name, value]) => [`privatised/${name}`, value])),
        }),
      );
      files.uncovered.append(line({ step, ...uncovered }));
    },
    sync: () => {
      Object.values(files).forEach((file) => file.sync());
      for (const each of [folder, join(folder, 'private')]) explained('write', each, () => { syncFolder(each, system); });
    },
    close: () => Object.values(files).forEach((file) => file.close()),
  };
}

const line = (record: object): Uint8Array => Buffer.from(`${JSON.stringify(record)}\n`);

/** The length of the whole lines of steps up to `step`, which come first. */
const linesUpTo = (step: number) => (bytes: Buffer): number => {
  let kept = 0;
  for (let end = bytes.indexOf(10); end >= 0; end = bytes.indexOf(10, kept)) {
    if (!(stepOf(bytes.toString('utf8', kept, end)) <= step)) break;
    kept = end + 1;
  }
  return kept;
};

function stepOf(text: string): number {
  try {
    return Number((JSON.parse(text) as { readonly step?: unknown }).step);
  } catch {
    return NaN;
  }
}

/** TensorBoard's file of an earlier process, and when its run began. */
function eventsIn(folder: string): { readonly name: string; readonly started: number } | undefined {
  const name = readdirSync(folder).find((entry) => /^events\.out\.tfevents\.\d+\.ghostgrad$/.test(entry));
  const started = name === undefined ? undefined : startOf(readFileSync(join(folder, name)));
  return name === undefined || started === undefined ? undefined : { name, started };
}

interface Log {
  readonly isEmpty: boolean;
  readonly append: (bytes: Uint8Array) => void;
  readonly sync: () => void;
  readonly close: () => void;
}

/** @param kept how many of the bytes that are there are to stay */
function openLog(path: string, mode: number, kept: (bytes: Buffer) => number, files: Files): Log {
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
  const before = attempt(() => (existsSync(path) ? readFileSync(path) : undefined));
  let position = before === undefined ? 0 : kept(before);
  const file = attempt(() => files.open(path, before === undefined ? 'wx' : 'r+', mode));
  if (before !== undefined && position < before.length) attempt(() => files.truncate(file, position));
  return {
    isEmpty: position === 0,
    append: (bytes) => {
      attempt(() => writeAll(file, bytes, files, position));
      position += bytes.length;
    },
    sync: () => attempt(() => files.sync(file)),
    close: () => attempt(() => files.close(file)),
  };
}
