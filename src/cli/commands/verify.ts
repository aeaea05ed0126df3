import { statSync } from 'node:fs';
import { join } from 'node:path';
import type { Problem } from '../../privacy/index.ts';
import { verify as verified } from '../../training/verify.ts';
import { define } from '../command.ts';
import { facts, show } from '../text.ts';

export const verify = define<{ readonly signedBy?: string }>({
  name: 'verify',
  summary: 'check a certificate against the ledger of its run, and recompute ε',
  configure: (command) => command
    .argument('<privacy.json>', "a run's certificate, or the run's folder")
    .option('--signed-by <key>', 'an Ed25519 public key (PEM) whose owner must have signed it, in privacy.json.sig'),
  run: async ([given = ''], { signedBy }) => {
    const path = statSync(given, { throwIfNoEntry: false })?.isDirectory() === true ? join(given, 'privacy.json') : given;
    const result = await verified(path, { signedBy });
    const { holds, epsilonClaimed, epsilonRecomputed, delta, accountants, problems, releases = [] } = result;
    return {
      json: result,
      text: [
        facts({
          'certificate': holds ? 'holds' : 'does not hold',
          'ε claimed': epsilonClaimed === null ? undefined : show(epsilonClaimed),
          'ε recomputed': epsilonRecomputed === null ? undefined : show(epsilonRecomputed),
          'δ': delta ?? undefined,
          'by accountant': accountants.map(({ accountant, epsilon }) => `${accountant} ${show(epsilon)}`).join(', ') || undefined,
          ...Object.fromEntries(releases.map((one) =>
            [one.folder, `${one.holds ? 'holds' : 'does not hold'}, ε ${one.epsilonClaimed === null ? 'not found' : show(one.epsilonClaimed)} alone`])),
        }),
        ...problems.map(describe),
      ].join('\n'),
      exitCode: holds ? 0 : 1,
    };
  },
});

const describe = ({ what, where, found, expected }: Problem): string =>
  [
    `problem: ${what} (${where})`,
    ...(found === undefined ? [] : [`  found:    ${found}`]),
    ...(expected === undefined ? [] : [`  expected: ${expected}`]),
  ].join('\n');
