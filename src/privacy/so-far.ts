import { epsilonOf } from './accountant.ts';
import { noiseDeviations } from './allocation.ts';
import type { Certificate } from './certificate-schema.ts';
import { noiseSettingsOf } from './consistency.ts';
import { gradientLaws, gridOf } from './lattice.ts';
import type { LedgerReading } from './ledger.ts';
import { assumptionsOf, guaranteeOf } from './statement.ts';

/**
 * The certificate of a run that has not ended: what its ledger says by now, in place of nothing.
 *
 * @param start the certificate of the run before its first step
 * @param thresholds those of the last step by group, where they adapt and are known
 * @throws GhostgradError when the accountant cannot account for what the ledger holds
 */
export function certificateSoFar(
  start: Certificate, { event, lines, head }: Pick<LedgerReading, 'event' | 'lines' | 'head'>, thresholds: Readonly<Record<string, number>> = {},
): Certificate {
  const steps = lines.reduce((most, { step }) => Math.max(most, step + 1), 0);
  const epsilon = lines.length === 0 ? 0 : epsilonOf(event, start.noise.accountedDelta, start.accountant).epsilon;
  const norms = start.clipping.groups.map(({ name, norm }) => thresholds[name] ?? norm);
  const settings = noiseSettingsOf(start);
  const final = start.clipping.groups.map((group, k) => ({ ...group, norm: norms[k]! }));
  const [deviations, laws] = [noiseDeviations(final, settings), gradientLaws(final, settings)];
  const groups = start.clipping.groups.map((group, k) =>
    ({ ...group, finalNorm: norms[k]!, finalDeviation: deviations[k]!, finalGrid: gridOf(laws[k]!) }));
  const now = { ...start, steps, epsilon, event, ledger: { lines: lines.length, head }, clipping: { ...start.clipping, groups } };
  const before = new Set(assumptionsOf(start));
  return {
    ...now,
    guarantee: guaranteeOf(now),
    assumptions: [...assumptionsOf(now), ...start.assumptions.filter((text) => !before.has(text))],
  };
}
