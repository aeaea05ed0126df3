import { clipFunctionText } from '../clipping/clip-functions.ts';
import { partitionOf } from '../clipping/groups.ts';
import { defaultRho } from '../clipping/norm.ts';
import { GhostgradError } from '../errors.ts';
import type { Graph } from '../graph/ir.ts';
import { type ScheduleName, buildOptimizer, buildSchedule } from '../optimizers/index.ts';
import { type Certificate, type Groups, type PrivacyPlan, certificate, checkRows, hasFixedSize, privacyPlan } from '../privacy/index.ts';
import { type Ledger, createLedger } from '../privacy/ledger.ts';
import type { Engine } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { adaptiveOf, clippingGroups, patternsOf } from './clipping.ts';
import { type Analysis, analyse, requireTrainable } from './compile.ts';
import { type Evaluation, evaluate } from './evaluate.ts';
import { fittedTo, taskFor } from './examples.ts';
import { plainGradients, privateGradients } from './gradients.ts';
import { type TrainingInput, loadMaterials, recordedAs } from './materials.ts';
import { type PublicMetrics, type UncoveredMetrics, summaryOf } from './metrics.ts';
import { type MicroBatchChoice, fastestStep } from './micro-batch.ts';
import { copiesOf, withParameters } from './model.ts';
import { type Recipe, resolveRecipe } from './recipe.ts';
import { type RunFolder, checkOutput, createRunFolder } from './run-folder.ts';
import { software } from './software.ts';
import { type Parameters, type StepProgram, type StepSettings, compileStep, defaultMicroBatch } from './step.ts';
import { summationRounding } from './summation.ts';

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
  /** False for a seeded run, whose guarantee is void; null without privacy. */
  readonly valid: boolean | null;
  readonly accountant: string | null;
  /** Noise standard deviation over the clipping norm. */
  readonly noiseMultiplier: number | null;
  readonly sampleRate: number;
  /** Expected, as in the recipe. */
  readonly batchSize: number;
  readonly datasetSize: number;
  /** Examples computed at once. */
  readonly microBatch: number;
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
  /** Examples computed at once, and why so many. */
  readonly microBatch: { readonly size: number; readonly reason: string };
  /** How a step is computed, and why so. */
  readonly stepPlan: StepProgram['plan'];
  /** Takes the remaining steps, one an iteration, until `signal` aborts; a step that has begun is finished. */
  steps(signal?: AbortSignal): AsyncGenerator<StepReport, void, undefined>;
  /** The model with the parameters as they are now. */
  model(): Graph;
  /** What was spent up to now; null without privacy. */
  certificate(): Certificate | null;
  /** Saves model, certificate and checkpoint in the output folder if there is one, evaluates, and ends the run. */
  finish(): Promise<TrainResult>;
  /** Ends the run and saves nothing more. */
  release(): Promise<void>;
}

/**
 * Reads model and data, checks that they fit together and that the model can be trained privately, settles the privacy
 * plan, compiles the step and makes the output folder. Nothing is written when any of that fails.
 *
 * @throws GhostgradError for whatever the user can mend
 */
