import { unknownName } from '../suggest.ts';
import type { Groups } from './groups.ts';

/**
 * How the noise is shared out between clipping groups (He et al. 2022). The noise on group k has standard deviation
 * σ_g·S·γ_k with S² = Σ_k (C_k/γ_k)²: over γ_k, the gradients have the joint sensitivity S and the noise is σ_g·S on every
 * coordinate, so every γ > 0 is equally private. What differs is which group the noise falls upon.
 */
export type Allocation = 'global' | 'equal-budget' | 'weighted' | 'minimal';

/** γ_k for a group of threshold C and d numbers. */
const table: { readonly [A in Allocation]: (threshold: number, size: number) => number } = {
  /** The same noise on every coordinate of every group. */
  'global': () => 1,
  /** Noise in proportion to the threshold: each group spends the same share, deviation σ_g·√K·C_k. */
  'equal-budget': (threshold) => threshold,
  /** The length of each group's noise is in proportion to its threshold: deviation σ_g·√(Σd_j)·C_k/√d_k. */
  'weighted': (threshold, size) => threshold / Math.sqrt(size),
  /**
   * The least noise energy E = Σ_k d_k·(σ_g·S·γ_k)² = σ_g²·(Σ_k C_k²/γ_k²)·(Σ_k d_k·γ_k²). By the Cauchy–Schwarz inequality
   * E ≥ σ_g²·(Σ_k C_k·√d_k)², with equality where C_k/γ_k is proportional to √d_k·γ_k, that is γ_k² to C_k/√d_k.
   */
  'minimal': (threshold, size) => Math.sqrt(threshold / Math.sqrt(size)),
};

export const allocations = Object.keys(table) as readonly Allocation[];

/** Throws GhostgradError for an allocation that does not exist. */
export function checkAllocation(name: Allocation): void {
  if (!Object.hasOwn(table, name)) throw unknownName('allocation', String(name), allocations, 'clipping.allocation');
}

/** What of a plan the noise on the gradients follows from, beside the thresholds. */
export interface NoiseScale {
  readonly allocation: Allocation;
  /** σ_g: noise over sensitivity of the gradients alone. */
  readonly gradientMultiplier: number;
  /** Relative rounding allowance of every threshold. */
  readonly rho: number;
  /** ν: that of what becomes of the sum after clipping, relative to the threshold, too. */
  readonly rounding: number;
}

/**
 * Standard deviation of the noise on each coordinate of the clipped sum, by group: σ_g·S·γ_k with
 * S² = Σ_k (C_k·(1 + rho + rounding)/γ_k)², C_k the thresholds of `groups` as they are.
 */
export function noiseDeviations(groups: Groups, { allocation, gradientMultiplier, rho, rounding }: NoiseScale): readonly number[] {
  const gammas = groups.map(({ norm, size }) => table[allocation](norm, size));
  const sensitivity = (1 + rho + rounding) * Math.hypot(...groups.map(({ norm }, k) => norm / (gammas[k] ?? NaN)));
  return gammas.map((gamma) => gradientMultiplier * sensitivity * gamma);
}
