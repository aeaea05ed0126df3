import { createColors } from 'picocolors';
import type { ProgressStream } from '../training/progress.ts';

/** What the command line talks to. */
export interface Io {
  /** Results, and nothing else. */
  readonly stdout: { readonly isTTY?: boolean | undefined; write(text: string): unknown };
  /** Progress and messages. */
  readonly stderr: ProgressStream;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Calls `handler` when the user asks to stop; returns how to stop listening. */
  onInterrupt(handler: () => void): () => void;
}

/** Colours for a stream; none where it is no terminal or the user wants none. */
export const coloursFor = (stream: { readonly isTTY?: boolean | undefined }, env: Io['env']) =>
  createColors(stream.isTTY === true && env['NO_COLOR'] === undefined && env['TERM'] !== 'dumb');
