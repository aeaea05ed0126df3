import type { FloatTensor, TensorType } from '../tensor/tensor.ts';
import { type Analysis, atBatchSize } from '../training/compile.ts';
import { type BatchSource, type StepProgram, type StepSettings, compileStep } from '../training/step.ts';
import { feedsFor } from './feeds.ts';

export interface LogicalStep {
  readonly program: StepProgram;
  /** Runs one logical batch through the step that training runs. */
  run(): Promise<void>;
  release(): Promise<void>;
}

/**
 * The training step on a logical batch of `size` units, cut into micro-batches as in training; data is made when it is
 * asked for, as a loader would.
 *
 * @param choices of inputs of whole numbers, as `feedsFor` takes them
 */
export async function logicalStep(
  analysis: Analysis, size: number, choices: ReadonlyMap<string, number>, settings: StepSettings,
): Promise<LogicalStep> {
  const program = await compileStep(analysis, settings);
  const types = new Map<number, Readonly<Record<string, TensorType>>>();
  const typesOf = (units: number): Readonly<Record<string, TensorType>> => {
    const { graph, batchInputs } = atBatchSize(analysis.task, units, analysis.proof);
    return Object.fromEntries([...batchInputs.keys()].map((name) => [name, graph.types.get(name)!]));
  };
  const batch: BatchSource = {
    size,
    feeds: (_, __, units) => {
      const known = types.get(units) ?? typesOf(units);
      types.set(units, known);
      return feedsFor(known, choices);
    },
  };
  let parameters: ReadonlyMap<string, FloatTensor> = new Map(program.parameters.map((name) =>
    [name, analysis.task.model.initializers.get(name) as FloatTensor]));
  return {
    program,
    run: async () => {
      ({ parameters } = await program.run(parameters, batch, program.groups.map(() => 1)));
    },
    release: program.release,
  };
}
