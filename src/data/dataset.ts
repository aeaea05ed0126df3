import { GhostgradError } from '../errors.ts';
import {
  type FloatTensor, type Shape, type Tensor, type TypedArrays, allocate, sizeOf, tensor,
} from '../tensor/tensor.ts';
import { type AnyColumn, type ColumnType, floatColumn, integerColumn, reshaped } from './column.ts';
import { showRow } from './messages.ts';

/** Examples with labels, held in memory. */
export interface Dataset {
  /** What messages call it: a path, or the name of a set. */
  readonly name: string;
  /** Rows held. */
  readonly size: number;
  /** The number of examples that the user declared public; without it, `size` is taken to be public. */
  readonly declaredSize?: number | undefined;
  /** The model's inputs by name; a set with one input calls it `input`. */
  readonly features: ReadonlyMap<string, AnyColumn>;
  readonly labels: AnyColumn;
  /** Names of the classes in the order of their labels, where labels have names. */
  readonly classNames?: readonly string[] | undefined;
  /** Copies rows into buffers that the caller owns; see {@link Column.gather}. */
  readonly gather: (indices: Uint32Array, into: BatchBuffers) => void;
}

/** Where a batch goes: one array for each feature and one for the labels, of at least the batch's elements. */
export interface BatchBuffers {
  readonly features: ReadonlyMap<string, TypedArrays[ColumnType]>;
  readonly labels: TypedArrays[ColumnType];
}

/** A batch as tensors, [rows, ...shape of one example]. */
export interface Batch {
  readonly features: ReadonlyMap<string, Tensor<ColumnType>>;
  readonly labels: Tensor<ColumnType>;
}

/** Tensors of a batch, if it has them. */
export interface SpareBatch {
  readonly features: (name: string) => Tensor | undefined;
  readonly labels?: Tensor | undefined;
}

type Parts = Pick<Dataset, 'name' | 'features' | 'labels' | 'declaredSize' | 'classNames'>;

/**
 * A dataset over columns.
 *
 * @throws GhostgradError when it has no rows, or columns of different lengths
 */
export function datasetOf({ name, features, labels, declaredSize, classNames }: Parts): Dataset {
  const { size } = labels;
  const odd = [...features].find(([, column]) => column.size !== size);
  if (odd !== undefined) {
    throw new GhostgradError({
      what: 'features and labels differ in number', where: `feature "${odd[0]}" of ${name}`,
      found: `${odd[1].size} rows of features and ${size} labels`, expected: 'one label for each row',
    });
  }
  if (size === 0) {
    throw new GhostgradError({
      what: 'the data has no rows', where: name, expected: 'at least one example',
    });
  }
  return {
    name, size, declaredSize, features, labels, classNames,
    gather: (indices, into) => {
      for (const [feature, column] of features) gatherInto(column, indices, into.features.get(feature), feature);
      gatherInto(labels, indices, into.labels, 'labels');
    },
  };
}

function gatherInto(
  column: AnyColumn, indices: Uint32Array, into: TypedArrays[ColumnType] | undefined, name: string,
): void {
  if (column.dtype === 'float32' && into instanceof Float32Array) column.gather(indices, into);
  else if (column.dtype === 'int64' && into instanceof BigInt64Array) column.gather(indices, into);
  else throw new TypeError(`the buffer for ${name} is not of type ${column.dtype}`);
}

/**
 * One column's rows `indices` as a tensor of `rows` rows, those after the last index zero.
 *
 * @param spare a tensor that nobody needs any more: if it is of the same type and size, it is written over
 */
export function gatherColumn(
  column: AnyColumn, indices: Uint32Array, rows = indices.length, spare?: Tensor,
): Tensor<ColumnType> {
  const length = rows * sizeOf(column.shape);
  const fits = spare !== undefined && spare.dtype === column.dtype && spare.data.length === length;
  const data = fits ? spare.data as TypedArrays[ColumnType] : allocate<ColumnType>(column.dtype, length);
  gatherInto(column, indices, data, 'a column');
  return tensor(column.dtype, [rows, ...column.shape], data);
}

