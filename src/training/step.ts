import type { Partition } from '../clipping/groups.ts';
import { type ClippingOptions, defaultRho, thresholdRange } from '../clipping/norm.ts';
import type { Mode } from '../clipping/plan.ts';
import { type StepLayer, type StepOptions, stepNames } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import type { TypedGraph } from '../graph/ir.ts';
import type { Engine, Feeds, Outputs, RunResult, Session } from '../runtime/engine.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { type FloatTensor, type Tensor, tensor } from '../tensor/tensor.ts';
import { type Totals, accumulator } from './accumulate.ts';
import { type Analysis, compileTask } from './compile.ts';
import { type Candidate, type OptimizeFor, choosePlan } from './planner.ts';

export interface StepSettings {
  readonly mode: Mode;
  /** Chooses among the plans that the mode leaves open ({@link choosePlan}); by default the mode is taken as it is. */
  readonly optimizeFor?: OptimizeFor | undefined;
  readonly clipping: ClippingOptions;
  /** Rows computed at once. Default {@link defaultMicroBatch}. */
  readonly microBatch?: number | undefined;
  /** Consecutive rows that belong to one privacy unit; default 1. */
  readonly rowsPerUnit?: number | undefined;
  /** Slack of the clipping bound; default {@link defaultRho}. */
  readonly rho?: number | undefined;
  /** Whether the step tells which units are classified right, for losses that classify. Default false. */
  readonly right?: boolean | undefined;
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
   *
   * @param spare feeds of an earlier call that nobody reads any more and that may be written over
   */
  feeds(start: number, count: number, units: number, spare?: Feeds): Feeds;
}

export type Parameters = ReadonlyMap<string, FloatTensor>;

/** With Σ of clipped gradients (plain gradients in `non-private` mode) by parameter, each of the parameter's size. */
export interface StepResult extends Totals {
  /** Not covered by ε: one loss for each unit drawn. */
  readonly losses: Float32Array;
  /** Not covered by ε: 1 for each unit that is classified right, else 0; none where it was not asked for. */
  readonly right?: Float32Array | undefined;
  /**
   * Not covered by ε: the norm of each unit's gradient in each group, [units, groups] (empty in `non-private` mode). Those
   * of a unit that was removed because something was not finite may be anything.
   */
  readonly norms: Float32Array;
  /** K, the number of groups. */
  readonly groups: number;
  /** The parameters, with buffers that are valid on this thread again. */
  readonly parameters: Parameters;
}

export interface StepProgram {
  readonly parameters: readonly string[];
  readonly microBatch: number;
  /** Micro-batches that are computed side by side. */
  readonly lanes: number;
  /** Whether its sums lie in shared memory, as large ones do, where all cores can add noise to them. */
  readonly sharesSums: boolean;
  readonly rho: number;
  /** How the step is computed, and why so. */
  readonly plan: Candidate & { readonly reason: string };
  readonly layers: readonly StepLayer[];
  /** The clipping groups, in the order of their thresholds. */
  readonly groups: Partition;
  /**
   * Runs one logical batch. The parameters' buffers move to the engine meanwhile; use those of the result after.
   *
   * @param thresholds one for each group; of no effect in `non-private` mode
   * @throws GhostgradError for another number of them, or one out of {@link thresholdRange}
   */
  run(parameters: Parameters, batch: BatchSource, thresholds: readonly number[]): Promise<StepResult>;
  release(): Promise<void>;
}

/** Rows computed at once unless told otherwise: large enough to keep a core busy, small enough for its cache. */
export const defaultMicroBatch = 64;

/** Models up to this many trainable numbers are computed by several single-threaded lanes side by side. */
const largestForLanes = 2_000_000;

/** Sums of at least this many numbers lie in shared memory. */
const largeSum = 1 << 19;

