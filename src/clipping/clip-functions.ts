import { type GraphBuilder, type Value, add, div, where } from '../ops/builder.ts';
import { type Expression, emitExpression, parseExpression } from './expression.ts';

export interface ClipFunctionOptions {
  /** The stabiliser of `automatic` (Bu et al. 2022b) and of `psac` (there called r); default 0.01. */
  readonly gamma: number;
}

/**
 * Weight of an example with gradient norm n̂ and threshold R, on arrays that broadcast. `factor` is the function's own
 * wish; the emitter caps it at R/n̂, so that no function can break the bound. n̂ is never 0. Adding a clip function means
 * adding one entry.
 */
export interface ClipFunction {
  readonly factor: (b: GraphBuilder, norm: Value, threshold: Value, options: ClipFunctionOptions) => Value;
}

const table = {
  /** min(1, R/n̂): Abadi et al. 2016, Algorithm 1. */
  abadi: { factor: (b, norm, threshold) => b.op('Min', [b.scalar(1), div(b, threshold, norm)]) },
  /** R/(n̂ + γ): automatic clipping, Bu et al. 2022 ("Automatic Clipping"), AUTO-S. */
  automatic: { factor: (b, norm, threshold, { gamma }) => div(b, threshold, add(b, norm, b.scalar(gamma))) },
  /** R/n̂: every gradient has the length R; AUTO-V of the same paper. */
  normalize: { factor: (b, norm, threshold) => div(b, threshold, norm) },
  /** 1 where n̂ < R, else 0: global clipping, Bu et al. 2021 ("On the Convergence and Calibration of DP Deep Learning"). */
  global: { factor: (b, norm, threshold) => where(b, b.op('Less', [norm, threshold]), b.scalar(1), b.scalar(0)) },
  /** R/(n̂ + γ/(n̂ + γ)): Xia et al. 2023 ("Differentially Private Learning with Per-Sample Adaptive Clipping"). */
  psac: {
    factor: (b, norm, threshold, { gamma }) =>
      div(b, threshold, add(b, norm, div(b, b.scalar(gamma), add(b, norm, b.scalar(gamma))))),
  },
} satisfies Record<string, ClipFunction>;

export type ClipFunctionName = keyof typeof table;
export const clipFunctions: { readonly [K in ClipFunctionName]: ClipFunction } = table;
export const clipFunctionNames = Object.keys(table) as readonly ClipFunctionName[];

/** One of the clip functions, or a user's own: an expression over n (n̂), R (the threshold) and gamma. */
export type ClipFunctionSpec = ClipFunctionName | { readonly expression: string };

const variables = ['n', 'R', 'gamma'] as const;

/**
 * What a user's clip function says, e.g. `min(1, R / (n + 0.1))`.
 *
 * @param where what messages call it
 * @throws GhostgradError where it cannot be read; {@link parseExpression} has the grammar
 */
export const parseClipFunction = ({ expression }: { readonly expression: string }, where = 'clipping.function'): Expression =>
  parseExpression(expression, variables, where);

/** The clip function as a certificate names it. */
export const clipFunctionText = (spec: ClipFunctionSpec): string => (typeof spec === 'string' ? spec : spec.expression);

/** The clip function's own wish, which may be any number at all. */
export function clipFactor(
  b: GraphBuilder, spec: ClipFunctionSpec, norm: Value, threshold: Value, options: ClipFunctionOptions,
): Value {
  if (typeof spec === 'string') return clipFunctions[spec].factor(b, norm, threshold, options);
  return emitExpression(b, parseClipFunction(spec), { n: norm, R: threshold, gamma: b.scalar(options.gamma) });
}
