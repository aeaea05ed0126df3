import { basename, extname, join } from 'node:path';
import { GhostgradError } from '../../errors.ts';
import { onnxruntimeEngine } from '../../runtime/node.ts';
import { counter, progress } from '../../training/progress.ts';
import { parseSpec, readRecipeFile, withSettings, withValue } from '../../training/recipe-file.ts';
import { parseShapes } from '../../training/shapes.ts';
import type { TrainingInput } from '../../training/materials.ts';
import { type Resumption, resumptionOf } from '../../training/resume.ts';
import { type Run, type TrainOptions, type TrainResult, train as trained } from '../../training/train.ts';
import { define } from '../command.ts';
import { shapeOption } from '../shapes.ts';
import { type Io, coloursFor } from '../io.ts';
import { facts, percent, show } from '../text.ts';
import { collect, number } from '../values.ts';

interface Options {
  readonly set?: readonly string[];
  readonly model?: string;
  readonly train?: string;
  readonly test?: string;
  readonly label?: string;
  readonly convertBatchnorm?: boolean;
  readonly shape?: readonly string[];
  readonly epsilon?: number;
  readonly delta?: number;
  readonly batchSize?: number;
  readonly epochs?: number;
  readonly out?: string;
  readonly resume?: string;
  readonly sign?: string;
}

type Mapping = Readonly<Record<string, unknown>>;

export const train = define<Options>({
  name: 'train',
  summary: 'train a model with differential privacy',
  configure: (command) =>
    command
      .argument('[recipe]', 'a recipe (YAML); the options below stand in for it, or change it')
      .option('--set <path=value>', 'set a value of the recipe, e.g. training.epochs=3 (may be repeated)', collect)
      .option('--model <model>', "a builder's name, an ONNX file, or a mapping: {name: mlp, hidden: [64]}")
      .option('--train <spec>', 'training data: a named set such as mnist:train, a path, or a mapping')
      .option('--test <spec>', 'test data, likewise')
      .option('--label <column>', 'the column of the labels')
      .option(...shapeOption)
      .option('--convert-batchnorm', 'replace BatchNorm by GroupNorm, which keeps examples apart')
      .option('--epsilon <epsilon>', 'the ε not to be exceeded', number)
      .option('--delta <delta>', 'its δ', number)
      .option('--batch-size <n>', 'expected examples in a step', number)
      .option('--epochs <n>', 'passes over the data', number)
      .option('--out <folder>', 'output folder (default: runs/ and the name of recipe or model)')
      .option('--resume <run>', 'go on with the interrupted run in this folder (with --set performance.… alone)')
      .option('--sign <key>', 'sign the certificate with this Ed25519 private key (PEM), into privacy.json.sig'),
  run: async ([file], options, io) => {
    const { resume } = options;
    const asked = resume === undefined ? { input: recipeOf(file, options) } : resumed(resume, file, options);
    if ('finished' in asked) {
      io.stderr.write(`the run in ${resume} has ended: there is nothing to go on with\n`);
      return { json: asked.finished, text: describe(asked.finished as unknown as TrainResult, asked.finished['valid'] === false) };
    }
    const recipe = asked.input;
    const shown = resume === undefined ? file : join(resume, 'recipe.yaml');
    const stop = new AbortController();
    const stopListening = io.onInterrupt(() => {
      io.stderr.write('\nstopping after this step; once more to stop at once, without saving\n');
      stop.abort();
    });
    try {
      const result = await withProgress(recipe, shown, { resume: resume !== undefined, signal: stop.signal, signWith: options.sign }, io);
      return { json: result, text: describe(result, recipe.training.seed !== undefined), exitCode: stop.signal.aborted ? 130 : 0 };
    } finally {
      stopListening();
    }
  },
});

/** How to go on with a run: its recipe is the one that it began with. */
function resumed(run: string, file: string | undefined, { resume: _, sign: __, set, ...others }: Options): Resumption {
  const [odd] = Object.keys(others).filter((name) => others[name as keyof typeof others] !== undefined);
  if (file === undefined && odd === undefined) return resumptionOf(run, set);
  throw new GhostgradError({
    what: 'the recipe of a run that began cannot be changed', where: 'train --resume',
    found: file === undefined ? `--${odd!.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}` : file,
    expected: 'the folder of the run alone, or with --set performance.…', fix: `train --resume ${run}`,
  });
}

/** The recipe of a file, or of nothing, as the options change it; checked where it is used. */
function recipeOf(file: string | undefined, options: Options): TrainingInput {
  if (file === undefined && options.model === undefined && options.set === undefined) {
    throw new GhostgradError({
      what: 'no recipe is given',
      where: 'train',
      expected: 'a recipe file, or at least --model, --train, --batch-size, --epochs, --epsilon and --delta',
      fix: 'e.g. ghostgrad train examples/mnist.yaml',
    });
  }
  const spec = (text: string | undefined, name: string): unknown =>
    text === undefined ? undefined : parseSpec(text, name);
  const flags: readonly (readonly [path: string, value: unknown])[] = [
    ['model', spec(options.model, '--model')],
    ['data.train', spec(options.train, '--train')],
    ['data.test', spec(options.test, '--test')],
    ['convertBatchNorm', options.convertBatchnorm],
    ['shapes', options.shape && parseShapes(options.shape)],
    ['privacy.epsilon', options.epsilon],
    ['privacy.delta', options.delta],
    ['training.batchSize', options.batchSize],
    ['training.epochs', options.epochs],
    ['output', options.out],
  ];
  const given = flags.reduce<Mapping>(
    (recipe, [path, value]) => (value === undefined ? recipe : withValue(recipe, path.split('.'), value, path)),
    file === undefined ? {} : readRecipeFile(file),
  );
  const labelled = options.label === undefined ? given : withLabel(given, options.label);
  const complete = withSettings(labelled, options.set ?? []);
  // What it holds is checked, key by key, when the run is prepared.
  return { output: defaultOutput(file, complete['model']), ...complete } as unknown as TrainingInput;
}

