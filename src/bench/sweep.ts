import type { Mode } from '../clipping/plan.ts';
import { defaultThreads } from '../runtime/threads.ts';
import type { LayerKind } from './layer.ts';
import { type Jobs, measureMemory, measureTime } from './measure.ts';
import { type Line, type Point, fitExponent, fitLine, median } from './statistics.ts';
import type { BenchJob, BenchModel } from './workload.ts';

/** What grows: positions or width of one layer alone, the physical batch of a model, or its logical batch. */
export const sweepAxes = ['positions', 'width', 'batch', 'logical'] as const;
export type SweepAxis = (typeof sweepAxes)[number];

interface Common {
  readonly values: readonly number[];
  readonly modes: readonly Mode[];
  readonly threads?: number | undefined;
  /** Timed rounds at each value; default 5. */
  readonly repeats?: number | undefined;
  /** Fresh processes that a figure of memory is the median of; default 3. */
  readonly processes?: number | undefined;
  readonly onProgress?: ((message: string) => void) | undefined;
}

export type SweepOptions = Common & (
  | {
    readonly over: 'positions' | 'width';
    readonly layer: LayerKind;
    readonly batchSize: number;
    /** Positions while the width grows. */
    readonly positions: number;
    /** Width while the positions grow. */
    readonly width: number;
  }
  | { readonly over: 'batch' } & BenchModel
  /** `batchSize`: of the physical batches. */
  | { readonly over: 'logical'; readonly batchSize: number } & BenchModel
);

export interface SweepPoint {
  readonly mode: Mode;
  /** What grew. */
  readonly value: number;
  readonly medianMs: number;
  readonly minMs: number;
  readonly peakMiB: number;
  /** Of one layer: how its norm was got, and what the complexity model predicts. */
  readonly norm?: string;
  readonly predictedFlops?: number;
  readonly predictedMiB?: number;
}

/** What the points of a mode, those whose norm is got alike, follow. */
export interface SweepFit {
  readonly mode: Mode;
  readonly norm?: string;
  readonly points: number;
  /** Exponents k of value^k by least squares of the logarithms: measured, and of the prediction at the same values. */
  readonly time: Fitted;
  /** `spread`: the largest over the smallest. */
  readonly memory: Fitted & { readonly spread: number };
}

interface Fitted {
  readonly exponent?: number | undefined;
  readonly predicted?: number | undefined;
  readonly line?: Line | undefined;
}

export interface SweepResult {
  readonly over: SweepAxis;
  /** What stood still. */
  readonly setting: Readonly<Record<string, string | number>>;
  readonly threads: number;
  readonly points: readonly SweepPoint[];
  readonly fits: readonly SweepFit[];
}

/**
 * Time and memory of a step while one size grows, in every mode. At each value the modes take turns; memory is that of
 * a fresh process's first step.
 */
export async function sweep(options: SweepOptions): Promise<SweepResult> {
  const { values, modes, threads = defaultThreads(), repeats = 5, processes = 3, onProgress: say = () => undefined } = options;
  const points: SweepPoint[] = [];
  for (const value of values) {
    say(`${options.over} ${value}`);
    const jobs: Jobs = Object.fromEntries(modes.map((mode) => [mode, jobOf(options, value, mode, threads)]));
    const peaks = await measureMemory(jobs, processes);
    const times = await measureTime(jobs, repeats);
    for (const mode of modes) {
      const { ms, facts: { prediction } } = times[mode]!;
      points.push({
        mode, value, medianMs: median(ms), minMs: Math.min(...ms), peakMiB: median(peaks[mode]!.map((memory) => memory.peakMiB)),
        ...(prediction && { norm: prediction.norm, predictedFlops: prediction.flops, predictedMiB: prediction.MiB }),
      });
    }
  }
  return { over: options.over, setting: settingOf(options), threads, points, fits: fitsOf(points) };
}

function jobOf(options: SweepOptions, value: number, mode: Mode, threads: number): BenchJob {
  switch (options.over) {
    case 'positions':
    case 'width': {
      const { layer, batchSize, over } = options;
      const positions = over === 'positions' ? value : options.positions;
      const width = over === 'width' ? value : options.width;
      return { kind: 'layer', layer, batchSize, positions, width, mode, threads };
    }
    case 'batch': return { kind: 'step', model: options.model, sequence: options.sequence, batchSize: value, mode, threads };
    case 'logical': {
      const { model, sequence, batchSize } = options;
      return { kind: 'logical', model, sequence, batchSize, logical: value, mode, threads };
    }
  }
}

function settingOf(options: SweepOptions): Readonly<Record<string, string | number>> {
  switch (options.over) {
    case 'positions': return { layer: options.layer, batchSize: options.batchSize, width: options.width };
    case 'width': return { layer: options.layer, batchSize: options.batchSize, positions: options.positions };
    case 'batch': return modelSetting(options);
    case 'logical': return { ...modelSetting(options), batchSize: options.batchSize };
  }
}

const modelSetting = ({ model, sequence }: BenchModel): Readonly<Record<string, string | number>> =>
  ({ model, ...(sequence !== undefined && { sequence }) });

/** Where a plan changes its norm the curve bends, so each mode's points are fitted norm by norm. */
export function fitsOf(points: readonly SweepPoint[]): SweepFit[] {
  const kinds = [...new Map(points.map(({ mode, norm }) => [`${mode} ${norm}`, { mode, norm }])).values()];
  return kinds.map(({ mode, norm }) => {
    const own = points.filter((point) => point.mode === mode && point.norm === norm);
    const curve = (y: (point: SweepPoint) => number | undefined): Point[] =>
      own.flatMap((point) => (y(point) === undefined ? [] : [[point.value, y(point)!] as const]));
    const fit = (measured: (point: SweepPoint) => number, predicted: (point: SweepPoint) => number | undefined) => ({
      exponent: fitExponent(curve(measured)), predicted: fitExponent(curve(predicted)), line: fitLine(curve(measured)),
    });
    const peaks = own.map(({ peakMiB }) => peakMiB);
    return {
      mode, ...(norm !== undefined && { norm }), points: own.length,
      time: fit(({ medianMs }) => medianMs, ({ predictedFlops }) => predictedFlops),
      memory: { ...fit(({ peakMiB }) => peakMiB, ({ predictedMiB }) => predictedMiB), spread: Math.max(...peaks) / Math.min(...peaks) },
    };
  });
}
