import { type ClippingOptions, defaultRho } from '../clipping/norm.ts';
import type { Mode } from '../clipping/plan.ts';
import { type StepGraph, type StepLayer, stepNames } from '../clipping/step-graph.ts';
import type { TypedGraph } from '../graph/ir.ts';
import type { Engine, Feeds, Session } from '../runtime/engine.ts';
import { defaultThreads } from '../runtime/threads.ts';
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

/** Rows computed at once unless told otherwise: large enough to keep a core busy, small enough for its cache. */
export const defaultMicroBatch = 64;

/** Models up to this many trainable numbers are computed by several single-threaded lanes side by side. */
const largestForLanes = 2_000_000;

/** What a remainder is computed in: parts of this size, so that padding wastes little. */
const remainderOf = (microBatch: number): number => Math.max(1, Math.round(microBatch / 4));

/**
 * Compiles one training step. A small model's micro-batches are spread over lanes, one for each core: many of a small
 * step's operators run on one core anyway. A large model has one lane that uses all cores. The result does not depend
 * on the lanes: sums are added up in the order of the micro-batches.
 */
export async function compileStep(analysis: Analysis, settings: StepSettings): Promise<StepProgram> {
  const microBatch = settings.microBatch ?? defaultMicroBatch;
  const rho = settings.rho ?? defaultRho;
  const rowsPerUnit = settings.rowsPerUnit ?? 1;
  const threads = settings.threads ?? defaultThreads();
  const small = remainderOf(microBatch);
  const isPrivate = settings.mode !== 'non-private';
  const size = analysis.parameters.reduce((sum, name) => sum + (analysis.task.model.initializers.get(name)?.data.length ?? 0), 0);
  const lanes = size <= largestForLanes ? threads : 1;

  const stepOf = (units: number): StepGraph =>
    compileTask(analysis, units * rowsPerUnit, { mode: settings.mode, clipping: settings.clipping, rho, rowsPerUnit });
  const steps = { full: stepOf(microBatch), small: stepOf(small) };
  const names = [...new Set(steps.full.layers.map(({ parameter }) => parameter))];
  const open = (graph: TypedGraph): Promise<Session> => settings.engine.compile(graph, { threads: lanes > 1 ? 1 : threads });
  const sessions: Lane[] = await Promise.all(Array.from({ length: lanes }, async () => ({
    full: await open(steps.full.graph), small: await open(steps.small.graph),
  })));

  return {
    parameters: names, microBatch, rho, layers: steps.full.layers,
    run: async (parameters, batch, threshold) => {
      const parts = cut(batch.size, microBatch, small);
      const sums = sumsOver(names);
      const losses = new Float32Array(batch.size);
      const norms = new Float32Array(isPrivate ? batch.size : 0);
      const added = parts.map(() => signal());
      let next = 0;
      const work = async (lane: Lane, own: Parameters): Promise<Parameters> => {
        let held: Feeds = Object.fromEntries(own);
        while (next < parts.length) {
          const at = next++;
          const { start, count, units } = parts[at]!;
          const { outputs, feeds } = await (units === microBatch ? lane.full : lane.small).run({
            ...held, ...batch.feeds(start, count, units),
            [stepNames.rowMask]: mask(count * rowsPerUnit, units * rowsPerUnit),
            ...(isPrivate && { [stepNames.threshold]: tensor('float32', [], Float32Array.of(threshold)) }),
          });
          held = Object.fromEntries(Object.keys(held).map((name) => [name, feeds[name] ?? held[name]!]));
          await added[at - 1]?.done;
          sums.add(outputs);
          losses.set((outputs[stepNames.losses]!.data as Float32Array).subarray(0, count), start);
          if (isPrivate) norms.set((outputs[stepNames.norms]!.data as Float32Array).subarray(0, count), start);
          added[at]!.resolve();
        }
        return new Map(Object.entries(held) as [string, FloatTensor][]);
      };
      // Copies for the other lanes are taken before the first lane's buffers move away.
      const copies = sessions.slice(1).map((lane) => ({ lane, own: copyOf(parameters) }));
      const [back] = await Promise.all([
        work(sessions[0]!, parameters), ...copies.map(({ lane, own }) => work(lane, own)),
      ]);
      return { sums: sums.result(back), losses, norms, parameters: back };
    },
    release: async () => {
      await Promise.all(sessions.flatMap(({ full, small: rest }) => [full.release(), rest.release()]));
    },
  };
}

/** Sessions that take turns on one share of the cores. */
interface Lane {
  readonly full: Session;
  /** For remainders. */
  readonly small: Session;
}

const copyOf = (parameters: Parameters): Parameters =>
  new Map([...parameters].map(([name, t]) => [name, { ...t, data: t.data.slice() }]));

function signal(): { readonly done: Promise<void>; readonly resolve: () => void } {
  let resolve: () => void = () => undefined;
  const done = new Promise<void>((settle) => { resolve = settle; });
  return { done, resolve };
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
