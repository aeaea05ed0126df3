import { proofBatchSizes } from '../autodiff/batch-independence.ts';
import { behind } from '../autodiff/frozen.ts';
import { defaultRho } from '../clipping/norm.ts';
import { hasFixedSize } from '../privacy/index.ts';
import { leastMicroBatch } from '../privacy/lattice.ts';
import type { Feeds } from '../runtime/engine.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { type Tensor, type TensorType, bytesPerElement, sizeOf, tensor, zeros } from '../tensor/tensor.ts';
import { stepArithmetic } from './arithmetic.ts';
import { type Analysis, atBatchSize, compileTask } from './compile.ts';
import { copiesOf } from './model.ts';
import { fitsBudget } from './planner.ts';
import { availableMemory, withPeakMemory } from './peak-memory.ts';
import type { Recipe } from './recipe.ts';
import { type BatchSource, type StepProgram, type StepSettings, compileStep, defaultMicroBatch, lanesFor, trainableSize } from './step.ts';

/** What one physical batch size was measured at. */
export interface Trial {
  readonly microBatch: number;
  /** Units computed in a second, a typical logical batch's padding included. */
  readonly unitsPerSecond: number;
  /** Memory that the step took beyond what the process held before. */
  readonly peakMiB: number;
  /** What the trial cost. */
  readonly seconds: number;
}

/** A compiled step and how its physical batch size came about. */
export interface MicroBatchChoice {
  readonly program: StepProgram;
  /** For people to read. */
  readonly reason: string;
}

export interface MicroBatchLimits {
  /** Units of a typical logical batch. */
  readonly typical: number;
  /** Logical batches of the whole run. */
  readonly steps: number;
  /** Units that a physical batch holds at least, whatever it takes; default 1. */
  readonly least?: number | undefined;
  /** Most memory that a step may take; `auto`: {@link memoryShare} of what is free. */
  readonly memoryMiB: number | 'auto';
}

/** Share of the free memory that a step may take unless told otherwise. */
export const memoryShare = 0.6;

/** A larger batch must be faster by this factor to be worth its memory. */
const worthwhile = 1.03;
/** Trials after the first may take this share of the expected time of the run, and no more seconds than that. */
const budget = { share: 0.05, seconds: 20 };
/** What the first guess at a size goes by, in operations of a matrix product: their time is what counts. */
const guess = {
  /** Adding one number to a sum, which happens once a physical batch. */
  addition: 32,
  /** Writing and reading one value of the forward pass. */
  value: 10,
  /** Additions may take this share of the step. */
  additions: 0.005,
  /** Shares of a typical logical batch at least, for the lanes. */
  parts: 8,
  /** The most units; beyond them what a batch reads again has left every cache. */
  most: 2048,
  /** A trial computes so much at a time, a few seconds of one core, and no more where units can be spared. */
  trial: 1e11,
};
/** The first guess at memory for each unit, over that of the forward pass's values. Only the first trial relies on it. */
const backwardFactor = 4;

/**
 * Compiles the step at the physical batch size, a power of two, that computes a typical logical batch fastest within a
 * memory limit. Sizes are **measured, on made-up inputs**: the time of a step on private data would tell of the data.
 * Neither the result (apart from rounding) nor the guarantee depends on the size.
 *
 * The search begins at {@link guessedSize}, or lower where a trial would take long or the memory for it is in doubt, and doubles
 * the size while that makes it faster; else it halves it. A size is tried only when the memory that the smaller ones took leaves
 * room for it. Losers are released.
 */
