import { type DataSpec, loadData } from '../../data/index.ts';
import { unknownName } from '../../suggest.ts';
import { type FeatureType, embed as embedded, featureTypes } from '../../training/embed.ts';
import { openModel } from '../../training/model.ts';
import { counter } from '../../training/progress.ts';
import { parseSpec } from '../../training/recipe-file.ts';
import { parseShapes } from '../../training/shapes.ts';
import { define } from '../command.ts';
import { shapeOption } from '../shapes.ts';
import { facts, show } from '../text.ts';
import { positiveInteger } from '../values.ts';

interface Options {
  readonly data: string;
  readonly out: string;
  readonly output?: string;
  readonly dtype?: string;
  readonly batchSize?: number;
  readonly shape?: readonly string[];
  readonly threads?: number;
  readonly force?: boolean;
}

export const embed = define<Options>({
  name: 'embed',
  summary: 'compute the features of data by a frozen model, once, into a safetensors file',
  configure: (command) =>
    command
      .argument('<model>', 'an ONNX file')
      .requiredOption('--data <spec>', 'a named set such as mnist:train, a path, or a mapping')
      .requiredOption('--out <file>', 'the file: arrays "features" and "labels"')
      .option('--output <name>', 'the value that the features are (default: the only output)')
      .option('--dtype <type>', `${featureTypes.join(' or ')} (default: float32)`)
      .option('--batch-size <n>', 'examples computed at once', positiveInteger)
      .option(...shapeOption)
      .option('--threads <n>', 'threads (default: all cores)', positiveInteger)
      .option('--force', 'compute anew, whatever the file holds'),
  run: async ([path = ''], { data, out, dtype, shape = [], force, ...options }, io) => {
    const spec = parseSpec(data, '--data');
    const settings = { ...options, dtype: typeOf(dtype), shapes: parseShapes(shape), overwrite: force, spec };
    const model = openModel(path);
    const dataset = await loadData(spec as DataSpec);
    const stop = new AbortController();
    const stopListening = io.onInterrupt(() => {
      io.stderr.write('\nstopping after these examples; once more to stop at once\n');
      stop.abort();
    });
    const line = counter(io.stderr, 'examples');
    try {
      const result = await embedded(model, dataset, out, { ...settings, signal: stop.signal, onProgress: line.update })
        .finally(line.done);
      const { examples, dimensions, computed, complete, seconds } = result;
      const kept = examples - computed;
      if (complete && computed === 0) io.stderr.write(`${out} holds these features already: nothing was computed\n`);
      else if (complete && kept > 0) io.stderr.write(`went on after ${kept} examples that were there\n`);
      return {
        json: { ...result, examplesPerSecond: computed / seconds },
        text: facts({
          'file': out,
          'features': `${dimensions} for each of ${examples} examples, ${result.dtype}`,
          'computed': complete ? `${computed}` : `${computed}, then stopped; the same command goes on`,
          'time': `${show(seconds)} s`,
          'speed': computed === 0 ? undefined : `${show(computed / seconds)} examples a second`,
        }),
        exitCode: complete ? 0 : 130,
      };
    } finally {
      stopListening();
    }
  },
});

function typeOf(name: string | undefined): FeatureType | undefined {
  const found = featureTypes.find((type) => type === name);
  if (found === undefined && name !== undefined) throw unknownName('element type', name, featureTypes, '--dtype');
  return found;
}
