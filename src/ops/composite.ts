import type { Graph, Node, OperatorSemantics, TypedGraph } from '../graph/ir.ts';
import { isFloat, type Tensor, type TensorType } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, graphBuilder } from './builder.ts';
import type { Operator } from './operator.ts';

/** What an expansion works with: it appends nodes to `b` and returns values. */
export interface ExpandContext {
  readonly b: GraphBuilder;
  readonly node: Node;
  /** undefined where an optional input is omitted. */
  readonly inputs: readonly (Value | undefined)[];
}

/**
 * An operator whose meaning is a computation in terms of others, which may be composite themselves. Batch, gradient and
 * per-example rules follow from it: the node is replaced by its expansion wherever a gradient flows, and stays whole in
 * the frozen part of a model, where the engine's fused kernel runs it.
 */
export interface Composite {
  /**
   * The outputs, as many as `node.outputs` names (undefined, or fewer, where an omitted one is not worth computing).
   * The values of floating-point operands may be parameters: only shapes, integers and literals may decide what is
   * built (`b.constantOf` knows no others). Throws GhostgradError for operands that do not fit, or an unsupported form.
   */
  readonly expand: (context: ExpandContext) => readonly (Value | undefined)[];
  /** Types of the outputs; by default those of the expansion. Worth giving where the expansion is large. */
  readonly shape?: Operator['shape'];
  /** Inputs that hold learned weights by what the operator is for. */
  readonly learned?: readonly number[];
  /** Of these, the inputs that are added: biases, shifts. */
  readonly biases?: readonly number[];
  /** Of these, the scales and shifts of normalisations. */
  readonly normalises?: readonly number[];
  /** Rows of tables that the node looks up. */
  readonly lookUps?: Operator['lookUps'];
  /** Inputs that are statistics or settings and never trained. */
  readonly untrained?: readonly number[];
  /** Whether the engine cannot run a node whole, so that it is expanded where nothing is differentiated too. */
  readonly lacksKernel?: (node: Node) => boolean;
}

export const isComposite = (entry: Operator | Composite): entry is Composite => 'expand' in entry;

/**
 * One node as a graph of its own: its inputs are the graph's, its outputs carry the node's names. Known operands that
 * training cannot change stand in it as literals.
 *
 * @param varying inputs whose size depends on the batch; the expansion has the same nodes whatever that is
 */
export function expansion(
  composite: Composite, node: Node, inputs: readonly (TensorType | undefined)[], fixed: readonly (Tensor | undefined)[],
  semantics: OperatorSemantics, varying: ReadonlySet<Value> = new Set(),
): TypedGraph {
  const types = new Map<Value, TensorType>();
  const literals = new Map<Value, Tensor>();
  node.inputs.forEach((value, i) => {
    const type = inputs[i];
    if (value === '' || type === undefined) return;
    types.set(value, type);
    const known = fixed[i];
    if (known !== undefined) literals.set(value, known);
  });
  const base: TypedGraph = {
    name: node.name, opset: 0, nodes: [], outputs: [], types, metadata: {},
    inputs: [...types].filter(([name]) => !literals.has(name)).map(([name, type]) => ({ name, ...type })),
    initializers: literals, literals: new Set(literals.keys()),
  };
  const b = graphBuilder(semantics, base, varying);
  const found = composite.expand({ b, node, inputs: node.inputs.map((v) => (v === '' ? undefined : v)) });
  return b.build(node.outputs.flatMap((name, i) => (name === '' || found[i] === undefined ? [] : [[name, found[i]] as const])));
}

/** A constant, unless it may be a parameter: what is concluded from its value must hold after training too. */
export function fixedValue(graph: Pick<Graph, 'initializers' | 'literals'>, value: Value): Tensor | undefined {
  const t = graph.initializers.get(value);
  return t !== undefined && (graph.literals?.has(value) === true || !isFloat(t.dtype)) ? t : undefined;
}
