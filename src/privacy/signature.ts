import { type KeyObject, createPrivateKey, createPublicKey, sign, verify } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { GhostgradError } from '../errors.ts';
import { explained } from '../files.ts';

/**
 * Signatures of certificates, Ed25519 (RFC 8032) over the bytes of the file. The ledger's chain detects accidents and partial
 * edits; whoever can write the whole folder can forge both ledger and certificate. A signature says who vouches for them.
 *
 * @returns a function from bytes to the 64 bytes of their signature
 * @throws GhostgradError unless `path` is an Ed25519 private key in PEM, without a passphrase
 */
export function signer(path: string): (bytes: Uint8Array) => Uint8Array {
  const key = keyIn(path, createPrivateKey, 'a private Ed25519 key in PEM', 'make one: openssl genpkey -algorithm ed25519 -out key.pem');
  return (bytes) => sign(null, bytes, key);
}

/**
 * Whether `signature` is that of `bytes` by the owner of the public key in the PEM file `path` (a private key stands for its
 * public one). Throws GhostgradError unless it is an Ed25519 key.
 */
export function isSignedBy(path: string, bytes: Uint8Array, signature: Uint8Array): boolean {
  const key = keyIn(path, createPublicKey, 'a public Ed25519 key in PEM', 'openssl pkey -in key.pem -pubout -out public.pem');
  return verify(null, bytes, key, signature);
}

function keyIn(path: string, read: (pem: Buffer) => KeyObject, expected: string, fix: string): KeyObject {
  const pem = explained('read', path, () => readFileSync(path));
  let key: KeyObject | undefined;
  try {
    key = read(pem);
  } catch {
    // What is wrong with a key is not told: the message might show some of it.
  } finally {
    pem.fill(0);
  }
  if (key?.asymmetricKeyType === 'ed25519') return key;
  throw new GhostgradError({ what: 'not a key to sign with', where: path, found: key?.asymmetricKeyType ?? 'no key', expected, fix });
}
