import { GhostgradError } from '../errors.ts';
import { type Node, type TypedGraph, showNode } from '../graph/ir.ts';
import type { BatchAxis } from '../ops/batch.ts';
import type { GraphBuilder, Value } from '../ops/builder.ts';
import type { GradientContext, Operator, ParameterUse } from '../ops/operator.ts';
import { noGradientFlows } from '../ops/rules.ts';
import { noGradientOf, operatorOf } from '../ops/table.ts';
import { isFloat } from '../tensor/tensor.ts';

/** A node that stands between a trainable parameter and the loss and has no gradient. */
export interface Obstacle {
  readonly node: string;
  readonly operator: string;
  readonly reason: string;
  readonly fix: string;
}

/** Which part of a graph gradients flow through. */
export interface GradientPath {
  /** Values that depend on data and on a trainable parameter, and that the loss depends on. */
  readonly active: ReadonlySet<Value>;
  /** Values computed from trainable parameters alone, before they meet the data, that the loss depends on. */
  readonly derived: ReadonlySet<Value>;
  /** Trainable parameters that the loss depends on. */
  readonly parameters: ReadonlySet<Value>;
  readonly obstacles: readonly Obstacle[];
}

/** The values that depend on a parameter, the parameters themselves excluded. */
export function dependentOn(graph: Pick<TypedGraph, 'nodes'>, parameters: ReadonlySet<Value>): Set<Value> {
  const dependent = new Set<Value>();
  for (const node of graph.nodes) {
    if (node.inputs.some((v) => parameters.has(v) || dependent.has(v))) node.outputs.forEach((o) => dependent.add(o));
  }
  return dependent;
}

/** The values from which a gradient can reach a parameter: not those behind a step function or integers alone. */
function slopesOf(graph: TypedGraph, parameters: ReadonlySet<Value>): Set<Value> {
  const sloping = new Set<Value>(parameters);
  for (const node of graph.nodes) {
    // Frozen nodes are not asked: a composite one may stand there whole.
    if (!node.inputs.some((v) => sloping.has(v)) || operatorOf(node).gradient === noGradientFlows) continue;
    node.outputs.filter((o) => isFloat(graph.types.get(o)?.dtype ?? 'bool')).forEach((o) => sloping.add(o));
  }
  return sloping;
}

/** Finds what lies between `parameters` and `output`, and every node there that cannot be differentiated. */
export function gradientPath(
  graph: TypedGraph, parameters: ReadonlySet<Value>, output: Value, batch: ReadonlyMap<Value, BatchAxis>,
): GradientPath {
  const dependent = dependentOn(graph, parameters);
  const reaches = new Set<Value>([output]);
  const obstacles: Obstacle[] = [];
  for (const node of [...graph.nodes].reverse()) {
    if (!node.outputs.some((o) => reaches.has(o) && dependent.has(o))) continue;
    const operator = operatorOf(node);
    const stopped = noGradientOf({
      node,
      inputs: node.inputs.map((v) => graph.types.get(v)),
      constants: node.inputs.map((v) => (parameters.has(v) ? undefined : graph.initializers.get(v))),
      reached: node.outputs.map((o) => reaches.has(o) && dependent.has(o)),
    });
    const found = stopped ? [stopped] : parameterObstacles(node, parameters, dependent, batch);
    obstacles.push(...found.map(({ reason, fix }) => ({ node: node.name, operator: node.op, reason, fix })));
    // What lies only behind a step function has a gradient of zero: it is not on the path.
    // Nor does a gradient pass through integers (Cast there and back).
    if (stopped !== undefined || operator.gradient === noGradientFlows) continue;
    node.inputs.filter((v) => isFloat(graph.types.get(v)?.dtype ?? 'bool')).forEach((v) => reaches.add(v));
  }
  const sloping = slopesOf(graph, parameters);
  const onPath = [...dependent].filter((v) => reaches.has(v) && sloping.has(v));
  return {
    active: new Set(onPath.filter((v) => batch.has(v))),
    derived: new Set(onPath.filter((v) => !batch.has(v))),
    parameters: new Set([...parameters].filter((v) => reaches.has(v))),
    obstacles: obstacles.reverse(),
  };
}

