import { randomBytes } from 'node:crypto';
import { clipFunctionText } from '../clipping/clip-functions.ts';
import { partitionOf } from '../clipping/groups.ts';
import { defaultRho } from '../clipping/norm.ts';
import { GhostgradError } from '../errors.ts';
import type { Files } from '../files.ts';
import type { Graph } from '../graph/ir.ts';
import { type ScheduleName, buildSchedule, buildUpdate } from '../optimizers/index.ts';
import { type Certificate, type CertificateOptions, type Groups, type PrivacyPlan, certificate, checkRows, privacyPlan } from '../privacy/index.ts';
import { signer } from '../privacy/signature.ts';
import { ratchet } from '../random/ratchet.ts';
import type { Engine } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { adaptiveOf, clippingGroups, patternsOf } from './clipping.ts';
import type { RunSettings } from './checkpoint.ts';
import { analyse, requireTrainable } from './compile.ts';
import { type Evaluation, evaluate } from './evaluate.ts';
import { fittedTo, taskFor } from './examples.ts';
import { type Features, featuresFor } from './features.ts';
import { dataDigest, modelDigest } from './fingerprint.ts';
import { BudgetSpent, type GradientSource, plainGradients, privateGradients } from './gradients.ts';
import { type RunState, openJournal } from './journal.ts';
import { type TrainingInput, loadMaterials, recordedAs } from './materials.ts';
import { lengthOf } from './length.ts';
import { measuresOf } from './private-metrics.ts';
import { type PublicMetrics, type UncoveredMetrics, summaryOf } from './metrics.ts';
import { stepFor } from './micro-batch.ts';
import { copiesOf, withParameters } from './model.ts';
import { originOf } from './origin.ts';
import { type Recipe, resolveRecipe } from './recipe.ts';
import { type ReleaseResult, type Releases, epsilonsOf, furtherParameters, largest, makeReleases, namedReleases } from './releases.ts';
import type { ReleaseContents } from './release-folder.ts';
import { asComputed, differences, plain, requireSameModel, requireSameRecipe, sameThreads } from './resume.ts';
import { type RunFolder, createRunFolder, openRunFolder } from './run-folder.ts';
import { software } from './software.ts';
import type { Parameters, StepProgram } from './step.ts';
import { summationRounding } from './summation.ts';

