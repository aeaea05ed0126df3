import { defaultRho } from '../clipping/norm.ts';
import { type DataSpec, type Dataset, loadData } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { upgrade } from '../graph/upgrade.ts';
import { type ScheduleName, buildOptimizer, buildSchedule } from '../optimizers/index.ts';
import { type Certificate, type PrivacyPlan, certificate, flatGroup, privacyPlan } from '../privacy/index.ts';
import { createLedger } from '../privacy/ledger.ts';
import type { Engine } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { analyse, requireTrainable } from './compile.ts';
import { type Evaluation, evaluate } from './evaluate.ts';
import { fittedTo, taskFor } from './examples.ts';
import { plainGradients, privateGradients } from './gradients.ts';
import { type PublicMetrics, type UncoveredMetrics } from './metrics.ts';
import { copiesOf, loadModel, withParameters } from './model.ts';
import { type ModelReference, type Recipe, type RecipeInput, resolveRecipe } from './recipe.ts';
import { checkOutput, createRunFolder } from './run-folder.ts';
import { software } from './software.ts';
import { type Parameters, compileStep, defaultMicroBatch } from './step.ts';

/** A recipe whose model and data may also be objects in memory. */
export type TrainingInput = Omit<RecipeInput, 'model' | 'data'> & {
  readonly model: ModelReference | Graph;
  readonly data: { readonly train: DataSpec | Dataset; readonly test?: DataSpec | Dataset | undefined; readonly size?: number | undefined };
};

export interface PrepareOptions {
  /** What messages call the recipe, e.g. its path. */
  readonly file?: string | undefined;
  /** Default: ONNX Runtime on the CPU. */
  readonly engine?: Engine | undefined;
}

/** One step, after its update. */
export interface StepReport extends PublicMetrics {
  readonly steps: number;
  /** Computed from private data without noise: **not covered by ε**, not to be published. */
  readonly uncovered: UncoveredMetrics;
}

export interface TrainResult {
  /** Null for a run without an output folder. */
  readonly runDir: string | null;
  /** Steps taken. */
  readonly steps: number;
  /** ε spent by them; null, like all that follows from it, without privacy. */
  readonly epsilon: number | null;
  readonly delta: number | null;
  readonly accountant: string | null;
  /** Noise standard deviation over the clipping norm. */
  readonly noiseMultiplier: number | null;
  readonly sampleRate: number;
  /** Expected, as in the recipe. */
  readonly batchSize: number;
  readonly datasetSize: number;
  /** On the test data; null when the recipe names none. */
  readonly test: Evaluation | null;
  /** From the call of {@link prepare} to the end of the evaluation. */
  readonly seconds: number;
  readonly peakRssMiB: number;
}

/** A run that is ready to take its steps. */
export interface Run {
  readonly recipe: Recipe;
  /** Null when the recipe says `privacy: none`. */
  readonly plan: PrivacyPlan | null;
  readonly plannedSteps: number;
  /** Takes the remaining steps, one an iteration, until `signal` aborts; a step that has begun is finished. */
  steps(signal?: AbortSignal): AsyncGenerator<StepReport, void, undefined>;
  /** The model with the parameters as they are now. */
  model(): Graph;
  /** What was spent up to now; null without privacy. */
  certificate(): Certificate | null;
  /** Saves model, certificate and checkpoint in the output folder if there is one, evaluates, and ends the run. */
  finish(): Promise<TrainResult>;
}

/**
 * Reads model and data, checks that they fit together and that the model can be trained privately, settles the privacy
 * plan, compiles the step and makes the output folder. Nothing is written when any of that fails.
 *
 * @throws GhostgradError for whatever the user can mend
 */
