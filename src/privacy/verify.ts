import { GhostgradError } from '../errors.ts';
import { type AccountantName, type PrivacySpent, epsilonOf } from './accountant.ts';
import { type Certificate, certificateSchema } from './certificate-schema.ts';
import { type Problem, contradictions, releasesIn, stepEventOf } from './consistency.ts';
import { type PrivacyEvent, selfComposed, showEvent } from './events.ts';
import { accountedDelta } from './lattice.ts';
import type { LedgerReading } from './ledger.ts';

/** What came of checking a certificate. */
export interface Verification {
  /** Whether the certificate is right and guarantees what it says: no problem was found. */
  readonly holds: boolean;
  readonly epsilonClaimed: number | null;
  /** ε of what the ledger says was released, by the certificate's own accountant; null where it could not be computed. */
  readonly epsilonRecomputed: number | null;
  readonly delta: number | null;
  /** The same by every accountant that knows the events. */
  readonly accountants: readonly PrivacySpent[];
  readonly problems: readonly Problem[];
}

/**
 * Checks a certificate against the ledger of its run: that the chain of the ledger holds and ends where the certificate
 * says, that every line is a step's release as the certificate describes it and no step is missing, that the
 * certificate's event is their composition, that ε at δ is not below what an accountant finds for them, and that no two
 * fields contradict one another.
 *
 * A chain of digests shows accidents and partial edits. Who rewrites ledger and certificate together is not found out by
 * it: for that, compare the certificate with a copy, or its head, kept elsewhere.
 *
 * @param value what `privacy.json` holds
 * @param ledger null where there is none
 */
export function verifyCertificate(value: unknown, ledger: LedgerReading | null): Verification {
  const parsed = certificateSchema.safeParse(value);
  if (!parsed.success) {
    const problems = parsed.error.issues.map(({ path, message }) => ({
      what: 'not as the schema of certificates says', where: path.length === 0 ? 'the certificate' : path.join('.'), found: message,
    }));
    return { holds: false, epsilonClaimed: claimed(value), epsilonRecomputed: null, delta: null, accountants: [], problems };
  }
  const certificate = parsed.data;
  const { epsilon, delta, accountant } = certificate;
  const { spent, problems } = recomputed(certificate, ledger?.event ?? certificate.event);
  const all = [
    ...nothingGuaranteed(certificate),
    ...(ledger === null ? [{ what: 'no ledger, so what was released cannot be checked', where: 'ledger' }] : [
      ...chain(certificate, ledger), ...steps(certificate, ledger), ...releases(certificate, ledger),
      ...furtherReleases(certificate, ledger),
    ]),
    ...models(certificate),
    ...problems,
    ...contradictions(certificate),
  ];
  return {
    holds: all.length === 0, epsilonClaimed: epsilon, delta, accountants: spent, problems: all,
    epsilonRecomputed: spent.find((one) => one.accountant === accountant)?.epsilon ?? null,
  };
}

const claimed = (value: unknown): number | null => {
  const { epsilon } = Object(value) as { readonly epsilon?: unknown };
  return typeof epsilon === 'number' ? epsilon : null;
};

const nothingGuaranteed = ({ valid, guarantee }: Certificate): Problem[] =>
  valid ? [] : [{ what: 'the certificate guarantees nothing', where: 'guarantee', found: guarantee }];

function chain({ ledger: said }: Certificate, { lines, head, torn, problems }: LedgerReading): Problem[] {
  const broken = problems.map((text) => ({ what: 'the chain of the ledger is broken', where: 'ledger.jsonl', found: text }));
  if (torn) broken.push({ what: 'the ledger ends in an incomplete line', where: 'ledger.jsonl', found: `after line ${lines.length}` });
  if (said === null) return [...broken, { what: 'the certificate names no ledger', where: 'ledger' }];
  return [
    ...broken,
    ...(said.lines === lines.length ? [] : [{
      what: `the ledger is ${lines.length < said.lines ? 'shorter' : 'longer'} than when it was certified`, where: 'ledger.lines',
      found: `${lines.length} lines`, expected: `${said.lines} lines`,
    }]),
    ...(said.head === head ? [] : [{ what: 'the ledger ends otherwise than when it was certified', where: 'ledger.head', found: head, expected: said.head }]),
  ];
}

