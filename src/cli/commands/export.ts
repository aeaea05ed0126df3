import { exportRun } from '../../training/export.ts';
import { define } from '../command.ts';
import { facts } from '../text.ts';

interface Options {
  readonly out: string;
  readonly adapter?: boolean;
}

export const exportCommand = define<Options>({
  name: 'export',
  summary: "a finished run's model as one ONNX file, adapters merged into its weights",
  configure: (command) =>
    command
      .argument('<run>', "the run's folder")
      .requiredOption('--out <file>', 'the file to write')
      .option('--adapter', 'write the adapters alone, as PEFT-style safetensors'),
  run: ([folder = ''], options) => {
    const result = exportRun(folder, options);
    const { path, parameters, adaptersKept } = result;
    return {
      json: result,
      text: facts({
        file: path, parameters,
        adapters: adaptersKept === 0 ? undefined : `${adaptersKept} kept: the weights beside them are stored in few bits`,
      }),
    };
  },
});
