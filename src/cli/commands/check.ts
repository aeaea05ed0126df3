import { readFileSync } from 'node:fs';
import { modes } from '../../clipping/plan.ts';
import { GhostgradError } from '../../errors.ts';
import { onnxruntimeEngine } from '../../runtime/node.ts';
import { type CheckResult, check as checked, checkTolerance } from '../../training/check.ts';
import { parseExpected } from '../../training/expected.ts';
import { openModel } from '../../training/model.ts';
import { define } from '../command.ts';
import { facts } from '../text.ts';
import { asMode } from '../values.ts';

interface Options {
  readonly expected: string;
  readonly mode: string;
}

const clippingModes = modes.filter((mode) => mode !== 'non-private');

export const check = define<Options>({
  name: 'check',
  summary: 'compare per-example losses, norms and gradients with a reference file',
  configure: (command) =>
    command
      .argument('<model>', 'an ONNX file')
      .requiredOption('--expected <file>', 'reference gradients (JSON)')
      .option('--mode <name>', `how norms are got: ${clippingModes.join(', ')}`, 'book-keeping'),
  run: async ([path = ''], { expected, mode }) => {
    const model = openModel(path);
    const result = await checked(
      model,
      parseExpected(readText(expected), expected),
      onnxruntimeEngine({ thread: 'caller' }),
      asMode(mode, clippingModes),
    );
    const {
      ok,
      maxRelativeError: { loss, norms, gradients },
      worst,
    } = result;
    return {
      json: result,
      text: facts({
        'result': ok ? 'as expected' : `not as expected (tolerance ${checkTolerance})`,
        'error of losses': loss.toExponential(2),
        'error of norms': norms.toExponential(2),
        'error of gradients': gradients.toExponential(2),
        'worst': ok ? undefined : showWorst(worst),
      }),
      exitCode: ok ? 0 : 1,
    };
  },
});

function showWorst({ quantity, parameter, example, error }: CheckResult['worst']): string {
  const what = quantity === 'loss' ? 'the loss' : `the ${quantity === 'norms' ? 'norm' : 'gradient'} of ${parameter}`;
  const where = example < 0 ? 'in the clipped sum' : `of example ${example}`;
  return `${what} ${where}, wrong by ${error.toExponential(2)}`;
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    throw new GhostgradError(
      {
        what: 'cannot read the reference file',
        where: path,
        found: cause instanceof Error ? cause.message : String(cause),
        expected: 'a JSON file',
        fix: 'check --expected',
      },
      { cause },
    );
  }
}