/** Steps begin at 0 and follow one another; one that was drawn again is charged again. */
function steps(certificate: Certificate, { lines }: LedgerReading): Problem[] {
  const problems: Problem[] = [];
  let next = 0;
  for (const [i, { step }] of lines.entries()) {
    if (!Number.isSafeInteger(step) || step < 0 || step > next) {
      problems.push({
        what: step > next ? 'steps are missing in the ledger' : 'not a step', where: `ledger.jsonl, line ${i + 1}`, found: `step ${step}`,
        expected: next === 0 ? 'step 0' : `step ${next}, or one before it that was drawn again`,
      });
    }
    next = Math.max(next, step + 1);
  }
  if (next !== certificate.steps) {
    problems.push({
      what: next < certificate.steps ? 'steps are missing in the ledger' : 'the ledger has more steps than the certificate', where: 'steps',
      found: `${next} in the ledger`, expected: `${certificate.steps}`,
    });
  }
  if (certificate.steps > certificate.plannedSteps) {
    problems.push({
      what: 'more steps than planned', where: 'steps', found: String(certificate.steps), expected: `at most ${certificate.plannedSteps}`,
    });
  }
  return problems;
}

/** Every line is what the certificate says of a step, and its event is all lines and nothing else. */
function releases(certificate: Certificate, ledger: LedgerReading): Problem[] {
  const step = attempt(() => stepEventOf(certificate));
  // What cannot be a step is told as a contradiction, in the field's own words.
  const ofStep = step instanceof GhostgradError ? 'no step can be as the certificate describes it' : showEvent(step);
  const odd = ledger.lines.flatMap(({ event }, i) => (showEvent(event) === ofStep ? [] : [{
    what: 'a release that is not a step as the certificate describes it', where: `ledger.jsonl, line ${i + 1}`,
    found: showEvent(event), expected: ofStep,
  }]));
  const said = releasesIn(certificate.event);
  const found = releasesIn(ledger.event);
  const unequal = [...new Set([...said.keys(), ...found.keys()])].filter((text) => said.get(text) !== found.get(text));
  return [
    ...odd.slice(0, 3),
    ...unequal.map((text) => ({
      what: 'the certificate’s event is not what the ledger says was released', where: 'event',
      found: `${said.get(text) ?? 0} × ${text}`, expected: `${found.get(text) ?? 0} × ${text}`,
    })),
  ];
}

/** The models that a certificate names are those whose releases the ledger has, in the order in which noise was added. */
function furtherReleases({ releases: named, noise: { multiplier } }: Certificate, { lines }: LedgerReading): Problem[] {
  if (named === null) return [];
  const said = named.map((one) => one.multiplier);
  const found = [multiplier, ...(lines.at(-1)?.further ?? []).map((one) => one.multiplier)];
  return said.join() === found.join() ? [] : [{
    what: 'the models of the run are not the releases that the ledger has', where: 'releases', found: `σ of ${said.join(', ')}`,
    expected: `σ of ${found.join(', ')}`,
  }];
}

