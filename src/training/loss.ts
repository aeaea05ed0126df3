import { GhostgradError } from '../errors.ts';
import { type TypedGraph, int, showType } from '../graph/ir.ts';
import {
  type GraphBuilder, type Value, graphBuilder, mul, neg, reduceMean, reduceSum, reshape, slice, sub, where,
} from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { unknownName } from '../suggest.ts';
import { type TensorType, isFloat } from '../tensor/tensor.ts';

/** A loss by name, or `output:<name>`: an output of the model that is already one loss a row, [B]. */
export type LossName = 'cross-entropy' | 'sigmoid-cross-entropy' | 'binary-cross-entropy' | 'mse' | 'causal-lm' | `output:${string}`;

/** Labels by which data for `causal-lm` says that a place is to be ignored. */
export const ignoredLabels: readonly number[] = [-1, -100];

/** The graph's input that takes the labels. */
export const labelsInput = 'ghostgrad.labels';

export interface WithLoss {
  readonly graph: TypedGraph;
  /** [B] float32, one loss a row. */
  readonly loss: Value;
  /** Type of the labels; absent where the loss is an output of the model. */
  readonly labels?: TensorType;
}

interface Loss {
  /** Type of the labels for a model output, or undefined when the output does not fit. */
  readonly labels: (output: TensorType) => TensorType | undefined;
  readonly expected: string;
  readonly emit: (b: GraphBuilder, output: Value, labels: Value) => Value;
  /** Labels that say nothing, where the others are classes 0, 1, … of the output's last axis. */
  readonly ignored?: readonly number[];
  /** 1 for each row that is classified right, else 0, [B] float32; for losses that classify. */
  readonly right?: (b: GraphBuilder, output: Value, labels: Value) => Value;
}

const rowsOnly = (b: GraphBuilder, x: Value) => b.shape(x).map((_, axis) => axis).slice(1);

/**
 * −log p(label) over the last axis of logits [...places, classes], one for each place; 0 where the label is no class
 * ({@link ignoredLabels}).
 */
function crossEntropies(b: GraphBuilder, logits: Value, labels: Value): Value {
  const places = b.shape(labels);
  const logProbabilities = b.op('LogSoftmax', [logits], { axis: int(-1) });
  const [zero, classes] = [0, b.shape(logits).at(-1)!].map((n) => b.scalar(n, 'int64')) as [Value, Value];
  const isClass = b.op('And', [b.op('GreaterOrEqual', [labels, zero]), b.op('Less', [labels, classes])]);
  const column = reshape(b, where(b, isClass, labels, zero), [...places, 1]);
  const picked = reshape(b, b.op('GatherElements', [logProbabilities, column], { axis: int(places.length) }), places);
  // Selection, not multiplication: the logarithm of a probability may be -Infinity.
  return neg(b, where(b, isClass, picked, b.scalar(0)));
}

const indicator = (b: GraphBuilder, condition: Value): Value => where(b, condition, b.scalar(1), b.scalar(0));

const classLogits: Pick<Loss, 'expected' | 'labels' | 'ignored' | 'right'> = {
  expected: 'logits of shape [batch, classes]',
  labels: ({ shape }) => (shape.length === 2 ? { dtype: 'int64', shape: [shape[0]!] } : undefined),
  ignored: [],
  right: (b, logits, labels) =>
    indicator(b, b.op('Equal', [b.op('ArgMax', [logits], { axis: int(1), keepdims: int(0) }), labels])),
};

