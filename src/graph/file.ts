import { closeSync, fstatSync, openSync, readFileSync, readSync, readdirSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { type Files, explained, nodeFiles, writeFileAtomically } from '../files.ts';
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
  /** Default: the file system. */
  readonly files?: Files | undefined;
}

/**
 * Writes an ONNX model so that `path` holds either what it held before or the whole new model, whatever happens.
 * A model above `inlineLimit` keeps its weights in a file beside it, named `<model>.data` (or `<model>.data.N`
 * while an older one is still in use).
 *
 * @throws GhostgradError when the disk is full, or the folder does not exist or may not be written; nothing is left
 */
export function writeModel(path: string, graph: Graph, { inlineLimit = 1.9e9, files = nodeFiles }: WriteModelOptions = {}): void {
  const parameters = [...graph.initializers].filter(([name]) => !graph.literals?.has(name));
  const bytes = parameters.reduce((sum, [, value]) => sum + value.data.byteLength, 0);
  if (bytes <= inlineLimit) {
    writeFileAtomically(path, encodeChunks(graph), undefined, files);
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
  writeFileAtomically(dataPath, chunks, undefined, files);
  try {
    writeFileAtomically(path, encodeChunks(graph, { externalData }), undefined, files);
  } catch (error) {
    files.remove(dataPath);
    throw error;
  }
  for (const name of older) files.remove(join(dirname(path), name));
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
