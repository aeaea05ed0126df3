import type { Mode } from '../clipping/plan.ts';
import { defaultRho } from '../clipping/norm.ts';
import type { StepLayer } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import { hasOperator } from '../ops/table.ts';
import { sizeOf } from '../tensor/tensor.ts';
import { type Analysis, type Task, analyse, atBatchSize, compileTask, focused } from './compile.ts';

export interface ExplainedLayer {
  readonly name: string;
  readonly parameter: string;
  readonly operator: string;
  readonly kind: string;
  readonly T: number;
  readonly d: number;
  readonly p: number;
  readonly groups: number;
  /** How the per-example norm is got. */
  readonly norm: string;
  readonly reason: string;
  /** Bytes that the norm needs for the whole batch. */
  readonly bytes: number;
  /** Operations of norm and sum for the whole batch. */
  readonly flops: number;
  /** Cost of either norm, in operations for one example, memory traffic included. */
  readonly costs: { readonly ghost: number; readonly instantiate: number };
}

export interface Explanation {
  readonly parameters: { readonly total: number; readonly trainable: number };
  readonly layers: readonly ExplainedLayer[];
  readonly plan: { readonly mode: Mode; readonly liveBytes: number; readonly extraFlopShare: number };
  readonly unsupported: readonly { readonly node: string; readonly operator: string; readonly reason: string; readonly fix: string }[];
  readonly batchIndependent: boolean;
  readonly violations: readonly { readonly node: string; readonly axis: number; readonly reason: string; readonly fix: string }[];
}

export interface ExplainOptions extends Task {
  /** Physical batch size that bytes and operations are told for; default 32. */
  readonly batchSize?: number | undefined;
  readonly mode?: Mode | undefined;
}

/**
 * Says how a model would be trained, layer by layer, and everything that stands in the way. Unsupported operators
 * are reported, not thrown; a file that makes no sense at all still throws GhostgradError.
 */
export function explain(options: ExplainOptions): Explanation {
  const { model } = options;
  const total = [...model.initializers].filter(([name, t]) => t.dtype === 'float32' && model.literals?.has(name) !== true)
    .reduce((sum, [, t]) => sum + sizeOf(t.shape), 0);
  const unknown = focused(options).model.nodes.filter((node) => !hasOperator(node)).map((node) => ({
    node: node.name, operator: node.op, reason: 'no entry for this operator', fix: 'replace it by supported operators before export',
  }));
  const mode = options.mode ?? 'book-keeping';
  const nothing = { parameters: { total, trainable: 0 }, layers: [], plan: { mode, liveBytes: 0, extraFlopShare: 0 } };
  if (unknown.length > 0) return { ...nothing, unsupported: unknown, batchIndependent: false, violations: [] };

  const analysis = analyse(options);
  const facts = {
    unsupported: analysis.obstacles,
    batchIndependent: analysis.violations.length === 0,
    violations: analysis.violations.map(({ node, axis, reason, fix }) => ({ node, axis, reason, fix })),
  };
  if (analysis.violations.length > 0 || analysis.obstacles.length > 0 || analysis.parameters.length === 0) return { ...nothing, ...facts };
  return { ...planned(analysis, options, mode, total), ...facts };
}

function planned(analysis: Analysis, options: ExplainOptions, mode: Mode, total: number) {
  const batch = options.batchSize ?? 32;
  if (!Number.isInteger(batch) || batch < 1) {
    throw new GhostgradError({ what: 'not a batch size', where: '--batch-size', found: String(batch), expected: 'a whole number of at least 1', fix: 'for example --batch-size 32' });
  }
  const step = compileTask(analysis, batch, {
    mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1,
  });
  const { graph } = atBatchSize(analysis.task, batch);
  const trainable = analysis.parameters.reduce((sum, name) => sum + sizeOf(graph.types.get(name)!.shape), 0);
  const layers = step.layers.map((layer) => explainLayer(layer, batch));
  const arithmetic = stepArithmetic(step.layers, batch);
  // Activations and output gradients are kept until the norms are known.
  const activations = [...graph.types].filter(([name]) => analysis.batch.has(name)).reduce((sum, [, t]) => sum + 4 * sizeOf(t.shape), 0);
  return {
    parameters: { total, trainable },
    layers,
    plan: {
      mode,
      liveBytes: 2 * activations + 2 * 4 * trainable + Math.max(0, ...layers.map((l) => l.bytes)),
      extraFlopShare: arithmetic.extra / arithmetic.nonPrivate,
    },
  };
}

function explainLayer({ parameter, sites, contraction, plan }: StepLayer, batch: number): ExplainedLayer {
  const { T, d, p, groups } = contraction;
  const [site] = sites;
  const norm = plan.norm ?? 'none';
  const elements = norm === 'ghost' ? (T === 1 ? 1 : 2 * groups * T * T) : norm === 'instantiate' ? (d / groups) * p : 0;
  return {
    name: site?.node.name ?? parameter, parameter, operator: site?.node.op ?? '', kind: site?.use.kind ?? '',
    T, d, p, groups, norm, reason: plan.reason,
    bytes: 4 * batch * elements,
    flops: batch * (normArithmetic(contraction, norm) + (plan.sum === 'product' ? 2 * T * (d / groups) * p : 2 * (d / groups) * p)),
    costs: { ghost: plan.costs.ghost, instantiate: plan.costs.instantiate },
  };
}

function normArithmetic({ T, d, p, groups, gramDepth }: StepLayer['contraction'], norm: string): number {
  if (norm === 'ghost') return T === 1 ? 2 * (d + p) : 2 * T * T * (gramDepth + p + groups);
  return norm === 'instantiate' ? 2 * T * (d / groups) * p + 2 * (d / groups) * p : 0;
}

/**
 * Arithmetic of the non-private step (forward, input gradients, weight gradients: a product of 2·T·d·p each) and what
 * the plan adds to it. An instantiated gradient that also serves the sum saves the weighted product.
 */
export function stepArithmetic(layers: readonly StepLayer[], batch: number): { extra: number; nonPrivate: number } {
  let extra = 0;
  let nonPrivate = 0;
  for (const { contraction, plan, sites } of layers) {
    const { T, d, p, groups } = contraction;
    const product = 2 * T * (d / groups) * p;
    if (sites.some(({ use }) => use.kind === 'outer' || use.kind === 'convolution')) {
      nonPrivate += batch * product * (sites.some((site) => site.passesOn) ? 3 : 2);
    }
    const sum = plan.sum === 'product' ? product : 2 * (d / groups) * p;
    extra += batch * (normArithmetic(contraction, plan.norm ?? 'none') + sum - product);
  }
  return { extra, nonPrivate };
}
