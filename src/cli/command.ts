import { Command, type Option } from 'commander';
import type { Io } from './io.ts';

/** What a command has to say: the same as data and as text. */
export interface Outcome {
  readonly json: object;
  readonly text: string;
  /** Default 0. */
  readonly exitCode?: number;
}

/** Where a command leaves its exit code. */
export interface Session {
  readonly io: Io;
  exitCode: number;
}

export interface Definition<Options extends object> {
  readonly name: string;
  readonly summary: string;
  /** Adds arguments and options. */
  readonly configure: (command: Command) => void;
  /** @param operands the arguments in order; undefined where an optional one was left out */
  readonly run: (operands: readonly (string | undefined)[], options: Options, io: Io) => Promise<Outcome> | Outcome;
}

/** A command that prints its outcome: one JSON object with `--json`, else text. */
export function define<Options extends object>({ name, summary, configure, run }: Definition<Options>) {
  return (session: Session): Command => {
    const command = new Command(name).description(summary);
    configure(command);
    const required = deferRequired(command);
    command.option('--json', 'print one JSON object and nothing else');
    return command.action(async () => {
      const missing = required.find((option) => command.getOptionValue(option.attributeName()) === undefined);
      if (missing !== undefined) command.error(`error: required option '${missing.flags}' not specified`);
      const { json, ...options } = command.opts<Options & { json?: boolean }>();
      // Every argument of a command is a single string.
      const outcome = await run(
        command.processedArgs as (string | undefined)[],
        options as unknown as Options,
        session.io,
      );
      session.io.stdout.write(json === true ? `${JSON.stringify(outcome.json)}\n` : `${outcome.text}\n`);
      session.exitCode = outcome.exitCode ?? 0;
    });
  };
}

/**
 * The required options, marked so in the help, for the action to ask for: by then unknown options have been refused,
 * and the misspelling of a required one is the better message.
 */
function deferRequired(command: Command): readonly Option[] {
  const required = command.options.filter(({ mandatory }) => mandatory);
  for (const option of required) {
    option.makeOptionMandatory(false);
    option.description += ' (required)';
  }
  return required;
}
