import { type BatchTrace, type Violation, proofBatchSizes, sizeDependence, traceBatch } from '../autodiff/batch-independence.ts';
import { behind } from '../autodiff/frozen.ts';
import { type GradientPath, type Obstacle, dependentOn, gradientPath } from '../autodiff/reverse.ts';
import { type Partition, partitionOf } from '../clipping/groups.ts';
import type { Mode } from '../clipping/plan.ts';
import { type StepGraph, type StepOptions, stepGraph } from '../clipping/step-graph.ts';
import { GhostgradError } from '../errors.ts';
import { type Graph, type Node, type TypedGraph, showNode, showShape } from '../graph/ir.ts';
import { prune } from '../graph/prune.ts';
import { specialise } from '../graph/specialise.ts';
import { type BatchAxis, leading, sameBatch } from '../ops/batch.ts';
import type { GraphBuilder, Value } from '../ops/builder.ts';
import { expandComposites, runnable } from '../ops/expand.ts';
import { entryOf, hasOperator, semantics } from '../ops/table.ts';
import { asParameters } from '../models/constants.ts';
import { withFoldedBatchNorm } from '../models/fold-batchnorm.ts';
import { matching } from '../suggest.ts';
import type { Shape, TensorType } from '../tensor/tensor.ts';
import { type LossName, attachLoss, attachRight, labelsInput } from './loss.ts';
import { exampleShape } from './shapes.ts';

/** What is to be trained, and on what; the same whatever the batch size. */
export interface Task {
  readonly model: Graph;
  readonly loss: LossName;
  /** The output that the loss is taken of; by default the model's only one. */
  readonly output?: string | undefined;
  /** `all`, or patterns of parameter names (`*` stands for any characters). Default `all`. */
  readonly trainable?: 'all' | readonly string[] | undefined;
  /** Shape of one example for each input, without the batch axis; by default as the model declares it, or by {@link exampleShape}. */
  readonly exampleShapes?: Readonly<Record<string, Shape>> | undefined;
  /** Values that are fed in place of the inputs: what computes them is left out. What is proved is proved of the whole model. */
  readonly fed?: readonly Value[] | undefined;
}

/** A task proved fit for private training. */
export interface Analysis {
  readonly task: Task;
  readonly parameters: readonly string[];
  readonly batch: ReadonlyMap<Value, BatchAxis>;
  readonly violations: readonly Violation[];
  readonly obstacles: readonly Obstacle[];
  /** The model at the batch size of the proof. */
  readonly proof: TypedGraph;
  /** The operator of each node of the expanded model with its loss, at that size. */
  readonly forms: ReadonlyMap<string, string>;
}

/**
 * Follows the batch and the gradients through the model; lists everything that stands in the way. The proof is made at
 * two batch sizes and must come out alike: at one alone, a fixed dimension that happens to be a multiple of it could be
 * taken for the batch.
 */
export function analyse(given: Task): Analysis {
  const task = focused(given);
  const [rows, otherRows] = proofBatchSizes;
  const proof = proveAt(task, rows);
  const again = proveAt(task, otherRows, proof.typed);
  const { graph, loss, trace } = proof;
  const wanted = trainableParameters(graph, task.trainable ?? 'all', task.model.nodes);
  const path = gradientPath(graph, wanted, loss, trace.batch);
  const violations = [...trace.violations, ...again.trace.violations.filter(({ node }) => !trace.violations.some((v) => v.node === node))];
  const doubts = violations.length > 0 ? [] : [
    ...lossRows(trace.batch.get(loss)), ...disagreements(proof, again), ...sizeDependenceOf(task, proof, again.typed),
  ];
  return {
    task, batch: trace.batch, violations: [...violations, ...doubts], obstacles: path.obstacles,
    parameters: [...path.parameters], proof: proof.typed, forms: new Map(graph.nodes.map(({ name, op }) => [name, op])),
  };
}

/**
 * The task with only the part of its model that the loss depends on: what leads to other outputs alone need not be
 * supported, and inputs of theirs alone need not be fed. Constants of the program that `trainable` names outright are
 * parameters in it.
 *
 * @throws GhostgradError when the output that is named does not exist
 */
