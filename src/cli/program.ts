import { Command, CommanderError } from 'commander';
import { GhostgradError } from '../errors.ts';
import { ghostgradVersion } from '../training/software.ts';
import type { Session } from './command.ts';
import { audit } from './commands/audit.ts';
import { bench } from './commands/bench.ts';
import { calibrate } from './commands/calibrate.ts';
import { check } from './commands/check.ts';
import { embed } from './commands/embed.ts';
import { epsilon } from './commands/epsilon.ts';
import { evaluate } from './commands/evaluate.ts';
import { explain } from './commands/explain.ts';
import { exportCommand } from './commands/export.ts';
import { report } from './commands/report.ts';
import { train } from './commands/train.ts';
import { verify } from './commands/verify.ts';
import { type Io, coloursFor } from './io.ts';

/** Adding a command: one file in commands/ and its name here. */
const commands = [train, embed, evaluate, explain, check, verify, report, exportCommand, epsilon, calibrate, audit, bench];

/**
 * The command line.
 *
 * @param argv arguments after the program's name
 * @returns the exit code: 0 done, 1 the user can mend it (one message on stderr), 2 a bug, 130 interrupted
 */
export async function main(argv: readonly string[], io: Io): Promise<number> {
  const session: Session = { io, exitCode: 0 };
  const program = new Command('ghostgrad')
    .description('Train any ONNX model with differential privacy.')
    .version(ghostgradVersion)
    .helpCommand(false);
  for (const command of commands) program.addCommand(command(session));
  if (argv.length === 0) {
    io.stderr.write(program.helpInformation());
    return 1;
  }
  prepare(program, io);
  try {
    await program.parseAsync([...argv], { from: 'user' });
    return session.exitCode;
  } catch (error) {
    // Commander has said what was wrong; asking for help or the version is no error.
    if (error instanceof CommanderError) return error.exitCode;
    const { text, exitCode } = describe(error, io);
    io.stderr.write(`${coloursFor(io.stderr, io.env).red('error:')} ${text}\n`);
    return exitCode;
  }
}

/** No command ends the process or writes past `io`. */
function prepare(command: Command, io: Io): void {
  command.exitOverride().configureOutput({
    writeOut: (text) => void io.stdout.write(text),
    writeErr: (text) => void io.stderr.write(text),
    outputError: (text, write) => write(text.replace(/^error:/, coloursFor(io.stderr, io.env).red('error:'))),
  });
  command.commands.forEach((inner) => prepare(inner, io));
}

function describe(error: unknown, { env }: Io): { readonly text: string; readonly exitCode: number } {
  const debug = env['DEBUG'] !== undefined && env['DEBUG'] !== '';
  const stack = error instanceof Error && debug ? `\n${error.stack ?? ''}` : '';
  if (error instanceof GhostgradError) return { text: error.message + stack, exitCode: 1 };
  const message = error instanceof Error ? error.message : String(error);
  const ask = `please report the command and ${debug ? 'this' : 'what it prints with DEBUG=1'}`;
  return { text: `unexpected: ${message}\n  this is a bug of ghostgrad ${ghostgradVersion}: ${ask}${stack}`, exitCode: 2 };
}
