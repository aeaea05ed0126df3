import { type Violation, proofBatchSizes, traceBatch } from '../autodiff/batch-independence.ts';
import { type Obstacle, dependentOn } from '../autodiff/reverse.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph, Node, OperatorSemantics, TypedGraph } from '../graph/ir.ts';
import { specialisePart } from '../graph/specialise.ts';
import { leading } from '../ops/batch.ts';
import { expansion, fixedValue, isComposite } from '../ops/composite.ts';
import { expandComposites } from '../ops/expand.ts';
import type { NoGradient } from '../ops/operator.ts';
import { noGradientFlows } from '../ops/rules.ts';
import { entryOf, hasOperator, missingOf, noGradientOf, semantics } from '../ops/table.ts';
import { isFloat } from '../tensor/tensor.ts';
import { type Task, trainableParameters } from './compile.ts';
import { exampleShape } from './shapes.ts';

/** What can be said of a model of which some nodes are not understood. */
export interface Survey {
  /** The part whose types are known. */
  readonly typed: TypedGraph;
  /** Every node in the way, in the order of the model; empty where all of it is understood. */
  readonly unsupported: readonly Obstacle[];
  /** Where examples mix in the part whose types are known; told only where something is unsupported. */
  readonly violations: readonly Violation[];
}

/**
 * Looks through a model for everything that is not supported, at once: operators that are not known, nodes whose types
 * cannot be inferred, and, where there are such, the operators without a gradient as well. Nodes behind one that is not
 * understood have no known types; they are judged by their names and attributes alone.
 *
 * @param model less everything that the loss does not need; its only output is what the loss is taken of
 * @throws GhostgradError for shapes of inputs that are unknown or contradict the model, and patterns that match nothing
 */
export function survey(model: Graph, task: Pick<Task, 'trainable' | 'exampleShapes'>): Survey {
  const { exampleShapes, trainable = 'all' } = task;
  const shapes = Object.fromEntries(model.inputs.map(({ name }) =>
    [name, [proofBatchSizes[0], ...exampleShape({ model, exampleShapes }, name)]]));
  const { graph: typed, failures } = specialisePart(model, shapes, expanding);
  const misfits = new Map(failures.filter(({ node }) => hasOperator(node)).map(({ node, error }) => [node.name, asReason(error)]));
  if (failures.length === 0) return { typed, unsupported: [], violations: [] };

  const way = gradientWay(model, typed, trainableParameters(model, trainable));
  const unsupported = model.nodes.flatMap((node): Obstacle[] => {
    const missing = missingOf(node);
    const reason = missing === undefined ? misfits.get(node.name) ?? way.stopped.get(node.name)
      : way.passes.has(node.name) ? missing : withoutGradient(missing, node);
    return reason === undefined ? [] : [{ node: node.name, operator: node.op, ...reason }];
  });
  const inputs = new Map(model.inputs.map(({ name }) => [name, leading]));
  return { typed, unsupported, violations: traceBatch(expandComposites(typed), inputs).violations };
}

/** Types of a composite node are known only where its expansion is possible. */
const expanding: OperatorSemantics = {
  ...semantics,
  infer: (node, inputs, constants) => {
    const types = semantics.infer(node, inputs, constants);
    const entry = entryOf(node);
    if (isComposite(entry) && entry.shape !== undefined) {
      expansion(entry, node, inputs, constants.map((t) => (t === undefined || isFloat(t.dtype) ? undefined : t)), semantics);
    }
    return types;
  },
};

/** What the error of a rule says, less the node, which is told beside it. Any other error is a bug. */
function asReason(error: unknown): NoGradient {
  if (!(error instanceof GhostgradError)) throw error;
  const { what, found, expected, fix } = error.parts;
  const details = [found === undefined ? '' : `: ${found}`, expected === undefined ? '' : `; expected ${expected}`];
  return { reason: what + details.join(''), fix: fix ?? 'export the model again' };
}

const withoutGradient = ({ reason, fix }: NoGradient, { outputs }: Node): NoGradient => ({
  reason: `${reason}. No gradient has to flow through it: nothing that is trained lies before it`,
  fix: `compute "${outputs[0] ?? ''}" outside the model and let it be an input of the model, or: ${fix}`,
});

interface GradientWay {
  /** Names of the nodes that a gradient would have to pass through. */
  readonly passes: ReadonlySet<string>;
  /** Why it cannot, for the nodes among them whose operator is known. */
  readonly stopped: ReadonlyMap<string, NoGradient>;
}

/** Which way gradients would have to take, in a model whose types are not all known. */
function gradientWay(model: Graph, typed: TypedGraph, parameters: ReadonlySet<string>): GradientWay {
  const dependent = dependentOn(model, parameters);
  const reached = new Set(model.outputs.map(({ name }) => name));
  const passes = new Set<string>();
  const stopped = new Map<string, NoGradient>();
  const isWay = (value: string): boolean => reached.has(value) && dependent.has(value);
  for (const node of model.nodes.toReversed()) {
    if (!node.outputs.some(isWay)) continue;
    passes.add(node.name);
    const end = hasOperator(node) ? endOf(node, typed, node.outputs.map(isWay)) : undefined;
    if (end !== undefined && end !== 'zero') stopped.set(node.name, end);
    if (end !== undefined) continue;
    node.inputs.filter((v) => isFloat(typed.types.get(v)?.dtype ?? 'float32')).forEach((v) => reached.add(v));
  }
  return { passes, stopped };
}

/** Why no gradient flows back through a node of a known operator, or that it is zero; undefined where it flows. */
function endOf(node: Node, typed: TypedGraph, reached: readonly boolean[]): NoGradient | 'zero' | undefined {
  const entry = entryOf(node);
  if (isComposite(entry)) return undefined;
  if (entry.gradient === noGradientFlows) return 'zero';
  if ('reason' in entry.gradient) return entry.gradient;
  const inputs = node.inputs.map((v) => typed.types.get(v));
  if (inputs.some((type, i) => type === undefined && node.inputs[i] !== '')) return undefined;
  return noGradientOf({ node, inputs, constants: node.inputs.map((v) => fixedValue(typed, v)), reached });
}