export async function prepare(input: TrainingInput, { file, engine = onnxruntimeEngine() }: PrepareOptions = {}): Promise<Run> {
  const started = performance.now();
  const recipe = resolveRecipe(asRecipe(input), file);
  if (recipe.output !== undefined) checkOutput(recipe.output);
  const { seed } = recipe.training;
  const threads = recipe.performance.threads === 'auto' ? undefined : recipe.performance.threads;

  const source = isGraph(input.model) ? { model: upgrade(input.model) } : loadModel(recipe.model, seed);
  const trainingSet = await datasetOf(input.data.train, recipe.data.train);
  const testSet = input.data.test === undefined ? undefined : await datasetOf(input.data.test, recipe.data.test);
  const task = taskFor({ ...source, loss: recipe.loss, trainable: recipe.trainable }, trainingSet);
  const analysis = analyse(task);
  requireTrainable(analysis);
  const data = fittedTo(task, trainingSet);
  if (testSet !== undefined) fittedTo(task, testSet);

  const datasetSize = recipe.data.size ?? trainingSet.declaredSize ?? data.size;
  const batchSize = recipe.training.batchSize ?? datasetSize;
  const plannedSteps = recipe.training.steps ?? Math.max(1, Math.floor((recipe.training.epochs ?? 0) * datasetSize / batchSize));
  if (batchSize > datasetSize) throw tooLarge(batchSize, datasetSize);
  const plan = recipe.privacy === 'none' ? null : privacyPlan({
    ...recipe.privacy, datasetSize, batchSize, steps: plannedSteps, seed, rho: defaultRho, groups: flatGroup(analysis.parameters, recipe.clipping.norm),
  });

  const microBatch = recipe.performance.microBatch === 'auto' ? Math.min(defaultMicroBatch, Math.ceil(batchSize)) : recipe.performance.microBatch;
  const program = await compileStep(analysis, {
    mode: recipe.performance.mode, microBatch, threads, engine,
    clipping: { function: recipe.clipping.function, gamma: recipe.clipping.gamma },
  });
  const optimizer = buildOptimizer(recipe.training.optimizer);
  const schedule = buildSchedule(recipe.training.schedule as ScheduleName, plannedSteps);
  const folder = recipe.output === undefined ? undefined : createRunFolder(recipe.output, recipe);
  const ledger = folder !== undefined && plan !== null ? await createLedger(folder.ledgerPath) : undefined;
  const gradients = plan === null
    ? plainGradients({ program, data, batchSize, sampleRate: batchSize / datasetSize, seed })
    : privateGradients({ plan, program, data, ledger });

  let parameters: Parameters = copiesOf(task.model, analysis.parameters);
  let state = optimizer.init(parameters);

  async function* steps(signal?: AbortSignal): AsyncGenerator<StepReport, void, undefined> {
    while (state.step < plannedSteps && signal?.aborted !== true) {
      const begun = performance.now();
      const learningRate = optimizer.learningRate * schedule(state.step);
      const { gradient, losses, norms, ...step } = await gradients.next(parameters);
      state = optimizer.update(step.parameters, gradient, state, learningRate);
      parameters = step.parameters;
      const metrics: PublicMetrics = {
        step: state.step, learningRate, epsilon: plan?.spent(state.step) ?? null,
        examplesPerSecond: (1000 * batchSize) / (performance.now() - begun),
      };
      const uncovered = summaryOf(losses, norms, recipe.clipping.norm);
      folder?.metrics.write(metrics, uncovered);
      yield { ...metrics, steps: plannedSteps, uncovered };
    }
  }

  const currentCertificate = (): Certificate | null => plan && certificate({
    plan, steps: state.step, clipFunction: recipe.clipping.function, software: software(),
    ...(ledger !== undefined && { ledger: { lines: ledger.length, head: ledger.head } }),
  });

  const currentModel = (): Graph => withParameters(task.model, parameters, {
    'ghostgrad.loss': recipe.loss,
    'ghostgrad.privacy': currentCertificate()?.guarantee ?? 'none: trained without privacy',
  });

  async function finish(): Promise<TrainResult> {
    gradients.close();
    await program.release();
    await ledger?.close();
    folder?.metrics.close();
    const model = currentModel();
    const certified = currentCertificate();
    folder?.saveCheckpoint(parameters, state);
    if (certified !== null) folder?.saveCertificate(certified);
    folder?.saveModel(model);
    const test = testSet === undefined ? null : await evaluate(model, testSet, { loss: recipe.loss, output: task.output, threads, engine });
    const result: TrainResult = {
      runDir: recipe.output ?? null, steps: state.step, epsilon: certified?.epsilon ?? null, delta: plan?.delta ?? null,
      accountant: plan?.accountant ?? null, noiseMultiplier: plan?.noiseMultiplier ?? null, sampleRate: batchSize / datasetSize,
      batchSize, datasetSize, test, seconds: (performance.now() - started) / 1000, peakRssMiB: process.resourceUsage().maxRSS / 1024,
    };
    folder?.saveResult(result);
    return result;
  }

  return { recipe, plan, plannedSteps, steps, model: currentModel, certificate: currentCertificate, finish };
}

export interface TrainOptions extends PrepareOptions {
  /** When it aborts, the step that has begun is finished, and the model is saved with the ε spent by then. */
  readonly signal?: AbortSignal | undefined;
  readonly onStart?: ((run: Run) => void) | undefined;
  readonly onStep?: ((report: StepReport) => void) | undefined;
}

/** A whole run, from recipe to certificate. @see prepare for its parts, and for what it throws */
export async function train(input: TrainingInput, { signal, onStart, onStep, ...options }: TrainOptions = {}): Promise<TrainResult> {
  const run = await prepare(input, options);
  onStart?.(run);
  for await (const report of run.steps(signal)) onStep?.(report);
  return run.finish();
}

const isGraph = (model: TrainingInput['model']): model is Graph => typeof model === 'object' && 'initializers' in model;
const isDataset = (data: DataSpec | Dataset): data is Dataset => typeof data === 'object' && 'gather' in data;

/** The recipe as it is recorded: what is in memory goes by its name. */
function asRecipe({ model, data, ...rest }: TrainingInput): unknown {
  const recorded = (set: DataSpec | Dataset) => (isDataset(set) ? `(in memory: ${set.name})` : set);
  return {
    ...rest,
    model: isGraph(model) ? { path: `(in memory: ${model.name})` } : model,
    data: { ...data, train: recorded(data.train), ...(data.test !== undefined && { test: recorded(data.test) }) },
  };
}

const datasetOf = async (given: DataSpec | Dataset, spec: DataSpec | undefined): Promise<Dataset> =>
  (isDataset(given) ? given : loadData(spec ?? given));

const tooLarge = (batchSize: number, datasetSize: number): GhostgradError => new GhostgradError({
  what: 'batchSize is out of range', where: 'training.batchSize', found: String(batchSize),
  expected: `more than 0 and at most the ${datasetSize} examples`, fix: 'choose a smaller batch',
});

/** Means over the examples drawn whose values are finite (the others had no part in the step). */
function summaryOf(losses: Float32Array, norms: Float32Array, threshold: number): UncoveredMetrics {
  const finite = losses.filter(Number.isFinite);
  const sorted = norms.filter(Number.isFinite).sort();
  return {
    drawn: losses.length,
    loss: finite.length === 0 ? null : finite.reduce((sum, loss) => sum + loss, 0) / finite.length,
    medianNorm: sorted[sorted.length >> 1] ?? null,
    clipFraction: sorted.length === 0 ? null : sorted.filter((norm) => norm > threshold).length / sorted.length,
  };
}
