import { modes } from '../../clipping/plan.ts';
import { GhostgradError } from '../../errors.ts';
import { type Explanation, explain as explained } from '../../training/explain.ts';
import { asLoss } from '../../training/loss.ts';
import { loadModel } from '../../training/model.ts';
import { asModel } from '../../training/recipe.ts';
import { parseSpec } from '../../training/recipe-file.ts';
import { bindShapes, parseShapes } from '../../training/shapes.ts';
import { define } from '../command.ts';
import { shapeOption } from '../shapes.ts';
import { facts, percent, table } from '../text.ts';
import { asMode, collect, positiveInteger } from '../values.ts';

interface Options {
  readonly batchSize?: number;
  readonly shape?: readonly string[];
  readonly trainable?: readonly string[];
  readonly loss?: string;
  readonly output?: string;
  readonly mode?: string;
}

export const explain = define<Options>({
  name: 'explain',
  summary: 'how a model would be trained, layer by layer, and what stands in the way',
  configure: (command) =>
    command
      .argument('<model>', "an ONNX file, a builder's name, or a mapping: {name: mlp, hidden: [64]}")
      .option('--batch-size <rows>', 'rows that bytes and operations are told for (default: 32)', positiveInteger)
      .option(...shapeOption)
      .option('--trainable <pattern>', 'parameters to train; * stands for any characters (default: all)', collect)
      .option('--loss <name>', 'cross-entropy, binary-cross-entropy, mse or output:<name> (default: cross-entropy)')
      .option('--output <name>', "the output that the loss is taken of (default: the model's only one)")
      .option('--mode <name>', `one of ${modes.join(', ')} (default: book-keeping)`),
  run: ([name = ''], { loss, shape = [], mode, trainable, ...options }) => {
    const { model, output } = loadModel(asModel(parseSpec(name, 'model'), 'model'));
    const { exampleShapes, batchSize } = bindShapes(model, parseShapes(shape));
    const result = explained({
      model,
      output,
      ...options,
      loss: asLoss(loss ?? 'cross-entropy', '--loss'),
      trainable: asTrainable(trainable),
      ...(mode !== undefined && { mode: asMode(mode) }),
      batchSize: options.batchSize ?? batchSize,
      exampleShapes,
    });
    return { json: result, text: describe(result) };
  },
});

/** `all`, or patterns, each its own option or several separated by commas. */
function asTrainable(given: readonly string[] | undefined): 'all' | readonly string[] {
  const patterns = given?.flatMap((text) => text.split(',').map((pattern) => pattern.trim())) ?? ['all'];
  const later = patterns.find((pattern) => pattern === 'head' || pattern === 'bias' || pattern.startsWith('{'));
  if (later !== undefined) {
    throw new GhostgradError({
      what: 'not available yet',
      where: '--trainable',
      found: later,
      expected: 'all, or patterns of parameter names',
      fix: "e.g. --trainable '*.bias'",
    });
  }
  return patterns.includes('all') ? 'all' : patterns;
}

function describe({ parameters, layers, plan, unsupported, batchIndependent, violations }: Explanation): string {
  const head = ['layer', 'operator', 'parameter', 'T', 'd', 'p', 'norm', 'MiB', 'Mflop'];
  const rows = layers.map(({ name, operator, parameter, T, d, p, norm, bytes, flops }) => [
    name,
    operator,
    parameter,
    T,
    d,
    p,
    norm,
    round(bytes / 2 ** 20),
    round(flops / 1e6),
  ]);
  const summary = facts({
    'parameters': `${parameters.total}, of which ${parameters.trainable} are trained`,
    'examples mix': batchIndependent ? 'no' : 'yes',
    'mode': plan.mode,
    'live memory': layers.length === 0 ? undefined : `about ${round(plan.liveBytes / 2 ** 20)} MiB`,
    'extra arithmetic': layers.length === 0 ? undefined : percent(plan.extraFlopShare),
  });
  const problems = [
    ...unsupported.map(({ node, operator, reason, fix }) => `node "${node}" (${operator}): ${reason}\n  fix: ${fix}`),
    ...violations.map(({ node, axis, reason, fix }) => `node "${node}", axis ${axis}: ${reason}\n  fix: ${fix}`),
  ];
  return [summary, ...(rows.length > 0 ? [table(head, rows)] : []), ...problems].join('\n\n');
}

const round = (x: number): number => Number(x.toPrecision(3));