/**
 * The examples `indices` as tensors.
 *
 * @param rows rows of the tensors, at least `indices.length` (the default); those after the last index are zero
 * @param spare an earlier batch that nobody needs any more, whose tensors are written over where they are as large.
 * Default: new ones
 */
export function batchOf({ features, labels }: Dataset, indices: Uint32Array, rows = indices.length, spare?: SpareBatch): Batch {
  return {
    features: new Map([...features].map(([name, column]) => [name, gatherColumn(column, indices, rows, spare?.features(name))])),
    labels: gatherColumn(labels, indices, rows, spare?.labels),
  };
}

/** The indices 0, 1, …, count − 1. */
export const allRows = (count: number): Uint32Array => rowsFrom(0, count);

/** The indices of `count` rows one after another. */
export const rowsFrom = (start: number, count: number): Uint32Array => Uint32Array.from({ length: count }, (_, i) => start + i);

/**
 * A dataset over arrays: `features` float32 or int64 (token ids, say) [rows, ...], `labels` int64 (classes) or float32 (targets) [rows, ...].
 * The arrays are not copied.
 */
export function datasetFromTensors(
  features: ColumnTensor | Readonly<Record<string, ColumnTensor>>, labels: ColumnTensor,
  { name = 'data in memory', size }: { readonly name?: string; readonly size?: number } = {},
): Dataset {
  const named = isTensor(features) ? { input: features } : features;
  return datasetOf({
    name,
    features: new Map(Object.entries(named).map(([key, t]) => [key, columnOf(t)])),
    labels: columnOf(labels),
    declaredSize: size,
  });
}

type ColumnTensor = FloatTensor | Tensor<'int64'>;

const columnOf = (t: ColumnTensor): AnyColumn =>
  t.dtype === 'int64' ? integerColumn(t.data, t.shape.slice(1)) : floatColumn(t.data, t.shape.slice(1));

const isTensor = (x: ColumnTensor | Readonly<Record<string, ColumnTensor>>): x is ColumnTensor => ArrayBuffer.isView(x['data']);

/**
 * The dataset with labels of the type and shape that a loss takes: classes int64 `[]`, targets float32 in the shape of
 * the model's output.
 *
 * @throws GhostgradError, naming the row, where a label is no whole number but must be; or for a shape of another size
 */
export function withLabels(dataset: Dataset, dtype: ColumnType, shape: Shape): Dataset {
  const { labels, name } = dataset;
  if (sizeOf(shape) !== sizeOf(labels.shape)) {
    throw new GhostgradError({
      what: 'the labels have another shape than the loss takes', where: name,
      found: `[${labels.shape.join(', ')}] for each example`, expected: `[${shape.join(', ')}]`,
    });
  }
  const typed = labels.dtype === dtype ? labels : converted(labels, dtype, name);
  return datasetOf({ ...dataset, labels: reshaped(typed, shape) });
}

function converted(labels: AnyColumn, dtype: ColumnType, name: string): AnyColumn {
  const { data } = gatherColumn(labels, allRows(labels.size));
  const values = Array.from(data as ArrayLike<number | bigint>, Number);
  if (dtype === 'float32') return floatColumn(Float32Array.from(values), labels.shape);
  const odd = values.findIndex((x) => !Number.isSafeInteger(x));
  if (odd >= 0) {
    throw new GhostgradError({
      what: 'a label is not a whole number',
      where: `${name}, label of ${showRow(Math.floor(odd / sizeOf(labels.shape)))}`,
      expected: 'class labels 0, 1, …', fix: 'use a loss for numbers (mse), or number the classes from 0',
    });
  }
  return integerColumn(BigInt64Array.from(values, BigInt), labels.shape);
}
