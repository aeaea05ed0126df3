import { createHash } from 'node:crypto';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import { type Files, explained, syncFolder, writeAll, writeDurably, writeFileAtomically } from '../files.ts';
import type { OptimizerState, Parameters, StateTensor } from '../optimizers/index.ts';
import { type Groups, withNorms } from '../privacy/index.ts';
import { type Ratchet, restoreRatchet } from '../random/ratchet.ts';
import { decodeSafetensors, safetensorsChunks } from '../tensor/safetensors.ts';
import { type FloatTensor, type Tensor, tensor } from '../tensor/tensor.ts';

const count = z.int().min(0);

/** What a run was computed with, beside its recipe: enough to compute its steps again to the last bit. */
const settingsSchema = z.strictObject({
  /** Complete, as `recipe.yaml` has it. */
  recipe: z.record(z.string(), z.unknown()),
  /** What the initial weights of a builder's model were drawn from; they are public, and nothing else comes from it. */
  initial: z.union([z.string(), z.number()]),
  /** SHA-256 of the model without its trainable values. */
  model: z.string(),
  microBatch: z.int().positive(),
  /** Whether the frozen part of the model was computed once, apart from the steps. */
  features: z.boolean().default(false),
  threads: z.int().positive(),
  engine: z.string(),
  /** Machines that computed it. */
  ranks: z.literal(1),
  software: z.record(z.string(), z.string()),
});

const aboutSchema = z.strictObject({
  format: z.literal('ghostgrad-checkpoint/1'),
  /** Updates applied. */
  step: count,
  /** Lines of the ledger by then: those after it are steps that a resumed run repeats. */
  lines: count,
  /** SHA-256 of the state of the ratchet that makes the steps from here on. */
  key: z.string(),
  settings: settingsSchema,
});

export type RunSettings = z.infer<typeof settingsSchema>;

/** A run between two steps, apart from its secret. */
export interface Checkpoint {
  readonly lines: number;
  readonly settings: RunSettings;
  readonly parameters: Parameters;
  readonly state: OptimizerState;
  /** Those of the models of smaller ε, once their step was taken. */
  readonly further: readonly Parameters[];
  /** With the thresholds that the next step clips to, and what they follow from; none without privacy. */
  readonly groups: Groups;
}

/** A checkpoint read back, and the ratchet of the steps that follow, if its key is still there. */
export interface Saved extends Omit<Checkpoint, 'groups'> {
  readonly keys: Ratchet | null;
  /** The clipping groups `plan` has, with the thresholds of the checkpoint. Throws GhostgradError for others. */
  groups(plan: Groups): Groups;
}