export function focused<T extends Pick<Task, 'model' | 'loss' | 'output' | 'trainable'>>(task: T): T {
  const { loss, output } = task;
  const model = asParameters(task.model, task.trainable === 'all' ? [] : task.trainable ?? []);
  const [only, ...others] = model.outputs.map(({ name }) => name);
  const chosen = loss.startsWith('output:') ? loss.slice('output:'.length) : output ?? (others.length === 0 ? only : undefined);
  return { ...task, model: chosen === undefined ? model : prune(model, [chosen]) };
}

interface Proof extends Pick<AtBatchSize, 'typed' | 'graph' | 'loss'> {
  readonly trace: BatchTrace;
}

const sizeDependenceOf = (
  task: Task, { typed, trace }: { readonly typed: TypedGraph; readonly trace: Pick<BatchTrace, 'batch'> }, other: TypedGraph,
): Violation[] => sizeDependence(task.model, typed, other, trace.batch);

function proveAt(task: Task, rows: number, like?: TypedGraph): Proof {
  const { typed, graph: whole, loss, batchInputs } = atBatchSize(task, rows, like);
  const graph = expandComposites(whole);
  return { typed, graph, loss, trace: traceBatch(graph, batchInputs) };
}

function lossRows(at: BatchAxis | undefined): Violation[] {
  if (at !== undefined && sameBatch(at, leading)) return [];
  return [{
    node: '', operator: 'loss', axis: 0, reason: 'the rows of the loss are not the examples of the batch',
    fix: 'let the loss have one value an example',
  }];
}

/** The first node whose output carries the batch elsewhere at the other batch size. */
function disagreements(one: Proof, other: Proof): Violation[] {
  const differs = (value: Value): boolean => {
    const [a, b] = [one.trace.batch.get(value), other.trace.batch.get(value)];
    return (a === undefined) !== (b === undefined) || (a !== undefined && b !== undefined && !sameBatch(a, b));
  };
  const node = one.graph.nodes.find(({ outputs }) => outputs.some(differs));
  return node === undefined ? [] : [{
    node: node.name, operator: node.op, axis: 0, reason: 'where its output carries the batch depends on the batch size',
    fix: 'let the shapes in the model follow from the batch size',
  }];
}

/** Throws one GhostgradError that names everything in the way of private training. */
export function requireTrainable(analysis: Analysis): void {
  const problems = [
    ...analysis.violations.map((v) => `node "${v.node}" (${v.operator}), axis ${v.axis}: ${v.reason}. Fix: ${v.fix}`),
    ...analysis.obstacles.map((o) => `node "${o.node}" (${o.operator}): ${o.reason}. Fix: ${o.fix}`),
  ];
  if (problems.length > 0) {
    throw new GhostgradError({
      what: analysis.violations.length > 0 ? 'the model lets examples mix, so no per-example bound exists' : 'the model cannot be differentiated',
      where: 'model', found: `\n    ${problems.join('\n    ')}`,
      expected: 'every row of the loss to depend on its own example, by differentiable operators',
      fix: 'as said for each node; `ghostgrad explain MODEL` shows the whole picture',
    });
  }
  if (analysis.parameters.length === 0) {
    throw new GhostgradError({
      what: 'nothing to train', where: 'trainable', found: JSON.stringify(analysis.task.trainable ?? 'all'),
      expected: 'at least one float initializer that the loss depends on', fix: 'check the patterns, and `ghostgrad explain MODEL`',
    });
  }
}

/** The groups that a mode clips by where nothing else is asked for: `per-layer` each layer, others all parameters as one. */
export const groupsOf = (mode: Mode, { task, parameters }: Pick<Analysis, 'task' | 'parameters'>): Partition | undefined =>
  (mode === 'per-layer' ? partitionOf({ style: 'per-layer' }, task.model, parameters) : undefined);

/**
 * The step graph for physical batches of `rows` rows.
 *
 * @throws GhostgradError where the model computes something else at this batch size than at those of the proof
 */