export async function prepare(
  input: TrainingInput,
  { file, engine = onnxruntimeEngine() }: PrepareOptions = {},
): Promise<Run> {
  const started = performance.now();
  const recipe = resolveRecipe(recordedAs(input), file);
  if (recipe.output !== undefined) checkOutput(recipe.output);
  const { seed } = recipe.training;
  const threads = recipe.performance.threads === 'auto' ? undefined : recipe.performance.threads;

  const { source, trainable, trainingSet, testSet } = await loadMaterials(input, recipe);
  const task = taskFor({ ...source, loss: recipe.loss, trainable }, trainingSet, {
    bindings: recipe.shapes,
    where: 'shapes',
  });
  const data = fittedTo(task, trainingSet);
  if (testSet !== undefined) fittedTo(task, testSet);
  const analysis = analyse(task);
  requireTrainable(analysis);

  const datasetSize = recipe.data.size ?? trainingSet.declaredSize ?? data.size;
  const batchSize = recipe.training.batchSize ?? datasetSize;
  const plannedSteps =
    recipe.training.steps ?? Math.max(1, Math.floor(((recipe.training.epochs ?? 0) * datasetSize) / batchSize));
  if (batchSize > datasetSize) throw tooLarge(batchSize, datasetSize);
  const { style } = recipe.clipping;
  const partition = partitionOf({ style, groups: patternsOf(recipe.clipping) }, analysis.task.model, analysis.parameters);
  const sizeOf = (parameter: string): number => task.model.initializers.get(parameter)?.data.length ?? 0;
  const plan =
    recipe.privacy === 'none'
      ? null
      : privacyPlan({
          ...recipe.privacy,
          datasetSize,
          batchSize,
          steps: plannedSteps,
          seed,
          rho: defaultRho,
          groups: clippingGroups(partition, sizeOf, recipe.clipping),
          allocation: recipe.clipping.allocation,
          adaptive: adaptiveOf(recipe.clipping),
        });

  if (plan !== null) checkRows(plan.sampling, datasetSize, data.size);

  const { program, reason } = await compiled(analysis, recipe, {
    mode: recipe.performance.mode,
    // Each mode is planned for time as it is.
    optimizeFor: recipe.performance.optimizeFor === 'time' ? undefined : recipe.performance.optimizeFor,
    threads,
    engine,
    clipping: { function: recipe.clipping.function, gamma: recipe.clipping.gamma, groups: partition },
  }, { batchSize, steps: plannedSteps });
  const optimizer = buildOptimizer(recipe.training.optimizer);
  const schedule = buildSchedule(recipe.training.schedule as ScheduleName, plannedSteps);
  const { folder, ledger } = await openFolder(withMicroBatch(recipe, program.microBatch), plan).catch(async (error: unknown) => {
    await program.release();
    throw error;
  });
  const gradients =
    plan === null
      ? plainGradients({ program, data, batchSize, sampleRate: batchSize / datasetSize, seed })
      : privateGradients({ plan, program, data, ledger });

  let parameters: Parameters = copiesOf(task.model, analysis.parameters);
  let state = optimizer.init(parameters);
  let open = true;

  async function* steps(signal?: AbortSignal): AsyncGenerator<StepReport, void, undefined> {
    while (open && state.step < plannedSteps && signal?.aborted !== true) {
      const begun = performance.now();
      const learningRate = optimizer.learningRate * schedule(state.step);
      const { gradient, losses, norms, thresholds, ...step } = await gradients.next(parameters);
      state = optimizer.update(step.parameters, gradient, state, learningRate);
      parameters = step.parameters;
      const metrics: PublicMetrics = {
        step: state.step,
        learningRate,
        epsilon: plan?.spent(state.step) ?? null,
        thresholds: plan === null || plan.adaptive === null ? null : byName(plan.groups, thresholds),
      };
      const uncovered: UncoveredMetrics = {
        ...summaryOf(losses, norms, thresholds),
        examplesPerSecond: (1000 * batchSize) / (performance.now() - begun),
      };
      folder?.metrics.write(metrics, uncovered);
      yield { ...metrics, steps: plannedSteps, uncovered };
    }
  }

  const currentCertificate = (): Certificate | null =>
    plan &&
    certificate({
      plan,
      steps: state.step,
      clipFunction: clipFunctionText(recipe.clipping.function),
      style,
      finalGroups: gradients.groups,
      summationRounding: summationRounding(program.layers, { batchSize, microBatch: program.microBatch }),
      software: software(),
      ...(ledger !== undefined && { ledger: { lines: ledger.length, head: ledger.head } }),
    });

  const currentModel = (): Graph =>
    withParameters(source.model, parameters, {
      'ghostgrad.loss': recipe.loss,
      'ghostgrad.privacy': currentCertificate()?.guarantee ?? 'none: trained without privacy',
    });

  async function release(): Promise<void> {
    if (!open) return;
    open = false;
    await gradients.close();
    await program.release();
    await ledger?.close();
    folder?.metrics.close();
  }

  async function finish(): Promise<TrainResult> {
    await release();
    const model = currentModel();
    const certified = currentCertificate();
    folder?.saveCheckpoint(parameters, state, gradients.groups);
    if (certified !== null) folder?.saveCertificate(certified);
    folder?.saveModel(model);
    const test =
      testSet === undefined
        ? null
        : await evaluate(model, testSet, { loss: recipe.loss, output: task.output, threads, engine });
    const result: TrainResult = {
      runDir: recipe.output ?? null,
      steps: state.step,
      epsilon: certified?.epsilon ?? null,
      delta: plan?.delta ?? null,
      valid: certified?.valid ?? null,
      accountant: plan?.accountant ?? null,
      noiseMultiplier: plan?.noiseMultiplier ?? null,
      sampleRate: batchSize / datasetSize,
      batchSize,
      datasetSize,
      microBatch: program.microBatch,
      test,
      seconds: (performance.now() - started) / 1000,
      peakRssMiB: process.resourceUsage().maxRSS / 1024,
    };
    folder?.saveResult(result);
    return result;
  }

  const start = currentCertificate();
  if (start !== null && state.step === 0) folder?.saveStart(start);
  return {
    recipe, plan, plannedSteps, microBatch: { size: program.microBatch, reason }, stepPlan: program.plan, steps, model: currentModel, certificate: currentCertificate, finish, release,
  };
}

