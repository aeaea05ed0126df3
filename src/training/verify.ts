import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { readModel } from '../graph/file.ts';
import { type Problem, type Verification, certificateSchema, verifyCertificate } from '../privacy/index.ts';
import { type LedgerReading, verifyLedger } from '../privacy/ledger.ts';
import { isSignedBy } from '../privacy/signature.ts';

/** What came of checking a certificate, and, of a run for several ε, those of its models. */
export interface RunVerification extends Verification {
  readonly releases?: readonly (Pick<Verification, 'holds' | 'epsilonClaimed' | 'epsilonRecomputed'> & { readonly folder: string })[];
}

/**
 * Whether the certificate at `path` (a run's `privacy.json`) holds, by the ledger beside it ({@link verifyCertificate}), and
 * whether the model beside it says the same of itself; and the same of every model that a run made for several ε.
 *
 * @param signedBy the path of an Ed25519 public key in PEM, whose owner's signature `privacy.json.sig` must be
 * @throws GhostgradError when a file cannot be read, or the certificate is not JSON; what it says is reported, not thrown
 */
export async function verify(path: string, options: { readonly signedBy?: string | undefined } = {}): Promise<RunVerification> {
  const { signedBy } = options;
  const value = readJson(path);
  const ledger = await ledgerBeside(path);
  const found = verifyCertificate(value, ledger);
  const releases = ledger === null ? [] : await releasesOf(path, value, ledger, options);
  const problems = [
    ...found.problems, ...modelProblems(join(dirname(path), 'model.onnx'), value),
    ...(signedBy === undefined ? [] : signatureProblems(path, signedBy)),
    ...releases.flatMap((one) => one.problems),
  ];
  return {
    ...found, holds: problems.length === 0, problems,
    ...(releases.length > 0 && { releases: releases.map(({ problems: own, ...one }) => ({ ...one, holds: own.length === 0 })) }),
  };
}

async function ledgerBeside(path: string): Promise<LedgerReading | null> {
  const ledger = join(dirname(path), 'ledger.jsonl');
  return existsSync(ledger) ? verifyLedger(ledger) : null;
}

/** Each model of the run at `path`: whether its own certificate holds, and is about the release that the run's ledger has of it. */
async function releasesOf(path: string, run: unknown, { lines }: LedgerReading, options: { readonly signedBy?: string | undefined }) {
  const parsed = certificateSchema.safeParse(run);
  const { releases, epsilon } = parsed.success ? parsed.data : { releases: null, epsilon: NaN };
  const last = lines.at(-1);
  const digests = [last?.digest, ...(last?.further ?? []).map((one) => one.digest)];
  return Promise.all((releases ?? []).map(async ({ folder, ...said }, k) => {
    const own = join(dirname(path), folder, 'privacy.json');
    const at = (problem: Problem): Problem => ({ ...problem, where: `${folder}: ${problem.where}` });
    if (!existsSync(own)) {
      const problems = [at({ what: 'a model of the run is gone', where: 'privacy.json', expected: 'the certificate of the model' })];
      return { folder, epsilonClaimed: null, epsilonRecomputed: null, problems };
    }
    const { epsilonClaimed, epsilonRecomputed, problems } = await verify(own, options);
    const certificate = certificateSchema.safeParse(readJson(own));
    const digest = (await ledgerBeside(own))?.lines.at(-1)?.digest;
    const compared = certificate.success ? [
      differs('epsilon', certificate.data.epsilon, said.epsilon), differs('noise.multiplier', certificate.data.noise.multiplier, said.multiplier),
      differs('partOf.epsilon', certificate.data.partOf?.epsilon, epsilon), differs('partOf.models', certificate.data.partOf?.models, releases?.length),
      differs('ledger.jsonl: digest', digest, digests[k]),
    ].flat() : [];
    return { folder, epsilonClaimed, epsilonRecomputed, problems: [...problems, ...compared].map(at) };
  }));
}

const differs = (where: string, found: string | number | undefined, expected: string | number | undefined): Problem[] =>
  found === expected ? [] : [{ what: 'a model of the run is not as the run says', where, found: String(found), expected: String(expected) }];

/** A model trained by the run names its guarantee, so that it can be told from another's. */
function modelProblems(path: string, certificate: unknown): Problem[] {
  if (!existsSync(path)) return [];
  const { guarantee } = Object(certificate) as { readonly guarantee?: unknown };
  const said = readModel(path).metadata['ghostgrad.privacy'];
  if (said === guarantee) return [];
  return [{
    what: 'the model says something else of its privacy than the certificate', where: 'model.onnx, metadata ghostgrad.privacy',
    found: said ?? 'nothing', expected: String(guarantee),
  }];
}

function signatureProblems(path: string, key: string): Problem[] {
  const where = `${path}.sig`;
  const expected = `the signature of the certificate by the owner of ${key}`;
  if (!existsSync(where)) return [{ what: 'the certificate is not signed', where, expected }];
  return isSignedBy(key, readFileSync(path), readFileSync(where))
    ? [] : [{ what: 'the signature is not that of this certificate by this key', where, expected }];
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    throw new GhostgradError(
      {
        what: 'the certificate cannot be read', where: path, found: cause instanceof Error ? cause.message : String(cause),
        expected: 'the privacy.json of a run', fix: 'ghostgrad verify RUNDIR/privacy.json',
      },
      { cause },
    );
  }
}
