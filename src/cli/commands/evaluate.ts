import { type DataSpec, loadData } from '../../data/index.ts';
import { onnxruntimeEngine } from '../../runtime/node.ts';
import { evaluate as evaluated } from '../../training/evaluate.ts';
import { asLoss } from '../../training/loss.ts';
import { openModel } from '../../training/model.ts';
import { parseSpec } from '../../training/recipe-file.ts';
import { parseShapes } from '../../training/shapes.ts';
import { define } from '../command.ts';
import { shapeOption } from '../shapes.ts';
import { facts, percent, show } from '../text.ts';
import { positiveInteger } from '../values.ts';

interface Options {
  readonly data: string;
  readonly loss?: string;
  readonly output?: string;
  readonly shape?: readonly string[];
  readonly batchSize?: number;
  readonly threads?: number;
}

export const evaluate = define<Options>({
  name: 'evaluate',
  summary: 'accuracy and loss of a model on data',
  configure: (command) =>
    command
      .argument('<model>', 'an ONNX file')
      .requiredOption('--data <spec>', 'a named set such as mnist:test, a path, or a mapping: {path: a.csv, label: y}')
      .option(
        '--loss <name>',
        'cross-entropy, binary-cross-entropy, mse or output:<name> (default: what the model was trained with)',
      )
      .option('--output <name>', "the output that the loss is taken of (default: the model's only one)")
      .option(...shapeOption)
      .option('--batch-size <rows>', 'rows computed at once', positiveInteger)
      .option('--threads <n>', 'threads (default: one for each core)', positiveInteger),
  run: async ([path = ''], { data, loss, shape = [], ...options }) => {
    const model = openModel(path);
    const dataset = await loadData(parseSpec(data, '--data') as DataSpec);
    const result = await evaluated(model, dataset, {
      ...options,
      engine: onnxruntimeEngine({ thread: 'caller' }),
      shapes: parseShapes(shape),
      ...(loss !== undefined && { loss: asLoss(loss, '--loss') }),
    });
    return {
      json: result,
      text: facts({
        accuracy: result.accuracy === null ? undefined : percent(result.accuracy),
        loss: show(result.loss),
        examples: result.examples,
      }),
    };
  },
});
