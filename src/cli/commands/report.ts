import { report as reported } from '../../report/index.ts';
import { define } from '../command.ts';
import { facts } from '../text.ts';

interface Options {
  readonly out?: string;
  readonly uncovered?: boolean;
}

export const report = define<Options>({
  name: 'report',
  summary: "a run's guarantee as one web page for everybody, finished or not",
  configure: (command) =>
    command
      .argument('<run>', "the run's folder")
      .option('--out <file>', 'where the page goes (default: report.html in the folder)')
      .option('--uncovered', 'also show numbers that ε does not cover, marked so: for yourself, not to be shared'),
  run: async ([folder = ''], { out, uncovered }) => {
    const result = await reported(folder, { html: out, uncovered });
    return { json: result, text: facts({ page: result.html, certificate: result.certificate }) };
  },
});