/** Physical batches that a logical one may have beside the full ones. */
export const smallerParts = 3;

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
  const sharesSums = trainableSize(analysis) >= largeSum;
  const lanes = lanesFor(analysis, threads);

  const options: StepOptions = { mode: settings.mode, clipping: settings.clipping, rho, rowsPerUnit, right: settings.right };
  const { optimizeFor } = settings;
  const { step: full, plan, reason } = choosePlan(analysis, microBatch * rowsPerUnit, options, { optimizeFor, lanes });
  // Remainders are computed as full batches are.
  const smallStep = once(() =>
    compileTask(analysis, small * rowsPerUnit, { ...options, mode: plan.mode, layersBy: plan.layersBy }));
  const { groups } = full;
  const names = [...new Set(full.layers.map(({ parameter }) => parameter))];
  const shapes = new Map(names.map((name) => [name, analysis.task.model.initializers.get(name)?.shape ?? []]));
  const open = (graph: TypedGraph): Promise<Session> => settings.engine.compile(graph, { threads: lanes > 1 ? 1 : threads, concurrent: lanes > 1 });
  const sessions: Lane[] = await Promise.all(Array.from({ length: lanes }, async () => ({
    full: await open(full.graph), small: once(() => open(smallStep().graph)), spare: new Map(),
  })));

  return {
    parameters: names, microBatch, lanes, sharesSums, rho, plan: { ...plan, reason }, layers: full.layers, groups,
    run: async (parameters, batch, thresholds) => {
      if (isPrivate) checkThresholds(thresholds, groups);
      const queue = partsOf(batch, cut(batch.size, microBatch, small));
      const sums = accumulator(shapes, { shared: sharesSums });
      const losses = new Float32Array(batch.size);
      const right = settings.right === true ? new Float32Array(batch.size) : undefined;
      const norms = new Float32Array(isPrivate ? batch.size * groups.length : 0);
      const added = Array.from({ length: queue.length }, signal);

      const start = async (lane: Lane, held: Feeds, { units, count, feeds }: Part): Promise<RunResult> => {
        const session = units === microBatch ? lane.full : await lane.small();
        const spare = lane.spare.get(units)?.pop();
        return session.run({
          ...held, ...feeds,
          [stepNames.rowMask]: mask(count * rowsPerUnit, units * rowsPerUnit),
          ...(isPrivate && { [stepNames.thresholds]: tensor('float32', [groups.length], Float32Array.from(thresholds)) }),
        }, spare);
      };
      const keep = async (lane: Lane, { at, start: from, count, units }: Part, { outputs }: RunResult): Promise<void> => {
        // Even where there is nothing to wait for: the lane's next run is posted first.
        await added[at - 1]?.done;
        const taken = new Set(sums.add(outputs));
        const left = Object.fromEntries(Object.entries(outputs).filter(([name]) => !taken.has(name)));
        lane.spare.set(units, [...(lane.spare.get(units) ?? []), left]);
        losses.set((outputs[stepNames.losses]!.data as Float32Array).subarray(0, count), from);
        right?.set((outputs[stepNames.right]!.data as Float32Array).subarray(0, count), from);
        if (isPrivate) {
          const found = outputs[stepNames.norms]!.data as Float32Array;
          norms.set(found.subarray(0, count * groups.length), from * groups.length);
        }
        added[at]!.resolve();
      };
      const work = async (lane: Lane, own: Parameters): Promise<Parameters> => {
        let held: Feeds = Object.fromEntries(own);
        // The engine computes while this thread adds up what came before and gathers what comes next.
        let behind: Promise<void> | undefined;
        for (let part = queue.take(); part !== undefined; part = queue.take()) {
          const running = start(lane, held, part);
          queue.prefetch();
          const [result] = await Promise.all([running, behind]);
          queue.giveBack(part, result.feeds);
          held = Object.fromEntries(Object.keys(held).map((name) => [name, result.feeds[name] ?? held[name]!]));
          behind = keep(lane, part, result);
        }
        await behind;
        return new Map(Object.entries(held) as [string, FloatTensor][]);
      };
      // A lane of several has its next run waiting when one ends, so that it need not wait for this thread, which may be busy.
      const [first, ...others] = lanes > 1 ? [...sessions, ...sessions] : sessions;
      // Copies for the others are taken before the first one's buffers move away.
      const copies = others.map((lane) => ({ lane, own: copyOf(parameters) }));
      const [back] = await Promise.all([
        work(first!, parameters), ...copies.map(({ lane, own }) => work(lane, own)),
      ]);
      return { ...sums.result(), losses, right, norms, groups: groups.length, parameters: back };
    },
    release: async () => {
      for (const lane of sessions) {
        await lane.full.release();
        await (await lane.small.made())?.release();
      }
    },
  };
}

