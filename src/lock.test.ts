import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../test/support/temp.ts';
import { held, lock, removeLeftovers, tryLock } from './lock.ts';

describe('a lock', () => {
  it('is held by one at a time, and leaves nothing', async () => {
    const { folder } = temporaryFolder();
    const path = join(folder, 'lock');
    const first = tryLock(path);
    expect(first).not.toBeNull();
    expect(tryLock(path)).toBeNull();
    expect(held(path, 'busy').message).toContain(`locked by process ${process.pid}`);
    await expect(lock(path, { seconds: 0.05 })).rejects.toThrow('held for more than');
    setTimeout(() => first?.release(), 50);
    (await lock(path)).release();
    expect(readdirSync(folder)).toEqual([]);
  });

  it.skipIf(process.platform !== 'linux')('is taken over from a process that is dead, and from a number that went to another', () => {
    const { folder } = temporaryFolder();
    const path = join(folder, 'lock');
    const own = tryLock(path);
    const holder = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
    own?.release();
    const { pid } = spawnSync(process.execPath, ['-e', '']);
    for (const changed of [{ pid }, { started: '1' }, { world: `another-boot ${String(holder['world']).split(' ')[1]}` }]) {
      writeFileSync(path, JSON.stringify({ ...holder, token: 'a'.repeat(16), ...changed }));
      // One that died while it took over a lock must not be in the way either.
      writeFileSync(`${path}.${'a'.repeat(16)}`, JSON.stringify({ ...holder, token: 'b'.repeat(16), pid }));
      const taken = tryLock(path);
      expect(taken, JSON.stringify(changed)).not.toBeNull();
      taken?.release();
      expect(readdirSync(folder)).toEqual([]);
    }
  });

  it.skipIf(process.platform !== 'linux')('can be cleared of what the dead left beside it, and of nothing else', () => {
    const { folder, write } = temporaryFolder();
    const path = join(folder, 'lock');
    const own = tryLock(path)!;
    const holder = readFileSync(path, 'utf8');
    const { pid } = spawnSync(process.execPath, ['-e', '']);
    const dead = JSON.stringify({ ...(JSON.parse(holder) as object), pid });
    for (const name of ['lock.0123456789abcdef.tmp', 'lock.0123456789abcdef', 'lock.fedcba9876543210.0123456789abcdef.tmp']) write(name, dead);
    write('lock.1111111111111111.tmp', holder);
    write('lock.2222222222222222.tmp', '{"tok');
    utimesSync(write('lock.3333333333333333.tmp', '{"tok'), 1, 1);
    write('other', '');
    removeLeftovers(path);
    expect(readdirSync(folder).sort()).toEqual(['lock', 'lock.1111111111111111.tmp', 'lock.2222222222222222.tmp', 'other']);
    own.release();
  });

  it('is left to what cannot be seen from here, or read', () => {
    const { folder } = temporaryFolder();
    const path = join(folder, 'lock');
    const holder = { token: 'a'.repeat(16), host: 'elsewhere', pid: 1, started: '', world: '' };
    for (const content of [JSON.stringify(holder), '{', '']) {
      writeFileSync(path, content);
      expect(tryLock(path)).toBeNull();
      expect(existsSync(path)).toBe(true);
    }
  });
});
