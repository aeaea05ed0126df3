import { type Stats, accessSync, constants, existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { type Files, isTemporary, nodeFiles, syncFolder, writeFileAtomically } from '../files.ts';
import { writeModel } from '../graph/file.ts';
import type { Graph } from '../graph/ir.ts';
import type { SavedAdapters } from '../models/lora.ts';
import { type Lock, held, removeLeftovers, tryLock } from '../lock.ts';
import type { Certificate } from '../privacy/index.ts';
import type { Ratchet } from '../random/ratchet.ts';
import { type Checkpoint, type Saved, eraseKey, eraseUnusedKey, loadCheckpoint, saveCheckpoint } from './checkpoint.ts';
import { type MetricsLog, metricsLog } from './metrics.ts';
import type { Recipe } from './recipe.ts';
import { recipeText } from './recipe-file.ts';
import { saveAdapters, saveCertificate } from './release-folder.ts';

/**
 * Where a run leaves what it made:
 *
 * - `recipe.yaml`: all defaults filled in; written first, so that a run can be resumed from its first moment
 * - `adapters.safetensors`: adapters alone, where there are some
 * - `ledger.jsonl`: what was spent, step by step
 * - `metrics.jsonl`, `events.out.tfevents.*`: numbers that are public or covered by ε
 * - `private/`: numbers that are not covered by ε, and the digest of the data
 * - `checkpoint/`: the state between two steps and, until the run ends, the secret key of the steps after it; what the
 *   certificate says of the plan
 * - `model.onnx`, `privacy.json` (the certificate), `result.json`: at the end, each whole or not at all
 * - `epsilon-…/`: for each of several ε its model, with a certificate, a ledger and a result of its own
 * - `run.lock`: while a process works on the run
 */
export interface RunFolder {
  readonly path: string;
  readonly ledgerPath: string;
  /** What an earlier process left; null before the first step. */
  readonly saved: Saved | null;
  /** Makes the subfolders, records the recipe anew, and removes the result of a run that goes on. */
  begin(recipe: Recipe): void;
  /** Continues the logs after `step`. */
  openMetrics(step: number): MetricsLog;
  /** The private notes of the run: an identity, and the digest of the data that it began with. */
  notes(): RunNotes | null;
  saveNotes(notes: RunNotes): void;
  saveModel(model: Graph): void;
  /** In `adapters.safetensors`, as PEFT lays them out. */
  saveAdapters(adapters: SavedAdapters): void;
  /** @param sign makes `privacy.json.sig`, the signature of the very bytes of `privacy.json` */
  saveCertificate(certificate: Certificate, sign?: (bytes: Uint8Array) => Uint8Array): void;
  /** Keeps the certificate of the run before its first step, from which a report tells what an unfinished run has spent. */
  saveStart(certificate: Certificate): void;
  saveCheckpoint(checkpoint: Checkpoint, keys: Ratchet): void;
  /** The run takes no further step: no key of it is to be found from here on. */
  eraseKey(): void;
  saveResult(result: object): void;
  /** Others may work on the run. */
  release(): void;
  /** {@link release}, and nothing is left of a run that did not {@link begin}. */
  abandon(): void;
}

export interface RunNotes {
  readonly id: string;
  /** SHA-256. **Private**: whoever has all records but one could tell that one by it. */
  readonly data: string;
}

const lockName = 'run.lock';
const isClaim = (name: string): boolean => name === 'recipe.yaml' || name.startsWith(lockName) || isTemporary(name);

/**
 * Looks whether a run could be written to `path`, and changes nothing.
 *
 * @throws GhostgradError when it is a file or a folder that is not empty, or may not be written
 */
export function checkOutput(path: string): void {
  const existing = statOf(path);
  if (existing !== undefined && !existing.isDirectory()) throw refused(path, 'a file', 'a new folder');
  // A run that was stopped before it began left nothing that one would miss.
  const entries = existing === undefined ? [] : attempt(path, () => readdirSync(path)).filter((name) => !isClaim(name));
  if (entries.length > 0) throw refused(path, `${entries.length} entries, e.g. ${entries[0]}`, 'a new or empty folder');
  let folder = resolve(path);
  let stat = existing;
  while (stat === undefined && dirname(folder) !== folder) {
    folder = dirname(folder);
    stat = statOf(folder);
  }
  if (stat?.isDirectory() === false) throw refused(path, `${folder} is a file`, 'a folder that can be made');
  attempt(path, () => accessSync(folder, constants.W_OK));
}

/**
 * A run folder at `path` with the recipe in it.
 *
 * @throws GhostgradError as {@link checkOutput} does, when the disk is full, and when another process is at work there
 */
export function createRunFolder(path: string, recipe: Recipe, files: Files = nodeFiles): RunFolder {
  checkOutput(path);
  const made = attempt(path, () => files.makeFolder(path));
  const lock = lockOf(path, files);
  const run = runFolder({ path, lock, saved: null, made, files });
  try {
    checkOutput(path);
    removeUnfinished(path, files);
    writeText(path, 'recipe.yaml', recipeText(recipe), files);
  } catch (error) {
    run.abandon();
    throw error;
  }
  return run;
}

/**
 * The folder of a run that was interrupted, whenever that was.
 *
 * @throws GhostgradError when there is no run, another process is at work on it, or its checkpoint is damaged
 */
export function openRunFolder(path: string, files: Files = nodeFiles): RunFolder {
  requireRun(path);
  const lock = lockOf(path, files);
  try {
    const checkpoint = join(path, 'checkpoint');
    removeUnfinished(path, files);
    eraseUnusedKey(checkpoint, files);
    return runFolder({ path, lock, saved: loadCheckpoint(checkpoint), made: undefined, files });
  } catch (error) {
    lock.release();
    throw error;
  }
}

/** Removes files that a process was killed in writing. */
function removeUnfinished(path: string, files: Files): void {
  const folders = readdirSync(path, { withFileTypes: true }).filter((entry) => entry.isDirectory()).map(({ name }) => join(path, name));
  for (const folder of [path, ...folders])
    for (const name of readdirSync(folder).filter(isTemporary)) attempt(path, () => files.remove(join(folder, name)));
}

/** Throws GhostgradError unless `path` is a folder with a run in it. */
export function requireRun(path: string, to = 'resume'): void {
  if (existsSync(join(path, 'recipe.yaml'))) return;
  const stat = statOf(path);
  throw new GhostgradError({
    what: `there is no run to ${to}`,
    where: path,
    found: stat === undefined ? 'no such folder' : stat.isDirectory() ? 'a folder without recipe.yaml' : 'a file',
    expected: 'the output folder of a run',
    fix: 'name the folder that the run said it writes to, or start a new run',
  });
}

/** Removes the lock that a process left which was killed after its run had ended. */
export function forgetDeadLock(path: string, files: Files = nodeFiles): void {
  if (!readdirSync(path).some((name) => name.startsWith(lockName))) return;
  try {
    const file = join(path, lockName);
    const lock = tryLock(file, files);
    if (lock === null) return;
    removeLeftovers(file, files);
    lock.release();
  } catch {
    // It is in nobody's way: a run that has ended is only read.
  }
}

/** What a finished run answered; undefined for one that is not finished. */
export function resultIn(path: string): Readonly<Record<string, unknown>> | undefined {
  const file = join(path, 'result.json');
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Readonly<Record<string, unknown>>) : undefined;
}

