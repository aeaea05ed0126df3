import type { Dataset } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { graphBuilder } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import type { Engine, Feeds } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { type Tensor, sizeOf } from '../tensor/tensor.ts';
import { type Task, atBatchSize } from './compile.ts';
import { feedsOf, fittedTo, logitsOf, taskFor } from './examples.ts';
import { type LossName, attachRight, classifies, ignoredLabels, labelsInput } from './loss.ts';
import { prepareModel, recordedLoss } from './model.ts';
import type { ShapeBindings } from './shapes.ts';

export interface EvaluateOptions {
  /** Default: the loss that the model was trained with, where its file says so, else cross-entropy. */
  readonly loss?: LossName | undefined;
  /** The output that the loss is taken of; by default the model's only one. */
  readonly output?: string | undefined;
  /** Sizes of the model's inputs, which the data must agree with. Default: the data's own. */
  readonly shapes?: ShapeBindings | undefined;
  /** Rows computed at once; default 256, fewer where their outputs would take more than 128 MiB. */
  readonly batchSize?: number | undefined;
  readonly threads?: number | undefined;
  /** Default: ONNX Runtime on the CPU. */
  readonly engine?: Engine | undefined;
  /** Is told the loss of every example, in their order. */
  readonly onLoss?: ((loss: number) => void) | undefined;
  /** Called with 1 for each example that is classified right, else 0, in order; never where the loss does not classify. */
  readonly onRight?: ((right: number) => void) | undefined;
}

export interface Evaluation {
  /** Fraction of examples classified right, 0..1; null where the loss does not classify. */
  readonly accuracy: number | null;
  /** Mean over the examples; under `causal-lm` that of an example is the sum over its tokens. */
  readonly loss: number;
  /** Under `causal-lm`, e to the mean loss of a token: from how many tokens, as it were, each was guessed. Else absent. */
  readonly perplexity?: number;
  readonly examples: number;
  /** Under `causal-lm`, the tokens that were to be predicted. */
  readonly tokens?: number;
}

/**
 * A model's mean loss on a dataset, with its accuracy where it classifies and its perplexity where it predicts tokens.
 *
 * @throws GhostgradError when data and model do not fit together, and for NaN in the data
 */
export async function evaluate(model: Graph, dataset: Dataset, options: EvaluateOptions = {}): Promise<Evaluation> {
  const { batchSize, engine = onnxruntimeEngine(), threads } = options;
  if (batchSize !== undefined && !(Number.isSafeInteger(batchSize) && batchSize >= 1)) {
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
  const rows = Math.min(batchSize ?? defaultRows(task), data.size);
  const session = await engine.compile(evaluationGraph(task, rows), { threads });
  const judged = classifies(task.loss);
  let loss = 0;
  let right = 0;
  let tokens = 0;
  let spare: Feeds = {};
  try {
    for (let start = 0; start < data.size; start += rows) {
      const count = Math.min(rows, data.size - start);
      const indices = Uint32Array.from({ length: count }, (_, i) => start + i);
      const feeds = feedsOf(data, indices, rows, spare);
      if (task.loss === 'causal-lm') tokens += predicted(feeds[labelsInput]!, count);
      const { outputs, feeds: back } = await session.run(feeds);
      spare = back;
      const losses = rowsOf(outputs, lossOutput, count);
      for (const each of losses) loss += each;
      if (options.onLoss !== undefined) losses.forEach((each) => options.onLoss?.(each));
      if (judged) {
        for (const each of rowsOf(outputs, rightOutput, count)) {
          right += each;
          options.onRight?.(each);
        }
      }
    }
  } finally {
    await session.release();
  }
  const found = { accuracy: judged ? right / data.size : null, loss: loss / data.size, examples: data.size };
  return task.loss === 'causal-lm' ? { ...found, perplexity: Math.exp(loss / tokens), tokens } : found;
}

function defaultRows(task: Task): number {
  const output = atBatchSize(task, 2).graph.types.get(logitsOf(task));
  return Math.max(1, Math.min(256, Math.floor(2 ** 25 / sizeOf(output?.shape.slice(1) ?? []))));
}

/** How many tokens of the first `rows` rows are to be predicted: none follows nothing. */
function predicted({ data, shape: [, length = 0] }: Tensor, rows: number): number {
  const labels = (data as BigInt64Array).subarray(0, rows * length);
  return labels.reduce((count, label, i) => (i % length > 0 && !ignoredLabels.includes(Number(label)) ? count + 1 : count), 0);
}

const lossOutput = 'ghostgrad.loss';
const rightOutput = 'ghostgrad.right';

/** The forward graph with its losses, and which rows are classified right where that can be told. */
function evaluationGraph(task: Task, rows: number) {
  const { graph, loss } = atBatchSize(task, rows);
  const b = graphBuilder(semantics, graph);
  const right = attachRight(b, task.loss, logitsOf(task));
  return b.build([[lossOutput, loss], ...(right === undefined ? [] : [[rightOutput, right] as const])], `evaluation of ${task.model.name}`);
}

function rowsOf(values: Readonly<Record<string, Tensor>>, name: string, count: number): Float32Array {
  const value = values[name];
  if (value === undefined) throw new Error(`the engine returned no "${name}"`);
  return (value.data as Float32Array).subarray(0, count);
}
