import { join } from 'node:path';
import { writeFileAtomically } from '../files.ts';
import { reportPage } from './page.ts';
import { readRun } from './run.ts';

export interface ReportOptions {
  /** Where the page goes. Default: `report.html` in the run folder. */
  readonly html?: string | undefined;
  /** Whether numbers that ε does not cover are shown, marked so. Default false. */
  readonly uncovered?: boolean | undefined;
}

/** The files of a report. */
export interface Report {
  readonly html: string;
  readonly certificate: string;
}

/**
 * Renders a run for people: one HTML page that needs nothing else, beside the certificate. An unfinished run gets a certificate
 * of what it spent by now, from its ledger; that of a finished one is left as it is.
 *
 * @throws GhostgradError where there is no run with privacy, and for what cannot be read or written
 */
export async function report(folder: string, { html = join(folder, 'report.html'), uncovered = false }: ReportOptions = {}): Promise<Report> {
  const run = await readRun(folder, { uncovered });
  const certificate = join(folder, 'privacy.json');
  const page = reportPage(run);
  if (!run.isFinished) writeFileAtomically(certificate, [Buffer.from(`${JSON.stringify(run.certificate, null, 2)}\n`)]);
  writeFileAtomically(html, [Buffer.from(page)]);
  return { html, certificate };
}