function checkThresholds(thresholds: readonly number[], groups: Partition): void {
  const { least, most } = thresholdRange;
  if (thresholds.length !== groups.length) {
    throw new GhostgradError({
      what: 'not one threshold for each clipping group', found: `${thresholds.length} thresholds`,
      expected: `${groups.length}, for ${groups.map(({ name }) => name).join(', ')}`,
    });
  }
  const k = thresholds.findIndex((threshold) => !(threshold >= least && threshold <= most));
  if (k === -1) return;
  throw new GhostgradError({
    what: 'clipping threshold out of range', where: `clipping group "${groups[k]!.name}"`, found: String(thresholds[k]),
    expected: `${least} to ${most}: float32 can square, and weigh by, what is in that range`,
  });
}

/** Trainable numbers of a task. */
export const trainableSize = ({ parameters, task }: Analysis): number =>
  parameters.reduce((sum, name) => sum + (task.model.initializers.get(name)?.data.length ?? 0), 0);

/** How many micro-batches of a step run side by side. */
export const lanesFor = (analysis: Analysis, threads: number): number =>
  trainableSize(analysis) <= largestForLanes ? threads : 1;

/** Sessions that take turns on one share of the cores. */
interface Lane {
  readonly full: Session;
  /** For remainders; compiled when there is one. */
  readonly small: Once<Promise<Session>>;
  /** Outputs that have been read, by the units of their physical batch. */
  readonly spare: Map<number, Outputs[]>;
}

/** A value made at the first call. */
interface Once<T> {
  (): T;
  /** The value if it was made. */
  made(): T | undefined;
}

function once<T>(make: () => T): Once<T> {
  let made: { readonly value: T } | undefined;
  return Object.assign(() => (made ??= { value: make() }).value, { made: () => made?.value });
}

/** A physical batch: units start … start+count-1 of the logical one, padded to `units`. */
interface Part {
  readonly at: number;
  readonly start: number;
  readonly count: number;
  readonly units: number;
  readonly feeds: Feeds;
}

/** The parts in order, for whichever lane is free; the next one's feeds can be gathered ahead of time. */
function partsOf(batch: BatchSource, parts: ReturnType<typeof cut>) {
  let next = 0;
  let ready: Feeds | undefined;
  /** Feeds that were computed with, by their units. */
  const spare = new Map<number, Feeds[]>();
  const feedsAt = (at: number): Feeds | undefined => {
    const part = parts[at];
    return part && batch.feeds(part.start, part.count, part.units, spare.get(part.units)?.pop());
  };
  return {
    length: parts.length,
    take: (): Part | undefined => {
      const at = next;
      const feeds = ready ?? feedsAt(at);
      ready = undefined;
      if (feeds === undefined) return undefined;
      next += 1;
      return { at, ...parts[at]!, feeds };
    },
    prefetch: (): void => {
      ready ??= feedsAt(next);
    },
    giveBack: ({ units }: Part, feeds: Feeds): void => {
      spare.set(units, [...(spare.get(units) ?? []), feeds]);
    },
  };
}

const copyOf = (parameters: Parameters): Parameters =>
  new Map([...parameters].map(([name, t]) => [name, { ...t, data: t.data.slice() }]));

function signal(): { readonly done: Promise<void>; readonly resolve: () => void } {
  let resolve: () => void = () => undefined;
  const done = new Promise<void>((settle) => { resolve = settle; });
  return { done, resolve };
}

/** Cuts `size` units into physical batches: full ones, then small ones for what is left, at most {@link smallerParts}. */
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
