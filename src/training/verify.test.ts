import { generateKeyPairSync } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { blobModel, blobs } from '../../test/support/blobs.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { train } from './train.ts';
import { verify } from './verify.ts';

describe('a signed certificate', () => {
  it('is known by its key, and by no other; nor is a changed one', async () => {
    const { folder, write } = temporaryFolder();
    const [own, other] = ['a', 'b'].map((name) => {
      const { publicKey, privateKey } = generateKeyPairSync('ed25519');
      return {
        signWith: write(`${name}.pem`, privateKey.export({ type: 'pkcs8', format: 'pem' })),
        signedBy: write(`${name}.pub`, publicKey.export({ type: 'spki', format: 'pem' })),
      };
    }) as [{ signWith: string; signedBy: string }, { signWith: string; signedBy: string }];
    const output = join(folder, 'run');
    await train({
      model: blobModel, data: { train: blobs() }, privacy: { epsilon: 8, delta: 1e-4 }, clipping: { norm: 1 },
      training: { batchSize: 50, steps: 2, optimizer: { name: 'sgd', learningRate: 0.5 } }, output,
    }, { signWith: own.signWith });
    const path = join(output, 'privacy.json');
    expect(await verify(path, { signedBy: own.signedBy })).toMatchObject({ holds: true, problems: [] });
    expect((await verify(path, { signedBy: other.signedBy })).problems).toMatchObject([{ what: 'the signature is not that of this certificate by this key' }]);
    writeFileSync(path, `${readFileSync(path, 'utf8')}\n`);
    expect((await verify(path, { signedBy: own.signedBy })).holds).toBe(false);
    expect((await verify(path)).holds).toBe(true);
  });
});
