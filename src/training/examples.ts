import {
  type AnyColumn,
  type ColumnType,
  type Dataset,
  batchOf,
  datasetOf,
  requireRows,
  requireShape,
  validateDataset,
  withLabels,
} from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import { type Graph, showShape } from '../graph/ir.ts';
import { gatherColumn } from '../data/dataset.ts';
import { entryOf, hasOperator } from '../ops/table.ts';
import type { Feeds } from '../runtime/engine.ts';
import { sameShape } from '../tensor/tensor.ts';
import { type Task, atBatchSize, focused } from './compile.ts';
import { ignoredBy, labelsInput } from './loss.ts';
import { type ShapeBindings, bindShapes } from './shapes.ts';
import type { BatchSource } from './step.ts';

/**
 * The task of training `model` on data like `dataset`: shapes that the model leaves open are the data's.
 *
 * @param shapes what the user says of them; the data must agree
 * @throws GhostgradError when data and model have different inputs, or the data has other shapes than `shapes` says
 */
export function taskFor(
  whole: Omit<Task, 'exampleShapes'>, dataset: Dataset, { bindings = {}, where }: GivenShapes = {},
): Task {
  const task = focused(whole);
  const columns = inputColumns(task.model, dataset, task.loss);
  const given = bindShapes(task.model, bindings, where).exampleShapes;
  for (const [name, { shape }] of columns) {
    const expected = given[name] ?? shape;
    if (Object.keys(bindings).length === 0 || sameShape(expected, shape)) continue;
    throw new GhostgradError({
      what: 'the data has another shape than was given for the input', where: `feature "${name}" of ${dataset.name}`,
      found: `${showShape(shape)} for each example`, expected: showShape(expected),
      fix: `convert the data, or leave the shape of "${name}" to it`,
    });
  }
  return { ...task, exampleShapes: Object.fromEntries([...columns].map(([name, { shape }]) => [name, shape])) };
}

/** Shapes that a user gives, and what messages call the place where they stand. */
export interface GivenShapes {
  readonly bindings?: ShapeBindings | undefined;
  readonly where?: string;
}

/** @throws GhostgradError where the data has another shape than the model declares, before anything is read */
export function requireShapes(task: Pick<Task, 'model' | 'loss'>, dataset: Dataset): void {
  const columns = inputColumns(task.model, dataset, task.loss);
  for (const { name, shape } of task.model.inputs) {
    const column = columns.get(name);
    if (shape !== null && column !== undefined) requireShape(dataset, name, column, shape.slice(1));
  }
}

/**
 * The dataset in the form that a task takes it: features by the names of the model's inputs, labels of the loss's type.
 * Reads all of the data once, outside ε.
 *
 * @throws GhostgradError for another shape or element type than the model's, a number that is not finite, a label that
 * is no class; the message names the place, never a value
 */
export function fittedTo(task: Task, dataset: Dataset): Dataset {
  const renamed = fittedFeatures(task, dataset);
  const { graph, labels } = atBatchSize(task, 2);
  if (labels === undefined) return renamed;
  if (task.loss === 'causal-lm' && dataset.labels.shape.length === 0) throw withoutNext(dataset.name);
  const fitted = withLabels(renamed, labels.dtype as ColumnType, labels.shape.slice(1));
  const ignored = ignoredBy(task.loss);
  if (ignored !== undefined) validateDataset(fitted, { classes: graph.types.get(logitsOf(task))?.shape.at(-1), ignored });
  return fitted;
}

const withoutNext = (where: string): GhostgradError => new GhostgradError({
  what: 'a language model learns from texts alone', where, found: 'a label for each text', expected: 'the next token as the label of each token',
  fix: 'say target: next-token in the data spec, and no label',
});