function withLabel(recipe: Mapping, label: string): Mapping {
  const data = recipe['data'];
  if (typeof data !== 'object' || data === null) return recipe;
  return {
    ...recipe,
    data: Object.fromEntries(
      Object.entries(data).map(([name, spec]: [string, unknown]) => {
        if (name === 'size') return [name, spec];
        return [name, typeof spec === 'object' ? { ...spec, label } : { path: spec, label }];
      }),
    ),
  };
}

function defaultOutput(file: string | undefined, model: unknown): string {
  const nameOf = (path: string): string => basename(path, extname(path));
  if (file !== undefined) return join('runs', nameOf(file));
  const name = typeof model === 'object' && model !== null ? (Object.values(model)[0] as unknown) : model;
  return join('runs', typeof name === 'string' ? nameOf(name) : 'run');
}

async function withProgress(
  recipe: TrainingInput,
  file: string | undefined,
  { resume, signal, signWith }: Pick<TrainOptions, 'resume' | 'signal' | 'signWith'>,
  io: Io,
): Promise<TrainResult> {
  const warn = (text: string): unknown => io.stderr.write(`${coloursFor(io.stderr, io.env).yellow('warning:')} ${text}\n`);
  const line = progress(io.stderr);
  const embedded = counter(io.stderr, 'examples embedded');
  let run: Run | undefined;
  let first = 0;
  const result = await trained(recipe, {
    ...(file !== undefined && { file }),
    // Progress and Ctrl-C have their turn between micro-batches.
    engine: onnxruntimeEngine({ thread: 'caller' }),
    resume,
    signal,
    signWith,
    onWarning: warn,
    onStart: (started) => {
      run = started;
      first = performance.now();
      started.plan?.warnings.forEach(warn);
      io.stderr.write(`${startLine(started)}\n`);
      io.stderr.write(`${started.microBatch.size} examples at once (${started.microBatch.reason})\n`);
      io.stderr.write(`features ${started.features.used ? 'computed once' : 'with every step'} (${started.features.reason})\n`);
      if (resume === true) io.stderr.write(`going on after step ${started.resumedAt}\n`);
      io.stderr.write(`step by ${started.stepPlan.mode} (${started.stepPlan.reason})\n`);
    },
    onFeatures: (rows, of) => {
      embedded.update(rows, of);
      if (rows < of) return;
      embedded.done();
      first = performance.now();
    },
    onStep: ({ step, steps, epsilon, uncovered }) => {
      const planned = run?.plan?.epsilon;
      line.update({
        step,
        steps,
        examplesPerSecond: uncovered.examplesPerSecond,
        loss: uncovered.loss,
        epsilon: epsilon === null || planned === undefined ? null : { spent: epsilon, planned },
        secondsLeft: ((performance.now() - first) / 1000 / (step - (run?.resumedAt ?? 0))) * (steps - step),
      });
    },
  }).finally(() => {
    embedded.done();
    line.done();
  });
  return result;
}

function startLine({ plan, plannedSteps }: Run): string {
  if (plan === null) return `${plannedSteps} steps without privacy: the model will guarantee nothing`;
  return (
    `${plannedSteps} steps, noise multiplier ${show(plan.noiseMultiplier)}, sample rate ${show(plan.sampleRate)}: ` +
    `ε = ${show(plan.epsilon)} at δ = ${plan.delta} (${plan.accountant})`
  );
}

const describe = (
  { runDir, steps, ended, recharged, epsilon, delta, test, releases, seconds, peakRssMiB }: TrainResult,
  seeded: boolean,
): string =>
  facts({
    'model': join(runDir ?? '', 'model.onnx'),
    'privacy':
      epsilon === null || delta === null
        ? 'none'
        : `${seeded ? 'void' : `(${show(epsilon)}, ${delta})-differential privacy`}, ` +
          `see ${join(runDir ?? '', 'privacy.json')}`,
    'accuracy':
      test === null || test.accuracy === null
        ? undefined
        : `${percent(test.accuracy)} of ${test.examples} test examples`,
    'perplexity': test?.perplexity === undefined ? undefined : `${show(test.perplexity)} on ${test.examples} test examples`,
    'test loss': test === null ? undefined : show(test.loss),
    ...Object.fromEntries((releases ?? []).map((one) => [`ε = ${one.epsilon} alone`,
      [one.runDir ?? '', ...(one.test === null || one.test.accuracy === null ? [] : [percent(one.test.accuracy)])].join('  ')])),
    'steps': `${steps}${recharged > 0 ? `, and ${recharged} charged again` : ''}`,
    'ended': ended === 'stopped' ? `by you; to go on: train --resume ${runDir ?? ''}` : ended === 'budget' ? 'early: its budget is spent' : undefined,
    'time': `${show(seconds)} s`,
    'memory': `${Math.round(peakRssMiB)} MiB at most`,
  });
