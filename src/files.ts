import { randomBytes } from 'node:crypto';
import {
  closeSync, fdatasync, fsyncSync, ftruncateSync, linkSync, mkdirSync, openSync, renameSync, rmSync, rmdirSync, writeSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { GhostgradError } from './errors.ts';

/**
 * Every change that a run makes to the file system, so that a test can have any of them fail, or be the last thing that a
 * process did. Reading needs no such care and uses node:fs.
 */
export interface Files {
  open(path: string, flags: 'wx' | 'r+' | 'r', mode?: number): number;
  /** May take less than it is given. @param position default: where the last write ended */
  write(file: number, bytes: Uint8Array, position?: number): number;
  truncate(file: number, length: number): void;
  /** Makes a file, or with a folder its entries, durable. */
  sync(file: number): void;
  /** Makes a file's bytes durable, while the event loop goes on. */
  syncData(file: number): Promise<void>;
  close(file: number): void;
  rename(from: string, to: string): void;
  /** A second name for a file; fails where the name is taken. */
  link(from: string, to: string): void;
  /** No error where there is none. */
  remove(path: string): void;
  /** With those above it; returns the topmost one that was not there, or undefined when all were. */
  makeFolder(path: string, mode?: number): string | undefined;
  /** Only when it is empty. */
  removeFolder(path: string): void;
}

/** One write call takes at most 2 GiB. */
const mostBytes = 2 ** 30;

export const nodeFiles: Files = {
  open: (path, flags, mode = 0o666) => openSync(path, flags, mode),
  write: (file, bytes, position) => writeSync(file, bytes, 0, Math.min(bytes.length, mostBytes), position ?? null),
  truncate: (file, length) => ftruncateSync(file, length),
  sync: (file) => fsyncSync(file),
  syncData: promisify(fdatasync),
  close: (file) => closeSync(file),
  rename: (from, to) => renameSync(from, to),
  link: (from, to) => linkSync(from, to),
  remove: (path) => rmSync(path, { force: true }),
  makeFolder: (path, mode = 0o777) => mkdirSync(path, { recursive: true, mode }),
  removeFolder: (path) => rmdirSync(path),
};

/**
 * Writes the pieces one after another to a temporary file in the same folder, makes it durable, and puts it in the
 * place of `path` in one step.
 *
 * @param mode permissions of the file; default 0o666 less the process's umask
 * @throws GhostgradError when that fails; the temporary file is removed and `path` is as before
 */
export function writeFileAtomically(
  path: string, chunks: Iterable<Uint8Array>, mode = 0o666, files: Files = nodeFiles,
): void {
  const temporary = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString('hex')}.tmp`);
  explained('write', path, () => {
    try {
      writeDurably(temporary, chunks, mode, files);
      files.rename(temporary, path);
    } catch (error) {
      files.remove(temporary);
      throw error;
    }
    syncFolder(dirname(path), files);
  });
}

/** Whether a name in a folder is that of a file that {@link writeFileAtomically} had not finished. */
export const isTemporary = (name: string): boolean => /^\..*\.[0-9a-f]{12}\.tmp$/.test(name);

/** A new file with the pieces, on disk when this returns (its name is once {@link syncFolder} was called). */
export function writeDurably(path: string, chunks: Iterable<Uint8Array>, mode: number, files: Files = nodeFiles): void {
  const file = files.open(path, 'wx', mode);
  try {
    for (const chunk of chunks) writeAll(file, chunk, files);
    files.sync(file);
  } finally {
    files.close(file);
  }
}

/** Writes all of `bytes`, however many calls that takes. @param position default: where the last write ended */
export function writeAll(file: number, bytes: Uint8Array, files: Files = nodeFiles, position?: number): void {
  for (let at = 0; at < bytes.length;)
    at += files.write(file, bytes.subarray(at), position === undefined ? undefined : position + at);
}

/** Makes the entries of a folder durable, where the platform can (Windows cannot open folders). */
export function syncFolder(folder: string, files: Files = nodeFiles): void {
  if (process.platform === 'win32') return;
  const file = files.open(folder, 'r');
  try {
    files.sync(file);
  } catch (error) {
    // Some network file systems refuse to sync a folder; the file itself is durable.
    if (!['EINVAL', 'ENOTSUP', 'EISDIR', 'EBADF'].includes(codeOf(error))) throw error;
  } finally {
    files.close(file);
  }
}

const codeOf = (error: unknown): string => (error instanceof Error && 'code' in error ? String(error.code) : '');

/** What the system's error codes mean to a user, and what to do about it. */
const reasons: Readonly<Record<string, { readonly found: string; readonly fix: string }>> = {
  ENOENT: { found: 'no such file or folder', fix: 'check the path' },
  ENOTDIR: { found: 'a part of the path is not a folder', fix: 'check the path' },
  EISDIR: { found: 'a folder', fix: 'name the file in it' },
  EACCES: { found: 'no permission', fix: 'change the permissions, or choose another path' },
  EPERM: { found: 'no permission', fix: 'change the permissions, or choose another path' },
  EROFS: { found: 'a read-only file system', fix: 'choose another path' },
  ENOSPC: { found: 'no space left on the disk', fix: 'free some space, or choose another disk' },
  EDQUOT: { found: 'disk quota exceeded', fix: 'free some space, or choose another disk' },
  ERR_FS_FILE_TOO_LARGE: {
    found: 'a file of 2 GiB or more',
    fix: 'keep the weights as external data beside the model',
  },
};

/** Runs a file operation and turns the system's errors into ones for the user. */
export function explained<T>(verb: 'read' | 'write', path: string, operation: () => T): T {
  try {
    return operation();
  } catch (cause) {
    if (cause instanceof GhostgradError || !(cause instanceof Error)) throw cause;
    const reason = reasons[codeOf(cause)] ?? { found: cause.message, fix: undefined };
    throw new GhostgradError({
      what: `cannot ${verb} the file`, where: path, found: reason.found,
      expected: verb === 'read' ? 'a readable file' : 'a folder that can be written', fix: reason.fix,
    }, { cause });
  }
}
