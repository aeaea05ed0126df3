import type { Mode } from '../clipping/plan.ts';
import { GhostgradError } from '../errors.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { residentMemoryOf } from './memory.ts';
import { startChild } from './process.ts';
import type { BenchJob, BenchModel } from './workload.ts';

export interface MaxBatchOptions extends BenchModel {
  /** What the measured peak of a step may be. */
  readonly memoryMiB: number;
  readonly modes: readonly Mode[];
  readonly threads?: number | undefined;
  /** Largest batch that is tried; default 16384. */
  readonly limit?: number | undefined;
  readonly onProgress?: ((message: string) => void) | undefined;
}

/** One batch size, tried in a fresh process. */
export interface Probe {
  readonly batchSize: number;
  /**
   * `stopped`: its resident memory went so far beyond the bound that it was ended; `failed`: it ended by itself, or
   * ONNX Runtime got no memory.
   */
  readonly outcome: 'fits' | 'exceeds' | 'stopped' | 'failed';
  /** Highest resident memory during the process's first step less what it had before; where the step ended. */
  readonly peakMiB?: number;
  readonly ms?: number;
  readonly message?: string;
}

export interface MaxBatchResult {
  readonly model: string;
  readonly sequence?: number;
  readonly memoryMiB: number;
  readonly threads: number;
  readonly results: readonly {
    readonly mode: Mode;
    /** Largest batch that was seen to fit; 0 where one example does not. The next larger one tried is at most 2 % larger. */
    readonly maxBatch: number;
    /** Of the step at that batch. */
    readonly peakMiB?: number | undefined;
    readonly ms?: number | undefined;
    /** Whether it is the largest that was allowed to be tried. */
    readonly isLimit: boolean;
    readonly probes: readonly Probe[];
  }[];
  /** Largest batches, relative to that of `non-private`, when it was among the modes. */
  readonly ratios: Readonly<Record<string, number>>;
}

/** How far apart the largest batch that fits and the smallest that does not may be left. */
const tolerance = 0.02;

/**
 * The largest physical batch whose step stays within a bound of memory, mode by mode. Counted is what `bench step`
 * counts: the highest resident set of a fresh process during its first step, less what was resident when the session
 * was created and the inputs made; that is activations, gradients and working space, without parameters and data.
 *
 * @throws GhostgradError where the kernel does not tell a process's memory, and where not even one example can be run
 */
export async function maxBatch(options: MaxBatchOptions): Promise<MaxBatchResult> {
  const { model, sequence, memoryMiB, modes, threads = defaultThreads(), limit = 16384 } = options;
  const say = options.onProgress ?? (() => undefined);
  if (residentMemoryOf(process.pid) === undefined) {
    throw new GhostgradError({
      what: 'the memory of another process cannot be watched here', where: 'bench max-batch', found: process.platform,
      expected: 'Linux, whose kernel tells it in /proc',
    });
  }
  const results: MaxBatchResult['results'][number][] = [];
  for (const mode of modes) {
    const probes: Probe[] = [];
    for (let next = nextBatch(probes, memoryMiB, limit); next !== undefined; next = nextBatch(probes, memoryMiB, limit)) {
      const probe = await tryBatch({ kind: 'step', model, sequence, batchSize: next, mode, threads }, memoryMiB);
      say(`${mode}: ${next} ${probe.outcome}${probe.peakMiB === undefined ? '' : ` (${probe.peakMiB.toFixed(0)} MiB)`}`);
      probes.push(probe);
    }
    requireRun(mode, probes);
    const best = largestFit(probes);
    results.push({ mode, maxBatch: best?.batchSize ?? 0, peakMiB: best?.peakMiB, ms: best?.ms, isLimit: best?.batchSize === limit, probes });
  }
  const base = results.find(({ mode }) => mode === 'non-private')?.maxBatch;
  return {
    model, ...(sequence !== undefined && { sequence }), memoryMiB, threads, results,
    ratios: base === undefined || base === 0 ? {} : Object.fromEntries(results.map((r) => [r.mode, r.maxBatch / base])),
  };
}

