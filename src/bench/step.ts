import { type ChildProcess, fork } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Mode } from '../clipping/plan.ts';
import { GhostgradError } from '../errors.ts';
import type { ModelName } from '../models/index.ts';
import { defaultThreads } from '../runtime/threads.ts';
import type { ChildReply, ChildRequest } from './child.ts';
import type { BenchJob } from './workload.ts';

export interface BenchOptions {
  readonly model: ModelName;
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
}

export interface BenchResult {
  readonly model: string;
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
  const jobOf = (mode: Mode): BenchJob => ({ kind: 'step', model: options.model, batchSize: options.batchSize, mode, threads });

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
      modelGflops: (children.get(mode)?.flops ?? 0) / median(ms) / 1e6,
    };
  });
  const base = times.get('non-private');
  const basePeak = results.find(({ mode }) => mode === 'non-private')?.peakMiB;
  return {
    model: options.model, batchSize: options.batchSize, threads, results,
    gemmGflops: gemm.flops / Math.min(...gemmTimes.slice(1)) / 1e6,
    ratios: base === undefined || basePeak === undefined ? {} : Object.fromEntries(results.map(({ mode, peakMiB }) => [mode, {
      time: median((times.get(mode) ?? []).map((ms, i) => ms / (base[i] ?? NaN))), memory: peakMiB / basePeak,
    }])),
  };
}

export interface Child {
  readonly flops: number;
  run(): Promise<{ ms: number; peakMiB: number }>;
  stop(): void;
}

/** A process of its own that measures one job. */
export async function startChild(job: BenchJob): Promise<Child> {
  const program = fileURLToPath(new URL('./child.js', import.meta.url));
  if (!existsSync(program)) {
    throw new GhostgradError({ what: 'the benchmark runs from the built package only', where: 'bench', expected: 'dist/', fix: 'npm run build' });
  }
  const process = fork(program, { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  const ask = asker(process);
  const ready = await ask({ kind: 'start', job });
  if (ready.kind !== 'ready') throw new Error('unexpected answer of a benchmark process');
  return {
    flops: ready.flops,
    run: async () => {
      const reply = await ask({ kind: 'run' });
      if (reply.kind !== 'ran') throw new Error('unexpected answer of a benchmark process');
      return reply;
    },
    stop: () => process.send({ kind: 'stop' } satisfies ChildRequest),
  };
}

const asker = (process: ChildProcess) => (request: ChildRequest): Promise<ChildReply> => new Promise((resolve, reject) => {
  const failed = (code: number | null) => reject(new Error(`a benchmark process ended with code ${code ?? 'none'}`));
  process.once('exit', failed);
  process.once('message', (reply) => {
    process.off('exit', failed);
    resolve(reply as ChildReply);
  });
  process.send(request);
});

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}
