import { type AuditMethod, audit as audited, auditMethods } from '../../audit/index.ts';
import { onnxruntimeEngine } from '../../runtime/node.ts';
import { unknownName } from '../../suggest.ts';
import { define } from '../command.ts';
import { coloursFor } from '../io.ts';
import { facts, show } from '../text.ts';
import { number, positiveInteger } from '../values.ts';

interface Options {
  readonly method: string;
  readonly canaries?: number;
  readonly confidence: number;
  readonly seed: number;
}

export const audit = define<Options>({
  name: 'audit',
  summary: 'attack what a recipe or a run claims, and bound its ε from below',
  configure: (command) =>
    command
      .argument('<recipe>', 'a recipe, or the folder of a run')
      .option(
        '--method <name>',
        'gradient-canary: the private step as an observer of every noised sum sees it; one-run: trains the recipe once with ' +
          'wrong labels, as somebody sees it who has the model alone',
        'gradient-canary',
      )
      .option('--canaries <n>', 'canaries in all (default: 20000 in gradient space, 1000 rows of data)', positiveInteger)
      .option('--confidence <p>', 'of the lower bound', number, 0.999)
      .option('--seed <n>', 'of the canaries and of the noise that they are audited with', number, 0),
  run: async ([path = ''], { method, canaries, confidence, seed }, io) => {
    if (!isMethod(method)) throw unknownName('method', method, auditMethods, '--method');
    let shown = performance.now();
    const result = await audited(path, {
      engine: onnxruntimeEngine({ thread: 'caller' }), method, canaries, confidence, seed,
      onStep: (step, steps) => {
        if (io.stderr.isTTY !== true || performance.now() - shown < 500) return;
        shown = performance.now();
        io.stderr.write(`\rstep ${step} of ${steps}${step === steps ? '\n' : ''}`);
      },
    });
    const { epsilonLowerBound, epsilonClaimed, delta, alarms } = result;
    alarms.forEach((alarm) => io.stderr.write(`${coloursFor(io.stderr, io.env).red('alarm:')} ${alarm}\n`));
    return {
      json: result,
      text: facts({
        'lower bound of ε': `${show(epsilonLowerBound)} with confidence ${confidence}`,
        'claimed': `${show(epsilonClaimed)} at δ = ${delta}`,
        'method': method,
        'contradicts the claim': alarms.length > 0 ? 'yes' : 'no',
      }),
      exitCode: alarms.length > 0 ? 1 : 0,
    };
  },
});

const isMethod = (name: string): name is AuditMethod => (auditMethods as readonly string[]).includes(name);
