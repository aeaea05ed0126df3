import { liveBytes } from '../clipping/live.ts';
import type { LayerRule, Mode } from '../clipping/plan.ts';
import type { StepGraph, StepOptions } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import { clippingCost, stepArithmetic } from './arithmetic.ts';
import { type Analysis, compileTask } from './compile.ts';

/** What a step's plan is to spare: time, memory, or time within a budget of bytes. */
export type OptimizeFor = 'time' | 'memory' | { readonly budget: number };

/**
 * A way to compute the whole step. All of them have the same norms and the same bound, and the same sums but for a unit that is
 * not finite in one group of several: mode `per-layer` drops it from that group alone, the others from all.
 */
export interface StepPlan {
  readonly mode: Mode;
  readonly layersBy: LayerRule;
}

export interface Candidate extends StepPlan {
  /** The most bytes of activations, gradients and sums that exist at one time ({@link liveBytes}), in each lane. */
  readonly liveBytes: number;
  /** Norms, sums and a second pass by the complexity model, memory traffic included, in operations for the batch. */
  readonly cost: number;
  readonly extraFlopShare: number;
}

interface Tried {
  readonly plan: Candidate;
  readonly step: StepGraph;
}

export interface PlanChoice extends Tried {
  readonly candidates: readonly Candidate[];
  /** For people to read. */
  readonly reason: string;
}

export interface PlanLimits {
  /** By default nothing is chosen: the mode is taken as it is. */
  readonly optimizeFor?: OptimizeFor | undefined;
  /** Steps that are computed side by side, and share the budget; default 1. */
  readonly lanes?: number | undefined;
}

/**
 * The plans that a mode leaves open. `book-keeping`, the default, stands for whatever is best: one pass with the layers'
 * norms by either rule, the two passes of mixed ghost clipping and, where there are several groups, one pass that clips
 * each as soon as its norm is known. Any other mode is kept.
 */
function plansOf(mode: Mode, groups: number): readonly StepPlan[] {
  const onePass = (of: Mode): StepPlan[] => [{ mode: of, layersBy: 'time' }, { mode: of, layersBy: 'space' }];
  if (mode === 'per-layer') return onePass(mode);
  if (mode !== 'book-keeping') return [asItIs(mode)];
  return [...onePass(mode), asItIs('mixed-ghost'), ...(groups > 1 ? onePass('per-layer') : [])];
}

/** A mode as it is where nothing is chosen. */
const asItIs = (mode: Mode): StepPlan => ({ mode, layersBy: mode === 'mixed-ghost' ? 'space' : 'time' });

/** The step by one plan, and what it takes. */
function tryPlan(analysis: Analysis, rows: number, options: StepOptions, plan: StepPlan): Tried {
  const step = compileTask(analysis, rows, { ...options, ...plan });
  const { extra, nonPrivate } = stepArithmetic(step.layers, rows, plan.mode);
  return { step, plan: {
    ...plan, liveBytes: liveBytes(step.graph), cost: clippingCost(step.layers, rows, plan.mode),
    extraFlopShare: nonPrivate === 0 ? 0 : extra / nonPrivate,
  } };
}

/**
 * Compiles the step by each of a few plans, and takes the one that serves the aim: `time` the least cost, `memory` the
 * fewest planned bytes, a budget the least cost among those that fit. Only shapes decide, so the same task is always
 * planned alike, and nothing of the data shows.
 *
 * @param rows of the physical batch
 * @throws GhostgradError where no plan fits the budget
 */
export function choosePlan(
  analysis: Analysis, rows: number, options: StepOptions, { optimizeFor, lanes = 1 }: PlanLimits,
): PlanChoice {
  if (optimizeFor === undefined) {
    const only = tryPlan(analysis, rows, options, asItIs(options.mode));
    return { ...only, candidates: [only.plan], reason: 'the mode as it is' };
  }
  const plans = plansOf(options.mode, options.clipping.groups?.length ?? 1);
  const all = distinct(plans.map((plan) => tryPlan(analysis, rows, options, plan)));
  const candidates = all.map(({ plan }) => plan);
  const budget = typeof optimizeFor === 'object' ? optimizeFor.budget : Infinity;
  const fitting = all.filter(({ plan }) => lanes * plan.liveBytes <= budget);
  if (fitting.length === 0) throw tooSmall(candidates, budget, rows, lanes);
  const by = optimizeFor === 'memory' ? 'liveBytes' : 'cost';
  const other = by === 'cost' ? 'liveBytes' : 'cost';
  const best = fitting.reduce((a, b) => (b.plan[by] - a.plan[by] || b.plan[other] - a.plan[other]) < 0 ? b : a);
  return { ...best, candidates, reason: reasonOf(best.plan, optimizeFor, candidates.length, lanes) };
}

/** Whether {@link choosePlan} finds a plan within the budget; it compiles no more of them than that takes. */
export function fitsBudget(
  analysis: Analysis, rows: number, options: StepOptions,
  { optimizeFor, lanes = 1 }: PlanLimits & { readonly optimizeFor: { readonly budget: number } },
): boolean {
  return plansOf(options.mode, options.clipping.groups?.length ?? 1)
    .some((plan) => lanes * tryPlan(analysis, rows, options, plan).plan.liveBytes <= optimizeFor.budget);
}

/** Plans that come to the same are told once. */
function distinct(all: readonly Tried[]): readonly Tried[] {
  const same = (a: Candidate, b: Candidate): boolean => a.mode === b.mode && a.liveBytes === b.liveBytes && a.cost === b.cost;
  return all.filter(({ plan }, i) => !all.slice(0, i).some((before) => same(before.plan, plan)));
}

const mib = (bytes: number): string => `${(bytes / 2 ** 20).toPrecision(4)} MiB`;

function reasonOf({ layersBy, liveBytes: bytes }: Candidate, aim: OptimizeFor, count: number, lanes: number): string {
  const why = aim === 'time' ? 'the least time' : aim === 'memory' ? 'the least memory' : `the least time within ${mib(aim.budget)}`;
  const each = lanes > 1 ? ` in each of ${lanes} lanes` : '';
  return `layers by ${layersBy}, ${why} of ${count} plan${count > 1 ? 's' : ''}, ${mib(bytes)} planned${each}`;
}

function tooSmall(candidates: readonly Candidate[], budget: number, rows: number, lanes: number): GhostgradError {
  const least = lanes * Math.min(...candidates.map(({ liveBytes: bytes }) => bytes));
  return new GhostgradError({
    what: 'no plan of the step fits the memory budget', where: `optimizeFor: { budget: ${budget} }`,
    found: `${least} bytes (${mib(least)}) in the smallest plan, for ${rows} rows at once${lanes > 1 ? ` in each of ${lanes} lanes` : ''}`,
    expected: `at most ${budget} bytes`,
    fix: rows > 1 ? 'choose a smaller microBatch (explain: --batch-size), or a larger budget'
      : lanes > 1 ? 'use fewer threads, or a larger budget' : 'choose a larger budget',
  });
}
