import { readFile, stat } from 'node:fs/promises';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import { GhostgradError } from '../errors.ts';

const reasons: Readonly<Record<string, string>> = {
  ENOENT: 'no such file', EISDIR: 'a folder', EACCES: 'no permission to read it', EPERM: 'no permission to read it',
  ENOTDIR: 'a file where a folder should be', ERR_FS_FILE_TOO_LARGE: 'a file too large to be read at once',
};

/** The error for a file that the system does not let us read. */
export function unreadable(path: string, cause: unknown): GhostgradError {
  const code = cause instanceof Error && 'code' in cause ? String(cause.code) : '';
  return new GhostgradError({
    what: 'cannot read the data', where: path, found: reasons[code] ?? (code === '' ? String(cause) : `error ${code}`),
    expected: 'a readable file',
    fix: code === 'ENOENT' ? 'check the path; relative ones start from the current folder' : undefined,
  }, { cause });
}

/** The bytes of a file, unpacked when they are gzip's. Throws GhostgradError when it cannot be read or unpacked. */
export async function readBytes(path: string): Promise<Uint8Array> {
  const bytes = await readFile(path).catch((error: unknown) => { throw unreadable(path, error); });
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return plain(bytes);
  return promisify(gunzip)(bytes).then(plain, (cause: unknown): never => {
    throw new GhostgradError({
      what: 'cannot unpack the data', where: path, found: 'a damaged or truncated gzip file',
      expected: 'a whole gzip file',
      fix: 'get or copy the file again',
    }, { cause });
  });
}

/** Loops over bytes are faster when all are of one class. */
const plain = ({ buffer, byteOffset, length }: Buffer): Uint8Array => new Uint8Array(buffer, byteOffset, length);

export type PathKind = 'file' | 'folder' | 'absent';

export const kindOf = async (path: string): Promise<PathKind> =>
  stat(path).then((s) => (s.isDirectory() ? 'folder' : 'file'), () => 'absent');