export interface PrepareOptions {
  /** What messages call the recipe, e.g. its path. */
  readonly file?: string | undefined;
  /** Default: ONNX Runtime on the CPU. */
  readonly engine?: Engine | undefined;
  /**
   * Goes on with the run in the output folder, which was interrupted, and whose recipe this is but for `performance`. A step
   * that was charged and does not come out the same is drawn afresh and charged again. Default false: a new run.
   */
  readonly resume?: boolean | undefined;
  /** Hears how many rows of features are there, of how many. @see Run.features */
  readonly onFeatures?: ((rows: number, of: number) => void) | undefined;
  /** Hears of what one should know and what does not stop the run. */
  readonly onWarning?: ((text: string) => void) | undefined;
  /** An Ed25519 private key in PEM, to sign the certificate with into `privacy.json.sig`. */
  readonly signWith?: string | undefined;
  /** Makes the changes to files; default: the file system. */
  readonly files?: Files | undefined;
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
  /** Why there are no more: all that were planned, the user's wish, or steps charged again that left no budget for others. */
  readonly ended: 'complete' | 'stopped' | 'budget';
  /** Steps that were charged again after an interruption, in the whole run. */
  readonly recharged: number;
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
  /** The models of a recipe with several ε, in its order: `epsilon` above is that of all together, `test` that of the largest. */
  readonly releases?: readonly ReleaseResult[];
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
  /** Whether the frozen part of the model is computed once, apart from the steps; and why, or why not. */
  readonly features: Pick<Features, 'used' | 'reason'>;
  /** How a step is computed, and why so. */
  readonly stepPlan: StepProgram['plan'];
  /** Steps taken by an earlier process, as far as its checkpoint has them. */
  readonly resumedAt: number;
  /** Takes the remaining steps, one an iteration, until `signal` aborts; a step that has begun is finished. */
  steps(signal?: AbortSignal): AsyncGenerator<StepReport, void, undefined>;
  /** The model with the parameters as they are now, averaged where the recipe says so. */
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
 * plan, compiles the step and makes the output folder, or reads the one of the run that is resumed. Nothing is left of a new
 * run when any of that fails.
 *
 * @throws GhostgradError for whatever the user can mend
 */
export async function prepare(input: TrainingInput, options: PrepareOptions = {}): Promise<Run> {
  const recipe = resolveRecipe(recordedAs(input), options.file);
  const folder = folderOf(recipe, options);
  try {
    return await prepared(input, recipe, folder, options);
  } catch (error) {
    folder?.abandon();
    throw error;
  }
}

function folderOf(recipe: Recipe, { resume = false, files }: PrepareOptions): RunFolder | undefined {
  const { output } = recipe;
  if (output !== undefined) return resume ? openRunFolder(output, files) : createRunFolder(output, recipe, files);
  if (!resume) return undefined;
  throw new GhostgradError({ what: 'a run without an output folder cannot be resumed', where: 'output', expected: 'its folder' });
}

async function prepared(
  input: TrainingInput, recipe: Recipe, folder: RunFolder | undefined,
  { file, engine = onnxruntimeEngine(), onWarning: warn = () => undefined, onFeatures, signWith, files }: PrepareOptions,
): Promise<Run> {
  const started = performance.now();
  const saved = folder?.saved ?? null;
  if (saved !== null) requireSameRecipe(saved.settings.recipe, recipe, file ?? 'recipe');
  const sign = signWith === undefined ? undefined : signer(signWith);
  const { seed } = recipe.training;
  const initial = saved?.settings.initial ?? seed ?? randomBytes(16).toString('hex');
  const threads = recipe.performance.threads === 'auto' ? sameThreads(saved?.settings.threads) : recipe.performance.threads;

  const { source, trainable, exported, adapters, trainingSet, testSet } = await loadMaterials(input, recipe, initial);
  const task = taskFor({ ...source, loss: recipe.loss, trainable }, trainingSet, {
    bindings: recipe.shapes,
    where: 'shapes',
  });
  const { metadata: before, ...origin } = originOf(recipe.model, source.model);
  const data = fittedTo(task, trainingSet);
  if (testSet !== undefined) fittedTo(task, testSet);
  const analysis = analyse(task);
  requireTrainable(analysis);

  const datasetSize = recipe.data.size ?? trainingSet.declaredSize ?? data.size;
  const { batchSize, plannedSteps } = lengthOf(recipe.training, datasetSize);
  const { style } = recipe.clipping;
  const partition = partitionOf({ style, groups: patternsOf(recipe.clipping) }, analysis.task.model, analysis.parameters);
  const sizeOf = (parameter: string): number => task.model.initializers.get(parameter)?.data.length ?? 0;
  const plan =
    recipe.privacy === 'none'
      ? null
      : privacyPlan({
          ...recipe.privacy,
          ...epsilonsOf(recipe.privacy),
          datasetSize,
          batchSize,
          steps: plannedSteps,
          seed,
          rho: defaultRho,
          groups: clippingGroups(partition, sizeOf, recipe.clipping),
          allocation: recipe.clipping.allocation,
          adaptive: adaptiveOf(recipe.clipping),
          metrics: measuresOf(recipe.privacy.metrics, recipe.loss),
        });

  if (plan !== null) checkRows(plan.sampling, datasetSize, data.size);

  const features = featuresFor({
    analysis, data, engine, threads, files, setting: recipe.performance.features, passes: (plannedSteps * batchSize) / datasetSize, run: folder?.path,
  });
  const { program, reason } = await stepFor(features.analysis, recipe, {
    mode: recipe.performance.mode,
    // Each mode is planned for time as it is.
    optimizeFor: recipe.performance.optimizeFor === 'time' ? undefined : recipe.performance.optimizeFor,
    threads,
    engine,
    clipping: { function: recipe.clipping.function, gamma: recipe.clipping.gamma, groups: partition },
    right: plan?.metrics?.measures.some(({ name }) => name === 'trainingAccuracy'),
  }, { batchSize, steps: plannedSteps });
  const optimizer = buildUpdate(recipe.training, plannedSteps);
  const schedule = buildSchedule(recipe.training.schedule as ScheduleName, plannedSteps);
  let parameters: Parameters = saved?.parameters ?? copiesOf(task.model, analysis.parameters);
  let state = saved?.state ?? optimizer.init(parameters);
  let further: readonly Parameters[] = saved?.further ?? [];
  const settings: RunSettings = {
    recipe: plain(recipe), initial, model: folder === undefined ? '' : modelDigest(source.model, analysis.parameters),
    microBatch: program.microBatch, features: features.used, threads: threads ?? defaultThreads(), engine: engine.name, ranks: 1, software: software(),
  };
  if (saved !== null) requireSameModel(saved.settings, settings);
  const firstGroups = plan === null ? [] : (saved?.groups(plan.groups) ?? plan.groups);
  const journal = folder && await openJournal({
    folder, plan, settings, warn, files,
    recipe: asComputed(recipe, program.microBatch, features.setting), data: dataDigest(data), begin: { parameters, state, further, groups: firstGroups },
  }).catch(async (error: unknown) => {
    await program.release();
    throw error;
  });
  const ledger = journal?.ledger;
  const now = (): RunState => ({ parameters, state, further, groups: gradients.groups });
  const gradients: GradientSource =
    plan === null
      ? plainGradients({ program, data: features.data, batchSize, sampleRate: batchSize / datasetSize, keys: journal?.keys ?? ratchet(seed) })
      : privateGradients({
          plan, program, data: features.data, ledger, keys: journal?.keys, groups: firstGroups,
          replay: journal && {
            charged: journal.charged,
            afresh: (unchanged) => {
              parameters = unchanged;
              const why = saved === null ? [] : differences(saved.settings, settings);
              warn(
                `step ${state.step + 1} does not come out as it was charged${why.length > 0 ? ` (${why.join(', ')})` : ''}: ` +
                  'it, and what was charged after it, is drawn afresh and charged again',
              );
              return journal.drawAfresh(now());
            },
          },
        });
  let open = true;
  let ended: TrainResult['ended'] = 'stopped';

  async function* steps(signal?: AbortSignal): AsyncGenerator<StepReport, void, undefined> {
    if (open && state.step < plannedSteps && !(await features.compute({ signal, onProgress: onFeatures }))) return;
    while (open && state.step < plannedSteps && signal?.aborted !== true) {
      const begun = performance.now();
      const learningRate = optimizer.learningRate * schedule(state.step);
      const taken = await gradients.next(parameters).catch((error: unknown) => {
        if (error instanceof BudgetSpent) return null;
        throw error;
      });
      if (taken === null) {
        ended = 'budget';
        warn(`the run ends after ${state.step} of ${plannedSteps} steps: the rest of the budget went to steps that were charged again`);
        return;
      }
      const { gradient, losses, norms, thresholds, charged, metrics: privatised = null, ...step } = taken;
      // Before the step changes them.
      further = furtherParameters(optimizer, step.parameters, step.further, learningRate);
      state = optimizer.update(step.parameters, gradient, state, learningRate);
      parameters = step.parameters;
      const metrics: PublicMetrics = {
        step: state.step,
        learningRate,
        epsilon: plan?.spent(charged) ?? null,
        thresholds: plan === null || plan.adaptive === null ? null : byName(plan.groups, thresholds),
        metrics: privatised,
      };
      const uncovered: UncoveredMetrics = {
        ...summaryOf(losses, norms, thresholds),
        examplesPerSecond: (1000 * batchSize) / (performance.now() - begun),
      };
      journal?.metrics.write(metrics, uncovered);
      if (state.step < plannedSteps) journal?.saveWhenDue(now(), gradients.keys);
      yield { ...metrics, steps: plannedSteps, uncovered };
    }
  }

  const recharged = (): number => (ledger === undefined ? 0 : ledger.length - state.step);

  const certify = (of: PrivacyPlan, options: Partial<CertificateOptions> = {}): Certificate =>
    certificate({
      plan: of,
      steps: state.step, recharged: recharged(),
      clipFunction: clipFunctionText(recipe.clipping.function),
      style,
      finalGroups: gradients.groups,
      summationRounding: summationRounding(program.layers, { batchSize, microBatch: program.microBatch }),
      software: software(), ...origin,
      ...(ledger !== undefined && { ledger: { lines: ledger.length, head: ledger.head } }),
      ...options,
    });
  const released = (): Parameters => optimizer.released(parameters, state);
  const currentReleases = (): Releases | null => plan && {
    epsilons: recipe.privacy === 'none' ? undefined : recipe.privacy.epsilon,
    plan,
    parameters: state.step === 0 ? [] : [released(), ...further],
  };
  const currentCertificate = (): Certificate | null => plan && certify(plan, { releases: namedReleases(currentReleases()!) });

  const trained = (values: Parameters, guarantee = 'none: trained without privacy'): Graph =>
    withParameters(source.model, values, { ...before, 'ghostgrad.loss': recipe.loss, 'ghostgrad.privacy': guarantee });
  const contentsOf = (values: Parameters, guarantee?: string): Pick<ReleaseContents, 'model' | 'adapters'> => {
    const graph = trained(values, guarantee);
    return { model: exported(graph), adapters: adapters?.(graph) };
  };
  const currentModel = (): Graph => exported(trained(released(), currentCertificate()?.guarantee));
  const evaluated = async (model: Graph): Promise<Evaluation | null> => testSet === undefined ? null
    : evaluate(model, testSet, { loss: recipe.loss, output: task.output, threads, engine });

  async function close(): Promise<void> {
    if (!open) return;
    open = false;
    await gradients.close();
    await program.release();
    features.release(state.step === plannedSteps || ended === 'budget');
    await journal?.close();
  }

  async function finish(): Promise<TrainResult> {
    try {
      if (open) journal?.end(now(), gradients.keys);
    } finally {
      await close();
    }
    if (state.step === plannedSteps) ended = 'complete';
    const releases = await makeReleases(currentReleases(), {
      folder: folder ?? null, certify, contents: contentsOf, evaluate: evaluated, sign, files,
    });
    const certified = currentCertificate();
    if (certified !== null) folder?.saveCertificate(certified, sign);
    const { model, adapters: alone } = contentsOf(released(), certified?.guarantee);
    folder?.saveModel(model);
    if (alone !== undefined) folder?.saveAdapters(alone);
    // The model of the run is that of the largest ε.
    const test = releases === null ? await evaluated(model) : largest(releases).test;
    const result: TrainResult = {
      runDir: recipe.output ?? null,
      steps: state.step,
      ended,
      recharged: recharged(),
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
      ...(releases !== null && { releases }),
      seconds: (performance.now() - started) / 1000,
      peakRssMiB: process.resourceUsage().maxRSS / 1024,
    };
    folder?.saveResult(result);
    folder?.release();
    return result;
  }

  async function release(): Promise<void> {
    await close();
    folder?.release();
  }

  const start = currentCertificate();
  if (start?.ledger?.lines === 0) folder?.saveStart(start);
  return {
    recipe, plan, plannedSteps, features, microBatch: { size: program.microBatch, reason }, stepPlan: program.plan, resumedAt: saved?.state.step ?? 0, steps, model: currentModel, certificate: currentCertificate, finish, release,
  };
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
  try {
    onStart?.(run);
    for await (const report of run.steps(signal)) onStep?.(report);
    return await run.finish();
  } finally {
    await run.release();
  }
}

const byName = (groups: Groups, thresholds: readonly number[]): Readonly<Record<string, number>> =>
  Object.fromEntries(groups.map(({ name }, k) => [name, thresholds[k] ?? NaN]));
