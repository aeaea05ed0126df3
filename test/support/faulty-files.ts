import { closeSync, existsSync, openSync, readFileSync, rmSync, truncateSync, writeFileSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { type Files, nodeFiles } from '../../src/files.ts';

/** What happens at a call: the process dies, before or half-way through it; or the system refuses it, once or from then on. */
export type Fault =
  | { readonly kind: 'crash'; readonly at: number; readonly losesUnsynced: boolean }
  | { readonly kind: 'error'; readonly at: number; readonly code: string; readonly lasting: boolean };

/** A process that is no more does nothing more. */
export class Crashed extends Error {}

/** What a file system promises nothing about until it is told to sync. */
interface Pending {
  /** Length of a file's bytes that are durable. */
  readonly durable: Map<string, number>;
  /** Bytes that were written over, by file, in order. */
  readonly bytes: { readonly path: string; readonly position: number; readonly before: Uint8Array }[];
  /** How to undo changes of names, by folder, in order. */
  readonly names: { readonly folder: string; readonly undo: () => void }[];
}

/**
 * The file system with a fault at the `at`-th change (counted from 0). A crash in a write leaves half of its bytes; one that
 * loses what was not synced (the machine lost power) also takes back bytes and names that were not yet durable.
 */
export function faultyFiles(fault?: Fault): { readonly files: Files; readonly calls: () => readonly string[] } {
  const calls: string[] = [];
  const paths = new Map<number, string>();
  const pending: Pending = { durable: new Map(), bytes: [], names: [] };
  let dead = false;

  /** Counts a call; whether this is the one at which the process dies. */
  const isLast = (name: string): boolean => {
    if (dead) throw new Crashed(`${name} after the crash`);
    const at = calls.push(name) - 1;
    if (fault?.kind === 'error' && (fault.lasting ? at >= fault.at : at === fault.at))
      throw Object.assign(new Error(`${fault.code}: injected`), { code: fault.code });
    return fault?.kind === 'crash' && at === fault.at;
  };
  const die = (): never => {
    dead = true;
    for (const file of paths.keys()) closeSync(file);
    if (fault?.kind === 'crash' && fault.losesUnsynced) {
      for (const { path, position, before } of pending.bytes.reverse()) if (existsSync(path)) writeAt(path, before, position);
      for (const [path, length] of pending.durable) if (existsSync(path)) truncateSync(path, length);
      for (const { undo } of pending.names.reverse()) undo();
    }
    throw new Crashed('the process died');
  };
  const change = <T>(name: string, operation: () => T): T => {
    if (isLast(name)) die();
    return operation();
  };
  /** The bytes under a name, to be put back. */
  const keep = (path: string): (() => void) => {
    const before = existsSync(path) ? readFileSync(path) : undefined;
    return () => {
      if (before === undefined) rmSync(path, { force: true });
      else writeFileSync(path, before);
    };
  };
  const synced = (file: number): void => {
    const path = paths.get(file) ?? '';
    pending.durable.delete(path);
    for (let i = pending.bytes.length - 1; i >= 0; i--) if (pending.bytes[i]!.path === path) pending.bytes.splice(i, 1);
    for (let i = pending.names.length - 1; i >= 0; i--) if (pending.names[i]!.folder === path) pending.names.splice(i, 1);
  };
  const renamed = (from: string, to: string, operation: () => void): void => {
    const undo = [keep(to), keep(from)];
    operation();
    const length = pending.durable.get(from);
    if (length !== undefined) pending.durable.set(to, length);
    pending.durable.delete(from);
    pending.names.push({ folder: dirname(to), undo: () => undo.forEach((each) => each()) });
  };

  const files: Files = {
    open: (path, flags, mode) => change('open', () => {
      const isNew = !existsSync(path);
      const file = nodeFiles.open(path, flags, mode);
      paths.set(file, path);
      if (isNew) pending.names.push({ folder: dirname(path), undo: () => rmSync(path, { force: true }) });
      return file;
    }),
    write: (file, bytes, position) => {
      const path = paths.get(file) ?? '';
      if (!pending.durable.has(path) && existsSync(path)) pending.durable.set(path, readFileSync(path).length);
      if (position !== undefined) pending.bytes.push({ path, position, before: readFileSync(path).subarray(position, position + bytes.length) });
      if (!isLast('write')) return nodeFiles.write(file, bytes, position);
      nodeFiles.write(file, bytes.subarray(0, bytes.length >> 1), position);
      return die();
    },
    truncate: (file, length) => change('truncate', () => nodeFiles.truncate(file, length)),
    sync: (file) => change('sync', () => synced(file)),
    syncData: async (file) => change('syncData', () => synced(file)),
    close: (file) => change('close', () => {
      paths.delete(file);
      nodeFiles.close(file);
    }),
    rename: (from, to) => change('rename', () => renamed(from, to, () => nodeFiles.rename(from, to))),
    link: (from, to) => change('link', () => nodeFiles.link(from, to)),
    remove: (path) => change('remove', () => nodeFiles.remove(path)),
    makeFolder: (path, mode) => change('makeFolder', () => nodeFiles.makeFolder(path, mode)),
    removeFolder: (path) => change('removeFolder', () => nodeFiles.removeFolder(path)),
  };
  return { files, calls: () => calls };
}

function writeAt(path: string, bytes: Uint8Array, position: number): void {
  const file = openSync(path, 'r+');
  writeSync(file, bytes, 0, bytes.length, position);
  closeSync(file);
}
