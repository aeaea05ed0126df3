import { type Dataset, classesEntry } from '../data/index.ts';
import { gatherColumn, rowsFrom } from '../data/dataset.ts';
import { GhostgradError } from '../errors.ts';
import type { Files } from '../files.ts';
import { type Graph, int, showShape } from '../graph/ir.ts';
import { prune } from '../graph/prune.ts';
import { specialise } from '../graph/specialise.ts';
import { bodyOf } from '../models/head.ts';
import { semantics } from '../ops/table.ts';
import type { Engine } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { runtimeVersion } from '../runtime/version.ts';
import { largestHalf, toHalves } from '../tensor/half.ts';
import { type Shape, type Tensor, type TensorType, int64, sizeOf } from '../tensor/tensor.ts';
import { analyse, requireTrainable } from './compile.ts';
import { fittedFeatures, taskFor } from './examples.ts';
import { type FeatureContents, writeFeatures } from './feature-file.ts';
import { dataDigest, modelDigest } from './fingerprint.ts';
import { type Chunk, bytesOf, forwardBatch, forwardChunks } from './forward.ts';
import { prepareModel } from './model.ts';
import type { ShapeBindings } from './shapes.ts';

/** Element types that features are kept in. */
export const featureTypes = ['float32', 'float16'] as const;
export type FeatureType = (typeof featureTypes)[number];

export interface EmbedOptions {
  /** The value of the model whose numbers are the features; default: its only output. */
  readonly output?: string | undefined;
  /** Default `float32`; `float16` takes half the space, and is rounded to 11 significant bits. */
  readonly dtype?: FeatureType | undefined;
  /** Rows computed at once; default {@link forwardBatch}. An unfinished file is finished with the size that it was begun with. */
  readonly batchSize?: number | undefined;
  /** Sizes of the model's inputs, which the data must agree with. Default: the data's own. */
  readonly shapes?: ShapeBindings | undefined;
  readonly threads?: number | undefined;
  /** What the data was read from, kept in the file for people: a data spec. Default: the data's name. */
  readonly spec?: unknown;
  /** Computes anew what is there, whatever it is. Default false. */
  readonly overwrite?: boolean | undefined;
  /** Default: ONNX Runtime on the CPU. */
  readonly engine?: Engine | undefined;
  /** Makes the changes to files; default: the file system. */
  readonly files?: Files | undefined;
  /** Seconds between two moments from which a killed process goes on; default 2. */
  readonly syncSeconds?: number | undefined;
  /** Hears how many rows are there, of how many. */
  readonly onProgress?: ((rows: number, of: number) => void) | undefined;
  /** When it aborts, the rows so far are kept for a later call to go on with. */
  readonly signal?: AbortSignal | undefined;
}

export interface Embedded {
  readonly path: string;
  /** Rows of the file. */
  readonly examples: number;
  /** Numbers of a row. */
  readonly dimensions: number;
  readonly dtype: FeatureType;
  /** Rows that this call computed: 0 where the file was there, fewer than all where it went on with one. */
  readonly computed: number;
  /** False where it was stopped: the same call goes on. */
  readonly complete: boolean;
  readonly seconds: number;
}

/**
 * Computes the features of a dataset by a frozen model, once, into a safetensors file: `features` [rows, d], d being all
 * numbers of an example, and `labels` as the data has them; the classes' names are in its metadata. It is read back with
 * `{ path, features: 'features', label: 'labels' }`.
 *
 * The file names what it was made of (`ghostgrad.features` in its metadata): digests of the model up to the output with
 * its weights, and of the data as the model takes it, element type, and software. Where all of that is the same, nothing is
 * computed; a file of anything else is refused. An interrupted call is gone on with by the same call, to the same bytes.
 * Memory does not grow with the number of examples.
 *
 * @throws GhostgradError when model and data do not fit together, the model lets examples mix, a feature is not finite, the
 * file is one of other features (unless `overwrite`), or it cannot be written
 */
export async function embed(model: Graph, dataset: Dataset, path: string, options: EmbedOptions = {}): Promise<Embedded> {
  const started = performance.now();
  const { engine = onnxruntimeEngine(), threads, dtype = 'float32', spec = dataset.name } = options;
  const { task, output, data, proof, dimensions } = prepared(model, dataset, options);
  const contents: FeatureContents = {
    key: { model: modelDigest(prune(task.model, [output]), []), output, data: dataDigest(data), dtype, software: softwareOf(engine) },
    rows: data.size, batch: Math.min(options.batchSize ?? forwardBatch(proof), data.size), spec,
    types: new Map<string, TensorType>([
      ['features', { dtype, shape: [dimensions] }], ['labels', { dtype: data.labels.dtype, shape: data.labels.shape }],
    ]),
    metadata: data.classNames && { [classesEntry]: JSON.stringify(data.classNames) },
  };
  const written = await writeFeatures(path, contents, async function* (start, batch) {
    const encode = encoder({ dtype, dimensions, where: `output "${output}"`, data: data.name });
    for await (const chunk of forwardChunks(task, [output], data, { batch, start, like: proof, engine, threads })) {
      const rows = rowsFrom(chunk.start, chunk.count);
      yield new Map([['features', encode(chunk.outputs[output]!, chunk)], ['labels', bytesOf(gatherColumn(data.labels, rows).data)]]);
    }
  }, options);
  return { path, examples: data.size, dimensions, dtype, ...written, seconds: (performance.now() - started) / 1000 };
}

