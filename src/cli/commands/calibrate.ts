import { type CalibrationOptions, calibrate as calibrated } from '../../privacy/index.ts';
import { define } from '../command.ts';
import { accountantHelp } from './epsilon.ts';
import { facts, show } from '../text.ts';
import { number } from '../values.ts';

export const calibrate = define<CalibrationOptions>({
  name: 'calibrate',
  summary: 'the least noise that keeps training within (ε, δ)',
  configure: (command) =>
    command
      .requiredOption('--epsilon <epsilon>', 'the ε not to be exceeded', number)
      .requiredOption('--delta <delta>', 'its δ', number)
      .requiredOption('--sample-rate <q>', 'expected batch size over number of examples; 1 for full batches', number)
      .requiredOption('--steps <n>', 'number of steps', number)
      .option('--accountant <name>', accountantHelp, 'auto'),
  run: (_, options) => {
    const { noiseMultiplier, epsilon, delta, accountant, errorBound } = calibrated(options);
    return {
      json: { noiseMultiplier, epsilon, delta, accountant, errorBound },
      text: facts({ 'noise multiplier': show(noiseMultiplier), 'ε': show(epsilon), 'δ': show(delta), accountant }),
    };
  },
});