export async function fastestStep(
  analysis: Analysis, settings: Omit<StepSettings, 'microBatch'>, { typical, steps, least = 1, memoryMiB }: MicroBatchLimits,
): Promise<MicroBatchChoice> {
  const limit = memoryMiB === 'auto' ? (memoryShare * availableMemory()) / 2 ** 20 : memoryMiB;
  const { threads = defaultThreads(), rowsPerUnit = 1 } = settings;
  const lanes = lanesFor(analysis, threads);
  const top = largestInBudget(powerOfTwoFrom(typical), analysis, settings, lanes);
  let kept: StepProgram | undefined;
  const trials = new Map<number, StepProgram>();
  const measure = async (microBatch: number): Promise<Trial> => {
    const { program, trial } = await tryOut(analysis, { ...settings, microBatch }, typical);
    trials.set(microBatch, program);
    return trial;
  };
  const drop = async (microBatch: number): Promise<void> => trials.get(microBatch)?.release();
  try {
    const perUnit = arithmeticPerUnit(analysis, settings);
    const soon = powerOfTwoWithin(guess.trial / perUnit);
    const wanted = Math.min(Math.max(least, Math.min(guessedSize(analysis, settings, typical, perUnit), soon)), top);
    const start = firstSize(wanted, least, lanes * rowsPerUnit * bytesPerRow(analysis) * backwardFactor, limit * 2 ** 20);
    const { best, all, why } = await search({ start, least, top, limit, measure, drop, units: steps * typical });
    kept = trials.get(best.microBatch);
    return { program: kept!, reason: `${describe(all)}; ${why}` };
  } finally {
    // What a failure left behind.
    if (kept === undefined) await Promise.allSettled([...trials.values()].map((program) => program.release()));
  }
}

/** The step at the physical batch size that a recipe names, or else the fastest one ({@link fastestStep}). */
export async function stepFor(
  analysis: Analysis, { training: { seed, fullBatch = false }, privacy, performance: { microBatch, memoryMiB } }: Recipe,
  settings: Omit<StepSettings, 'microBatch'>, { batchSize, steps }: { readonly batchSize: number; readonly steps: number },
): Promise<MicroBatchChoice> {
  const at = async (size: number, reason: string): Promise<MicroBatchChoice> =>
    ({ program: await compileStep(analysis, { ...settings, microBatch: size }), reason });
  if (microBatch !== 'auto') return at(microBatch, 'as the recipe says');
  // The size shows in the last bits of a sum, and what is measured is never quite the same again.
  const isFixed = fullBatch || (privacy !== 'none' && hasFixedSize(privacy.sampling));
  const least = privacy !== 'none' && privacy.noise === 'discrete' ? leastMicroBatch(batchSize, isFixed) : 1;
  if (seed !== undefined)
    return at(Math.min(Math.max(least, guessedSize(analysis, settings, batchSize)), Math.ceil(batchSize)), 'not measured: a seeded run is to be reproducible');
  // A Poisson draw is of the expected size, give or take its root.
  return fastestStep(analysis, settings, { typical: Math.ceil(batchSize + (isFixed ? 0 : Math.sqrt(batchSize))), steps, least, memoryMiB });
}

/**
 * The search of {@link fastestStep}, apart from what it measures.
 *
 * @param limit MiB
 * @param units of the whole run
 * @param drop called for every size that was measured and is not the best
 */
export async function search({ start, least = 1, top, limit, units, measure, drop }: {
  readonly start: number;
  /** As in {@link MicroBatchLimits}. */
  readonly least?: number | undefined;
  readonly top: number;
  readonly limit: number;
  readonly units: number;
  readonly measure: (microBatch: number) => Promise<Trial>;
  readonly drop: (microBatch: number) => Promise<void>;
}): Promise<{ readonly best: Trial; readonly all: readonly Trial[]; readonly why: string }> {
  const first = await measure(start);
  const all = [first];
  let best = first;
  let why = '';
  let spent = 0;
  /** Tries a size unless something speaks against it, and takes it when `better` says so. */
  const attempt = async (size: number, better: (next: Trial) => boolean): Promise<boolean> => {
    const allowed = Math.min(budget.seconds, (budget.share * units) / first.unitsPerSecond);
    const cost = all.at(-1)!.seconds * Math.max(1, size / all.at(-1)!.microBatch);
    const fits = best.peakMiB <= limit;
    if (size > best.microBatch && expectedPeak(size, all) > limit) why = `${size} might not fit into ${Math.round(limit)} MiB`;
    // Memory that is exceeded is no matter of time.
    else if (fits && spent + cost > allowed) why = `a further trial would take more than ${(100 * budget.share)} % of the run, or ${budget.seconds} s`;
    else {
      const next = await measure(size);
      spent += next.seconds;
      all.push(next);
      const taken = better(next);
      await drop(taken ? best.microBatch : size);
      if (taken) best = next;
      else why = `${size} is no faster`;
      return taken;
    }
    return false;
  };
  if (first.peakMiB <= limit) {
    const larger = (next: Trial): boolean => next.peakMiB <= limit && next.unitsPerSecond > worthwhile * best.unitsPerSecond;
    for (let going = true; going && best.microBatch < top;) going = await attempt(2 * best.microBatch, larger);
    if (best.microBatch === top) why = 'it holds a typical batch';
  }
  if (best === first) {
    const smaller = (next: Trial): boolean => best.peakMiB > limit || next.unitsPerSecond >= best.unitsPerSecond;
    for (let going = true; going && best.microBatch > least;) going = await attempt(best.microBatch / 2, smaller);
  }
  return { best, all, why };
}

