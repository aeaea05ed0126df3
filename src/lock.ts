import { randomBytes } from 'node:crypto';
import { readFileSync, readdirSync, readlinkSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { GhostgradError } from './errors.ts';
import { type Files, explained, nodeFiles, syncFolder, writeAll } from './files.ts';

/** A hold on something that two processes must not change at once. */
export interface Lock {
  release(): void;
}

/** Who holds a lock. */
interface Holder {
  /** Different for every lock that was ever taken. */
  readonly token: string;
  readonly host: string;
  readonly pid: number;
  /** When the process began, and in which boot and namespace its number holds; empty where the system does not say. */
  readonly started: string;
  readonly world: string;
}

/**
 * Takes the lock that the file `path` stands for; null when a process holds it that is, or may be, alive. The lock of a
 * process that was killed is taken over.
 *
 * A lock is made whole by linking a finished file to its name. Whoever would remove a dead holder's lock first takes a lock
 * named after that holder's token, and then looks again: so no two processes remove the same lock, and none removes the
 * lock of the one that was faster.
 *
 * @throws GhostgradError when the folder cannot be written
 */
export function tryLock(path: string, files: Files = nodeFiles): Lock | null {
  const own: Holder = { token: randomBytes(8).toString('hex'), ...self() };
  for (;;) {
    if (explained('write', path, () => linked(path, own, files)))
      return { release: () => explained('write', path, () => files.remove(path)) };
    const holder = holderOf(path);
    // Released just now.
    if (holder === undefined) continue;
    if (holder === 'unreadable' || isAlive(holder)) return null;
    const inner = tryLock(`${path}.${holder.token}`, files);
    if (inner === null) return null;
    const now = holderOf(path);
    if (now !== undefined && now !== 'unreadable' && now.token === holder.token) files.remove(path);
    inner.release();
  }
}

/**
 * Removes what processes left beside the lock `path` that were killed while they took it. Only for the holder of the lock:
 * nobody else then has any use for what is left.
 */
export function removeLeftovers(path: string, files: Files = nodeFiles): void {
  const start = `${basename(path)}.`;
  for (const name of readdirSync(dirname(path)).filter((each) => each.startsWith(start))) {
    const left = join(dirname(path), name);
    const holder = holderOf(left);
    // One that cannot be read may be in the making.
    const isDead = holder === 'unreadable' ? ageOf(left) > longestMaking : holder !== undefined && !isAlive(holder);
    if (isDead) files.remove(left);
  }
}

/** Milliseconds that nobody takes to write a lock's file. */
const longestMaking = 1000;

const ageOf = (path: string): number => Date.now() - (statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Infinity);

/** {@link tryLock}, tried again for a while; the holder is expected to be quick. Throws GhostgradError when it was not. */
export async function lock(path: string, { seconds = 20, files = nodeFiles }: { seconds?: number; files?: Files } = {}): Promise<Lock> {
  const end = performance.now() + 1000 * seconds;
  for (;;) {
    const taken = tryLock(path, files);
    if (taken !== null) return taken;
    if (performance.now() > end) throw held(path, `held for more than ${seconds} seconds`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** What to say of a lock that another process holds. */
export const held = (path: string, what: string): GhostgradError => {
  const holder = holderOf(path);
  const who = typeof holder === 'object' ? `process ${holder.pid} on ${holder.host}` : 'a process that cannot be told';
  return new GhostgradError({
    what, where: path, found: `locked by ${who}`, expected: 'no other process at work',
    fix: `wait for that process, or, when it runs no more, remove the file ${path}`,
  });
};

function linked(path: string, own: Holder, files: Files): boolean {
  const temporary = `${path}.${own.token}.tmp`;
  const file = files.open(temporary, 'wx', 0o644);
  try {
    writeAll(file, Buffer.from(JSON.stringify(own)), files);
  } finally {
    files.close(file);
  }
  try {
    files.link(temporary, path);
    syncFolder(dirname(path), files);
    return true;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EEXIST') return false;
    throw error;
  } finally {
    files.remove(temporary);
  }
}

function holderOf(path: string): Holder | 'unreadable' | undefined {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
  try {
    const { token, host, pid, started, world } = JSON.parse(text) as Holder;
    const whole = [token, host, started, world].every((part) => typeof part === 'string') && Number.isSafeInteger(pid);
    return whole && /^[0-9a-f]{16}$/.test(token) ? { token, host, pid, started, world } : 'unreadable';
  } catch {
    return 'unreadable';
  }
}

const self = (): Omit<Holder, 'token'> =>
  ({ host: hostname(), pid: process.pid, started: startOf(process.pid) ?? '', world: worldOf() });

/** False only when it is certain: a process of another machine, or of a container, cannot be seen from here. */
function isAlive({ host, pid, started, world }: Holder): boolean {
  if (host !== hostname()) return true;
  const [boot, namespace] = world.split(' ');
  const [ownBoot, ownNamespace] = worldOf().split(' ');
  if (boot !== ownBoot) return false;
  if (namespace !== ownNamespace) return true;
  try {
    process.kill(pid, 0);
  } catch (error) {
    return !(error instanceof Error && 'code' in error && error.code === 'ESRCH');
  }
  // The number may have gone to another process.
  return startOf(pid) === (started === '' ? undefined : started);
}

/** Field 22 of /proc/PID/stat, after the name in brackets, which may hold anything; a zombie (state Z) runs no more. */
function startOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? 'ended' : fields[19];
  } catch {
    return undefined;
  }
}

function worldOf(): string {
  try {
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()} ${readlinkSync('/proc/self/ns/pid')}`;
  } catch {
    return '';
  }
}