const losses: { readonly [name: string]: Loss } = {
  'cross-entropy': { ...classLogits, emit: crossEntropies },
  /** Each class against all others, as in Mehta et al. (2022): the sum over classes of log(1 + e^z), minus the label's z. */
  'sigmoid-cross-entropy': {
    ...classLogits,
    emit: (b, z, labels) => {
      const places = b.shape(labels);
      const picked = b.op('GatherElements', [z, reshape(b, labels, [...places, 1])], { axis: int(1) });
      return sub(b, reduceSum(b, b.op('Softplus', [z]), [1]), reshape(b, picked, places));
    },
  },
  'binary-cross-entropy': {
    expected: 'logits of shape [batch] or [batch, outputs]',
    labels: (output) => ({ dtype: 'float32', shape: output.shape }),
    // log(1 + e^z) − y·z, the mean over the outputs of a row.
    emit: (b, z, y) => reduceMean(b, sub(b, b.op('Softplus', [z]), mul(b, y, z)), rowsOnly(b, z)),
    right: (b, z, y) => {
      const isWrong = b.op('Xor', [b.op('Greater', [z, b.scalar(0)]), b.op('Greater', [y, b.scalar(0.5)])]);
      return indicator(b, b.op('Less', [reduceSum(b, indicator(b, isWrong), rowsOnly(b, z)), b.scalar(0.5)]));
    },
  },
  /**
   * Over the tokens of an example, the sum of the cross entropies of each with what its predecessors predict: minus the
   * log-probability of the whole text. Of all ways to weigh texts of different lengths it is the one that the mean over
   * tokens, hence perplexity, is the sum of; clipping bounds what a text adds however long it is.
   */
  'causal-lm': {
    expected: 'logits of shape [batch, tokens, vocabulary] with at least two tokens',
    ignored: ignoredLabels,
    labels: ({ shape }) => (shape.length === 3 && shape[1]! > 1 ? { dtype: 'int64', shape: shape.slice(0, 2) } : undefined),
    // The labels move, not the logits, which are larger; the last position has nothing to predict.
    emit: (b, logits, tokens) => {
      const next = b.op('Pad', [slice(b, tokens, [1], [1], [b.shape(tokens)[1]!]), b.ints([0, 0, 0, 1]), b.scalar(-1, 'int64')]);
      return reduceSum(b, crossEntropies(b, logits, next), [1]);
    },
  },
  mse: {
    expected: 'predictions of shape [batch, …]',
    labels: (output) => ({ dtype: 'float32', shape: output.shape }),
    emit: (b, prediction, target) => {
      const difference = sub(b, prediction, target);
      return reduceMean(b, mul(b, difference, difference), rowsOnly(b, difference));
    },
  },
};

export const lossNames = Object.keys(losses);

/** Labels that a loss ignores where the others are classes; undefined for labels of other kinds. */
export const ignoredBy = (name: LossName): readonly number[] | undefined => losses[name]?.ignored;

/** Whether a value names a loss. */
export const isLoss = (value: unknown): value is LossName =>
  typeof value === 'string' && (lossNames.includes(value) || /^output:.+/.test(value));

/** The loss of that name. Throws GhostgradError, with the nearest valid name, when there is none. */
export function asLoss(name: string, where: string): LossName {
  if (!isLoss(name)) throw unknownName('loss', name, [...lossNames, 'output:<name>'], where);
  return name;
}

/**
 * Appends a loss to a graph. `output` names the model's output; by default the only one.
 * Throws GhostgradError when the output does not exist or does not fit the loss.
 */
export function attachLoss(graph: TypedGraph, name: LossName, output?: string): WithLoss {
  if (name.startsWith('output:')) return ownLoss(graph, name.slice('output:'.length));
  const loss = losses[name];
  if (loss === undefined) {
    throw new GhostgradError({
      what: 'unknown loss', where: 'loss', found: name, expected: [...lossNames, 'output:<name>'].join(' | '),
    });
  }
  const chosen = chooseOutput(graph, output);
  const type = graph.types.get(chosen)!;
  const labels = isFloat(type.dtype) && type.shape.length >= 1 ? loss.labels(type) : undefined;
  if (labels === undefined) {
    throw new GhostgradError({
      what: `the model's output does not fit the loss ${name}`, where: `output "${chosen}"`, found: showType(type),
      expected: loss.expected, fix: 'choose another output or another loss',
    });
  }
  const b = graphBuilder(semantics, graph);
  const value = loss.emit(b, chosen, b.input(labelsInput, labels));
  return { graph: b.build([[value, value]]), loss: value, labels };
}

/**
 * Appends to `b`, which has the model with its loss, whether each row is classified right: [B] float32, 1 or 0.
 * Undefined for losses that do not classify.
 */
export function attachRight(b: GraphBuilder, name: LossName, output: Value): Value | undefined {
  return name.startsWith('output:') ? undefined : losses[name]?.right?.(b, output, labelsInput);
}

/** Whether {@link attachRight} can tell right from wrong. */
export const classifies = (name: LossName): boolean => losses[name]?.right !== undefined;

function ownLoss(graph: TypedGraph, output: string): WithLoss {
  const chosen = chooseOutput(graph, output);
  const type = graph.types.get(chosen)!;
  if (type.dtype !== 'float32' || type.shape.length !== 1) {
    throw new GhostgradError({
      what: 'the output is not one loss a row', where: `output "${chosen}"`, found: showType(type), expected: 'float32[batch]',
      fix: 'let the model output the loss of each example, not their mean',
    });
  }
  return { graph, loss: chosen };
}

function chooseOutput(graph: TypedGraph, name: string | undefined): string {
  const names = graph.outputs.map((o) => o.name);
  if (name !== undefined && names.includes(name)) return name;
  const [only] = names;
  if (name === undefined && names.length === 1 && only !== undefined) return only;
  throw new GhostgradError({
    what: name === undefined ? 'the model has several outputs' : 'the model has no such output',
    where: 'output', ...(name !== undefined && { found: name }), expected: `one of ${names.join(', ')}`,
    fix: 'name the output that the loss is taken of',
  });
}