const largestFit = (probes: readonly Probe[]): Probe | undefined =>
  probes.filter(({ outcome }) => outcome === 'fits').sort((a, b) => b.batchSize - a.batchSize)[0];

/**
 * The batch to try next, or undefined when the answer is known to {@link tolerance}. Doubling and bisection find it
 * whatever the memory does; since it is all but linear in the batch, a line through the last measurements is asked first.
 */
export function nextBatch(probes: readonly Probe[], memoryMiB: number, limit: number): number | undefined {
  const fits = largestFit(probes)?.batchSize ?? 0;
  const beyond = Math.min(...probes.filter(({ outcome }) => outcome !== 'fits').map(({ batchSize }) => batchSize));
  const step = Math.max(1, Math.floor(tolerance * fits));
  if (fits === limit || beyond - fits <= step) return undefined;
  if (probes.length === 0) return Math.min(8, limit);
  if (fits === 0) return beyond >> 1;

  const guess = predicted(probes, memoryMiB) ?? 2 * fits;
  // Far beyond what was measured the line is not trusted, and after some misses it is no longer asked.
  if (beyond === Infinity) return Math.min(clamp(guess, fits + step, 8 * fits), limit);
  if (probes.length > 8) return (fits + beyond) >> 1;
  return clamp(guess, fits + step, Math.max(fits + step, beyond - step));
}

const clamp = (x: number, least: number, most: number): number => Math.max(least, Math.min(most, x));

/** Where the line through the two largest measured batches meets the bound. */
function predicted(probes: readonly Probe[], memoryMiB: number): number | undefined {
  const measured = probes.flatMap(({ batchSize, peakMiB }) => (peakMiB === undefined ? [] : [{ batchSize, peakMiB }]));
  const [b, a] = measured.sort((x, y) => y.batchSize - x.batchSize);
  if (a === undefined || b === undefined || b.peakMiB <= a.peakMiB) return undefined;
  const slope = (b.peakMiB - a.peakMiB) / (b.batchSize - a.batchSize);
  return Math.floor(b.batchSize + (memoryMiB - b.peakMiB) / slope);
}

const watchMs = 50;

/**
 * Runs one step in a fresh process, which is ended when its resident memory grows by more than 1.5 times the bound
 * during the step, or beyond nine tenths of what the machine had left.
 */
async function tryBatch(job: BenchJob & { readonly kind: 'step' }, memoryMiB: number): Promise<Probe> {
  const { batchSize } = job;
  let most = 0.9 * (process.availableMemory() / 2 ** 20);
  let watch: NodeJS.Timeout | undefined;
  let isStopped = false;
  try {
    const child = await startChild(job, (pid) => {
      watch = setInterval(() => {
        if ((residentMemoryOf(pid) ?? 0) <= most) return;
        isStopped = true;
        clearInterval(watch);
        process.kill(pid, 'SIGKILL');
      }, watchMs);
    });
    most = Math.min(most, (residentMemoryOf(child.pid) ?? 0) + 1.5 * memoryMiB);
    const { peakMiB, ms } = await child.run();
    child.stop();
    return { batchSize, outcome: peakMiB <= memoryMiB ? 'fits' : 'exceeds', peakMiB, ms };
  } catch (error) {
    if (!(error instanceof GhostgradError)) throw error;
    return isStopped ? { batchSize, outcome: 'stopped' } : { batchSize, outcome: 'failed', message: error.message };
  } finally {
    clearInterval(watch);
  }
}

/** What fails with a single example does not fail for its size. */
function requireRun(mode: Mode, probes: readonly Probe[]): void {
  const single = probes.find(({ batchSize, outcome }) => batchSize === 1 && outcome === 'failed');
  if (single === undefined) return;
  throw new GhostgradError({
    what: 'not even one example could be run', where: `mode ${mode}`, found: single.message, expected: 'a step that runs',
    fix: '`ghostgrad bench step` with --batch-size 1 says more',
  });
}
