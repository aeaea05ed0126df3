import { GhostgradError } from '../../errors.ts';
import { type Accountant } from '../../privacy/accountant.ts';
import { type Calibrated, calibrate as calibrateNoise, calibrateSampleRate, calibrateSteps } from '../../privacy/index.ts';
import { define } from '../command.ts';
import { accountantHelp } from './epsilon.ts';
import { facts, show } from '../text.ts';
import { number } from '../values.ts';

interface Options {
  readonly epsilon: number;
  readonly delta: number;
  readonly noiseMultiplier?: number;
  readonly sampleRate?: number;
  readonly steps?: number;
  readonly accountant?: Accountant;
}

export const calibrate = define<Options>({
  name: 'calibrate',
  summary: 'the least noise that keeps training within (ε, δ); or the most steps, or the largest sample rate',
  configure: (command) =>
    command
      .requiredOption('--epsilon <epsilon>', 'the ε not to be exceeded', number)
      .requiredOption('--delta <delta>', 'its δ', number)
      .option('--sample-rate <q>', 'expected batch size over number of examples; 1 for full batches', number)
      .option('--steps <n>', 'number of steps', number)
      .option('--noise-multiplier <sigma>', 'with one of the two above, to find the other', number)
      .option('--accountant <name>', accountantHelp, 'auto'),
  run: (_, options) => {
    const { noiseMultiplier, sampleRate, steps, epsilon, delta, accountant, errorBound } = found(options);
    return {
      json: { noiseMultiplier, sampleRate, steps, epsilon, delta, accountant, errorBound },
      text: facts({
        'noise multiplier': show(noiseMultiplier), 'sample rate': show(sampleRate), 'steps': String(steps), 'ε': show(epsilon), 'δ': show(delta), accountant,
      }),
    };
  },
});

/** The one of noise, sample rate and steps that is not given. */
function found({ noiseMultiplier, sampleRate, steps, ...target }: Options): Calibrated {
  if (noiseMultiplier === undefined && sampleRate !== undefined && steps !== undefined) return calibrateNoise({ ...target, sampleRate, steps });
  if (steps === undefined && noiseMultiplier !== undefined && sampleRate !== undefined) return calibrateSteps({ ...target, noiseMultiplier, sampleRate });
  if (sampleRate === undefined && noiseMultiplier !== undefined && steps !== undefined) return calibrateSampleRate({ ...target, noiseMultiplier, steps });
  const given = Object.entries({ '--noise-multiplier': noiseMultiplier, '--sample-rate': sampleRate, '--steps': steps })
    .filter(([, value]) => value !== undefined).map(([name]) => name);
  throw new GhostgradError({
    what: 'not two of noise multiplier, sample rate and steps', where: 'calibrate', found: given.join(', ') || 'none of them',
    expected: 'two of them, from which the third follows', fix: 'e.g. --sample-rate 0.01 --steps 1000 for the noise',
  });
}
