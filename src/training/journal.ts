import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { GhostgradError } from '../errors.ts';
import { type Files, nodeFiles } from '../files.ts';
import type { OptimizerState, Parameters } from '../optimizers/index.ts';
import { requireRoom, reserve } from '../privacy/budget.ts';
import { type Groups, type PrivacyPlan, eventOf } from '../privacy/index.ts';
import { type Ledger, type LedgerLine, createLedger, openLedger } from '../privacy/ledger.ts';
import { type Ratchet, ratchet } from '../random/ratchet.ts';
import type { RunSettings, Saved } from './checkpoint.ts';
import type { MetricsLog } from './metrics.ts';
import type { Recipe } from './recipe.ts';
import type { RunFolder } from './run-folder.ts';

/** A run between two steps. */
export interface RunState {
  readonly parameters: Parameters;
  readonly state: OptimizerState;
  /** The parameters of the models of smaller ε, once their step was taken; else none. */
  readonly further: readonly Parameters[];
  /** With the thresholds of the next step; none without privacy. */
  readonly groups: Groups;
}

/** What a run writes down while it goes on, and where an interrupted one goes on. */
export interface Journal {
  /** None without privacy. */
  readonly ledger: Ledger | undefined;
  readonly metrics: MetricsLog;
  /** What makes the next step. */
  readonly keys: Ratchet;
  /** Steps that were charged after the checkpoint, and are to be computed again. */
  readonly charged: readonly LedgerLine[];
  save(now: RunState, keys: Ratchet): void;
  /** {@link save}, if it is time. */
  saveWhenDue(now: RunState, keys: Ratchet): void;
  /** Fresh keys for the step that comes now, saved with it: those that it was charged with make nothing more. */
  drawAfresh(now: RunState): Ratchet;
  /** The last {@link save}: no key is left. */
  end(now: RunState, keys: Ratchet): void;
  close(): Promise<void>;
}

/** A checkpoint by default: once a minute, and so rarely that writing takes at most a hundredth of the time. */
const everyMs = 60_000;
const mostShare = 0.01;

/**
 * Opens the logs of a run and makes its first checkpoint, if it has none: from then on, a run that is killed repeats its
 * charged steps with the same keys.
 *
 * @param begin the state before the first step, or as the checkpoint has it
 * @throws GhostgradError when ledger and checkpoint do not belong together, and when nothing can be written
 */
export async function openJournal({ folder, recipe, plan, settings, data, begin, warn, files = nodeFiles }: {
  readonly folder: RunFolder;
  /** As it is to be recorded. */
  readonly recipe: Recipe;
  readonly plan: PrivacyPlan | null;
  readonly settings: RunSettings;
  /** Digest of the data. */
  readonly data: string;
  readonly begin: RunState;
  readonly warn: (text: string) => void;
  readonly files?: Files | undefined;
}): Promise<Journal> {
  const { saved } = folder;
  const { step } = begin.state;
  const notes = folder.notes();
  const id = notes?.id ?? randomBytes(16).toString('hex');
  const budget = recipe.privacy === 'none' ? undefined : recipe.privacy.budget;
  // Steps that are charged again take the place of planned ones: no run ever needs more than its plan.
  const reservation = plan && { id, name: folder.path, event: eventOf(plan, plan.steps), neighbors: plan.neighbors };
  // First of all without a trace; then, when the run has a name that it will have again, for good.
  if (budget !== undefined && reservation !== null) requireRoom(budget, reservation);
  folder.begin(recipe);
  if (notes === null) folder.saveNotes({ id, data });
  else if (notes.data !== data) warn('the data changed since the run began: steps that were charged will not come out the same');

  if (budget !== undefined && reservation !== null) await reserve(budget, reservation, files);

  const ledger = plan === null ? undefined : await ledgerOf(folder, saved, files);
  const metrics = folder.openMetrics(step);
  const charged = ledger?.lines.slice(saved?.lines ?? 0) ?? [];
  const startRatchet = (): Ratchet =>
    plan === null ? ratchet(recipe.training.seed, step) : plan.startRatchet(step, ledger?.length ?? 0);
  let last = { at: performance.now(), step, tookMs: 0 };

  const save = (now: RunState, keys: Ratchet): void => {
    const started = performance.now();
    metrics.sync();
    folder.saveCheckpoint({ ...now, settings, lines: ledger?.length ?? 0 }, keys);
    const at = performance.now();
    last = { at, step: now.state.step, tookMs: at - started };
  };
  const { checkpointEvery } = recipe.performance;
  const isDue = (now: number): boolean => checkpointEvery === 'auto'
    ? performance.now() - last.at > Math.max(everyMs, last.tookMs / mostShare)
    : now - last.step >= checkpointEvery;

  const kept = saved?.keys ?? null;
  const keys = kept ?? startRatchet();
  if (kept === null) {
    if (charged.length > 0) warn(`the secret key is gone: ${steps(charged.length)} after the checkpoint cannot be repeated, and will be charged again`);
    save(begin, keys);
  }
  return {
    ledger, metrics, keys, save,
    charged: kept === null ? [] : charged,
    saveWhenDue: (now, current) => {
      if (isDue(now.state.step)) save(now, current);
    },
    drawAfresh: (now) => {
      const fresh = plan!.startRatchet(now.state.step, ledger!.length);
      save(now, fresh);
      return fresh;
    },
    end: (now, current) => {
      save(now, current);
      folder.eraseKey();
    },
    close: async () => {
      metrics.close();
      await ledger?.close();
    },
  };
}

async function ledgerOf(folder: RunFolder, saved: Saved | null, files: Files): Promise<Ledger & { readonly lines: readonly LedgerLine[] }> {
  const { ledgerPath: path } = folder;
  const fail = (found: string, expected: string): GhostgradError => new GhostgradError({
    what: 'ledger and checkpoint do not belong together', where: path, found, expected,
    fix: 'put back the whole folder as the run left it; what this run spent is unknown otherwise',
  });
  if (!existsSync(path)) {
    if (saved !== null && saved.lines > 0) throw fail('no ledger', `${saved.lines} lines`);
    return Object.assign(await createLedger(path, files), { lines: [] });
  }
  const ledger = await openLedger(path, files);
  const { lines } = ledger;
  if (saved === null && lines.length > 0) throw fail(`${lines.length} lines and no checkpoint`, 'a checkpoint from before the first step');
  if (saved !== null && lines.length < saved.lines) throw fail(`${lines.length} lines`, `at least ${saved.lines}`);
  const odd = lines.slice(saved?.lines ?? 0).findIndex((line, i) => line.step !== (saved?.state.step ?? 0) + i);
  if (odd >= 0) throw fail(`step ${lines[(saved?.lines ?? 0) + odd]!.step} in line ${(saved?.lines ?? 0) + odd + 1}`, `step ${(saved?.state.step ?? 0) + odd}`);
  return ledger;
}

const steps = (count: number): string => (count === 1 ? 'one step' : `${count} steps`);
