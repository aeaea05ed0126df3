import type { ContractionSize } from './contraction.ts';
import { gramBound, sumBound } from './gram.ts';

/** How a step gets norms and clipped sums. */
export type Mode =
  | 'non-private' | 'instantiate' | 'fast-gradient-clipping' | 'ghost' | 'mixed-ghost' | 'book-keeping' | 'per-layer';

export const modes: readonly Mode[] = [
  'non-private', 'instantiate', 'fast-gradient-clipping', 'ghost', 'mixed-ghost', 'book-keeping', 'per-layer',
];

/**
 * What decides between the two norms of a layer, in the modes of one pass: the time they take, or the space of what they
 * form (the paper's rule). Modes of two passes have their own rule.
 */
export type LayerRule = 'time' | 'space';

export type NormMethod = 'ghost' | 'instantiate';
export type SumMethod = 'product' | 'weighted';

/** What a layer's use of a parameter costs for one privacy unit, in floating-point operations. */
export interface Costs {
  /** Norm by Gram matrices. */
  readonly ghost: number;
  /** Norm of the instantiated gradient, forming it included. */
  readonly instantiate: number;
  /** Summed gradient as one product over the batch. */
  readonly product: number;
  /** Summed gradient from instantiated ones. */
  readonly weighted: number;
}

/**
 * Operations that take as long as moving one float32 to or from memory, on a processor whose matrix product runs
 * at some 30 GFLOP/s a core (measured ratio of MatMul to a copying operator; see BENCHMARKS.md).
 */
const operationsPerMove = 16;

/**
 * The same for writing where nothing was before: memory that the system hands out page by page, zeroed. Per-example
 * gradients of a large layer are that, at every step.
 */
const operationsPerFreshWrite = 100;

/** The complexity model: T positions, d inputs, p outputs (Bu et al. 2022, §3 and Table 2, with memory traffic). */
export function costsOf(size: ContractionSize): Costs {
  const { T, d, p, groups, gramDepth, gramTerms, unfolded, picked, read = 0, gramProducts = T * T * (gramDepth + p) } = size;
  const gradient = (d / groups) * p;
  if (picked === true) {
    const rows = T * p * operationsPerMove;
    const table = gradient * operationsPerMove;
    return { ghost: 4 * rows, instantiate: 2 * (rows + table), product: 4 * rows, weighted: table };
  }
  const formed = 2 * (T - read) * gradient;
  const move = operationsPerMove;
  // A convolution's patches are written and read.
  const unfolding = unfolded ? 2 * T * d * move : 0;
  return {
    ghost: T === 1
      ? 2 * (d + p)
      : 2 * gramProducts + groups * T * T * move * (4 + 2 * gramTerms),
    // Written once, read for its norm.
    instantiate: formed + unfolding + gradient * (operationsPerFreshWrite + move),
    // The weighed output gradient is written and read, by two operators.
    product: formed + unfolding + 4 * T * p * move,
    weighted: gradient * move,
  };
}

export interface LayerPlan {
  readonly norm: NormMethod | null;
  readonly sum: SumMethod;
  readonly costs: Costs;
  /** Why the norm method was taken. */
  readonly reason: string;
}

/** What a contraction offers. */
export interface Offers {
  readonly size: ContractionSize;
  readonly ghost: boolean;
  readonly product: boolean;
}

/** Whether a second backward pass, after the norms are known, makes the sums. */
export const isTwoPass = (mode: Mode): boolean =>
  mode === 'ghost' || mode === 'mixed-ghost' || mode === 'fast-gradient-clipping';

/** The paper's rule (Bu et al. 2022, §4): ghost norms where they take less space. */
export const ghostTakesLessSpace = ({ T, d, p, groups, picked }: ContractionSize): boolean =>
  (picked === true ? T * p : 2 * T * T * groups) <= (p * d) / groups;

/**
 * Whether the rounding allowance of the ghost norm could shrink ordinary gradients noticeably: for positions whose
 * gradients do not align, it is about γ·T of the squared norm for the Gram matrices, and γ_T·√T of the norm for the summed
 * gradient. The line is drawn at 1 % of the norm.
 */
export function allowanceBites(
  { T, p, groups, gramDepth, gramTerms, gramRoundings = (gramDepth + p) / groups + gramTerms, picked }: ContractionSize,
): boolean {
  return T > 1 && picked !== true && gramBound({ T, groups }, gramRoundings) * T / 2 + sumBound(T) * Math.sqrt(T) > 0.01;
}

/** Chooses norm and sum for one parameter's use. */
export function planLayer(mode: Mode, offers: Offers, rule: LayerRule = 'time'): LayerPlan {
  const { size } = offers;
  const costs = costsOf(size);
  const cheaperSum: SumMethod = offers.product && costs.product <= costs.instantiate + costs.weighted ? 'product' : 'weighted';
  const layer = (norm: NormMethod | null, sum: SumMethod, reason: string): LayerPlan => ({ norm, sum, costs, reason });
  if (mode === 'non-private') return layer(null, cheaperSum, 'no norm is needed');
  if (mode === 'instantiate') return layer('instantiate', 'weighted', 'the mode instantiates every gradient');
  if (mode === 'fast-gradient-clipping') return layer('instantiate', cheaperSum, 'the mode instantiates every gradient');
  if (!offers.ghost) return layer('instantiate', isTwoPass(mode) ? cheaperSum : 'weighted', 'its per-example gradient is small or has no ghost norm');
  if (allowanceBites(size)) {
    return layer('instantiate', isTwoPass(mode) ? cheaperSum : 'weighted', 'the rounding allowance of a ghost norm would bite');
  }
  if (mode === 'ghost') return layer('ghost', cheaperSum, 'the mode takes ghost norms everywhere');
  if (mode === 'mixed-ghost') {
    return ghostTakesLessSpace(size)
      ? layer('ghost', cheaperSum, '2T² ≤ p·d: a ghost norm takes less space')
      : layer('instantiate', cheaperSum, '2T² > p·d: an instantiated gradient takes less space');
  }
  if (rule === 'space') {
    return ghostTakesLessSpace(size)
      ? layer('ghost', offers.product ? 'product' : 'weighted', '2T² ≤ p·d: a ghost norm takes less space')
      : layer('instantiate', 'weighted', '2T² > p·d: an instantiated gradient takes less space');
  }
  const ghostTime = costs.ghost + (offers.product ? costs.product : costs.instantiate + costs.weighted);
  const instantiateTime = costs.instantiate + costs.weighted;
  return ghostTime < instantiateTime
    ? layer('ghost', offers.product ? 'product' : 'weighted', 'a ghost norm takes less time')
    : layer('instantiate', 'weighted', 'an instantiated gradient takes less time, and its weighted sum is nearly free');
}
