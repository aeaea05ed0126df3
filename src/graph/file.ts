import { randomBytes } from 'node:crypto';
import {
  closeSync,
  fstatSync,
  fsyncSync,
  openSync,
  readFileSync,
  readSync,
  readdirSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { decodeModel } from './decode.ts';
import { type ExternalLocation, encodeChunks } from './encode.ts';
import type { Graph } from './ir.ts';
import { bytesOf } from './onnx.ts';
import { outline } from './outline.ts';

/**
 * Reads an ONNX model, and weights that it keeps in files beside it.
 *
 * @throws GhostgradError when a file cannot be read, and whatever {@link decodeModel} throws
 */
export function readModel(path: string): Graph {
  const bytes = explained('read', path, () => outlineOf(path) ?? readFileSync(path));
  const folder = dirname(path);
  return decodeModel(bytes, {
    where: path,
    externalData: (location, offset, length) => readPart(join(folder, location), offset, length),
  });
}

/** Files below this are read whole. */
const outlinedFrom = 1 << 20;

function outlineOf(path: string): Uint8Array | undefined {
  const file = openSync(path, 'r');
  try {
    const { size } = fstatSync(file);
    if (size < outlinedFrom) return undefined;
    return outline((offset, length) => readExactly(file, offset, length), size, basename(path));
  } finally {
    closeSync(file);
  }
}

export interface WriteModelOptions {
  /** Bytes of weights up to which they stay inside the model file. Default: 1.9e9, below protobuf's 2 GiB. */
  readonly inlineLimit?: number | undefined;
}

/**
 * Writes an ONNX model so that `path` holds either what it held before or the whole new model, whatever happens.
 * A model above `inlineLimit` keeps its weights in a file beside it, named `<model>.data` (or `<model>.data.N`
 * while an older one is still in use).
 *
 * @throws GhostgradError when the disk is full, or the folder does not exist or may not be written; nothing is left
 */
export function writeModel(path: string, graph: Graph, { inlineLimit = 1.9e9 }: WriteModelOptions = {}): void {
  const parameters = [...graph.initializers].filter(([name]) => !graph.literals?.has(name));
  const bytes = parameters.reduce((sum, [, value]) => sum + value.data.byteLength, 0);
  if (bytes <= inlineLimit) {
    writeFileAtomically(path, encodeChunks(graph));
    return;
  }
  const older = dataFilesOf(path);
  const location = freeName(`${basename(path)}.data`, older);
  const externalData = new Map<string, ExternalLocation>();
  const chunks: Uint8Array[] = [];
  let offset = 0;
  for (const [name, value] of parameters) {
    externalData.set(name, { location, offset });
    const padding = -value.data.byteLength & (alignment - 1);
    chunks.push(bytesOf(value), new Uint8Array(padding));
    offset += value.data.byteLength + padding;
  }
  const dataPath = join(dirname(path), location);
  writeFileAtomically(dataPath, chunks);
  try {
    writeFileAtomically(path, encodeChunks(graph, { externalData }));
  } catch (error) {
    rmSync(dataPath, { force: true });
    throw error;
  }
  for (const name of older) rmSync(join(dirname(path), name), { force: true });
}

/** Tensors in a data file start at multiples of this, so that they can be mapped into memory. */
const alignment = 4096;

function dataFilesOf(path: string): readonly string[] {
  const prefix = `${basename(path)}.data`;
  return explained('write', path, () => readdirSync(dirname(path))).filter(
    (name) => name === prefix || (name.startsWith(`${prefix}.`) && /^\d+$/.test(name.slice(prefix.length + 1))),
  );
}

function freeName(name: string, taken: readonly string[]): string {
  if (!taken.includes(name)) return name;
  let i = 1;
  while (taken.includes(`${name}.${i}`)) i++;
  return `${name}.${i}`;
}

/**
 * Writes the pieces one after another to a temporary file in the same folder, makes it durable, and puts it in the
 * place of `path` in one step.
 *
 * @param mode permissions of the file; default 0o666 less the process's umask
 * @throws GhostgradError when that fails; the temporary file is removed and `path` is as before
 */
export function writeFileAtomically(path: string, chunks: Iterable<Uint8Array>, mode = 0o666): void {
  const temporary = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString('hex')}.tmp`);
  explained('write', path, () => {
    const file = openSync(temporary, 'wx', mode);
    try {
      try {
        for (const chunk of chunks) writeAll(file, chunk);
        fsyncSync(file);
      } finally {
        closeSync(file);
      }
      renameSync(temporary, path);
    } catch (error) {
      rmSync(temporary, { force: true });
      throw error;
    }
    syncFolder(dirname(path));
  });
}

/** One write call may take less than it is given, and at most 2 GiB. */
function writeAll(file: number, chunk: Uint8Array): void {
  for (let at = 0; at < chunk.length;) at += writeSync(file, chunk, at, Math.min(chunk.length - at, 2 ** 30));
}

/** Makes the rename itself durable, where the platform can (Windows cannot open folders). */
function syncFolder(folder: string): void {
  let file: number;
  try {
    file = openSync(folder, 'r');
  } catch {
    return;
  }
  try {
    fsyncSync(file);
  } catch {
    // Some network file systems refuse to sync a folder; the file itself is durable.
  } finally {
    closeSync(file);
  }
}

function readPart(path: string, offset: number, length: number): Uint8Array {
  return explained('read', path, () => {
    const file = openSync(path, 'r');
    try {
      const { size } = fstatSync(file);
      if (offset + length > size) {
        throw new GhostgradError({
          what: "the model's weight file is too short",
          where: path,
          found: `${size} bytes`,
          expected: `at least ${offset + length} bytes`,
          fix: 'the file is truncated or of another model: export or copy both again',
        });
      }
      return readExactly(file, offset, length);
    } finally {
      closeSync(file);
    }
  });
}

/** One read call may give less than it is asked for, and at most 2 GiB. */
function readExactly(file: number, offset: number, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length;) {
    const read = readSync(file, bytes, at, Math.min(length - at, 2 ** 30), offset + at);
    if (read === 0) throw new Error('the file became shorter while it was read');
    at += read;
  }
  return bytes;
}

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
function explained<T>(verb: 'read' | 'write', path: string, operation: () => T): T {
  try {
    return operation();
  } catch (cause) {
    if (cause instanceof GhostgradError || !(cause instanceof Error)) throw cause;
    const code = 'code' in cause ? String(cause.code) : '';
    const reason = reasons[code] ?? { found: cause.message, fix: undefined };
    throw new GhostgradError({
      what: `cannot ${verb} the file`, where: path, found: reason.found,
      expected: verb === 'read' ? 'a readable file' : 'a folder that can be written', fix: reason.fix,
    }, { cause });
  }
}
