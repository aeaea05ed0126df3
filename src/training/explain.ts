import { defaultRho } from '../clipping/norm.ts';
import type { LayerRule, Mode } from '../clipping/plan.ts';
import type { StepLayer } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { type LastLayer, lastLayer } from '../models/last-layer.ts';
import { sameBatch } from '../ops/batch.ts';
import { type TensorType, isFloat, sizeOf } from '../tensor/tensor.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { normArithmetic, sumArithmetic } from './arithmetic.ts';
import { type Analysis, type Task, analyse, atBatchSize, focused, groupsOf } from './compile.ts';
import type { LossName } from './loss.ts';
import { type Candidate, type OptimizeFor, choosePlan } from './planner.ts';
import { lanesFor } from './step.ts';
import { survey } from './survey.ts';

export interface ExplainedLayer {
  /** The node that uses the parameter; where there are several, the first met going backward. */
  readonly name: string;
  readonly parameter: string;
  readonly operator: string;
  readonly kind: string;
  readonly T: number;
  readonly d: number;
  readonly p: number;
  readonly groups: number;
  /** How many nodes use the parameter. */
  readonly uses: number;
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

/** A node whose output carries the batch elsewhere than its inputs do. */
export interface BatchMove {
  readonly node: string;
  readonly operator: string;
  readonly axis: number;
  /** The factors of that axis in front of and behind the batch; 1 and 1 where the axis is the batch alone. */
  readonly before: number;
  readonly after: number;
}

export interface Explanation {
  readonly parameters: { readonly total: number; readonly trainable: number };
  /** What the loss is, and what it is taken of; chosen to fit the output where not given. */
  readonly loss: { readonly name: LossName; readonly output: string };
  /** The layer in front of the output, in place of which a head may be put; null where it cannot be told. */
  readonly lastLayer: LastLayer | null;
  readonly layers: readonly ExplainedLayer[];
  readonly plan: {
    readonly mode: Mode;
    /** What decided between the norms of a layer. */
    readonly layersBy: LayerRule;
    readonly batchSize: number;
    /** The most bytes of activations, gradients and sums that exist at one time; inputs and parameters not counted. */
    readonly liveBytes: number;
    /** Arithmetic that privacy adds, relative to that of the non-private step. */
    readonly extraFlopShare: number;
    /** What the plan was chosen by; null where the mode was taken as it is. */
    readonly optimizeFor: OptimizeFor | null;
    /** Why this plan. */
    readonly reason: string;
    /** All plans that were looked at. */
    readonly candidates: readonly Candidate[];
  };
  readonly unsupported: readonly { readonly node: string; readonly operator: string; readonly reason: string; readonly fix: string }[];
  /** Whether it is proved that examples do not mix; false also where that cannot be judged. */
  readonly batchIndependent: boolean;
  /** Where the batch leaves the axis that it came in; everywhere else it stays where it is. */
  readonly batchMoves: readonly BatchMove[];
  readonly violations: readonly { readonly node: string; readonly axis: number; readonly reason: string; readonly fix: string }[];
}

export interface ExplainOptions extends Omit<Task, 'loss'> {
  /** By default one that fits the output. */
  readonly loss?: LossName | undefined;
  /** Physical batch size that bytes and operations are told for; default 32. */
  readonly batchSize?: number | undefined;
  readonly mode?: Mode | undefined;
  /** Chooses among the plans that the mode leaves open; by default the mode is taken as it is. */
  readonly optimizeFor?: OptimizeFor | undefined;
}

/**
 * Says how a model would be trained, layer by layer, and everything that stands in the way. Unsupported operators
 * are reported, not thrown; a file that makes no sense at all still throws GhostgradError.
 */
export function explain(options: ExplainOptions): Explanation {
  const { mode = 'book-keeping', batchSize = 32 } = options;
  if (!Number.isInteger(batchSize) || batchSize < 1) {
    throw new GhostgradError({ what: 'not a batch size', where: '--batch-size', found: String(batchSize), expected: 'a whole number of at least 1', fix: 'for example --batch-size 32' });
  }
  const output = options.output ?? lossOutput(options.loss) ?? likelyOutput(options.model);
  // Which part of the model counts depends on the output alone.
  const { model } = focused({ ...options, output, loss: options.loss ?? 'mse' });
  const seen = survey(model, options);
  const loss = options.loss ?? likelyLoss(model, seen.typed.types.get(output));
  const facts = {
    parameters: { total: sizeOfParameters(options.model), trainable: 0 },
    loss: { name: loss, output }, lastLayer: lastLayer(model) ?? null, layers: [],
    plan: {
      mode, layersBy: 'time' as const, batchSize, liveBytes: 0, extraFlopShare: 0,
      optimizeFor: options.optimizeFor ?? null, reason: 'nothing is planned', candidates: [],
    },
  };
  if (seen.unsupported.length > 0) {
    return { ...facts, unsupported: seen.unsupported, batchIndependent: false, batchMoves: [], violations: seen.violations };
  }

  const analysis = analyse({ ...options, model, output, loss });
  const found = {
    unsupported: analysis.obstacles,
    batchIndependent: analysis.violations.length === 0,
    batchMoves: movesOf(analysis),
    violations: analysis.violations.map(({ node, axis, reason, fix }) => ({ node, axis, reason, fix })),
  };
  const stops = analysis.violations.length + analysis.obstacles.length > 0 || analysis.parameters.length === 0;
  return { ...facts, ...found, ...(stops ? {} : planned(analysis, batchSize, mode, options.optimizeFor, facts.parameters.total)) };
}

const lossOutput = (loss: LossName | undefined): string | undefined =>
  (loss?.startsWith('output:') === true ? loss.slice('output:'.length) : undefined);

/** The first output that a loss can be taken of. */
function likelyOutput({ outputs, name }: Graph): string {
  const [first] = [...outputs.filter(({ dtype }) => isFloat(dtype)), ...outputs];
  if (first !== undefined) return first.name;
  throw new GhostgradError({ what: 'the model has no output', where: `graph "${name}"`, fix: 'export the model with what it computes as its output' });
}

/** The loss that a model with such an output is likely to be trained with. */
function likelyLoss({ inputs }: Graph, output: TensorType | undefined): LossName {
  const shape = output?.shape ?? [];
  if (output === undefined || (shape.length === 2 && shape[1]! > 1)) return 'cross-entropy';
  const readsTokens = inputs.some(({ dtype }) => !isFloat(dtype));
  return shape.length === 3 && shape[1]! > 1 && readsTokens ? 'causal-lm' : 'mse';
}

const sizeOfParameters = ({ initializers, literals }: Graph): number =>
  [...initializers].filter(([name, t]) => t.dtype === 'float32' && literals?.has(name) !== true)
    .reduce((sum, [, t]) => sum + sizeOf(t.shape), 0);

function movesOf({ proof, batch }: Analysis): BatchMove[] {
  return proof.nodes.flatMap(({ name, op, inputs, outputs }) => {
    const before = inputs.flatMap((v) => batch.get(v) ?? []);
    const moved = outputs.flatMap((v) => batch.get(v) ?? []).find((at) => !before.some((was) => sameBatch(was, at)));
    return moved === undefined ? [] : [{ node: name, operator: op, ...moved }];
  });
}

function planned(
  analysis: Analysis, batchSize: number, mode: Mode, optimizeFor: OptimizeFor | undefined, total: number,
): Pick<Explanation, 'parameters' | 'layers' | 'plan'> {
  const { plan, step, candidates, reason } = choosePlan(analysis, batchSize, {
    mode, clipping: { function: 'abadi', gamma: 0.01, groups: groupsOf(mode, analysis) }, rho: defaultRho, rowsPerUnit: 1,
  }, { optimizeFor, lanes: lanesFor(analysis, defaultThreads()) });
  const { graph } = atBatchSize(analysis.task, batchSize);
  const trainable = analysis.parameters.reduce((sum, name) => sum + sizeOf(graph.types.get(name)!.shape), 0);
  return {
    parameters: { total, trainable },
    layers: step.layers.map((layer) => explainLayer(layer, batchSize, plan.mode)),
    plan: {
      mode: plan.mode, layersBy: plan.layersBy, batchSize, liveBytes: plan.liveBytes, extraFlopShare: plan.extraFlopShare,
      optimizeFor: optimizeFor ?? null, reason, candidates,
    },
  };
}

function explainLayer(layer: StepLayer, batch: number, mode: Mode): ExplainedLayer {
  const { parameter, sites, contraction, plan } = layer;
  const { T, d, p, groups } = contraction;
  const [site] = sites;
  const norm = plan.norm ?? 'none';
  const elements = norm === 'ghost' ? (T === 1 ? 1 : 2 * groups * T * T) : norm === 'instantiate' ? (d / groups) * p : 0;
  return {
    name: site?.node.name ?? parameter, parameter, operator: site?.node.op ?? '', kind: site?.use.kind ?? '',
    T, d, p, groups, uses: sites.length, norm, reason: plan.reason,
    bytes: 4 * batch * elements,
    flops: batch * (normArithmetic(layer) + sumArithmetic(layer, mode)),
    costs: { ghost: plan.costs.ghost, instantiate: plan.costs.instantiate },
  };
}
