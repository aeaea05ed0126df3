import { writeFileSync } from 'node:fs';
import { Command } from 'commander';
import { stepFigure } from '../../bench/figures.ts';
import { benchStep } from '../../bench/step.ts';
import { modes } from '../../clipping/plan.ts';
import { isModelName, modelNames } from '../../models/index.ts';
import { unknownName } from '../../suggest.ts';
import { type Session, define } from '../command.ts';
import { table } from '../text.ts';
import { asModes, positiveInteger } from '../values.ts';
import { maxBatchCommand } from './bench-max-batch.ts';
import { sweepCommand } from './bench-sweep.ts';

interface Options {
  readonly model: string;
  readonly batchSize: number;
  readonly sequence?: number;
  readonly lora?: number;
  readonly mode: string;
  readonly threads?: number;
  readonly repeats?: number;
  readonly processes?: number;
  readonly svg?: string;
}

const step = define<Options>({
  name: 'step',
  summary: 'time and memory of one training step, mode by mode',
  configure: (command) =>
    command
      .requiredOption('--model <name>', `one of ${modelNames.join(', ')}`)
      .requiredOption('--batch-size <rows>', 'rows of the batch', positiveInteger)
      .option('--sequence <n>', 'tokens of an example, for models of text (default: 128)', positiveInteger)
      .option('--lora <rank>', 'train adapters of this rank on all weights, and nothing else (default: train everything)', positiveInteger)
      .option('--mode <names>', `one or more of ${modes.join(', ')}, with commas between`, 'non-private,book-keeping')
      .option('--threads <n>', 'threads (default: one for each core)', positiveInteger)
      .option('--repeats <n>', 'timed rounds', positiveInteger)
      .option('--processes <n>', 'fresh processes that a figure of memory is the median of (default: 5)', positiveInteger)
      .option('--svg <file>', 'draw the ratios as bars into this file'),
  run: async (_, { model, mode, svg, ...options }, io) => {
    if (!isModelName(model)) throw unknownName('model', model, modelNames, '--model');
    const result = await benchStep({
      ...options,
      model,
      modes: asModes(mode),
      onProgress: (message) => io.stderr.write(`${message}\n`),
    });
    if (svg !== undefined) writeFileSync(svg, stepFigure(result));
    const rows = result.results.map((r) => {
      const ratio = result.ratios[r.mode];
      return [
        r.mode,
        round(r.medianMs),
        round(r.minMs),
        round(r.peakMiB),
        round(r.modelGflops),
        r.rate.toFixed(2),
        ratio?.time.toFixed(3) ?? '',
        ratio?.memory.toFixed(3) ?? '',
      ];
    });
    const head = ['mode', 'median ms', 'least ms', 'peak MiB', 'GFLOP/s', 'of MatMul', 'time ×', 'memory ×'];
    const setting = `${result.model}${result.lora === undefined ? '' : `, adapters of rank ${result.lora}`}, batch ${result.batchSize}, ${result.threads} threads`;
    const gemm = `2048³ matrix product at ${round(result.gemmGflops)} GFLOP/s`;
    const ceiling = `the model's own contractions, forward and alone, at ${round(result.ceilingGflops)} GFLOP/s`;
    return { json: result, text: `${setting}; ${gemm};\n${ceiling}\n\n${table(head, rows)}` };
  },
});

export const bench = (session: Session): Command =>
  new Command('bench')
    .description('measurements')
    .addCommand(step(session))
    .addCommand(maxBatchCommand(session))
    .addCommand(sweepCommand(session));

const round = (x: number): number => Number(x.toFixed(1));
