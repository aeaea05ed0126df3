import type { Dataset } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { graphBuilder } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import type { Engine } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { type Task, atBatchSize } from './compile.ts';
import { feedsOf, fittedTo, logitsOf, taskFor } from './examples.ts';
import { type LossName, labelsInput } from './loss.ts';
import { prepareModel, recordedLoss } from './model.ts';
import type { ShapeBindings } from './shapes.ts';

export interface EvaluateOptions {
  /** Default: the loss that the model was trained with, where its file says so, else cross-entropy. */
  readonly loss?: LossName | undefined;
  /** The output that the loss is taken of; by default the model's only one. */
  readonly output?: string | undefined;
  /** Sizes of the model's inputs, which the data must agree with. Default: the data's own. */
  readonly shapes?: ShapeBindings | undefined;
  /** Rows computed at once; default 256. */
  readonly batchSize?: number | undefined;
  readonly threads?: number | undefined;
  /** Default: ONNX Runtime on the CPU. */
  readonly engine?: Engine | undefined;
  /** Is told the loss of every example, in their order. */
  readonly onLoss?: ((loss: number) => void) | undefined;
}

export interface Evaluation {
  /** Fraction of examples classified right, 0..1; null where the loss does not classify. */
  readonly accuracy: number | null;
  /** Mean over the examples. */
  readonly loss: number;
  readonly examples: number;
}

/**
 * A model's mean loss and accuracy on a dataset.
 *
 * @throws GhostgradError when data and model do not fit together, and for NaN in the data
 */
export async function evaluate(model: Graph, dataset: Dataset, options: EvaluateOptions = {}): Promise<Evaluation> {
  const { batchSize = 256, engine = onnxruntimeEngine(), threads } = options;
  if (!Number.isSafeInteger(batchSize) || batchSize < 1) {
    throw new GhostgradError({
      what: 'not a batch size',
      where: 'batchSize',
      found: String(batchSize),
      expected: 'a whole number of at least 1',
    });
  }
  const task = taskFor(
    { model: prepareModel(model), loss: options.loss ?? recordedLoss(model) ?? 'cross-entropy', output: options.output },
    dataset,
    { bindings: options.shapes },
  );
  const data = fittedTo(task, dataset);
  const rows = Math.min(batchSize, data.size);
  const session = await engine.compile(evaluationGraph(task, rows), { threads });
  const isRight = judges[task.loss];
  let loss = 0;
  let right = 0;
  try {
    for (let start = 0; start < data.size; start += rows) {
      const count = Math.min(rows, data.size - start);
      const indices = Uint32Array.from({ length: count }, (_, i) => start + i);
      const { outputs, feeds } = await session.run(feedsOf(data, indices, rows));
      const losses = valueOf(outputs, lossOutput).data as Float32Array;
      for (let i = 0; i < count; i++) loss += losses[i] ?? NaN;
      if (options.onLoss !== undefined) losses.subarray(0, count).forEach((each) => options.onLoss?.(each));
      if (isRight === undefined) continue;
      const logits = rowsOf(valueOf(outputs, logitsOutput), rows);
      const labels = rowsOf(valueOf(feeds, labelsInput), rows);
      for (let i = 0; i < count; i++) right += isRight(logits(i), labels(i)) ? 1 : 0;
    }
  } finally {
    await session.release();
  }
  return { accuracy: isRight === undefined ? null : right / data.size, loss: loss / data.size, examples: data.size };
}

const lossOutput = 'ghostgrad.loss';
const logitsOutput = 'ghostgrad.logits';

/** The forward graph with its losses, and the logits where they can be judged. */
function evaluationGraph(task: Task, rows: number) {
  const { graph, loss } = atBatchSize(task, rows);
  const logits = judges[task.loss] === undefined ? [] : [[logitsOutput, logitsOf(task)] as const];
  return graphBuilder(semantics, graph).build([[lossOutput, loss], ...logits], `evaluation of ${task.model.name}`);
}

type Row = ArrayLike<number | bigint>;

/** Whether logits say what labels say, for the losses that classify. */
const judges: Readonly<Partial<Record<string, (logits: Row, labels: Row) => boolean>>> = {
  'cross-entropy': (logits, labels) => {
    let best = 0;
    for (let i = 1; i < logits.length; i++) if (Number(logits[i]) > Number(logits[best])) best = i;
    return best === Number(labels[0]);
  },
  'binary-cross-entropy': (logits, labels) =>
    Array.from(logits).every((z, i) => Number(z) > 0 === Number(labels[i]) > 0.5),
};

function valueOf(values: Readonly<Record<string, Tensor>>, name: string): Tensor {
  const value = values[name];
  if (value === undefined) throw new Error(`the engine returned no "${name}"`);
  return value;
}

/** Views of a tensor's rows. */
function rowsOf({ data }: Tensor, rows: number): (row: number) => Row {
  const width = data.length / rows;
  return (row) => data.subarray(row * width, (row + 1) * width);
}