function lockOf(path: string, files: Files): Lock {
  const file = join(path, lockName);
  const lock = attempt(path, () => tryLock(file, files));
  if (lock === null) throw held(file, 'another process works on this run');
  attempt(path, () => { removeLeftovers(file, files); });
  return lock;
}

function runFolder({ path, lock, saved, made, files }: {
  readonly path: string; readonly lock: Lock; readonly saved: Saved | null; readonly made: string | undefined;
  readonly files: Files;
}): RunFolder {
  let begun = saved !== null || existsSync(join(path, 'checkpoint'));
  let locked = true;
  const checkpoint = join(path, 'checkpoint');
  const notesPath = join(path, 'private', 'run.json');
  const write = (name: string, content: string, mode?: number): void => writeText(path, name, content, files, mode);
  const release = (): void => {
    if (locked) {
      attempt(path, () => { removeLeftovers(join(path, lockName), files); });
      lock.release();
    }
    locked = false;
  };
  return {
    path,
    ledgerPath: join(path, 'ledger.jsonl'),
    saved,
    begin: (recipe) => {
      begun = true;
      attempt(path, () => {
        files.makeFolder(join(path, 'private'), 0o700);
        files.makeFolder(checkpoint);
        // Of a run that was stopped, and now goes on.
        files.remove(join(path, 'result.json'));
        syncFolder(path, files);
      });
      write('recipe.yaml', recipeText(recipe));
      if (!existsSync(join(path, 'private', 'README.txt'))) write('private/README.txt', uncovered);
    },
    openMetrics: (step) => metricsLog(path, step, files),
    notes: () => existsSync(notesPath) ? (JSON.parse(readFileSync(notesPath, 'utf8')) as RunNotes) : null,
    saveNotes: (notes) => write('private/run.json', `${JSON.stringify(notes)}\n`, 0o600),
    saveModel: (model) => writeModel(join(path, 'model.onnx'), model, { files }),
    saveAdapters: (adapters) => saveAdapters(path, adapters, files),
    saveCertificate: (certificate, sign) => attempt(path, () => saveCertificate(path, certificate, { sign, files })),
    saveStart: (certificate) => write(startCertificate, `${JSON.stringify(certificate, null, 2)}\n`),
    saveCheckpoint: (state, keys) => attempt(path, () => saveCheckpoint(checkpoint, state, keys, files)),
    eraseKey: () => attempt(path, () => eraseKey(checkpoint, files)),
    saveResult: (result) => write('result.json', `${JSON.stringify(result, null, 2)}\n`),
    release,
    abandon: () => {
      try {
        if (!begun) files.remove(join(path, 'recipe.yaml'));
        release();
        // Only folders that this run made, and only while they are empty.
        if (begun || made === undefined) return;
        for (let folder = resolve(path); ; folder = dirname(folder)) {
          files.removeFolder(folder);
          if (folder === resolve(made)) return;
        }
      } catch {
        // What went wrong first tells more.
      }
    },
  };
}

