import { generateKeyPairSync } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/support/temp.ts';
import { calibrate } from './calibrate.ts';
import { epsilonOf } from './accountant.ts';
import { type Reservation, filterOrders, readBudget, requireRoom, reserve, spentFrom } from './budget.ts';
import { composed, gaussian, poissonSampled, selfComposed } from './events.ts';
import { isSignedBy, signer } from './signature.ts';

const [sampleRate, steps, delta] = [0.01, 1000, 1e-5];
const runOf = (id: string, epsilon: number, neighbors = 'add-remove'): Reservation => {
  const { noiseMultiplier } = calibrate({ epsilon, delta, sampleRate, steps });
  return { id, name: id, neighbors, event: selfComposed(poissonSampled(sampleRate, gaussian(noiseMultiplier)), steps) };
};
const budgetFile = (epsilon: number): string => temporaryFolder().write('budget.json', JSON.stringify({ epsilon, delta }));

describe('a budget', () => {
  it('admits runs until one would overrun, and says by how much', async () => {
    const path = budgetFile(4);
    await reserve(path, runOf('a', 1));
    await reserve(path, runOf('b', 1));
    expect(readBudget(path).runs.map(({ id }) => id)).toEqual(['a', 'b']);
    const before = readFileSync(path, 'utf8');
    await expect(reserve(path, runOf('c', 3))).rejects.toThrow(/would overrun the budget[^]*found: +ε = [\d.]+ at δ = 0\.00001 with this run, ε = [\d.]+ without it \(2 runs\)/);
    expect(() => requireRoom(path, runOf('c', 3))).toThrow('would overrun');
    expect(readFileSync(path, 'utf8')).toBe(before);
    expect(existsSync(`${path}.lock`)).toBe(false);
    // A run that is resumed reserved all that it may need before.
    await reserve(path, runOf('a', 1));
    expect(readFileSync(path, 'utf8')).toBe(before);
  });

  it('takes one declared plan nearly at its own ε, and never less than runs cost together', async () => {
    const [a, b] = [runOf('a', 2), runOf('b', 1)];
    const alone = spentFrom({ epsilon: 9, delta, runs: [a] });
    expect(alone).toBeGreaterThanOrEqual(epsilonOf(a.event, delta).epsilon);
    expect(alone).toBeLessThan(1.15 * epsilonOf(a.event, delta).epsilon);
    const both = spentFrom({ epsilon: 9, delta, runs: [a, b] });
    const together = epsilonOf(composed([a.event, b.event]), delta).epsilon;
    expect(both).toBeGreaterThan(together);
    expect(both).toBeLessThan(2 * together);
    // A filter's orders are fixed, and each pays its share of δ.
    expect(filterOrders.every((order) => order > 1)).toBe(true);
  });

  it('is asked by several processes at once, and admits no more than fit', async () => {
    const path = budgetFile(3);
    const outcomes = await Promise.allSettled(['a', 'b', 'c', 'd', 'e', 'f'].map((id) => reserve(path, runOf(id, 1))));
    const admitted = outcomes.filter(({ status }) => status === 'fulfilled').length;
    const { runs } = readBudget(path);
    expect(runs).toHaveLength(admitted);
    expect(admitted).toBeGreaterThan(0);
    expect(admitted).toBeLessThan(6);
    expect(spentFrom(readBudget(path))).toBeLessThanOrEqual(3);
  });

  it('refuses runs of other neighbours, a missing file and what is no budget', async () => {
    const path = budgetFile(4);
    await reserve(path, runOf('a', 1));
    await expect(reserve(path, runOf('b', 1, 'replace-one'))).rejects.toThrow('differ in what neighbouring data sets are');
    const { folder, write } = temporaryFolder();
    await expect(reserve(join(folder, 'none.json'), runOf('a', 1))).rejects.toThrow(/there is no budget file[^]*write one/);
    expect(() => readBudget(write('a.json', 'ε'))).toThrow('not a budget file');
    expect(() => readBudget(write('b.json', '{"epsilon": 8}'))).toThrow(/missing option \(budget .*delta\)/);
    expect(() => readBudget(write('c.json', '{"epsilon": 8, "delta": 1e-5, "run": []}'))).toThrow(/unknown option "run"/);
  });
});

describe('a signature', () => {
  it('is verified by the public key, and by no other bytes', () => {
    const { write } = temporaryFolder();
    const { privateKey, publicKey } = generateKeyPairSync('ed25519');
    const own = write('key.pem', privateKey.export({ type: 'pkcs8', format: 'pem' }));
    const theirs = write('public.pem', publicKey.export({ type: 'spki', format: 'pem' }));
    const bytes = Buffer.from('{"epsilon": 3}\n');
    const signature = signer(own)(bytes);
    expect(signature).toHaveLength(64);
    expect(isSignedBy(theirs, bytes, signature)).toBe(true);
    expect(isSignedBy(theirs, Buffer.from('{"epsilon": 2}\n'), signature)).toBe(false);
    const other = generateKeyPairSync('ed25519').publicKey;
    expect(isSignedBy(write('other.pem', other.export({ type: 'spki', format: 'pem' })), bytes, signature)).toBe(false);
    const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey;
    expect(() => signer(write('rsa.pem', rsa.export({ type: 'pkcs8', format: 'pem' })))).toThrow(/not a key to sign with[^]*found: +rsa/);
    expect(() => signer(write('junk.pem', 'junk'))).toThrow(/found: +no key/);
  });
});
