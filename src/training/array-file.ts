import { createHash } from 'node:crypto';
import { closeSync, existsSync, openSync, readFileSync, readSync, statSync, statfsSync } from 'node:fs';
import { dirname } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { type Files, explained, nodeFiles, syncFolder, writeAll, writeFileAtomically } from '../files.ts';
import { type SafetensorsHeader, readSafetensorsHeader, safetensorsLayout } from '../tensor/safetensors.ts';
import { type Shape, type TensorType, bytesPerElement, sizeOf } from '../tensor/tensor.ts';

/** Arrays of as many rows each, by name: types of one row. */
export type RowTypes = ReadonlyMap<string, TensorType>;

/**
 * A safetensors file that is made row by row at constant memory, and that an interrupted process goes on with:
 *
 * - `PATH.partial` is the file at its full size, of which rows are still missing;
 * - `PATH.progress.json` says how many are there for certain, and of what.
 *
 * The last row's end is a rename: `PATH` is whole or not there.
 */
export interface ArrayFile {
  /** Rows that are there. */
  readonly rows: number;
  /** Writes the next rows, the bytes of each array's; makes all so far durable when it is time. */
  append(parts: ReadonlyMap<string, Uint8Array>): Promise<void>;
  /** Makes what is there durable, for a later process to go on. */
  pause(): Promise<void>;
  /** Puts the file, of which every row was written, in its place. */
  finish(): void;
  /** After a failure: what is durable stays. */
  close(): void;
}

export interface ArrayFileOptions {
  readonly rows: number;
  readonly types: RowTypes;
  readonly metadata: Readonly<Record<string, string>>;
  /** Permissions; default 0o666 less the process's umask. */
  readonly mode?: number | undefined;
  /** Seconds between two moments from which a killed process goes on; default 2. */
  readonly syncSeconds?: number | undefined;
  readonly files?: Files | undefined;
}

/** What a process left that was to make a file. */
export interface Unfinished {
  readonly rows: number;
  /** The metadata of the file to be. */
  readonly metadata: Readonly<Record<string, string>>;
}

export const partialOf = (path: string): string => `${path}.partial`;
const progressOf = (path: string): string => `${path}.progress.json`;

/** Names the header that it is about: a power failure may bring back the progress of an earlier file. */
interface Progress {
  readonly rows: number;
  readonly header: string;
}

/** The unfinished file at `path`; undefined where there is none, or nothing of it is certain. */
export function unfinishedAt(path: string): Unfinished | undefined {
  if (!existsSync(partialOf(path)) || !existsSync(progressOf(path))) return undefined;
  try {
    const { rows, header } = JSON.parse(readFileSync(progressOf(path), 'utf8')) as Progress;
    const { metadata, dataStart } = headerAt(partialOf(path));
    return header === digestOf(bytesAt(partialOf(path), 0, dataStart)) ? { rows, metadata } : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Goes on with the unfinished file at `path` if it is the same file, byte for byte in its header, and else begins a new one.
 *
 * @throws GhostgradError where it cannot be written, or the disk has no room for all of it
 */
export function openArrayFile(
  path: string, { rows, types, metadata, mode = 0o666, syncSeconds = 2, files = nodeFiles }: ArrayFileOptions,
): ArrayFile {
  const whole = new Map([...types].map(([name, { dtype, shape }]) => [name, { dtype, shape: [rows, ...shape] as Shape }]));
  const { header, places, total } = safetensorsLayout(whole, metadata);
  const partial = partialOf(path);
  const written = <T>(operation: () => T): T => explained('write', path, operation);
  const note = (): void => {
    const progress: Progress = { rows: done, header: digestOf(header) };
    writeFileAtomically(progressOf(path), [Buffer.from(JSON.stringify(progress))], mode, files);
  };
  let done = startsWith(partial, header, total) ? unfinishedAt(path)?.rows ?? 0 : 0;
  const file = written(() => {
    if (done > 0) return files.open(partial, 'r+');
    requireRoom(path, total);
    files.remove(progressOf(path));
    files.remove(partial);
    return begun(partial, header, { total, mode, files });
  });
  let open = true;
  let last = performance.now();

  const close = (): void => {
    if (open) files.close(file);
    open = false;
  };
  const save = async (): Promise<void> => {
    await files.syncData(file).catch((error: unknown) => written(() => { throw error; }));
    note();
    last = performance.now();
  };
  return {
    get rows() {
      return done;
    },
    append: async (parts) => {
      written(() => {
        let count = 0;
        for (const [name, { dtype, shape }] of types) {
          const bytes = parts.get(name)!;
          const width = sizeOf(shape) * bytesPerElement(dtype);
          count = width === 0 ? count : bytes.length / width;
          writeAll(file, bytes, files, places.get(name)!.begin + done * width);
        }
        done += count;
      });
      if (performance.now() - last >= 1000 * syncSeconds) await save();
    },
    pause: save,
    finish: () => {
      if (done !== rows) throw new RangeError(`${done} of ${rows} rows are there`);
      written(() => {
        files.sync(file);
        close();
        files.rename(partial, path);
        syncFolder(dirname(path), files);
        files.remove(progressOf(path));
      });
    },
    close,
  };
}

/** A new file at its full size, with its header; both are durable. */
function begun(
  path: string, header: Uint8Array, { total, mode, files }: { readonly total: number; readonly mode: number; readonly files: Files },
): number {
  const file = files.open(path, 'wx', mode);
  try {
    files.truncate(file, total);
    writeAll(file, header, files, 0);
    files.sync(file);
    syncFolder(dirname(path), files);
    return file;
  } catch (error) {
    files.close(file);
    files.remove(path);
    throw error;
  }
}

/** Whether anything is left of an unfinished file. */
export const hasUnfinished = (path: string): boolean => existsSync(partialOf(path)) || existsSync(progressOf(path));

/** Removes what is left of an unfinished file. */
export function removeUnfinished(path: string, files: Files = nodeFiles): void {
  explained('write', path, () => {
    files.remove(progressOf(path));
    files.remove(partialOf(path));
    syncFolder(dirname(path), files);
  });
}

/** A disk that fills up after hours would tell the same later. */
function requireRoom(path: string, bytes: number): void {
  const { bavail, bsize } = statfsSync(dirname(path));
  if (bavail * bsize >= bytes) return;
  throw new GhostgradError({
    what: 'the file will not fit on the disk', where: path, found: `${mib(bavail * bsize)} MiB free`, expected: `${mib(bytes)} MiB`,
    fix: 'free some space, choose another disk, or write float16',
  });
}

const digestOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

const mib = (bytes: number): number => Math.ceil(bytes / 2 ** 20);

function startsWith(path: string, header: Uint8Array, total: number): boolean {
  if (!existsSync(path) || statSync(path).size !== total) return false;
  return Buffer.from(header).equals(bytesAt(path, 0, header.length));
}

/**
 * What a safetensors file holds.
 *
 * @throws GhostgradError when it cannot be read or is none
 */
export function headerAt(path: string): SafetensorsHeader {
  return explained('read', path, () => {
    const { size } = statSync(path);
    const length = size < 8 ? 0 : Number(new DataView(bytesAt(path, 0, 8).buffer).getBigUint64(0, true));
    return readSafetensorsHeader(bytesAt(path, 0, Math.min(size, 8 + length)), path, size);
  });
}

function bytesAt(path: string, position: number, length: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(length);
  const file = openSync(path, 'r');
  try {
    let got = 1;
    for (let at = 0; at < length && got > 0; at += got) got = readSync(file, bytes, at, length - at, position + at);
    return bytes;
  } finally {
    closeSync(file);
  }
}