/** Where a run folder keeps {@link RunFolder.saveStart}'s certificate. */
export const startCertificate = 'checkpoint/certificate.json';

const writeText = (path: string, name: string, content: string, files: Files, mode?: number): void =>
  writeFileAtomically(join(path, name), [Buffer.from(content)], mode, files);

const uncovered = `The numbers in this folder were computed from the private data without noise: training losses, gradient
norms, clip fractions, drawn batch sizes, a digest of the data. The privacy guarantee of the run does not cover them. Keep
them as you keep the data.
`;

function statOf(path: string): Stats | undefined {
  return attempt(path, () => statSync(path, { throwIfNoEntry: false }));
}

const refused = (path: string, found: string, expected: string): GhostgradError =>
  new GhostgradError({
    what: 'the output folder cannot be used',
    where: `output ${path}`,
    found,
    expected,
    fix: existsSync(join(path, 'recipe.yaml'))
      ? `to go on with the run in it: train --resume ${path}; else name another folder (output, --out), or move this one away`
      : 'name another folder (output, --out), or move this one away',
  });

const reasons: Readonly<Record<string, string>> = {
  EACCES: 'no permission to write',
  EPERM: 'no permission to write',
  EROFS: 'a read-only file system',
  ENOSPC: 'no space left on the disk',
  ENOTDIR: 'a part of the path is a file',
  EDQUOT: 'disk quota exceeded',
};

function attempt<T>(path: string, operation: () => T): T {
  try {
    return operation();
  } catch (cause) {
    if (cause instanceof GhostgradError) throw cause;
    const code = cause instanceof Error && 'code' in cause ? String(cause.code) : '';
    const reason = reasons[code] ?? (cause instanceof Error ? cause.message : String(cause));
    throw new GhostgradError(
      {
        what: 'the output folder cannot be written',
        where: `output ${path}`,
        found: reason,
        expected: 'a folder that can be written',
        fix: 'name another folder (output, --out), or change its permissions',
      },
      { cause },
    );
  }
}
