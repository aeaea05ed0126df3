import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';

/** A new folder that is removed when the test ends, and a writer of files in it that returns their paths. */
export function temporaryFolder(): { readonly folder: string; readonly write: (name: string, bytes: string | Uint8Array) => string } {
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