/** The part of {@link fittedTo} that asks nothing of the labels: they stay as they are. */
export function fittedFeatures(task: Pick<Task, 'model' | 'loss'>, dataset: Dataset): Dataset {
  const columns = inputColumns(task.model, dataset, task.loss);
  const tables = tablesOf(task.model);
  for (const { name, dtype, shape } of task.model.inputs) {
    const column = columns.get(name);
    if (column === undefined) continue;
    if (column.dtype !== dtype) {
      throw new GhostgradError({
        what: 'the data has another element type than the model takes',
        where: `feature "${name}" of ${dataset.name}`,
        found: column.dtype,
        expected: dtype,
        fix: 'convert the data, or export the model with an input of its type',
      });
    }
    validateDataset(
      datasetOf({ ...dataset, features: new Map([[name, column]]) }),
      shape === null ? {} : { inputShape: shape.slice(1) },
    );
    for (const table of tables.get(name) ?? []) requireRows(dataset, name, column, table);
  }
  return datasetOf({ ...dataset, features: columns });
}

interface Table {
  readonly table: string;
  readonly rows: number;
}

/** The tables of a model in which its inputs look up rows, by the inputs. */
function tablesOf({ nodes, initializers }: Graph): ReadonlyMap<string, readonly Table[]> {
  const found = nodes.filter(hasOperator).flatMap((node) => (entryOf(node).lookUps?.(node) ?? []).flatMap(({ rows, table }) => {
    const held = initializers.get(node.inputs[table] ?? '');
    return held === undefined ? [] : [[node.inputs[rows] ?? '', { table: node.inputs[table]!, rows: held.shape[0] ?? 0 }] as const];
  }));
  return new Map(found.map(([input]) => [input, found.filter(([other]) => other === input).map(([, table]) => table)]));
}

/** The output that a loss is taken of. */
export const logitsOf = ({ model, output }: Pick<Task, 'model' | 'output'>): string =>
  output ?? model.outputs[0]?.name ?? '';

/**
 * The column that each of the model's inputs takes: the only one the only one, else by name. A model whose output is
 * its loss may take the labels as an input of its own: the one that no feature is named after.
 */
function inputColumns(
  model: Graph,
  { features, labels, name }: Dataset,
  loss: Task['loss'],
): ReadonlyMap<string, AnyColumn> {
  const inputs = model.inputs.map((input) => input.name);
  const [onlyInput, ...otherInputs] = inputs;
  const [onlyFeature, ...otherFeatures] = features.values();
  if (onlyInput !== undefined && onlyFeature !== undefined && otherInputs.length + otherFeatures.length === 0) {
    return new Map([[onlyInput, onlyFeature]]);
  }
  const columns = new Map([...features].filter(([feature]) => inputs.includes(feature)));
  const [left, ...more] = inputs.filter((input) => !columns.has(input));
  if (left !== undefined && more.length === 0 && loss.startsWith('output:')) columns.set(left, labels);
  if (columns.size === inputs.length && inputs.length > 0) return columns;
  throw new GhostgradError({
    what: 'the data lacks inputs of the model',
    where: name,
    found: `features ${[...features.keys()].join(', ')}`,
    expected: `features ${inputs.join(', ')}`,
    fix: 'name the features of the data after the inputs of the model',
  });
}

/** The rows `indices` of a dataset (fitted to its task), for the step to take in parts. */
export function batchSource(dataset: Dataset, indices: Uint32Array): BatchSource {
  return {
    size: indices.length,
    feeds: (start, count, units, spare) => feedsOf(dataset, indices.subarray(start, start + count), units, spare),
  };
}

/** Inputs of some rows, padded with zeros to `rows` rows; in the memory of `spare` where that fits. */
export const inputsOf = ({ features }: Dataset, indices: Uint32Array, rows: number, spare: Feeds = {}): Feeds =>
  Object.fromEntries([...features].map(([name, column]) => [name, gatherColumn(column, indices, rows, spare[name])]));

/** Inputs and labels of some rows, padded with zeros to `rows` rows; in the memory of `spare` where that fits. */
export function feedsOf(dataset: Dataset, indices: Uint32Array, rows: number, spare: Feeds = {}): Feeds {
  const { features, labels } = batchOf(dataset, indices, rows, { features: (name) => spare[name], labels: spare[labelsInput] });
  return { ...Object.fromEntries(features), [labelsInput]: labels };
}
