import { GhostgradError } from '../errors.ts';
import { noiseDeviations } from './allocation.ts';
import type { Certificate } from './certificate-schema.ts';
import { type PrivacyEvent, showEvent } from './events.ts';
import { type NoiseSettings, accountedDelta, checkReserve, countLaw, gradientLaws, gridOf, measureLaw, noiseDistance, roundingOf } from './lattice.ts';
import { measureDeviationOf } from './measures.ts';
import { stepRelease } from './quantiles.ts';
import { type Draw, type Neighbors, checkDraw, sampledEvent, supportedNeighbors } from './sampling.ts';
import {
  assumptionsOf, exactSumsStart, guaranteeOf, isValid, mechanismOf, neighborsMeaningOf, notCoveredOf, sourceOf,
} from './statement.ts';

/** Something that is not as it has to be. */
export interface Problem {
  readonly what: string;
  /** Path of the field, or line of the file. */
  readonly where: string;
  readonly found?: string | undefined;
  readonly expected?: string | undefined;
}

/** How far one neighbour moves a sum, in units of what one record may add to it. */
export const unitsOf = (neighbors: Neighbors): number => (neighbors === 'replace-one' ? 2 : 1);

/** What each step released, as a certificate's sampling and noise tell it. */
export const stepEventOf = (certificate: Certificate): PrivacyEvent => {
  const { sampling, noise, clipping: { groups, threshold }, neighbors, metrics } = certificate;
  const shares = { fraction: budgetOf(threshold), measured: metrics?.budgetFraction ?? 0 };
  return sampledEvent(
    sampling.name, drawOf(certificate), stepRelease(noise.multiplier, shares, groups.length, unitsOf(neighbors)),
  );
};

/** The share of σ⁻² that counts spent. */
const budgetOf = (threshold: Certificate['clipping']['threshold']): number =>
  threshold === 'fixed' ? 0 : threshold.adaptive.budgetFraction;

const drawOf = ({ sampling: { expectedBatchSize, datasetSize, maxBatchSize } }: Certificate): Draw =>
  ({ batchSize: expectedBatchSize, datasetSize, maxBatchSize });

/** What noise follows from, beside the thresholds, as a certificate tells it. */
export const noiseSettingsOf = (
  { clipping: { allocation, rho }, noise: { kind, gradientMultiplier, rounding, countDeviation }, metrics, partOf }: Certificate,
): NoiseSettings => ({
  noise: kind, allocation, gradientMultiplier, rho, rounding, adaptive: countDeviation === null ? null : { countDeviation }, metrics,
  first: partOf && { noiseMultiplier: partOf.multiplier, epsilon: partOf.epsilon },
});

/** Numbers that are computed from others may differ in their last bits. */
const tolerance = 1e-9;
export const isNear = (a: number, b: number): boolean => Math.abs(a - b) <= tolerance * Math.max(Math.abs(a), Math.abs(b));

/**
 * Fields of a certificate that contradict one another: noise, sensitivity and words that do not follow from the settings.
 * What was released, and what it cost, is for {@link verifyCertificate} to say.
 */
export function contradictions(certificate: Certificate): Problem[] {
  const { sampling, clipping, noise, neighbors, metrics } = certificate;
  const { groups, threshold, rho } = clipping;
  const K = groups.length;
  const budget = budgetOf(threshold);
  const scale = noiseSettingsOf(certificate);
  const first = noiseDeviations(groups, scale);
  const final = noiseDeviations(groups.map((group) => ({ ...group, norm: group.finalNorm })), scale);
  const parameters = groups.flatMap((group) => group.parameters);
  return [
    ...number('sampling.sampleRate', sampling.sampleRate, sampling.expectedBatchSize / sampling.datasetSize),
    ...refusal('sampling', () => void checkDraw(sampling.name, drawOf(certificate))),
    ...refusal('neighbors', () => void supportedNeighbors(neighbors, sampling.name)),
    ...number('normaliser', certificate.normaliser, sampling.expectedBatchSize),
    ...number('clipping.norm', clipping.norm, Math.hypot(...groups.map(({ norm }) => norm))),
    ...number('clipping.sensitivity', clipping.sensitivity, unitsOf(neighbors) * clipping.norm * (1 + rho + noise.rounding)),
    ...refusal('noise', () => noiseProblems(certificate)),
    ...number('noise.gradientMultiplier', noise.gradientMultiplier, noise.multiplier / Math.sqrt(1 - budget - (metrics?.budgetFraction ?? 0))),
    ...(metrics === null ? [] : number('metrics.deviation', metrics.deviation, measureDeviationOf(noise.multiplier, metrics))),
    ...(threshold === 'fixed'
      ? plain('noise.countDeviation', noise.countDeviation, null)
      : number('noise.countDeviation', noise.countDeviation ?? NaN, (noise.multiplier / 2) * Math.sqrt(K / budget))),
    ...groups.flatMap(({ deviation, finalDeviation, norm, finalNorm }, k) => [
      ...number(`clipping.groups.${k}.deviation`, deviation, first[k] ?? NaN),
      ...number(`clipping.groups.${k}.finalDeviation`, finalDeviation, final[k] ?? NaN),
      ...(threshold === 'fixed' ? number(`clipping.groups.${k}.finalNorm`, finalNorm, norm) : []),
    ]),
    ...(new Set(parameters).size === parameters.length ? [] : [differs('clipping.groups', 'a parameter in two groups', 'each in one')]),
    ...plain('valid', certificate.valid, isValid(certificate)),
    ...plain('guarantee', certificate.guarantee, guaranteeOf(certificate)),
    ...plain('mechanism', certificate.mechanism, mechanismOf(certificate)),
    ...plain('neighborsMeaning', certificate.neighborsMeaning, neighborsMeaningOf(certificate)),
    ...plain('noise.source', noise.source, sourceOf(noise.seeded)),
    ...listed('assumptions', certificate.assumptions, assumptionsOf(certificate)),
    ...(certificate.assumptions.some((text) => text.startsWith(exactSumsStart(certificate.unit)))
      ? [] : [lacks('assumptions', `${exactSumsStart(certificate.unit)}…`)]),
    ...listed('notCovered', certificate.notCovered, notCoveredOf(certificate)),
  ];
}

