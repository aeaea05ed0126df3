import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { readModel } from '../graph/file.ts';
import { type Problem, type Verification, verifyCertificate } from '../privacy/index.ts';
import { verifyLedger } from '../privacy/ledger.ts';
import { isSignedBy } from '../privacy/signature.ts';

/**
 * Whether the certificate at `path` (a run's `privacy.json`) holds, by the ledger beside it ({@link verifyCertificate}), and
 * whether the model beside it says the same of itself.
 *
 * @param signedBy the path of an Ed25519 public key in PEM, whose owner's signature `privacy.json.sig` must be
 * @throws GhostgradError when a file cannot be read, or the certificate is not JSON; what it says is reported, not thrown
 */
export async function verify(path: string, { signedBy }: { readonly signedBy?: string | undefined } = {}): Promise<Verification> {
  const value = readJson(path);
  const ledger = join(dirname(path), 'ledger.jsonl');
  const found = verifyCertificate(value, existsSync(ledger) ? await verifyLedger(ledger) : null);
  const problems = [
    ...found.problems, ...modelProblems(join(dirname(path), 'model.onnx'), value),
    ...(signedBy === undefined ? [] : signatureProblems(path, signedBy)),
  ];
  return { ...found, holds: problems.length === 0, problems };
}

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
