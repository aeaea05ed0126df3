import type { ClippingOptions } from '../clipping/norm.ts';
import { defaultRho } from '../clipping/norm.ts';
import type { Mode } from '../clipping/plan.ts';
import { type StepGraph, type StepLayer, stepNames } from '../clipping/step-graph.ts';
import type { Engine, Feeds, Session } from '../runtime/engine.ts';
import { type FloatTensor, type Tensor, sizeOf, tensor } from '../tensor/tensor.ts';
import { type Analysis, compileTask } from './compile.ts';

export interface StepSettings {
  readonly mode: Mode;
  readonly clipping: ClippingOptions;
  /** Rows computed at once. Default {@link defaultMicroBatch}. */
  readonly microBatch?: number | undefined;
  /** Consecutive rows that belong to one privacy unit; default 1. */
  readonly rowsPerUnit?: number | undefined;
  /** Slack of the clipping bound; default {@link defaultRho}. */
  readonly rho?: number | undefined;
  readonly threads?: number | undefined;
  readonly engine: Engine;
}

/** Rows of a logical batch, however many were drawn. */
export interface BatchSource {
  /** Privacy units in the batch. */
  readonly size: number;
  /**
   * Inputs and labels for the units start … start+count-1, padded with zeros to `units` units
   * (units · rowsPerUnit rows).
   */
  feeds(start: number, count: number, units: number): Feeds;
}

export type Parameters = ReadonlyMap<string, FloatTensor>;

export interface StepResult {
  /** Σ of clipped gradients (plain gradients in `non-private` mode) by parameter, each of the parameter's size. */
  readonly sums: ReadonlyMap<string, Float32Array | Float64Array>;
  /** Not covered by ε: one loss and one gradient norm for each unit drawn (norms are empty in `non-private` mode). */
  readonly losses: Float32Array;
  readonly norms: Float32Array;
  /** The parameters, with buffers that are valid on this thread again. */
  readonly parameters: Parameters;
}

export interface StepProgram {
  readonly parameters: readonly string[];
  readonly microBatch: number;
  readonly rho: number;
  readonly layers: readonly StepLayer[];
  /** Runs one logical batch. The parameters' buffers move to the engine meanwhile; use those of the result after. */
  run(parameters: Parameters, batch: BatchSource, threshold: number): Promise<StepResult>;
  release(): Promise<void>;
}

/** Rows computed at once unless told otherwise: large enough to keep the cores busy, small enough for their caches. */
export const defaultMicroBatch = 128;

/** What a remainder is computed in: parts of this size, so that padding wastes little. */
const remainderOf = (microBatch: number): number => Math.max(1, Math.round(microBatch / 8));

/** Compiles one training step: two sessions, one for full micro-batches and one, made when needed, for remainders. */
export async function compileStep(analysis: Analysis, settings: StepSettings): Promise<StepProgram> {
  const microBatch = settings.microBatch ?? defaultMicroBatch;
  const rho = settings.rho ?? defaultRho;
  const rowsPerUnit = settings.rowsPerUnit ?? 1;
  const compile = async (units: number): Promise<{ step: StepGraph; session: Session }> => {
    const step = compileTask(analysis, units * rowsPerUnit, { mode: settings.mode, clipping: settings.clipping, rho, rowsPerUnit });
    return { step, session: await settings.engine.compile(step.graph, { threads: settings.threads }) };
  };
  const full = await compile(microBatch);
  const small = remainderOf(microBatch);
  let remainder: Awaited<ReturnType<typeof compile>> | undefined;

  return {
    parameters: full.step.layers.map(({ parameter }) => parameter),
    microBatch, rho, layers: full.step.layers,
    run: async (parameters, batch, threshold) => {
      const names = full.step.layers.map(({ parameter }) => parameter);
      const sums = sumsOver(names);
      const losses = new Float32Array(batch.size);
      const norms = new Float32Array(settings.mode === 'non-private' ? 0 : batch.size);
      let current: Feeds = Object.fromEntries(parameters);
      for (const { start, count, units } of cut(batch.size, microBatch, small)) {
        const { session } = units === microBatch ? full : (remainder ??= await compile(units));
        const { outputs, feeds } = await session.run({
          ...current, ...batch.feeds(start, count, units),
          [stepNames.rowMask]: mask(count * rowsPerUnit, units * rowsPerUnit),
          ...(settings.mode !== 'non-private' && { [stepNames.threshold]: tensor('float32', [], Float32Array.of(threshold)) }),
        });
        current = Object.fromEntries([...parameters.keys()].map((name) => [name, feeds[name] ?? current[name]!]));
        sums.add(outputs);
        losses.set((outputs[stepNames.losses]!.data as Float32Array).subarray(0, count), start);
        if (norms.length > 0) norms.set((outputs[stepNames.norms]!.data as Float32Array).subarray(0, count), start);
      }
      const back = new Map(Object.entries(current) as [string, FloatTensor][]);
      return { sums: sums.result(back), losses, norms, parameters: back };
    },
    release: async () => {
      await full.session.release();
      await remainder?.session.release();
    },
  };
}

/** Cuts `size` units into physical batches: full ones, then small ones for what is left. */
export function cut(size: number, full: number, small: number): { start: number; count: number; units: number }[] {
  const parts: { start: number; count: number; units: number }[] = [];
  for (let start = 0; start < size;) {
    // A remainder that nearly fills a full batch is cheaper as one.
    const units = size - start > full - small ? full : small;
    const count = Math.min(units, size - start);
    parts.push({ start, count, units });
    start += count;
  }
  return parts;
}

const mask = (present: number, rows: number): Tensor =>
  tensor('bool', [rows], Uint8Array.from({ length: rows }, (_, i) => (i < present ? 1 : 0)));

/** Adds up micro-batches: the first is kept as it is, more are summed in float64. */
function sumsOver(names: readonly string[]) {
  const sums = new Map<string, Float32Array | Float64Array>();
  return {
    add: (outputs: Readonly<Record<string, Tensor>>): void => {
      for (const name of names) {
        const part = outputs[stepNames.sum(name)]!.data as Float32Array;
        const so = sums.get(name);
        if (so === undefined) {
          sums.set(name, part);
          continue;
        }
        const total = so instanceof Float64Array ? so : Float64Array.from(so);
        for (let i = 0; i < total.length; i++) total[i]! += part[i]!;
        sums.set(name, total);
      }
    },
    /** An empty draw has sums of zero. */
    result: (parameters: Parameters) => new Map(names.map((name) =>
      [name, sums.get(name) ?? new Float32Array(sizeOf(parameters.get(name)!.shape))] as const)),
  };
}
