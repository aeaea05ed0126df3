import { type GraphBuilder, type Value, add, div } from '../ops/builder.ts';

export interface ClipFunctionOptions {
  /** The stabiliser of `automatic`; default 0.01 (Bu et al. 2022b). */
  readonly gamma: number;
}

/**
 * Weight of an example with gradient norm n̂ and threshold R. `factor` is the function's own wish; the emitter caps
 * it at R/n̂, so that no function can break the bound. Adding a clip function means adding one entry.
 */
export interface ClipFunction {
  readonly factor: (b: GraphBuilder, norm: Value, threshold: Value, options: ClipFunctionOptions) => Value;
}

const table = {
  /** min(1, R/n̂): Abadi et al. 2016, Algorithm 1. */
  abadi: { factor: (b, norm, threshold) => b.op('Min', [b.scalar(1), div(b, threshold, norm)]) },
  /** R/(n̂ + γ): automatic clipping, Bu et al. 2022 ("Automatic Clipping"), AUTO-S. */
  automatic: { factor: (b, norm, threshold, { gamma }) => div(b, threshold, add(b, norm, b.scalar(gamma))) },
} satisfies Record<string, ClipFunction>;

export type ClipFunctionName = keyof typeof table;
export const clipFunctions: { readonly [K in ClipFunctionName]: ClipFunction } = table;
export const clipFunctionNames = Object.keys(table) as readonly ClipFunctionName[];

/** The capped weight: never above R/n̂. At n̂ = 0, R/n̂ is infinite and caps nothing. */
export function clipWeight(
  b: GraphBuilder, name: ClipFunctionName, norm: Value, threshold: Value, options: ClipFunctionOptions,
): Value {
  return b.op('Min', [clipFunctions[name].factor(b, norm, threshold, options), div(b, threshold, norm)]);
}
