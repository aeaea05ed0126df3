import { existsSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../src/errors.ts';
import { buildModel } from '../src/models/index.ts';
import { ratchet } from '../src/random/ratchet.ts';
import { type TrainingInput, train } from '../src/index.ts';
import { verifyLedger } from '../src/privacy/ledger.ts';
import { blobs } from './support/blobs.ts';
import { fakeEngine as engine } from './support/fake-engine.ts';
import { type Fault, faultyFiles } from './support/faulty-files.ts';
import { temporaryFolder } from './support/temp.ts';

const seed = 11;
const model = buildModel({ name: 'mlp', input: 4, hidden: [], classes: 2 }, { seed: 1 });
const data = blobs(12);
interface Interrupted {
  readonly steps: number;
  readonly training: Omit<TrainingInput['training'], 'steps'>;
  readonly privacy: TrainingInput['privacy'];
}
const ofSteps: Interrupted = { steps: 3, training: { batchSize: 4 }, privacy: { noiseMultiplier: 1, delta: 1e-4 } };
const forSeveralEpsilons: Interrupted = { steps: 1, training: { fullBatch: true }, privacy: { epsilon: [1, 4], delta: 1e-4 } };

const recipe = (output: string, { steps, training, privacy }: Interrupted): TrainingInput => ({
  model, data: { train: data }, output,
  privacy, clipping: { norm: 1 },
  training: { ...training, steps, seed, optimizer: { name: 'sgd', learningRate: 0.1, momentum: 0.9 } },
  performance: { threads: 1, microBatch: 4, checkpointEvery: 2 },
});

/** What of a finished run follows from its seed: all but times and memory. */
function traces(folder: string): Readonly<Record<string, string>> {
  const names = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile()).map(({ parentPath, name }) => join(parentPath, name))
    .filter((path) => !/result\.json|events\.out|private.metrics|private.run/.test(path.slice(folder.length)));
  return Object.fromEntries(names.map((path) =>
    [path.slice(folder.length), // After the last step, the key is one that makes nothing: it may be another.
    readFileSync(path, 'latin1').replaceAll(folder, '').replace(/key\\":\\"[0-9a-f]{64}/, '')]));
}

const keys = (() => {
  const source = ratchet(seed);
  return Array.from({ length: ofSteps.steps + 1 }, () => {
    const key = Buffer.from(source.serialise()).subarray(18).toString('latin1');
    source.advance();
    return key;
  });
})();

/** The steps whose keys lie somewhere in a folder. */
function keysIn(folder: string): number[] {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const texts = files.map(({ parentPath, name }) => readFileSync(join(parentPath, name), 'latin1'));
  return keys.flatMap((key, step) => (texts.some((text) => text.includes(key)) ? [step] : []));
}

/** A process that died holds no lock; here the test lives on. */
function forgetLocks(folder: string): void {
  if (!existsSync(folder)) return;
  for (const name of readdirSync(folder)) if (name.startsWith('run.lock')) rmSync(join(folder, name));
}

/** Runs into a fault, then goes on as a user would; returns how many changes to files there were until the fault. */
async function interrupted(
  run: Interrupted, folder: string, fault: Fault | undefined, expected: Readonly<Record<string, string>> | undefined,
): Promise<number> {
  const { steps } = run;
  const output = join(folder, 'run');
  const { files, calls } = faultyFiles(fault);
  let reported = 0;
  const outcome: unknown = await train(recipe(output, run), { engine, files, onStep: () => reported++ })
    .then(() => 'finished', (error: unknown) => error);
  const where = fault === undefined ? 'no fault' : `${JSON.stringify(fault)}: ${calls()[fault.at]}`;
  if (fault === undefined) expect(outcome).toBe('finished');
  // A user is told what went wrong; the dead tell nothing.
  else if (fault.kind === 'error' && outcome !== 'finished') expect(outcome, where).toBeInstanceOf(GhostgradError);
  forgetLocks(output);

  // No budget is lost: what anyone has heard of is on record.
  const ledger = join(output, 'ledger.jsonl');
  const before = existsSync(ledger) ? await verifyLedger(ledger) : undefined;
  expect(before?.problems ?? []).toEqual([]);
  expect(before?.lines.length ?? 0).toBeGreaterThanOrEqual(reported);
  // What is found now tells nothing of steps before the checkpoint.
  const saved = readdirSync(folder, { recursive: true }).map(String).flatMap((name) =>
    [...name.matchAll(/step-(\d+)-\d+\.safetensors$/g)].map(([, step]) => Number(step)));
  for (const step of existsSync(output) ? keysIn(output) : []) expect(step).toBeGreaterThanOrEqual(Math.min(...saved));

  if (!existsSync(join(output, 'result.json'))) await train(recipe(output, run), { engine, resume: existsSync(join(output, 'recipe.yaml')) });
  forgetLocks(output);
  const found = traces(output);
  if (expected !== undefined) expect(found, where).toEqual(expected);
  expect(keysIn(output)).toEqual([]);
  expect(readdirSync(join(output, 'checkpoint'))).toEqual(['certificate.json', `step-${steps}-${steps}.safetensors`]);
  expect(JSON.parse(readFileSync(join(output, 'result.json'), 'utf8'))).toMatchObject({ steps, recharged: 0, ended: 'complete' });
  rmSync(output, { recursive: true });
  return calls().length;
}

/** `npm run test:kill` has every fault at every change. */
const everything = process.env['EVERY_CRASH'] !== undefined;

describe.each([['of several steps', ofSteps, 150], ['for several ε', forSeveralEpsilons, 150]] as const)('a run %s that is interrupted at any change to a file', (_, run, least) => {
  it('ends as if it had not been: same model, certificate, ledger and metrics, and no key', { timeout: 3_600_000 }, async () => {
    const { folder } = temporaryFolder();
    const output = join(folder, 'run');
    await train(recipe(output, run), { engine });
    const expected = traces(output);
    rmSync(output, { recursive: true });
    const count = await interrupted(run, folder, undefined, expected);
    expect(count).toBeGreaterThan(least);
    for (let at = 0; at < count; at++) {
      const faults: Fault[] = [
        { kind: 'crash', at, losesUnsynced: false }, { kind: 'crash', at, losesUnsynced: true },
        { kind: 'error', at, code: 'ENOSPC', lasting: true }, { kind: 'error', at, code: 'EROFS', lasting: true }, { kind: 'error', at, code: 'EIO', lasting: false },
      ];
      // In the gate every sixth change, the faults in turn.
      const chosen = everything ? faults : at % 6 === 0 ? [faults[(at / 6) % faults.length]!] : [];
      for (const fault of chosen) await interrupted(run, folder, fault, expected);
    }
  });
});
