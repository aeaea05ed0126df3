import type { Mode } from '../clipping/plan.ts';
import { defaultThreads } from '../runtime/threads.ts';
import type { Memory } from './memory.ts';
import { type Jobs, type Timed, measureMemory, measureTime } from './measure.ts';
import { median } from './statistics.ts';
import type { BenchModel } from './workload.ts';

export interface BenchOptions extends BenchModel {
  readonly batchSize: number;
  readonly modes: readonly Mode[];
  readonly threads?: number | undefined;
  /** Timed rounds; default 10. */
  readonly repeats?: number | undefined;
  /** Fresh processes that a figure of memory is the median of; default {@link freshProcesses}. */
  readonly processes?: number | undefined;
  readonly onProgress?: ((message: string) => void) | undefined;
}

export interface ModeResult {
  readonly mode: Mode;
  readonly medianMs: number;
  readonly minMs: number;
  /** Highest resident memory during the first step of a fresh process, less what it had before; median of `processes`. */
  readonly peakMiB: number;
  /** Highest resident memory of that process in all, the model included; median of `processes`. */
  readonly residentMiB: number;
  /** Arithmetic of the layers that are trained in the non-private step (the same for every mode) over the median time. */
  readonly modelGflops: number;
  /** `modelGflops` / `gemmGflops`. */
  readonly rate: number;
  /** Arithmetic that the mode adds to the non-private step, relative to it, as `explain` tells it. */
  readonly extraFlopShare: number;
  /** What {@link peakMiB} should be by the plan, inputs and parameters not counted, in bytes. */
  readonly plannedLiveBytes: number;
}

export interface BenchResult {
  readonly model: string;
  readonly sequence?: number;
  readonly lora?: number;
  readonly batchSize: number;
  readonly threads: number;
  /** Rate of a 2048³ matrix product in the same run: the best round. */
  readonly gemmGflops: number;
  /**
   * Rate at which ONNX Runtime computes the model's own forward contractions, each once and nothing else, in the same
   * run: median of the rounds. A step whose backward pass ran as fast, and whose other operators were free, would have it.
   */
  readonly ceilingGflops: number;
  readonly results: readonly ModeResult[];
  /** Medians of the paired rounds' ratios to `non-private`, when it was among the modes. */
  readonly ratios: Readonly<Record<string, { readonly time: number; readonly memory: number }>>;
}

/** Times one training step in every mode, each in a process of its own. Memory is that of a fresh process's first step. */
export async function benchStep(options: BenchOptions): Promise<BenchResult> {
  const { model, sequence, lora, batchSize, modes, threads = defaultThreads(), repeats = 10 } = options;
  const say = options.onProgress ?? (() => undefined);
  const steps: Jobs = Object.fromEntries(modes.map((mode) => [mode, { kind: 'step', model, sequence, lora, batchSize, mode, threads }]));

  say('measuring memory');
  const peaks = await measureMemory(steps, options.processes);
  say('measuring time');
  const { gemm, contractions, ...timed } = await measureTime({
    gemm: { kind: 'gemm', size: 2048, threads }, contractions: { kind: 'contractions', model, sequence, lora, batchSize, threads },
    ...steps,
  }, repeats, say);

  const rateOf = ({ facts, ms }: Timed): readonly number[] => ms.map((time) => facts.flops / time / 1e6);
  const gemmGflops = Math.max(...rateOf(gemm!));
  const results = modes.map((mode): ModeResult => {
    const { facts, ms } = timed[mode]!;
    return {
      mode, medianMs: median(ms), minMs: Math.min(...ms), peakMiB: medianOf(peaks[mode]!, 'peakMiB'), residentMiB: medianOf(peaks[mode]!, 'residentMiB'),
      modelGflops: facts.flops / median(ms) / 1e6,
      rate: facts.flops / median(ms) / 1e6 / gemmGflops,
      extraFlopShare: facts.extraFlopShare,
      plannedLiveBytes: facts.plannedLiveBytes ?? 0,
    };
  });
  const [base, basePeak] = [timed['non-private']?.ms, peaks['non-private']];
  return {
    model, ...(sequence !== undefined && { sequence }), ...(lora !== undefined && { lora }), batchSize, threads, results,
    gemmGflops,
    ceilingGflops: median(rateOf(contractions!)),
    ratios: base === undefined || basePeak === undefined ? {} : Object.fromEntries(results.map(({ mode, peakMiB }) => [mode, {
      time: median(timed[mode]!.ms.map((ms, i) => ms / base[i]!)), memory: peakMiB / medianOf(basePeak, 'peakMiB'),
    }])),
  };
}

const medianOf = (memory: readonly Memory[], figure: keyof Memory): number => median(memory.map((one) => one[figure]));
