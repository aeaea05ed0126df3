import { existsSync, readFileSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { type Certificate, type Verification, certificateSchema, certificateSoFar, verifyCertificate } from '../privacy/index.ts';
import { verifyLedger } from '../privacy/ledger.ts';
import { startCertificate } from '../training/run-folder.ts';
import { verify } from '../training/verify.ts';

/** A line of a metrics file: numbers, or numbers by name. */
export type MetricsLine = Readonly<Record<string, unknown>>;

/** What a run folder says of a run, finished or not. */
export interface ReportedRun {
  readonly name: string;
  readonly isFinished: boolean;
  readonly certificate: Certificate;
  readonly verification: Verification;
  /** Public, or covered by ε. */
  readonly metrics: readonly MetricsLine[];
  /** Not covered by ε; null where they were not asked for. */
  readonly uncovered: readonly MetricsLine[] | null;
  /** The run's own JSON; null while it runs. */
  readonly result: Readonly<Record<string, unknown>> | null;
  /** The text of `recipe.yaml`. */
  readonly recipe: string | null;
}

/**
 * Reads a run folder. What an unfinished run has spent is computed from its ledger.
 *
 * @throws GhostgradError where there is no run, or one without privacy
 */
export async function readRun(folder: string, { uncovered }: { readonly uncovered: boolean }): Promise<ReportedRun> {
  const read = (name: string): string | null => (existsSync(join(folder, name)) ? readFileSync(join(folder, name), 'utf8') : null);
  const recipe = read('recipe.yaml');
  const result = object(read('result.json'));
  const metrics = lines(read('metrics.jsonl'));
  const about = {
    name: basename(resolve(folder)), isFinished: result !== null, metrics, result, recipe,
    uncovered: uncovered ? lines(read(join('private', 'metrics.jsonl'))) : null,
  };
  if (result !== null && existsSync(join(folder, 'privacy.json'))) {
    const path = join(folder, 'privacy.json');
    const verification = await verify(path);
    const parsed = certificateSchema.safeParse(object(read('privacy.json')));
    if (parsed.success) return { ...about, certificate: parsed.data, verification };
    throw new GhostgradError({
      what: 'the certificate is not one', where: path, found: verification.problems.map(({ where, found }) => `${where}: ${found}`).join('; '),
      fix: '`ghostgrad verify` says more',
    });
  }
  const start = certificateSchema.safeParse(object(read(startCertificate)));
  if (!start.success || !existsSync(join(folder, 'ledger.jsonl'))) {
    throw new GhostgradError({
      what: 'nothing to report', where: folder, found: recipe === null ? 'no run' : 'a run without a certificate',
      expected: 'the folder of a run with privacy', fix: 'ghostgrad report RUNDIR',
    });
  }
  const ledger = await verifyLedger(join(folder, 'ledger.jsonl'));
  const certificate = certificateSoFar(start.data, ledger, thresholdsOf(metrics));
  return { ...about, certificate, verification: verifyCertificate(certificate, { ...ledger, torn: false }) };
}

const thresholdsOf = (metrics: readonly MetricsLine[]): Readonly<Record<string, number>> =>
  Object.fromEntries(Object.entries(metrics.at(-1)?.['thresholds'] ?? {}).filter(([, value]) => typeof value === 'number'));

/** The mapping that JSON holds; null for anything else. */
function object(text: string | null): MetricsLine | null {
  if (text === null) return null;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? (value as MetricsLine) : null;
  } catch {
    return null;
  }
}

/** The lines of a log; what was cut off in writing is left out. */
const lines = (text: string | null): MetricsLine[] =>
  (text ?? '').split('\n').map(object).filter((line) => line !== null);