/** A line through the two largest sizes measured; from one alone, as if all of its memory were the units'. */
function expectedPeak(size: number, all: readonly Trial[]): number {
  const [b, a] = [...all].sort((x, y) => y.microBatch - x.microBatch);
  if (a === undefined) return (b!.peakMiB * size) / b!.microBatch;
  const slope = Math.max(0, (b!.peakMiB - a.peakMiB) / (b!.microBatch - a.microBatch));
  return b!.peakMiB + slope * (size - b!.microBatch);
}

const describe = (all: readonly Trial[]): string =>
  [...all].sort((a, b) => a.microBatch - b.microBatch)
    .map(({ microBatch, unitsPerSecond, peakMiB }) => `${microBatch}: ${Math.round(unitsPerSecond)}/s in ${Math.round(peakMiB)} MiB`).join(', ');

/** The least power of two that is not below `size`. */
const powerOfTwoFrom = (size: number): number => 2 ** Math.ceil(Math.log2(Math.max(1, size)));

/** The largest power of two that is not above `size`; at least 1. */
const powerOfTwoWithin = (size: number): number => 2 ** Math.floor(Math.log2(Math.max(1, size)));

/** The time of the non-private step for one unit, in operations of a matrix product. */
function arithmeticPerUnit(analysis: Analysis, { mode, clipping, rho = defaultRho, rowsPerUnit = 1, right }: StepSettings): number {
  const { layers } = compileTask(analysis, defaultMicroBatch * rowsPerUnit, { mode, clipping, rho, rowsPerUnit, right });
  return stepArithmetic(layers, rowsPerUnit, mode).nonPrivate + (guess.value * rowsPerUnit * bytesPerRow(analysis)) / 4;
}

/**
 * A physical batch size by shapes alone, the same on every machine: {@link defaultMicroBatch}, or a larger one where
 * adding up the sums of so small a batch would take more than a small share of its time, as with a wide last layer.
 */
export function guessedSize(
  analysis: Analysis, settings: StepSettings, typical: number, perUnit = arithmeticPerUnit(analysis, settings),
): number {
  const additions = guess.addition * trainableSize(analysis);
  const wanted = 2 ** Math.round(Math.log2(additions / (guess.additions * perUnit)));
  return Math.max(defaultMicroBatch, Math.min(wanted, guess.most, powerOfTwoWithin(typical / guess.parts)));
}

/** `wanted`, halved until some plan of the step fits the budget that it is to be planned for, if there is one. */
function largestInBudget(wanted: number, analysis: Analysis, settings: StepSettings, lanes: number): number {
  const { mode, clipping, optimizeFor, rho = defaultRho, rowsPerUnit = 1 } = settings;
  if (typeof optimizeFor !== 'object' || wanted === 1) return wanted;
  return fitsBudget(analysis, wanted * rowsPerUnit, { mode, clipping, rho, rowsPerUnit }, { optimizeFor, lanes })
    ? wanted : largestInBudget(wanted / 2, analysis, settings, lanes);
}

