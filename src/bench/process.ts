import { type ChildProcess, fork } from 'node:child_process';
import { existsSync } from 'node:fs';
import { env } from 'node:process';
import { fileURLToPath } from 'node:url';
import { GhostgradError } from '../errors.ts';
import { allocatorSettings } from '../runtime/allocator.ts';
import type { ChildReply, ChildRequest } from './child.ts';
import type { Memory } from './memory.ts';
import type { BenchJob, JobFacts } from './workload.ts';

/** A process of its own that measures one job. */
export interface Child {
  readonly pid: number;
  readonly facts: JobFacts;
  /** Runs the job once. Rejects with GhostgradError where it failed or the process ended. */
  run(): Promise<{ readonly ms: number } & Memory>;
  stop(): void;
}

/**
 * Starts a process and prepares the job in it.
 *
 * @param onStart is told the process's id before anything else happens
 * @throws GhostgradError when the job cannot be prepared, or its process ended
 */
export async function startChild(job: BenchJob, onStart: (pid: number) => void = () => undefined): Promise<Child> {
  const program = fileURLToPath(new URL('./child.js', import.meta.url));
  if (!existsSync(program)) {
    throw new GhostgradError({ what: 'the benchmark runs from the built package only', where: 'bench', expected: 'dist/', fix: 'npm run build' });
  }
  const process = fork(program, {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'], env: { ...env, ...allocatorSettings },
  });
  const pid = process.pid!;
  onStart(pid);
  const ask = asker(process);
  const ready = await ask({ kind: 'start', job });
  if (ready.kind !== 'ready') throw new Error('unexpected answer of a benchmark process');
  return {
    pid,
    facts: ready.facts,
    run: async () => {
      const reply = await ask({ kind: 'run' });
      if (reply.kind !== 'ran') throw new Error('unexpected answer of a benchmark process');
      return reply;
    },
    stop: () => {
      if (process.connected) process.send({ kind: 'stop' } satisfies ChildRequest);
    },
  };
}

const asker = (process: ChildProcess) => (request: ChildRequest): Promise<Exclude<ChildReply, { kind: 'failed' }>> =>
  new Promise((resolve, reject) => {
    const ended = (code: number | null, signal: string | null) => {
      process.off('message', answered);
      reject(new GhostgradError({ what: 'a process of the benchmark ended', found: signal ?? `code ${code}`, fix: 'try a smaller batch' }));
    };
    const answered = (reply: ChildReply) => {
      process.off('exit', ended);
      if (reply.kind !== 'failed') return resolve(reply);
      // A process that failed is of no further use.
      process.kill();
      reject(new GhostgradError(reply.parts));
    };
    process.once('exit', ended);
    process.once('message', answered);
    // A process that has ended says so by its exit, not by the failed message.
    process.send(request, () => undefined);
  });