export function compileTask(analysis: Analysis, rows: number, options: StepOptions): StepGraph {
  const { task, proof, batch } = analysis;
  const { typed, graph, loss } = atBatchSize(task, rows, proof);
  const violations = sizeDependenceOf(task, { typed: proof, trace: { batch } }, typed);
  if (violations.length > 0) requireTrainable({ ...analysis, violations });
  const wanted = new Set(analysis.parameters);
  const dependent = dependentOn(graph, wanted);
  const differentiated = expandComposites(graph, (node) => node.outputs.some((v) => dependent.has(v)));
  requireSameForm(differentiated, wanted, analysis.forms);
  const withInputs = parametersAsInputs(withFoldedBatchNorm(differentiated, wanted), wanted);
  const path: GradientPath = gradientPath(withInputs, wanted, loss, analysis.batch);
  const output = task.output ?? task.model.outputs[0]?.name ?? '';
  const right = (b: GraphBuilder): Value | undefined => attachRight(b, task.loss, output);
  const computed = task.fed?.filter((value) => !task.model.inputs.some(({ name }) => name === value));
  return stepGraph({ graph: withInputs, path, batch: analysis.batch, loss, right, computed }, options);
}

/** What was proved of a value holds by its name: a node of another form at another batch size would make that a guess. */
function requireSameForm(graph: TypedGraph, parameters: ReadonlySet<Value>, forms: Analysis['forms']): void {
  const dependent = dependentOn(graph, parameters);
  const other = graph.nodes.find((node) => node.outputs.some((v) => dependent.has(v)) && forms.get(node.name) !== node.op);
  if (other === undefined) return;
  throw new GhostgradError({
    what: 'the training graph has another form at this batch size than where it was proved', where: showNode(other),
    found: other.op, expected: forms.get(other.name) ?? 'no such node', fix: 'choose another physical batch size, and report this model',
  });
}

interface AtBatchSize {
  /** The whole model alone. */
  readonly typed: TypedGraph;
  readonly graph: TypedGraph;
  readonly loss: Value;
  readonly labels?: TensorType;
  readonly batchInputs: ReadonlyMap<Value, BatchAxis>;
}

/** The model with its loss, every shape fixed for batches of `rows` rows; in the nodes of `like`, the model at another size. */
export function atBatchSize(task: Task, rows: number, like?: TypedGraph): AtBatchSize {
  const shapes = Object.fromEntries(task.model.inputs.map((input) => [input.name, [rows, ...exampleShape(task, input.name)]]));
  const typed = runnable(specialise(task.model, shapes, semantics, like));
  const computed = task.fed === undefined ? typed : behind(typed, task.fed);
  const { graph, loss, labels } = attachLoss(computed, task.loss, task.output);
  const found = graph.types.get(loss)?.shape ?? [];
  if (found.length !== 1 || found[0] !== rows) {
    throw new GhostgradError({
      what: 'the loss does not have one value for each example', where: `loss ${task.loss}`,
      found: `${showShape(found)} for ${rows} examples`, expected: showShape([rows]),
      fix: 'choose an output whose first axis is the batch',
    });
  }
  const names = [...computed.inputs.map(({ name }) => name), ...(labels === undefined ? [] : [labelsInput])];
  return { typed, graph, loss, ...(labels && { labels }), batchInputs: new Map(names.map((name) => [name, leading])) };
}

/**
 * Float initializers (not literals) that match, less those that an operator keeps as statistics or settings.
 *
 * @param whole the nodes of the model before any was expanded, for operators that say so of themselves as a whole
 */
export function trainableParameters(graph: Graph, trainable: 'all' | readonly string[], whole: readonly Node[] = graph.nodes): Set<Value> {
  const untrained = new Set([...graph.nodes, ...whole].flatMap((node) =>
    (hasOperator(node) ? entryOf(node).untrained ?? [] : []).map((i) => node.inputs[i] ?? '')));
  const parameters = [...graph.initializers].filter(([name, t]) => t.dtype === 'float32'
    && graph.literals?.has(name) !== true && !untrained.has(name)).map(([name]) => name);
  return new Set(trainable === 'all' ? parameters : trainable.flatMap((pattern) => matching(pattern, parameters, 'trainable')));
}

/** Trainable parameters become inputs: the step graph stays small, and the same session serves every step. */
function parametersAsInputs(graph: TypedGraph, parameters: ReadonlySet<Value>): TypedGraph {
  const inputs = [...parameters].map((name) => ({ name, ...graph.types.get(name)! }));
  return {
    ...graph,
    inputs: [...graph.inputs, ...inputs],
    initializers: new Map([...graph.initializers].filter(([name]) => !parameters.has(name))),
  };
}
