import { Command } from 'commander';
import { benchStep, parseModes } from '../../bench/step.ts';
import { modes } from '../../clipping/plan.ts';
import { modelNames } from '../../models/index.ts';
import { type Session, define } from '../command.ts';
import { table } from '../text.ts';
import { positiveInteger } from '../values.ts';

interface Options {
  readonly model: string;
  readonly batchSize: number;
  readonly mode: string;
  readonly threads?: number;
  readonly repeats?: number;
}

const step = define<Options>({
  name: 'step',
  summary: 'time and memory of one training step, mode by mode',
  configure: (command) =>
    command
      .requiredOption('--model <name>', `one of ${modelNames.join(', ')}`)
      .requiredOption('--batch-size <rows>', 'rows of the batch', positiveInteger)
      .requiredOption('--mode <names>', `one or more of ${modes.join(',')}, separated by commas`)
      .option('--threads <n>', 'threads (default: one for each core)', positiveInteger)
      .option('--repeats <n>', 'timed rounds', positiveInteger),
  run: async (_, { mode, ...options }, io) => {
    const result = await benchStep({
      ...options,
      modes: parseModes(mode),
      onProgress: (message) => io.stderr.write(`${message}\n`),
    });
    const rows = result.results.map((r) => {
      const ratio = result.ratios[r.mode];
      return [
        r.mode,
        round(r.medianMs),
        round(r.minMs),
        round(r.peakMiB),
        round(r.modelGflops),
        ratio?.time.toFixed(3) ?? '',
        ratio?.memory.toFixed(3) ?? '',
      ];
    });
    const head = ['mode', 'median ms', 'least ms', 'peak MiB', 'GFLOP/s', 'time ×', 'memory ×'];
    const setting = `${result.model}, batch ${result.batchSize}, ${result.threads} threads`;
    const gemm = `2048³ matrix product at ${round(result.gemmGflops)} GFLOP/s`;
    return { json: result, text: `${setting}; ${gemm}\n\n${table(head, rows)}` };
  },
});

export const bench = (session: Session): Command =>
  new Command('bench').description('measurements').addCommand(step(session));

const round = (x: number): number => Number(x.toFixed(1));