/** Parameters that meet the data at a node which has no per-example rule for them. */
function parameterObstacles(
  node: Node, parameters: ReadonlySet<Value>, dependent: ReadonlySet<Value>, batch: ReadonlyMap<Value, BatchAxis>,
): { reason: string; fix: string }[] {
  if (!node.outputs.some((o) => batch.has(o)) || operatorOf(node).parameter !== undefined) return [];
  return node.inputs.filter((v) => !batch.has(v) && (parameters.has(v) || dependent.has(v))).map((v) => ({
    reason: `takes the trainable ${parameters.has(v) ? 'parameter' : 'value'} "${v}" and has no per-example gradient rule`,
    fix: `freeze ${parameters.has(v) ? `"${v}"` : 'the parameters behind it'}`,
  }));
}

/** A parameter use and the node that makes it. */
export interface UseSite {
  readonly node: Node;
  readonly use: ParameterUse;
  /** Whether a gradient flows on to another input of the node (not so in the first layer). */
  readonly passesOn: boolean;
}

export interface Backward {
  /** The uses of each trainable parameter, and of each value derived from some, in the order met going backward. */
  readonly uses: ReadonlyMap<Value, readonly UseSite[]>;
}

/** What is told of each node that gradients flow back through, before they do. */
type Visit = (context: GradientContext, operator: Operator) => void;

/**
 * Reverse mode over `nodes`, which `b` must already hold: appends the gradient of Σ seeds·value with respect to each
 * value that `wanted` names, and returns those of the values that no node makes. Throws GhostgradError at a node that
 * has no gradient.
 */
export function backpropagate(
  b: GraphBuilder, nodes: readonly Node[], seeds: ReadonlyMap<Value, Value>, wanted: (value: Value) => boolean,
  visit?: Visit,
): ReadonlyMap<Value, Value> {
  const pending = new Map<Value, Value[]>([...seeds].map(([value, seed]) => [value, [seed]]));
  for (const node of [...nodes].reverse()) {
    const outputGradients = node.outputs.map((o) => total(b, pending.get(o)));
    if (outputGradients.every((g) => g === undefined)) continue;
    const operator = operatorOf(node);
    const obstacle = noGradientOf({
      node, reached: outputGradients.map((g) => g !== undefined),
      inputs: node.inputs.map((v) => (v === '' ? undefined : b.type(v))), constants: node.inputs.map(b.constantOf),
    });
    if (obstacle !== undefined || 'reason' in operator.gradient) {
      const { reason = '', fix } = obstacle ?? {};
      throw new GhostgradError({ what: `no gradient: ${reason}`, where: showNode(node), fix });
    }
    const needed = node.inputs.map((v) => v !== '' && wanted(v));
    const context = { b, node, inputs: node.inputs, outputs: node.outputs, outputGradients, needed };
    visit?.(context, operator);
    const gradients = needed.some(Boolean) ? operator.gradient(context) : [];
    node.outputs.forEach((o) => pending.delete(o));
    node.inputs.forEach((v, i) => {
      const g = gradients[i];
      if (needed[i] !== true || g === undefined) return;
      pending.set(v, [...(pending.get(v) ?? []), g]);
    });
  }
  return new Map([...pending].map(([value, parts]) => [value, total(b, parts)!]));
}

/**
 * Differentiates the loss: appends to `b` (which must already hold the nodes of `graph`) the gradient of Σ seeds·value,
 * and returns the uses of each parameter with their operands. Gradients with respect to parameters are not formed: what
 * to do with a use (norm, clipped sum, plain sum) is clipping's decision.
 * Throws GhostgradError at a node of the path that has no gradient.
 */
export function reverse(
  b: GraphBuilder, graph: TypedGraph, seeds: ReadonlyMap<Value, Value>, path: GradientPath, batch: ReadonlyMap<Value, BatchAxis>,
): Backward {
  const uses = new Map<Value, UseSite[]>();
  backpropagate(b, graph.nodes, seeds, (v) => path.active.has(v), (context, { parameter }) => {
    const { node, needed } = context;
    node.inputs.forEach((v, index) => {
      if (parameter === undefined || !(path.parameters.has(v) || path.derived.has(v))) return;
      const use = parameter({
        ...context, index,
        inputBatch: node.inputs.map((x) => batch.get(x)),
        outputBatch: node.outputs.map((x) => batch.get(x)),
      });
      uses.set(v, [...(uses.get(v) ?? []), { node, use, passesOn: needed.some(Boolean) }]);
    });
  });
  return { uses };
}

function total(b: GraphBuilder, parts: readonly Value[] | undefined): Value | undefined {
  if (parts === undefined || parts.length <= 1) return parts?.[0];
  return parts.length === 2 ? b.op('Add', parts) : b.op('Sum', parts);
}
