/**
 * The one error a user is meant to read. Every part is a sentence fragment:
 * what went wrong, where, what was found, what was expected, how to fix it.
 */
export interface ErrorParts {
  /** What went wrong, e.g. `unknown recipe key`. */
  readonly what: string;
  /** Node, column, option or file at fault. */
  readonly where?: string | undefined;
  /** What was found. Never the value of a private cell. */
  readonly found?: string | undefined;
  readonly expected?: string | undefined;
  readonly fix?: string | undefined;
}

export class GhostgradError extends Error {
  override readonly name = 'GhostgradError';
  readonly parts: ErrorParts;

  constructor(parts: ErrorParts, options?: { cause?: unknown }) {
    super(formatParts(parts), options);
    this.parts = parts;
  }
}

function formatParts({ what, where, found, expected, fix }: ErrorParts): string {
  const lines = [where === undefined ? what : `${what} (${where})`];
  if (found !== undefined) lines.push(`  found:    ${found}`);
  if (expected !== undefined) lines.push(`  expected: ${expected}`);
  if (fix !== undefined) lines.push(`  fix:      ${fix}`);
  return lines.join('\n');
}