/** Of what follows from the kind of noise: its grid, what rounding to it adds, and what it takes of δ. */
function noiseProblems(certificate: Certificate): Problem[] {
  const { noise, clipping, metrics, delta, plannedSteps, plannedEpsilon, partOf } = certificate;
  const { kind } = noise;
  const settings = noiseSettingsOf(certificate);
  const [first, final] = [clipping.groups, clipping.groups.map((group) => ({ ...group, norm: group.finalNorm }))]
    .map((groups) => gradientLaws(groups, settings).map(gridOf));
  const isFurther = partOf !== null && partOf.multiplier !== noise.multiplier;
  const distance = noiseDistance(kind, clipping.groups, plannedSteps, metrics?.measures.length, isFurther);
  checkReserve(distance, plannedEpsilon, delta);
  return [
    ...number('noise.rounding', noise.rounding, roundingOf(kind)),
    ...number('noise.accountedDelta', noise.accountedDelta, accountedDelta(kind, delta)),
    ...optional('noise.statisticalDistance', noise.statisticalDistance, kind === 'float' ? null : distance),
    ...(metrics === null ? [] : optional('metrics.grid', metrics.grid, gridOf(measureLaw(settings)))),
    ...optional('noise.countGrid', noise.countGrid, gridOf(countLaw(settings))),
    ...clipping.groups.flatMap(({ grid, finalGrid }, k) => [
      ...optional(`clipping.groups.${k}.grid`, grid, first![k]!),
      ...optional(`clipping.groups.${k}.finalGrid`, finalGrid, final![k]!),
    ]),
  ];
}

const differs = (where: string, found: string, expected: string): Problem =>
  ({ what: 'does not follow from the other fields', where, found, expected });

const number = (where: string, found: number, expected: number): Problem[] =>
  isNear(found, expected) ? [] : [differs(where, String(found), String(expected))];

const optional = (where: string, found: number | null, expected: number | null): Problem[] =>
  found !== null && expected !== null ? number(where, found, expected) : plain(where, found, expected);

const plain = (where: string, found: string | number | boolean | null, expected: string | number | boolean | null): Problem[] =>
  found === expected ? [] : [differs(where, String(found), String(expected))];

/** What the plan would have refused, or else the problems that `check` finds. */
function refusal(where: string, check: () => Problem[] | undefined): Problem[] {
  try {
    return check() ?? [];
  } catch (error) {
    if (!(error instanceof GhostgradError)) throw error;
    const { what, found, expected } = error.parts;
    return [{ what, where, found, expected }];
  }
}

const lacks = (where: string, expected: string): Problem => ({ what: 'something is left out', where, expected });

const listed = (where: string, found: readonly string[], expected: readonly string[]): Problem[] =>
  expected.filter((text) => !found.includes(text)).map((text) => lacks(where, text));

/** Single releases in an event, equal ones counted together, by how they are shown. */
export function releasesIn(event: PrivacyEvent, times = 1, found = new Map<string, number>()): ReadonlyMap<string, number> {
  switch (event.kind) {
    case 'composed':
      for (const part of event.events) releasesIn(part, times, found);
      break;
    case 'self-composed':
      releasesIn(event.event, times * event.count, found);
      break;
    default:
      if (times > 0) found.set(showEvent(event), (found.get(showEvent(event)) ?? 0) + times);
  }
  return found;
}