/** What computed features: other kernels may round otherwise. */
export const softwareOf = ({ name }: Engine): string => `${name}, ONNX Runtime ${runtimeVersion()}`;

/** Model and data brought together, with the proof that rows of the features are apart. */
function prepared(model: Graph, dataset: Dataset, { output: asked, shapes, batchSize = 1 }: EmbedOptions) {
  if (!Number.isSafeInteger(batchSize) || batchSize < 1) {
    throw new GhostgradError({ what: 'not a batch size', where: 'batchSize', found: String(batchSize), expected: 'a whole number of at least 1' });
  }
  const body = bodyOf(prepareModel(model), asked, 'output');
  const output = body.outputs[0]!.name;
  const task = taskFor({ model: summed(body), loss: `output:${sumOf(output)}`, trainable: [] }, dataset, { bindings: shapes });
  const data = fittedFeatures(task, dataset);
  const inputs = Object.fromEntries(Object.entries(task.exampleShapes ?? {}).map(([name, shape]) => [name, [2, ...shape]]));
  const [type] = specialise(prune(task.model, [output]), inputs, semantics).outputs;
  const shape = (type!.shape ?? []) as Shape;
  if (type!.dtype !== 'float32' || shape[0] !== 2) {
    throw new GhostgradError({
      what: 'the output holds no features', where: `output "${output}"`, found: `${type!.dtype}${showShape(shape)} for 2 examples`,
      expected: 'float32 [2, …]: numbers of each example', fix: 'choose another output: --output',
    });
  }
  const analysis = analyse(task);
  if (analysis.violations.length > 0) requireTrainable(analysis);
  return { task, output, data, proof: analysis.proof, dimensions: sizeOf(shape.slice(1)) };
}

/** The model with one number for each example, by which the proof follows the rows of its features. */
function summed(body: Graph): Graph {
  const [{ name }] = body.outputs as [Graph['outputs'][number]];
  const [sum, flat, axis] = [sumOf(name), `${sumOf(name)}.flat`, `${sumOf(name)}.axis`];
  return {
    ...body,
    nodes: [
      ...body.nodes,
      { op: 'Flatten', domain: '', name: flat, inputs: [name], outputs: [flat], attributes: { axis: int(1) } },
      { op: 'ReduceSum', domain: '', name: sum, inputs: [flat, axis], outputs: [sum], attributes: { keepdims: int(0) } },
    ],
    outputs: [{ name: sum, dtype: 'float32', shape: ['batch'] }],
    initializers: new Map([...body.initializers, [axis, int64([1])]]),
    literals: new Set([...(body.literals ?? []), axis]),
  };
}

const sumOf = (output: string): string => `${output}/ghostgrad.sum`;

/** Turns the first rows of an output into bytes. Throws GhostgradError for what is not finite, or beyond float16. */
function encoder({ dtype, dimensions, where, data }: {
  readonly dtype: FeatureType; readonly dimensions: number; readonly where: string; readonly data: string;
}) {
  const most = dtype === 'float16' ? largestHalf : Number.MAX_VALUE;
  return (output: Tensor, { start, count }: Pick<Chunk, 'start' | 'count'>): Uint8Array => {
    const values = (output.data as Float32Array).subarray(0, count * dimensions);
    const odd = values.findIndex((x) => !(Math.abs(x) <= most));
    if (odd >= 0) {
      const isFinite = Number.isFinite(values[odd]);
      throw new GhostgradError({
        what: isFinite ? 'a feature is too large for float16' : 'a feature is not finite',
        where: `${where} for row ${start + Math.floor(odd / dimensions) + 1} of ${data}`,
        expected: isFinite ? `numbers up to ${largestHalf}` : 'finite numbers',
        fix: isFinite ? 'keep them as float32' : 'look whether the data is scaled as the model expects, or choose another output',
      });
    }
    if (dtype === 'float32') return bytesOf(values);
    const halves = new Uint16Array(values.length);
    toHalves(values, halves);
    return bytesOf(halves);
  };
}
