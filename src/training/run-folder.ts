import { type Stats, accessSync, constants, mkdirSync, readdirSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { writeFileAtomically } from '../files.ts';
import { writeModel } from '../graph/file.ts';
import type { Graph } from '../graph/ir.ts';
import type { OptimizerState, Parameters } from '../optimizers/index.ts';
import type { Certificate, Groups } from '../privacy/index.ts';
import { safetensorsChunks } from '../tensor/safetensors.ts';
import { tensor } from '../tensor/tensor.ts';
import { type MetricsLog, metricsLog } from './metrics.ts';
import type { Recipe } from './recipe.ts';
import { recipeText } from './recipe-file.ts';

/**
 * Where a run leaves what it made:
 *
 * - `model.onnx`, `privacy.json` (the certificate), `result.json`: at the end, each whole or not at all
 * - `recipe.yaml`: all defaults filled in
 * - `ledger.jsonl`: what was spent, step by step
 * - `metrics.jsonl`, `events.out.tfevents.*`: numbers that are public or covered by ε
 * - `private/metrics.jsonl`: numbers that are not covered by ε
 * - `checkpoint/`: parameters, the optimizer's state, the clipping thresholds, and what the certificate says of the plan
 */
export interface RunFolder {
  readonly path: string;
  readonly ledgerPath: string;
  readonly metrics: MetricsLog;
  saveModel(model: Graph): void;
  saveCertificate(certificate: Certificate): void;
  /** Keeps the certificate of the run before its first step, from which a report tells what an unfinished run has spent. */
  saveStart(certificate: Certificate): void;
  /** @param groups with the thresholds of the next step; none without privacy */
  saveCheckpoint(parameters: Parameters, state: OptimizerState, groups: Groups): void;
  saveResult(result: object): void;
}

/**
 * Looks whether a run could be written to `path`, and changes nothing.
 *
 * @throws GhostgradError when it is a file or a folder that is not empty, or may not be written
 */
export function checkOutput(path: string): void {
  const existing = statOf(path);
  if (existing !== undefined && !existing.isDirectory()) throw refused(path, 'a file', 'a new folder');
  const entries = existing === undefined ? [] : attempt(path, () => readdirSync(path));
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
 * @throws GhostgradError as {@link checkOutput} does, and when the disk is full
 */
export function createRunFolder(path: string, recipe: Recipe): RunFolder {
  checkOutput(path);
  attempt(path, () => {
    mkdirSync(join(path, 'checkpoint'), { recursive: true });
    mkdirSync(join(path, 'private'), { recursive: true, mode: 0o700 });
  });
  const write = (name: string, content: string): void => writeFileAtomically(join(path, name), [Buffer.from(content)]);
  write('recipe.yaml', recipeText(recipe));
  write('private/README.txt', uncovered);
  const checkpoint = join(path, 'checkpoint');
  return {
    path,
    ledgerPath: join(path, 'ledger.jsonl'),
    metrics: metricsLog(path),
    saveModel: (model) => writeModel(join(path, 'model.onnx'), model),
    saveCertificate: (certificate) => write('privacy.json', `${JSON.stringify(certificate, null, 2)}\n`),
    saveStart: (certificate) => write(startCertificate, `${JSON.stringify(certificate, null, 2)}\n`),
    saveCheckpoint: (parameters, { step, tensors }, groups) => {
      const metadata = { step: String(step) };
      writeFileAtomically(join(checkpoint, 'parameters.safetensors'), safetensorsChunks(parameters, metadata));
      writeFileAtomically(join(checkpoint, 'optimizer.safetensors'), safetensorsChunks(tensors, metadata));
      if (groups.length === 0) return;
      const thresholds = tensor('float64', [groups.length], Float64Array.from(groups, ({ norm }) => norm));
      const names = JSON.stringify(groups.map(({ name }) => name));
      writeFileAtomically(
        join(checkpoint, 'clipping.safetensors'),
        safetensorsChunks(new Map([['thresholds', thresholds]]), { ...metadata, groups: names }),
      );
    },
    saveResult: (result) => write('result.json', `${JSON.stringify(result, null, 2)}\n`),
  };
}

/** Where a run folder keeps {@link RunFolder.saveStart}'s certificate. */
export const startCertificate = 'checkpoint/certificate.json';

const uncovered = `The numbers in this folder were computed from the private data without noise: training losses, gradient
norms, clip fractions, drawn batch sizes. The privacy guarantee of the run does not cover them. Keep them as you keep
the data.
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
    fix: 'name another folder (output, --out), or move this one away',
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
