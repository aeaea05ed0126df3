import { GhostgradError } from '../../errors.ts';
import { type DataSpec, loadData } from '../../data/index.ts';
import { onnxruntimeEngine } from '../../runtime/node.ts';
import { evaluate as evaluated } from '../../training/evaluate.ts';
import { evaluatePrivately } from '../../training/private-evaluation.ts';
import { asLoss } from '../../training/loss.ts';
import { openModel } from '../../training/model.ts';
import { parseSpec } from '../../training/recipe-file.ts';
import { parseShapes } from '../../training/shapes.ts';
import { define } from '../command.ts';
import { shapeOption } from '../shapes.ts';
import { facts, percent, show } from '../text.ts';
import { number, positiveInteger } from '../values.ts';

interface Options {
  readonly data: string;
  readonly loss?: string;
  readonly output?: string;
  readonly shape?: readonly string[];
  readonly batchSize?: number;
  readonly threads?: number;
  readonly epsilon?: number;
  readonly delta?: number;
  readonly lossBound?: number;
  readonly budget?: string;
}

export const evaluate = define<Options>({
  name: 'evaluate',
  summary: 'accuracy, loss or perplexity of a model on data',
  configure: (command) =>
    command
      .argument('<model>', 'an ONNX file')
      .requiredOption('--data <spec>', 'a named set such as mnist:test, a path, or a mapping: {path: a.csv, label: y}')
      .option(
        '--loss <name>',
        'cross-entropy, sigmoid-cross-entropy, binary-cross-entropy, mse, causal-lm or output:<name> (default: what the model was trained with)',
      )
      .option('--output <name>', "the output that the loss is taken of (default: the model's only one)")
      .option(...shapeOption)
      .option('--batch-size <rows>', 'rows computed at once', positiveInteger)
      .option('--threads <n>', 'threads (default: one for each core)', positiveInteger)
      .option('--epsilon <epsilon>', 'the data is private: tell its accuracy with noise, within this ε for each record', number)
      .option('--delta <delta>', 'its δ', number)
      .option('--loss-bound <bound>', 'also tell the loss, each cut to this', number)
      .option('--budget <file>', 'charge it to a budget that other releases about the same records share'),
  run: async ([path = ''], { data, loss, shape = [], epsilon, delta, lossBound, budget, ...options }) => {
    const target = targetOf(epsilon, delta, lossBound ?? budget);
    const model = openModel(path);
    const dataset = await loadData(parseSpec(data, '--data') as DataSpec);
    const settings = {
      ...options,
      engine: onnxruntimeEngine({ thread: 'caller' }),
      shapes: parseShapes(shape),
      ...(loss !== undefined && { loss: asLoss(loss, '--loss') }),
    };
    if (target !== null) {
      const found = await evaluatePrivately(model, dataset, { ...settings, ...target, lossBound, budget });
      const { deviations } = found;
      const plusMinus = (value: number | null, noise: number | null, text: (x: number) => string): string | undefined =>
        value === null || noise === null ? undefined : `${text(value)} ± ${text(noise)}`;
      return {
        json: found,
        text: facts({
          accuracy: plusMinus(found.accuracy, deviations.accuracy, percent),
          loss: plusMinus(found.loss, deviations.loss, show),
          examples: found.examples,
          privacy: `(${show(found.epsilon)}, ${found.delta})-differential privacy for each of them`,
        }),
      };
    }
    const result = await evaluated(model, dataset, settings);
    return {
      json: result,
      text: facts({
        accuracy: result.accuracy === null ? undefined : percent(result.accuracy),
        perplexity: result.perplexity === undefined ? undefined : show(result.perplexity),
        loss: show(result.loss),
        examples: result.examples,
        tokens: result.tokens,
      }),
    };
  },
});

/** The (ε, δ) of a private evaluation; null where the data is public. */
function targetOf(
  epsilon: number | undefined, delta: number | undefined, other: number | string | undefined,
): { readonly epsilon: number; readonly delta: number } | null {
  if (epsilon !== undefined && delta !== undefined) return { epsilon, delta };
  if (epsilon === undefined && delta === undefined && other === undefined) return null;
  throw new GhostgradError({
    what: 'evaluation on private data needs its ε and δ', where: epsilon === undefined ? '--epsilon' : '--delta', expected: '--epsilon and --delta, or neither of them, and no --loss-bound or --budget',
    fix: 'e.g. --epsilon 1 --delta 1e-5',
  });
}
