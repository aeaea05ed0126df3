import { modes } from '../../clipping/plan.ts';
import { GhostgradError } from '../../errors.ts';
import { withGroupNorm } from '../../models/batchnorm.ts';
import { noDraws } from '../../random/initial.ts';
import { type Explanation, explain as explained } from '../../training/explain.ts';
import { asLoss, lossNames } from '../../training/loss.ts';
import { loadModel } from '../../training/model.ts';
import type { OptimizeFor } from '../../training/planner.ts';
import { asModel } from '../../training/recipe.ts';
import { parseSpec } from '../../training/recipe-file.ts';
import { bindShapes, parseShapes } from '../../training/shapes.ts';
import { trainableOf } from '../../training/trainable.ts';
import { unknownName } from '../../suggest.ts';
import { define } from '../command.ts';
import { coloursFor } from '../io.ts';
import { shapeOption } from '../shapes.ts';
import { facts, percent, show, table } from '../text.ts';
import { asMode, collect, number, positiveInteger } from '../values.ts';

interface Options {
  readonly batchSize?: number;
  readonly shape?: readonly string[];
  readonly trainable?: readonly string[];
  readonly loss?: string;
  readonly output?: string;
  readonly convertBatchnorm?: boolean;
  readonly mode?: string;
  readonly optimizeFor?: string;
  readonly memoryMib?: number;
}

export const explain = define<Options>({
  name: 'explain',
  summary: 'how a model would be trained, layer by layer, and what stands in the way',
  configure: (command) =>
    command
      .argument('<model>', "an ONNX file, a builder's name, or a mapping: {name: mlp, hidden: [64]}")
      .option('--batch-size <rows>', 'rows that bytes and operations are told for (default: 32)', positiveInteger)
      .option(...shapeOption)
      .option('--trainable <set>', 'parameters to train: all, head, bias, norm, or a name, * for any characters (default: all)', collect)
      .option('--loss <name>', `${lossNames.join(', ')} or output:<name> (default: what fits the output)`)
      .option('--output <name>', "the value that the loss is taken of (default: the model's first output of real numbers)")
      .option('--convert-batchnorm', 'replace BatchNorm by GroupNorm, which keeps examples apart')
      .option('--mode <name>', `one of ${modes.join(', ')} (default: book-keeping)`)
      .option('--optimize-for <what>', 'time or memory: choose among the plans that the mode leaves open')
      .option('--memory-mib <n>', 'the fastest plan that takes no more memory than this', number),
  run: ([name = ''], { loss, shape = [], mode, optimizeFor, memoryMib, trainable, convertBatchnorm = false, ...options }, io) => {
    const { model: loaded, output } = loadModel(asModel(parseSpec(name, 'model'), 'model'), { draws: noDraws });
    const model = convertBatchnorm ? withGroupNorm(loaded) : loaded;
    const { exampleShapes, batchSize } = bindShapes(model, parseShapes(shape));
    const result = explained({
      model,
      output,
      ...options,
      ...(loss !== undefined && { loss: asLoss(loss, '--loss') }),
      trainable: trainableOf(model, asTrainable(trainable), { output: options.output ?? output }),
      ...(mode !== undefined && { mode: asMode(mode) }),
      optimizeFor: asAim(optimizeFor, memoryMib),
      batchSize: options.batchSize ?? batchSize,
      exampleShapes,
    });
    return { json: result, text: describe(result, coloursFor(io.stdout, io.env)) };
  },
});

function asAim(name: string | undefined, memoryMib: number | undefined): OptimizeFor | undefined {
  const aims = ['time', 'memory'] as const;
  const aim = aims.find((known) => known === name);
  if (name !== undefined && aim === undefined) throw unknownName('aim', name, aims, '--optimize-for');
  if (memoryMib === undefined) return aim;
  if (memoryMib > 0) return { budget: memoryMib * 2 ** 20 };
  throw new GhostgradError({
    what: 'not a memory budget', where: '--memory-mib', found: String(memoryMib), expected: 'MiB, more than 0',
    fix: 'for example --memory-mib 500',
  });
}

/** Words and patterns, each its own option or several separated by commas. */
const asTrainable = (given: readonly string[] | undefined): readonly string[] =>
  given?.flatMap((text) => text.split(',').map((pattern) => pattern.trim())) ?? ['all'];

type Colours = ReturnType<typeof coloursFor>;

function describe(explanation: Explanation, colours: Colours): string {
  const { layers, unsupported, violations } = explanation;
  const parts = [
    summary(explanation, colours),
    ...(layers.length > 0 ? [layerTable(layers, colours)] : []),
    ...problems(unsupported.length === 1 ? 'one node in the way' : `${unsupported.length} nodes in the way`, unsupported, colours),
    ...problems(
      'examples mix',
      violations.map(({ axis, ...rest }) => ({ ...rest, operator: `axis ${axis}` })),
      colours,
    ),
  ];
  return parts.join('\n\n');
}