/** One place for each of the further models in a checkpoint. */
const furtherIn = (entries: readonly string[]): undefined[] =>
  Array.from(new Set(entries.flatMap((entry) => /^further (\d+)\//.exec(entry)?.[1] ?? [])), () => undefined);

const keyName = 'secret.key';
const fileName = /^step-\d+-\d+\.safetensors$/;

/**
 * Makes `checkpoint` the one that a resumed run starts from. At every moment between, the folder holds a checkpoint and the
 * key that belongs to it:
 *
 * 1. the checkpoint is written under a name of its own, with the SHA-256 of its key;
 * 2. the key takes the place of the older one, in one step: from here on, the key says which checkpoint counts;
 * 3. the older checkpoint is removed.
 */
export function saveCheckpoint(folder: string, checkpoint: Checkpoint, keys: Ratchet, files: Files): void {
  const { lines, settings, parameters, state, further, groups } = checkpoint;
  const secret = keys.serialise();
  const name = `step-${state.step}-${lines}.safetensors`;
  const about: z.input<typeof aboutSchema> = {
    format: 'ghostgrad-checkpoint/1', step: state.step, lines, key: sha256(secret), settings,
  };
  const prefixed = (prefix: string, tensors: ReadonlyMap<string, StateTensor>) =>
    [...tensors].map(([key, value]) => [`${prefix}/${key}`, value] as const);
  const tensors = new Map<string, Tensor>([
    ...prefixed('parameters', parameters),
    ...prefixed('optimizer', state.tensors),
    ...further.flatMap((each, k) => prefixed(`further ${k}`, each)),
    ...(groups.length === 0 ? [] : [
      ['thresholds', float64(groups.map(({ norm }) => norm))] as const,
      ['estimates', float64(groups.map(({ norm, estimate = norm }) => estimate))] as const,
    ]),
  ]);
  try {
    writeFileAtomically(join(folder, name), safetensorsChunks(tensors, { checkpoint: JSON.stringify(about) }), undefined, files);
    replaceKey(folder, secret, files);
  } finally {
    secret.fill(0);
  }
  for (const older of checkpointsIn(folder)) if (older !== name) files.remove(join(folder, older));
}

/**
 * The checkpoint that the key in `folder` belongs to; without a key, that of the most lines and steps; null where there is
 * none, as before the first step.
 *
 * @throws GhostgradError when the key belongs to none, or a file is damaged
 */
export function loadCheckpoint(folder: string): Saved | null {
  const names = existsSync(folder) ? checkpointsIn(folder) : [];
  const key = keyIn(folder);
  for (const name of names) {
    const path = join(folder, name);
    const { tensors, metadata } = decodeSafetensors(explained('read', path, () => readFileSync(path)), path);
    const about = aboutIn(metadata['checkpoint'], path);
    if (key !== undefined && about.key !== sha256(key)) continue;
    const keys = key === undefined ? null : restoreRatchet(key);
    if (keys !== null && keys.step !== about.step) throw damaged(path, `step ${about.step}, with a key of step ${keys.step}`);
    const under = <T extends StateTensor>(prefix: string) => new Map([...tensors].flatMap(([entry, value]) =>
      entry.startsWith(`${prefix}/`) ? [[entry.slice(prefix.length + 1), value as T] as const] : []));
    const numbers = (entry: string): number[] => Array.from((tensors.get(entry)?.data ?? []) as ArrayLike<number>);
    key?.fill(0);
    return {
      lines: about.lines,
      settings: about.settings,
      parameters: under<FloatTensor>('parameters'),
      state: { step: about.step, tensors: under('optimizer') },
      further: Array.from(furtherIn([...tensors.keys()]), (_, k) => under<FloatTensor>(`further ${k}`)),
      groups: (plan) => plan.length === 0 ? plan : withNorms(plan, numbers('thresholds'), numbers('estimates')),
      keys,
    };
  }
  if (key === undefined) return null;
  throw new GhostgradError({
    what: 'the secret key belongs to no checkpoint of this run',
    where: join(folder, keyName),
    expected: 'the key and the checkpoint that were saved together',
    fix: 'put back the whole folder as the run left it, or remove the key: steps after the checkpoint are then charged again',
  });
}

/** Overwrites and removes the key, and what a crash may have left of another. A key half overwritten is none: it loses its name first. */
export function eraseKey(folder: string, files: Files): void {
  wipe(fresh(folder), files);
  if (existsSync(join(folder, keyName))) files.rename(join(folder, keyName), fresh(folder));
  syncFolder(folder, files);
  wipe(fresh(folder), files);
  syncFolder(folder, files);
}

/** Removes what a crash may have left of a key that does not count, yet or any more. */
export const eraseUnusedKey = (folder: string, files: Files): void => wipe(fresh(folder), files);

const fresh = (folder: string): string => join(folder, `${keyName}.new`);

function replaceKey(folder: string, secret: Uint8Array, files: Files): void {
  const path = join(folder, keyName);
  explained('write', path, () => {
    wipe(fresh(folder), files);
    writeDurably(fresh(folder), [secret], 0o600, files);
    // Held open, so that its bytes can be overwritten when its name is gone.
    const older = existsSync(path) ? files.open(path, 'r+') : undefined;
    try {
      files.rename(fresh(folder), path);
      syncFolder(folder, files);
      if (older !== undefined) overwrite(older, secret.length, files);
    } finally {
      if (older !== undefined) files.close(older);
    }
  });
}

/** As far as the file system lets one: a journal or a drive may keep what it was told to overwrite. */
function wipe(path: string, files: Files): void {
  if (!existsSync(path)) return;
  explained('write', path, () => {
    const file = files.open(path, 'r+');
    try {
      overwrite(file, readFileSync(path).length, files);
    } finally {
      files.close(file);
    }
    files.remove(path);
  });
}

function overwrite(file: number, length: number, files: Files): void {
  writeAll(file, new Uint8Array(length), files, 0);
  files.sync(file);
}

function keyIn(folder: string): Uint8Array | undefined {
  const path = join(folder, keyName);
  return existsSync(path) ? explained('read', path, () => readFileSync(path)) : undefined;
}

/** Newest first. */
const checkpointsIn = (folder: string): string[] => {
  const order = (name: string): number[] => [...name.matchAll(/\d+/g)].map(Number).reverse();
  return readdirSync(folder).filter((name) => fileName.test(name)).sort((a, b) => {
    const [[lines = 0, step = 0], [otherLines = 0, otherStep = 0]] = [order(a), order(b)];
    return otherLines - lines || otherStep - step;
  });
};

function aboutIn(text: string | undefined, path: string): z.infer<typeof aboutSchema> {
  try {
    return aboutSchema.parse(JSON.parse(text ?? ''));
  } catch (cause) {
    throw damaged(path, 'metadata of another format', cause);
  }
}

const damaged = (where: string, found: string, cause?: unknown): GhostgradError =>
  new GhostgradError({
    what: 'not a checkpoint that can be resumed', where, found, expected: 'a checkpoint that this version of ghostgrad wrote',
    fix: 'put back the folder as the run left it, or start a new run',
  }, { cause });

const float64 = (values: readonly number[]): Tensor<'float64'> => tensor('float64', [values.length], Float64Array.from(values));

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');
