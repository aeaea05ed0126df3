import { maxBatch } from '../../bench/max-batch.ts';
import { modes } from '../../clipping/plan.ts';
import { isModelName, modelNames } from '../../models/index.ts';
import { unknownName } from '../../suggest.ts';
import { define } from '../command.ts';
import { table } from '../text.ts';
import { asModes, number, positiveInteger } from '../values.ts';

interface Options {
  readonly model: string;
  readonly memoryMib: number;
  readonly mode: string;
  readonly sequence?: number;
  readonly limit?: number;
  readonly threads?: number;
}

export const maxBatchCommand = define<Options>({
  name: 'max-batch',
  summary: 'the largest physical batch whose step stays within a bound of memory, mode by mode',
  configure: (command) =>
    command
      .requiredOption('--model <name>', `one of ${modelNames.join(', ')}`)
      .requiredOption('--memory-mib <MiB>', 'what a step may take beyond parameters and data', number)
      .option('--mode <names>', `one or more of ${modes.join(', ')}, with commas between`, 'non-private,book-keeping')
      .option('--sequence <n>', 'tokens of an example, for models of text (default: 128)', positiveInteger)
      .option('--limit <rows>', 'largest batch that is tried (default: 16384)', positiveInteger)
      .option('--threads <n>', 'threads (default: one for each core)', positiveInteger),
  run: async (_, { model, memoryMib, mode, ...options }, io) => {
    if (!isModelName(model)) throw unknownName('model', model, modelNames, '--model');
    const result = await maxBatch({
      ...options,
      model,
      memoryMiB: memoryMib,
      modes: asModes(mode),
      onProgress: (message) => io.stderr.write(`${message}\n`),
    });
    const rows = result.results.map((r) => [
      r.mode,
      `${r.isLimit ? '≥ ' : ''}${r.maxBatch}`,
      r.peakMiB?.toFixed(0) ?? '',
      r.ms?.toFixed(0) ?? '',
      result.ratios[r.mode]?.toFixed(3) ?? '',
      r.probes.length,
    ]);
    const head = ['mode', 'largest batch', 'peak MiB', 'step ms', '×', 'tried'];
    return {
      json: result,
      text: `${result.model}, at most ${result.memoryMiB} MiB, ${result.threads} threads\n\n${table(head, rows)}`,
    };
  },
});