function summary(explanation: Explanation, { green, red, yellow }: Colours): string {
  const { parameters, loss, lastLayer, layers, plan, unsupported, batchIndependent, batchMoves, violations } = explanation;
  const isJudged = unsupported.length === 0 || batchIndependent || violations.length > 0;
  const planned = <T>(fact: T): T | undefined => (layers.length === 0 ? undefined : fact);
  const places = batchMoves.map(({ node, axis, before, after }) => {
    const merged = [before, 'batch', after].filter((factor) => factor !== 1);
    return `${node} to axis ${axis}${merged.length > 1 ? ` (${merged.join('·')})` : ''}`;
  });
  return facts({
    'parameters': `${parameters.total}${planned(`, of which ${parameters.trainable} are trained`) ?? ''}`,
    'loss': loss.name.startsWith('output:') ? loss.name : `${loss.name} of ${loss.output}`,
    'last layer': lastLayer === null ? undefined : `${lastLayer.parameters.join(', ')}, on the value ${lastLayer.features}`,
    'examples mix': batchIndependent ? green('no: proved') : isJudged ? red('yes') : yellow('not known'),
    'batch axis': batchIndependent ? shorten(['axis 0 of every input', ...places]) : undefined,
    'mode': plan.mode,
    'batch size': planned(plan.batchSize),
    'norms': planned(`${show(total(layers, 'bytes') / 2 ** 20)} MiB, norms and sums ${show(total(layers, 'flops') / 1e6)} Mflop`),
    'live memory': planned(`about ${round(plan.liveBytes / 2 ** 20)} MiB`),
    'extra arithmetic': planned(percent(plan.extraFlopShare)),
    'plan': plan.optimizeFor === null ? undefined : planned(plan.reason),
    'plans': plan.optimizeFor === null ? undefined : planned(plan.candidates.map(({ mode, layersBy, liveBytes, cost }) =>
      `${mode} by ${layersBy}: ${round(liveBytes / 2 ** 20)} MiB, clipping ${round(cost / 1e9)} Gop`).join('; ')),
  });
}

const total = (layers: Explanation['layers'], cost: 'bytes' | 'flops'): number =>
  layers.reduce((sum, layer) => sum + layer[cost], 0);

/** A list of which only the first entries are told. */
const shorten = (entries: readonly string[], most = 6): string =>
  [...entries.slice(0, most), ...(entries.length > most ? [`… (${entries.length - most} more)`] : [])].join(', ');

/** One line a layer; why it was planned so stands below the table, by letter. */
function layerTable(layers: Explanation['layers'], { bold, cyan, yellow, dim }: Colours): string {
  const reasons = [...new Set(layers.map(({ reason }) => reason))];
  const letter = (reason: string): string => String.fromCharCode(97 + reasons.indexOf(reason));
  const head = ['layer', 'operator', 'parameter', 'T', 'd', 'p', 'groups', 'ghost', 'instantiate', 'norm', 'why', 'MiB', 'Mflop'];
  const norms: Readonly<Record<string, (text: string) => string>> = { ghost: cyan, instantiate: yellow };
  const rows = layers.map(({ name, operator, parameter, T, d, p, groups, uses, norm, reason, bytes, flops, costs }) => [
    uses > 1 ? `${name} +${uses - 1}` : name,
    operator,
    parameter,
    T,
    d,
    p,
    groups,
    round(costs.ghost / 1e6),
    round(costs.instantiate / 1e6),
    norm,
    letter(reason),
    round(bytes / 2 ** 20),
    round(flops / 1e6),
  ]);
  const styled = table(head, rows, (cell, row, column) =>
    row < 0 ? bold(cell) : column === head.indexOf('norm') ? (norms[cell.trim()] ?? dim)(cell) : cell,
  );
  const legend = ['ghost, instantiate: cost of either norm in Mflop an example, memory traffic included'];
  return [styled, '', ...[...legend, ...reasons.map((reason) => `${letter(reason)}: ${reason}`)].map(dim)].join('\n');
}

/** What stands in the way, grouped where several nodes have the same reason. */
function problems(
  title: string,
  found: readonly { readonly node: string; readonly operator: string; readonly reason: string; readonly fix: string }[],
  { red, bold, green }: Colours,
): readonly string[] {
  if (found.length === 0) return [];
  const keyOf = ({ operator, reason, fix }: (typeof found)[number]): string => JSON.stringify([operator, reason, fix]);
  const told = [...new Map(found.map((one) => [keyOf(one), one]))].map(([key, { operator, reason, fix }]) => {
    const nodes = found.filter((one) => keyOf(one) === key);
    return `${bold(operator)} ${shorten(nodes.map(({ node }) => `"${node}"`))}\n  ${reason}\n  ${green('fix:')} ${fix}`;
  });
  return [red(title), ...told];
}

const round = (x: number): number => Number(x.toPrecision(3));
