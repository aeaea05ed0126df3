import { existsSync, readFileSync } from 'node:fs';
import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import { type Files, explained, nodeFiles, writeFileAtomically } from '../files.ts';
import { lock } from '../lock.ts';
import { parseWith } from '../parse.ts';
import { epsilonOf } from './accountant.ts';
import { type PrivacyEvent, composed, parseEvent } from './events.ts';
import { accountedDelta } from './lattice.ts';
import { rdp } from './rdp.ts';

/**
 * A budget that several runs on one data set share, in a JSON file. Whoever owns the data writes its ε and δ; each run
 * reserves all that it plans to release before its first step, under an exclusive lock, and is refused where that would
 * overrun. Node only.
 *
 * **Which runs come next may depend on what earlier ones released**, so the sum has to hold at a random number of runs chosen
 * as one goes: a privacy filter. The file's δ is shared out between rules, each of which is a valid filter at its own δ_r:
 *
 * - a single declared plan, by the tightest accountant that knows it (δ/2);
 * - for each order α of {@link filterOrders}, plans whose Rényi divergences at α add up to no more than the α-RDP that
 *   implies (ε, δ_α): fully adaptive composition at a fixed order (Feldman & Zrnic 2021, Theorem 3.1 and Corollary 3.3;
 *   Lécuyer 2021), converted as in `epsilonFromRdp`; δ_α = δ/2 over the number of orders.
 *
 * Runs are admitted while one rule admits all of them together. Then, for any set S of outcomes, with S_r those where rule r
 * admitted all: P(S) ≤ Σ_r P(S_r) ≤ Σ_r (e^ε Q_r(S_r) + δ_r) ≤ e^ε Q(S) + δ, taking the S_r disjoint: on S_r, what
 * happened is what the mechanism that stops where rule r would be broken does.
 *
 * **What was reserved stays charged**, also by a run that ends early. Steps that were not taken would be free only if the end
 * depended on nothing but released numbers; but a person who stops a run has seen its training loss, and a run that fails may
 * have failed because of the data. A declared plan of which less is charged afterwards is also no declared plan any more.
 */
export interface Budget {
  readonly epsilon: number;
  readonly delta: number;
  readonly runs: readonly Reservation[];
}

export interface Reservation {
  /** The run's own, the same when it is resumed. */
  readonly id: string;
  /** For people: what the run is called. */
  readonly name: string;
  /** All that the run may release. */
  readonly event: PrivacyEvent;
  /** What its neighbouring data sets differ in: runs with other answers cannot be added up. */
  readonly neighbors: string;
}

const format = 'ghostgrad-budget/1';
const event = z.unknown().transform((value) => parseEvent(value));
const budgetSchema = z.strictObject({
  format: z.literal(format).default(format),
  epsilon: z.number().positive(),
  delta: z.number().gt(0).lt(1),
  runs: z.array(z.strictObject({ id: z.string(), name: z.string(), neighbors: z.string(), event })).default([]),
});

/** Orders α of the filter: fixed, so that none is chosen by what was released. */
export const filterOrders: readonly number[] = [1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256];

/** The budget in a file. Throws GhostgradError when it cannot be read or is not one. */
export function readBudget(path: string): Budget {
  if (!existsSync(path)) {
    throw new GhostgradError({
      what: 'there is no budget file', where: path, expected: 'a file with the ε and δ that all runs on the data may spend together',
      fix: 'write one: {"epsilon": 8, "delta": 1e-5}',
    });
  }
  const text = explained('read', path, () => readFileSync(path, 'utf8'));
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new GhostgradError({ what: 'not a budget file', where: path, found: 'no JSON', fix: 'e.g. {"epsilon": 8, "delta": 1e-5}' }, { cause });
  }
  const { epsilon, delta, runs } = parseWith(budgetSchema, value, `budget ${path}`);
  return { epsilon, delta, runs };
}

