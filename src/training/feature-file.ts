import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { GhostgradError } from '../errors.ts';
import type { Files } from '../files.ts';
import { held, removeLeftovers, tryLock } from '../lock.ts';
import { showValue } from '../suggest.ts';
import { type RowTypes, hasUnfinished, headerAt, openArrayFile, removeUnfinished, unfinishedAt } from './array-file.ts';

/** What features follow from. */
export interface FeatureKey {
  /** SHA-256 of the model up to them, with its weights. */
  readonly model: string;
  /** The values of the model that they are. */
  readonly output: string;
  /** SHA-256 of the data as the model takes it, after whatever reading and scaling. */
  readonly data: string;
  readonly dtype: string;
  /** What computed them. */
  readonly software: string;
}

export interface FeatureContents {
  readonly key: FeatureKey;
  readonly rows: number;
  /** Arrays and their types for one row. */
  readonly types: RowTypes;
  /** Rows computed at once. */
  readonly batch: number;
  /** What the data was read from, for people. */
  readonly spec?: unknown;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
}

export interface WriteFeaturesOptions {
  /** Whether what is there is computed anew: always, where it is of something else (`stale`), or never (the default): that is refused. */
  readonly overwrite?: boolean | 'stale' | undefined;
  readonly mode?: number | undefined;
  readonly files?: Files | undefined;
  readonly syncSeconds?: number | undefined;
  readonly onProgress?: ((rows: number, of: number) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface WrittenFeatures {
  /** Rows computed by this call. */
  readonly computed: number;
  /** False where the signal stopped it. */
  readonly complete: boolean;
}

/** The bytes of some rows, by array. */
export type Rows = ReadonlyMap<string, Uint8Array>;

/** The entry of a file's metadata that says what its features follow from. */
export const aboutEntry = 'ghostgrad.features';

/** Changed whenever the same key would come to other bytes. */
const format = 'ghostgrad-features/1';

/**
 * Sees to it that `path` holds the features of `contents`: does nothing where it does, goes on where an earlier call was
 * interrupted, and else makes them by `produce`.
 *
 * @param produce rows from the one given on, of which so many are computed at once
 * @throws GhostgradError when `path` is something else, unless it is to be overwritten, or it cannot be written
 */
export async function writeFeatures(
  path: string, contents: FeatureContents, produce: (start: number, batch: number) => AsyncIterable<Rows>,
  { overwrite = false, onProgress, signal, ...options }: WriteFeaturesOptions = {},
): Promise<WrittenFeatures> {
  const { key, rows, types, spec } = contents;
  const { files } = options;
  const isThere = (): boolean => overwrite !== true && holds(path, key, spec, overwrite);
  if (isThere() && !hasUnfinished(path)) return { computed: 0, complete: true };
  const lockPath = `${path}.lock`;
  const lock = tryLock(lockPath, files);
  if (lock === null) throw held(lockPath, 'another process writes this file');
  try {
    removeLeftovers(lockPath, files);
    // Whoever held it may have finished just now, or been killed right after.
    if (isThere()) {
      removeUnfinished(path, files);
      return { computed: 0, complete: true };
    }
    const begun = overwrite === true ? undefined : begunAt(path, key, spec, overwrite);
    if (begun === undefined) removeUnfinished(path, files);
    // With the rows at once that it was begun with: another number may come to other last bits.
    const { batch } = begun ?? contents;
    const about = { format, ...key, key: digestOf(key), batch, spec: begun === undefined ? spec : begun.spec };
    const metadata = { ...contents.metadata, [aboutEntry]: JSON.stringify(about) };
    const file = openArrayFile(path, { ...options, rows, types, metadata });
    const first = file.rows;
    let writing = false;
    try {
      for await (const part of produce(first, batch)) {
        writing = true;
        await file.append(part);
        writing = false;
        onProgress?.(file.rows, rows);
        if (signal?.aborted === true && file.rows < rows) {
          await file.pause();
          return { computed: file.rows - first, complete: false };
        }
      }
      writing = true;
      file.finish();
      return { computed: rows - first, complete: true };
    } catch (error) {
      // What cannot be used need not be kept; what could not be written can be gone on with.
      if (error instanceof GhostgradError && !writing) removeUnfinished(path, files);
      throw error;
    } finally {
      file.close();
    }
  } finally {
    lock.release();
  }
}

type About = FeatureKey & { readonly format?: string; readonly batch: number; readonly spec?: unknown };

/** Whether the file is there. Throws GhostgradError where it is of another key, and not to be replaced. */
function holds(path: string, key: FeatureKey, spec: unknown, replaced: false | 'stale'): boolean {
  if (!existsSync(path)) return false;
  const about = aboutIn(metadataAt(path));
  if (about !== undefined && sameKey(about, key)) return true;
  if (replaced !== false) return false;
  throw new GhostgradError({
    what: about === undefined ? 'there is another file at this place' : 'the features in this file are of something else', where: path,
    found: about === undefined ? 'a file that ghostgrad did not compute features into' : differences(about, key, spec).join('; '),
    expected: 'features of this model and this data, or no file', fix: 'name another file, or compute it anew: --force (overwrite: true)',
  });
}

/** An unfinished file of the key. Throws GhostgradError where it is of another, and not to be replaced. */
function begunAt(path: string, key: FeatureKey, spec: unknown, replaced: false | 'stale'): About | undefined {
  const unfinished = unfinishedAt(path);
  const about = unfinished && aboutIn(unfinished.metadata);
  if (about === undefined || sameKey(about, key)) return about;
  if (replaced !== false) return undefined;
  throw new GhostgradError({
    what: 'an unfinished file of other features is in the way', where: path, found: differences(about, key, spec).join('; '),
    expected: 'an unfinished file of this model and this data, or none', fix: 'finish that one, name another file, or begin anew: --force (overwrite: true)',
  });
}

function metadataAt(path: string): Readonly<Record<string, string>> {
  try {
    return headerAt(path).metadata;
  } catch {
    // Of another format.
    return {};
  }
}

function aboutIn(metadata: Readonly<Record<string, string>>): About | undefined {
  const text = metadata[aboutEntry];
  return text === undefined ? undefined : (JSON.parse(text) as About);
}

const parts: Readonly<Record<keyof FeatureKey, string>> = {
  model: 'another model, or other weights', output: 'another output', data: 'other data, or read another way',
  dtype: 'another element type', software: 'computed by other software',
};
const names = Object.keys(parts) as (keyof FeatureKey)[];

const sameKey = (about: About, key: FeatureKey): boolean => about.format === format && names.every((name) => about[name] === key[name]);

/** What of two keys differs, for people; digests tell nothing. */
function differences(then: About, now: FeatureKey, spec: unknown): readonly string[] {
  const shown = (name: keyof FeatureKey): string => {
    if (name === 'model') return '';
    const [a, b] = name === 'data' ? [then.spec, spec] : [then[name], now[name]];
    const same = JSON.stringify(a) === JSON.stringify(b);
    return same ? ` (of the same name, ${showValue(a)})` : ` (${showValue(a)}, not ${showValue(b)})`;
  };
  return [
    ...(then.format === format ? [] : ['a file of another version of ghostgrad']),
    ...names.filter((name) => then[name] !== now[name]).map((name) => `${parts[name]}${shown(name)}`),
  ];
}

const digestOf = (key: FeatureKey): string =>
  createHash('sha256').update(JSON.stringify([format, ...names.map((name) => key[name])])).digest('hex');
