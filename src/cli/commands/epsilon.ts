import { GhostgradError } from '../../errors.ts';
import { type Accountant, deltaOf, epsilonOf, gaussian, poissonSampled, selfComposed } from '../../privacy/index.ts';
import { define } from '../command.ts';
import { facts, show } from '../text.ts';
import { number } from '../values.ts';

interface Options {
  readonly noiseMultiplier: number;
  readonly sampleRate: number;
  readonly steps: number;
  readonly delta?: number;
  readonly epsilon?: number;
  readonly accountant: Accountant;
}

export const accountantHelp = 'auto, pld, rdp, exact-gaussian (every step on all of the data), or gdp (an approximation that claims too little)';

export const epsilon = define<Options>({
  name: 'epsilon',
  summary: 'ε that training spends at a δ (or δ at an ε)',
  configure: (command) =>
    command
      .requiredOption('--noise-multiplier <sigma>', 'noise standard deviation over the clipping norm', number)
      .requiredOption('--sample-rate <q>', 'expected batch size over number of examples; 1 for full batches', number)
      .requiredOption('--steps <n>', 'number of steps', number)
      .option('--delta <delta>', 'the δ to tell ε at', number)
      .option('--epsilon <epsilon>', 'the ε to tell δ at', number)
      .option('--accountant <name>', accountantHelp, 'auto'),
  run: (_, { noiseMultiplier, sampleRate, steps, delta, epsilon: target, accountant }) => {
    const event = selfComposed(poissonSampled(sampleRate, gaussian(noiseMultiplier)), steps);
    if ((delta === undefined) === (target === undefined)) {
      throw new GhostgradError({
        what: delta === undefined ? 'neither --delta nor --epsilon is given' : '--delta and --epsilon are both given',
        expected: 'one of them; the other is told',
        fix: delta === undefined ? 'e.g. --delta 1e-5' : 'remove one',
      });
    }
    const spent = delta === undefined ? deltaOf(event, target ?? NaN, accountant) : epsilonOf(event, delta, accountant);
    return { json: spent, text: facts({ ε: show(spent.epsilon), δ: show(spent.delta), accountant: spent.accountant }) };
  },
});
