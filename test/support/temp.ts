import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';

export interface TemporaryFolder {
  readonly folder: string;
  /** Writes a file in the folder and returns its path. */
  readonly write: (name: string, bytes: string | Uint8Array) => string;
}

/** A new folder that is removed when the test ends. */
export function temporaryFolder(): TemporaryFolder {
  const folder = mkdtempSync(join(tmpdir(), 'ghostgrad-test-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return {
    folder,
    write: (name, bytes) => {
      const path = join(folder, name);
      writeFileSync(path, bytes);
      return path;
    },
  };
}
