import type { Mode } from '../clipping/plan.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { type Child, startChild } from './process.ts';
import { median } from './statistics.ts';
import type { BenchJob, BenchModel } from './workload.ts';

export interface BenchOptions extends BenchModel {
  readonly batchSize: number;
  readonly modes: readonly Mode[];
  readonly threads?: number | undefined;
  /** Timed rounds; default 10. */
  readonly repeats?: number | undefined;
  readonly onProgress?: ((message: string) => void) | undefined;
}

export interface ModeResult {
  readonly mode: Mode;
  readonly medianMs: number;
  readonly minMs: number;
  /** Highest resident memory during the first step of a fresh process, less what it had before; median of 5. */
  readonly peakMiB: number;
  readonly modelGflops: number;
  /** Arithmetic that the mode adds to the non-private step, relative to it, as `explain` tells it. */
  readonly extraFlopShare: number;
}

export interface BenchResult {
  readonly model: string;
  readonly sequence?: number;
  readonly batchSize: number;
  readonly threads: number;
  /** Rate of a 2048³ matrix product in the same run. */
  readonly gemmGflops: number;
  readonly results: readonly ModeResult[];
  /** Medians of the paired rounds' ratios to `non-private`, when it was among the modes. */
  readonly ratios: Readonly<Record<string, { readonly time: number; readonly memory: number }>>;
}

const freshProcesses = 5;

/**
 * Times one training step in every mode, each in a process of its own, modes taking turns so that a noisy machine
 * disturbs all alike; ratios are taken within a round. Memory is that of a fresh process's first step.
 */
export async function benchStep(options: BenchOptions): Promise<BenchResult> {
  const threads = options.threads ?? defaultThreads();
  const repeats = options.repeats ?? 10;
  const say = options.onProgress ?? (() => undefined);
  const { model, sequence, batchSize } = options;
  const jobOf = (mode: Mode): BenchJob => ({ kind: 'step', model, sequence, batchSize, mode, threads });

  say('measuring memory');
  const peaks = new Map<Mode, number[]>(options.modes.map((mode) => [mode, []]));
  for (let i = 0; i < freshProcesses; i++) {
    for (const mode of options.modes) {
      const child = await startChild(jobOf(mode));
      peaks.get(mode)?.push((await child.run()).peakMiB);
      child.stop();
    }
  }

  say('measuring time');
  const gemm = await startChild({ kind: 'gemm', size: 2048, threads });
  const children = new Map<Mode, Child>();
  for (const mode of options.modes) children.set(mode, await startChild(jobOf(mode)));
  const times = new Map<Mode, number[]>(options.modes.map((mode) => [mode, []]));
  const gemmTimes: number[] = [];
  for (let round = -1; round < repeats; round++) {
    gemmTimes.push((await gemm.run()).ms);
    for (const [mode, child] of children) {
      const { ms } = await child.run();
      // The first round warms up.
      if (round >= 0) times.get(mode)?.push(ms);
    }
    say(`round ${Math.max(0, round + 1)} of ${repeats}`);
  }
  gemm.stop();
  children.forEach((child) => child.stop());

  const results = options.modes.map((mode): ModeResult => {
    const ms = times.get(mode) ?? [];
    return {
      mode, medianMs: median(ms), minMs: Math.min(...ms), peakMiB: median(peaks.get(mode) ?? []),
      extraFlopShare: children.get(mode)?.facts.extraFlopShare ?? 0,
      modelGflops: (children.get(mode)?.facts.flops ?? 0) / median(ms) / 1e6,
    };
  });
  const base = times.get('non-private');
  const basePeak = results.find(({ mode }) => mode === 'non-private')?.peakMiB;
  return {
    model, ...(sequence !== undefined && { sequence }), batchSize, threads, results,
    gemmGflops: gemm.facts.flops / Math.min(...gemmTimes.slice(1)) / 1e6,
    ratios: base === undefined || basePeak === undefined ? {} : Object.fromEntries(results.map(({ mode, peakMiB }) => [mode, {
      time: median((times.get(mode) ?? []).map((ms, i) => ms / (base[i] ?? NaN))), memory: peakMiB / basePeak,
    }])),
  };
}
