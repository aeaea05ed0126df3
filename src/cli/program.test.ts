import { describe, expect, it } from 'vitest';
import { ghostgrad, refused } from '../../test/support/cli.ts';
import type { Io } from './io.ts';
import { main } from './program.ts';

describe('ghostgrad', () => {
  it('helps, in general and with every command', async () => {
    for (const args of [
      [],
      ['train'],
      ['evaluate'],
      ['explain'],
      ['check'],
      ['verify'],
      ['report'],
      ['epsilon'],
      ['calibrate'],
      ['audit'],
      ['bench'],
      ['bench', 'step'],
      ['bench', 'max-batch'],
      ['bench', 'sweep'],
    ]) {
      const { code, out } = await ghostgrad([...args, '--help']);
      expect(code).toBe(0);
      expect(out).toMatch(new RegExp(`^Usage: ghostgrad ${args.join(' ')}`));
    }
    expect((await ghostgrad(['--version'])).out).toMatch(/^\d+\.\d+\.\d+\n$/);
    expect(await ghostgrad([])).toMatchObject({
      code: 1,
      out: '',
      err: expect.stringContaining('Usage: ghostgrad') as string,
    });
  });

  it('refuses unknown commands and options, and suggests the nearest', async () => {
    expect(await refused(['trian'])).toMatch(/unknown command 'trian'[^]*Did you mean train\?/);
    expect(await refused(['train', '--epsilonn', '3'])).toMatch(
      /unknown option '--epsilonn'[^]*Did you mean --epsilon\?/,
    );
    expect(await refused(['epsilon', '--noise-multiplyer', '1'])).toMatch(
      /unknown option '--noise-multiplyer'[^]*Did you mean --noise-multiplier\?/,
    );
    expect((await ghostgrad(['epsilon', '--help'])).out).toMatch(/--steps <n> +number of steps \(required\)/);
    expect(await refused(['bench', 'stpe'])).toMatch(/unknown command 'stpe'/);
    expect(await refused(['train', 'a.yaml', 'b.yaml'])).toMatch('too many arguments');
    expect(await refused(['epsilon', '--steps', '3'])).toMatch(
      "required option '--noise-multiplier <sigma>' not specified",
    );
    expect(await refused(['calibrate', '--epsilon', 'three'])).toMatch('Expected a number');
    expect(await refused(['evaluate', 'm.onnx', '--data', 'x.csv', '--threads', '0'])).toMatch(
      'Expected a whole number',
    );
  });

  it('shows a stack only to those who ask, and a way to report a bug', async () => {
    const missing = ['evaluate', 'none.onnx', '--data', 'mnist:test'];
    expect((await ghostgrad(missing, { env: { DEBUG: '1' } })).err).toMatch(/\n +at /);
    expect((await ghostgrad(missing)).err).not.toMatch(/\n +at /);
    const broken: Io = {
      stdout: {
        write: () => {
          throw new Error('a bug');
        },
      },
      stderr: { write: (text: string) => (said += text) },
      env: {},
      onInterrupt: () => () => undefined,
    };
    let said = '';
    expect(
      await main(['calibrate', '--epsilon', '3', '--delta', '1e-5', '--sample-rate', '1', '--steps', '1'], broken),
    ).toBe(2);
    expect(said).toMatch(/^error: unexpected: a bug\n.*report.*DEBUG=1\n$/);
  });
});

describe('bench step', () => {
  it('refuses unknown modes and models', async () => {
    const step = ['bench', 'step', '--batch-size', '8', '--model'];
    expect(await refused([...step, 'mlp', '--mode', 'non-private,ghots'])).toMatch(
      /unknown mode "ghots" \(--mode\)[^]*did you mean "ghost"\?/,
    );
    expect(await refused([...step, 'mpl'])).toMatch(/unknown model "mpl" \(--model\)[^]*did you mean "mlp"\?/);
  });
});

describe('bench sweep', () => {
  it('refuses sizes, layers and values that it does not know, and asks for a model where it needs one', async () => {
    expect(await refused(['bench', 'sweep', '--over', 'positons'])).toMatch(/unknown size "positons" \(--over\)[^]*did you mean "positions"\?/);
    expect(await refused(['bench', 'sweep', '--over', 'width', '--layer', 'lineer'])).toMatch(/did you mean "linear"\?/);
    expect(await refused(['bench', 'sweep', '--over', 'width', '--values', '8,x'])).toMatch('Expected a number');
    expect(await refused(['bench', 'sweep', '--over', 'batch'])).toMatch(/no model \(--model\)/);
  });
});

describe('bench max-batch', () => {
  it('refuses unknown models and modes', async () => {
    const command = ['bench', 'max-batch', '--memory-mib', '100', '--model'];
    expect(await refused([...command, 'mpl'])).toMatch(/did you mean "mlp"\?/);
    expect(await refused([...command, 'mlp', '--mode', 'ghots'])).toMatch(/did you mean "ghost"\?/);
  });
});