/** `wanted`, halved until that many units fit. */
function firstSize(wanted: number, least: number, bytesEach: number, limit: number): number {
  return wanted > least && wanted * bytesEach > limit ? firstSize(wanted / 2, least, bytesEach, limit) : wanted;
}

/** Bytes of the forward pass's values for one row. */
function bytesPerRow({ proof, batch, task: { fed } }: Analysis): number {
  const { types } = fed === undefined ? proof : behind(proof, fed);
  const bytes = ({ dtype, shape }: TensorType): number => sizeOf(shape) * bytesPerElement(dtype);
  return [...types].reduce((sum, [name, type]) => sum + (batch.has(name) ? bytes(type) : 0), 0) / proofBatchSizes[0];
}

/** Runs timed after the one that warms up: so many, and more until so many seconds have passed. */
const repeats = { least: 2, most: 3, seconds: 0.3 };

async function tryOut(
  analysis: Analysis, settings: StepSettings & { readonly microBatch: number }, typical: number,
): Promise<{ readonly program: StepProgram; readonly trial: Trial }> {
  const before = process.memoryUsage.rss();
  const begun = performance.now();
  let parameters: Parameters<StepProgram['run']>[0] = copiesOf(analysis.task.model, analysis.parameters);
  const { result: { program, best, size }, peakMiB } = await withPeakMemory(before, async () => {
    const program = await compileStep(analysis, settings);
    try {
      // Several lanes share the caller's thread: what it keeps them waiting for shows once each has had a few turns.
      const turns = program.lanes > 1 ? 4 * program.lanes : 2;
      const batch = syntheticBatch(analysis, Math.min(typical, turns * settings.microBatch), settings.rowsPerUnit);
      const timed = async (): Promise<number> => {
        const start = performance.now();
        ({ parameters } = await program.run(parameters, batch, program.groups.map(() => 1)));
        return (performance.now() - start) / 1000;
      };
      await timed();
      const times: number[] = [];
      const isEnough = (): boolean => times.length >= repeats.least && times.reduce((a, b) => a + b, 0) >= repeats.seconds;
      while (times.length < repeats.most && !isEnough()) times.push(await timed());
      return { program, best: Math.min(...times), size: batch.size };
    } catch (error) {
      await program.release();
      throw error;
    }
  });
  const seconds = (performance.now() - begun) / 1000;
  return { program, trial: { microBatch: settings.microBatch, unitsPerSecond: size / best, peakMiB, seconds } };
}

/**
 * A batch of `size` examples in the shapes of a task, of which no number comes from data: reals are a fixed pattern, all
 * else is zero, which is a place in every table and a class among any.
 */
export function syntheticBatch({ task }: Pick<Analysis, 'task'>, size: number, rowsPerUnit = 1): BatchSource {
  const { graph } = atBatchSize(task, 2);
  const types = new Map<string, TensorType>(graph.inputs.map(({ name }) => [name, graph.types.get(name)!]));
  const made = new Map<number, [string, Tensor][]>();
  const patternOf = (units: number): [string, Tensor][] => {
    const found = made.get(units) ?? [...types].map(([name, { dtype, shape }]): [string, Tensor] =>
      [name, patterned(zeros(dtype, [units * rowsPerUnit, ...shape.slice(1)]))]);
    made.set(units, found);
    return found;
  };
  return {
    size,
    // Copies, which take no longer than reading would: what is timed is the step.
    feeds: (_start, _count, units, spare): Feeds =>
      Object.fromEntries(patternOf(units).map(([name, t]) => [name, spare?.[name] ?? copyOf(t)])),
  };
}

const copyOf = (t: Tensor): Tensor => tensor(t.dtype, t.shape, t.data.slice());

function patterned(t: Tensor): Tensor {
  if (t.dtype === 'float32') for (let i = 0; i < t.data.length; i++) (t.data as Float32Array)[i] = ((i * 37) % 101) / 50 - 1;
  return t;
}