/**
 * Reserves all that a run may release, durably; does nothing where the run reserved the same before.
 *
 * @throws GhostgradError when that would overrun the budget, when runs in it differ in what neighbours are, and when the file
 * cannot be read or written or stays locked
 */
export async function reserve(path: string, run: Reservation, files: Files = nodeFiles): Promise<void> {
  const hold = await lock(`${path}.lock`, { files });
  try {
    const budget = readBudget(path);
    const after = withRun(path, budget, run);
    if (after !== budget) write(path, after, files);
  } finally {
    hold.release();
  }
}

/** Throws GhostgradError where {@link reserve} would, as things are now; changes nothing. */
export const requireRoom = (path: string, run: Reservation): void => void withRun(path, readBudget(path), run);

function withRun(path: string, budget: Budget, run: Reservation): Budget {
  const before = budget.runs.find(({ id }) => id === run.id);
  if (before !== undefined && JSON.stringify(before.event) === JSON.stringify(run.event)) return budget;
  const other = budget.runs.find(({ neighbors }) => neighbors !== run.neighbors);
  if (other !== undefined) {
    throw new GhostgradError({
      what: 'runs that share a budget differ in what neighbouring data sets are', where: path, found: run.neighbors,
      expected: `${other.neighbors}, as of run ${other.name}`, fix: `privacy.neighbors: ${other.neighbors}, or another budget`,
    });
  }
  const after = { ...budget, runs: [...budget.runs, run] };
  if (!isAdmitted(after)) throw overrun(path, after);
  return after;
}

/** Whether one of the rules admits all of a budget's runs together. */
export const isAdmitted = (budget: Budget): boolean => spentFrom(budget) <= budget.epsilon;

/** The least ε that one of the rules grants the runs together, at the budget's δ; Infinity where no rule knows them. */
export function spentFrom({ delta: whole, runs }: Budget): number {
  const [first, ...more] = runs;
  if (first === undefined) return 0;
  // As each run does, so a file keeps a part of its δ for how far discrete noise is from what is accounted for.
  const delta = accountedDelta('discrete', whole);
  const alone = more.length > 0 ? Infinity : known(() => epsilonOf(first.event, delta / 2).epsilon);
  const all = composed(runs.map((run) => run.event));
  const share = delta / 2 / filterOrders.length;
  return filterOrders.reduce((least, order) => Math.min(least, known(() => epsilonAt(order, rdp(all, order), share))), alone);
}

/** What α-RDP of one fixed order implies: the conversion of `epsilonFromRdp` without a choice. */
const epsilonAt = (order: number, divergence: number, delta: number): number =>
  Math.max(0, divergence + Math.log1p(-1 / order) - (Math.log(delta) + Math.log(order)) / (order - 1));

/** An accountant that does not know an event grants nothing for it. */
function known(epsilon: () => number): number {
  try {
    return epsilon();
  } catch (error) {
    if (error instanceof GhostgradError) return Infinity;
    throw error;
  }
}

function write(path: string, { epsilon, delta, runs }: Budget, files: Files): void {
  const content = { format, epsilon, delta, runs };
  writeFileAtomically(path, [Buffer.from(`${JSON.stringify(content, null, 2)}\n`)], undefined, files);
}

function overrun(path: string, budget: Budget): GhostgradError {
  const before = spentFrom({ ...budget, runs: budget.runs.slice(0, -1) });
  const after = spentFrom(budget);
  const show = (value: number): string => (value === Infinity ? 'more than can be accounted for' : `ε = ${value.toPrecision(4)}`);
  return new GhostgradError({
    what: 'the run would overrun the budget of its data',
    where: path,
    found: `${show(after)} at δ = ${budget.delta} with this run, ${show(before)} without it (${budget.runs.length - 1} runs)`,
    expected: `at most ε = ${budget.epsilon}`,
    fix: 'plan for less: a smaller privacy.epsilon or fewer steps',
  });
}