export interface TrainOptions extends PrepareOptions {
  /** When it aborts, the step that has begun is finished, and the model is saved with the ε spent by then. */
  readonly signal?: AbortSignal | undefined;
  readonly onStart?: ((run: Run) => void) | undefined;
  readonly onStep?: ((report: StepReport) => void) | undefined;
}

/** A whole run, from recipe to certificate. @see prepare for its parts, and for what it throws */
export async function train(
  input: TrainingInput,
  { signal, onStart, onStep, ...options }: TrainOptions = {},
): Promise<TrainResult> {
  const run = await prepare(input, options);
  try {
    onStart?.(run);
    for await (const report of run.steps(signal)) onStep?.(report);
    return await run.finish();
  } finally {
    await run.release();
  }
}

async function openFolder(
  recipe: Recipe,
  plan: PrivacyPlan | null,
): Promise<{ readonly folder?: RunFolder; readonly ledger?: Ledger }> {
  if (recipe.output === undefined) return {};
  const folder = createRunFolder(recipe.output, recipe);
  return plan === null ? { folder } : { folder, ledger: await createLedger(folder.ledgerPath) };
}

/** The step at the physical batch size of the recipe. */
async function compiled(
  analysis: Analysis, { training: { seed }, privacy, performance: { microBatch, memoryMiB } }: Recipe,
  settings: Omit<StepSettings, 'microBatch'>, { batchSize, steps }: { readonly batchSize: number; readonly steps: number },
): Promise<MicroBatchChoice> {
  const at = async (size: number, reason: string): Promise<MicroBatchChoice> =>
    ({ program: await compileStep(analysis, { ...settings, microBatch: size }), reason });
  if (microBatch !== 'auto') return at(microBatch, 'as the recipe says');
  // The size shows in the last bits of a sum, and what is measured is never quite the same again.
  if (seed !== undefined) return at(Math.min(defaultMicroBatch, Math.ceil(batchSize)), 'not measured: a seeded run is to be reproducible');
  // A Poisson draw is of the expected size, give or take its root.
  const isFixed = privacy !== 'none' && hasFixedSize(privacy.sampling);
  return fastestStep(analysis, settings, { typical: Math.ceil(batchSize + (isFixed ? 0 : Math.sqrt(batchSize))), steps, memoryMiB });
}

const withMicroBatch = (recipe: Recipe, microBatch: number): Recipe =>
  ({ ...recipe, performance: { ...recipe.performance, microBatch } });

const tooLarge = (batchSize: number, datasetSize: number): GhostgradError =>
  new GhostgradError({
    what: 'batchSize is out of range',
    where: 'training.batchSize',
    found: String(batchSize),
    expected: `more than 0 and at most the ${datasetSize} examples`,
    fix: 'choose a smaller batch',
  });

const byName = (groups: Groups, thresholds: readonly number[]): Readonly<Record<string, number>> =>
  Object.fromEntries(groups.map(({ name }, k) => [name, thresholds[k] ?? NaN]));
