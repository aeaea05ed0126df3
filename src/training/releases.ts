import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Files } from '../files.ts';
import type { Graph } from '../graph/ir.ts';
import type { Optimizer } from '../optimizers/index.ts';
import { type Certificate, type CertificateOptions, type PrivacyPlan, type Privatised, epsilonOf, eventOf } from '../privacy/index.ts';
import { type LedgerLine, ledgerOfOne, parseLedger } from '../privacy/ledger.ts';
import type { Evaluation } from './evaluate.ts';
import type { PrivacyRecipe } from './recipe.ts';
import { type ReleaseContents, type WriteOptions, saveRelease } from './release-folder.ts';
import type { Parameters } from './step.ts';

/** One model of a run for several ε. */
export interface ReleaseResult {
  /** As the recipe names it: what this model alone is within. */
  readonly epsilon: number;
  /** The model's own folder; null for a run without an output folder. */
  readonly runDir: string | null;
  /** On the test data; null when the recipe names none. */
  readonly test: Evaluation | null;
}

/** The ε that a plan is for, and those of further releases of its one step where the recipe has a list. */
export function epsilonsOf({ epsilon }: Pick<PrivacyRecipe, 'epsilon'>): {
  readonly epsilon: number | undefined; readonly furtherEpsilons?: readonly number[];
} {
  if (!Array.isArray(epsilon)) return { epsilon };
  const [largest, ...others] = [...epsilon].sort((a, b) => b - a);
  return { epsilon: largest, furtherEpsilons: others };
}

/**
 * The parameters of the models of smaller ε: for each gradient one step from the parameters as they were before any, which
 * stay as they are.
 */
export const furtherParameters = (
  optimizer: Optimizer, before: Parameters, gradients: readonly Privatised[], learningRate: number,
): readonly Parameters[] =>
  gradients.map((gradient) => {
    const parameters: Parameters = new Map([...before].map(([name, t]) => [name, { ...t, data: t.data.slice() }]));
    const state = optimizer.update(parameters, gradient, optimizer.init(parameters), learningRate);
    return optimizer.released(parameters, state);
  });

/** The models of a run as they are by now. */
export interface Releases {
  /** As in the recipe, in its order; one number, or none, where there is no sweep. */
  readonly epsilons: PrivacyRecipe['epsilon'];
  readonly plan: PrivacyPlan;
  /** Those of the first release, and of all further ones; none before the step. */
  readonly parameters: readonly Parameters[];
}

/** What makes of each of them a release that stands by itself. */
export interface ReleaseMaker {
  /** The run's; null without an output folder. */
  readonly folder: { readonly path: string; readonly ledgerPath: string } | null;
  readonly certify: (plan: PrivacyPlan, options: Pick<CertificateOptions, 'partOf' | 'ledger'>) => Certificate;
  readonly contents: (parameters: Parameters, guarantee: string) => Pick<ReleaseContents, 'model' | 'adapters'>;
  readonly evaluate: (model: Graph) => Promise<Evaluation | null>;
  readonly sign?: WriteOptions['sign'];
  readonly files?: Files | undefined;
}

const folderOf = (epsilon: number): string => `epsilon-${epsilon}`;

/** The releases as the run's own certificate names them; null where there is one model, or none yet. */
export function namedReleases({ epsilons, plan, parameters }: Releases): Certificate['releases'] {
  if (!Array.isArray(epsilons) || parameters.length !== plan.further.length + 1) return null;
  return [plan, ...plan.further].map((each, k) =>
    ({ folder: folderOf(falling(epsilons)[k]!), multiplier: each.noiseMultiplier, epsilon: spentBy(each) }));
}

/** ε of one release by itself, as its certificate has it. */
const spentBy = (plan: PrivacyPlan): number => epsilonOf(eventOf(plan, 1), plan.accountedDelta, plan.accountant).epsilon;

/**
 * Writes each model's folder, which tells nothing of the other models: its certificate, and a ledger of the one release. What a
 * process that was killed had written before is written again, to the same bytes.
 *
 * @returns in the order of the recipe; null where there is one model, or none yet
 */
export async function makeReleases(
  releases: Releases | null, { folder, certify, contents, evaluate, sign, files }: ReleaseMaker,
): Promise<readonly ReleaseResult[] | null> {
  if (releases === null || namedReleases(releases) === null || !Array.isArray(releases.epsilons)) return null;
  const { epsilons, plan, parameters } = releases;
  const plans = [plan, ...plan.further];
  const partOf = { models: plans.length, multiplier: plan.noiseMultiplier, epsilon: spentBy(plan) };
  const lines = folder === null ? [] : linesOf(folder.ledgerPath, plans);
  const results = new Map<number, ReleaseResult>();
  for (const [k, epsilon] of falling(epsilons).entries()) {
    const ledger = lines[k] && ledgerOfOne(lines[k]);
    const certificate = certify(plans[k]!, { partOf, ledger: ledger && { lines: 1, head: ledger.head } });
    const made = contents(parameters[k]!, certificate.guarantee);
    const runDir = folder && join(folder.path, folderOf(epsilon));
    const result: ReleaseResult = { epsilon, runDir, test: await evaluate(made.model) };
    if (runDir !== null && ledger !== undefined) saveRelease(runDir, { ...made, certificate, ledger: ledger.text, result }, { sign, files });
    results.set(epsilon, result);
  }
  return epsilons.map((epsilon) => results.get(epsilon)!);
}

/** The release of the largest ε. */
export const largest = (releases: readonly ReleaseResult[]): ReleaseResult =>
  releases.reduce((most, each) => (each.epsilon > most.epsilon ? each : most));

const falling = (epsilons: readonly number[]): readonly number[] => [...epsilons].sort((a, b) => b - a);

/** The line of each release in a ledger of its own, by what the run's ledger has of it. */
function linesOf(path: string, plans: readonly PrivacyPlan[]): readonly LedgerLine[] {
  const { step, digest, further = [] } = parseLedger(readFileSync(path)).lines.at(-1)!;
  return [digest, ...further.map((one) => one.digest)].map((own, k) => ({ step, event: plans[k]!.event, digest: own }));
}