/** Every model has at least the ε that its own noise spends, and all together that of the first. */
function models(certificate: Certificate): Problem[] {
  const { releases: named, partOf, noise: { multiplier }, epsilon } = certificate;
  const claims = [
    ...(named ?? []).map((one, k) => ({ ...one, where: `releases.${k}` })),
    ...(partOf === null ? [] : [{ ...partOf, where: 'partOf' }]),
  ];
  const delta = accountedDelta(certificate.noise.kind, certificate.delta);
  const spent = claims.flatMap((one) => {
    const event = attempt(() => stepEventOf({ ...certificate, noise: { ...certificate.noise, multiplier: one.multiplier } }));
    const found = event instanceof GhostgradError ? event : attempt(() => epsilonOf(event, delta, certificate.accountant));
    if (!(found instanceof GhostgradError) && one.epsilon >= leastHonest(found, certificate.accountant)) return [];
    return [{
      what: 'ε of a model, or of all, is smaller than what its noise spends', where: `${one.where}.epsilon`, found: String(one.epsilon),
      expected: found instanceof GhostgradError ? found.message : `at least ${found.epsilon}`,
    }];
  });
  const odd = (what: string, where: string): Problem => ({ what, where });
  return [
    ...spent,
    ...(named === null || named.every((one, k) => one.multiplier >= (named[k - 1]?.multiplier ?? multiplier))
      ? [] : [odd('noise cannot become less from one release to the next', 'releases')]),
    ...(named === null || Math.max(...named.map((one) => one.epsilon)) <= epsilon
      ? [] : [odd('ε of all models together is smaller than that of one', 'epsilon')]),
    ...(partOf === null || (partOf.multiplier <= multiplier && partOf.epsilon >= epsilon)
      ? [] : [odd('one model spends more than all of its run', 'partOf')]),
    ...((named === null && partOf === null) || (certificate.plannedSteps === 1 && certificate.sampling.name === 'full-batch'
      && certificate.clipping.threshold === 'fixed' && certificate.metrics === null)
      ? [] : [odd('several models of one sum are those of one full-batch step under fixed thresholds', 'releases')]),
  ];
}

/** ε of `event` by every accountant that knows it, and whether the certificate's numbers may stand beside that. */
function recomputed(
  certificate: Certificate, event: PrivacyEvent,
): { readonly spent: readonly PrivacySpent[]; readonly problems: Problem[] } {
  const { epsilon, plannedEpsilon, plannedSteps, accountant } = certificate;
  // Not the field, which follows from δ: whoever changes the one may forget the other.
  const delta = accountedDelta(certificate.noise.kind, certificate.delta);
  const problems: Problem[] = [];
  const spent = [...new Set<AccountantName>([accountant, 'pld'])].flatMap((name) => {
    const found = attempt(() => epsilonOf(event, delta, name));
    if (found instanceof GhostgradError) {
      // What only a second opinion cannot tell is no problem.
      if (name === accountant) problems.push({ what: 'ε cannot be recomputed', where: 'accountant', found: found.message });
      return [];
    }
    return [found];
  });
  for (const one of spent) {
    const least = leastHonest(one, accountant);
    if (epsilon >= least) continue;
    problems.push({
      what: `ε is smaller than what was spent, by the accountant ${one.accountant}`, where: 'epsilon', found: String(epsilon),
      expected: `at least ${least}`,
    });
  }
  const planned = attempt(() => epsilonOf(selfComposed(stepEventOf(certificate), plannedSteps), delta, accountant));
  if (planned instanceof GhostgradError) {
    problems.push({ what: 'the planned ε cannot be recomputed', where: 'plannedEpsilon', found: planned.message });
  } else if (plannedEpsilon < leastHonest(planned, accountant)) {
    problems.push({
      what: 'the planned ε is smaller than what the planned steps spend', where: 'plannedEpsilon', found: String(plannedEpsilon),
      expected: `at least ${planned.epsilon}`,
    });
  }
  return { spent, problems };
}

/**
 * The least ε that can be claimed honestly beside what an accountant found: what it found, less how far that may be above the
 * truth (another run of the same accountant may have come nearer to it), and the last bits. A second accountant's number
 * is an upper bound too, and only its error bound says what is certainly spent.
 */
function leastHonest({ epsilon, errorBound, accountant }: PrivacySpent, own: AccountantName): number {
  if (errorBound === null) return accountant === own ? epsilon * (1 - 1e-9) : 0;
  return (epsilon - errorBound) * (1 - 1e-9);
}

function attempt<T>(operation: () => T): T | GhostgradError {
  try {
    return operation();
  } catch (error) {
    if (error instanceof GhostgradError) return error;
    throw error;
  }
}
