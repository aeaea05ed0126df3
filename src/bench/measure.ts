import { setTimeout } from 'node:timers/promises';
import type { Memory } from './memory.ts';
import { type Child, startChild } from './process.ts';
import type { BenchJob, JobFacts } from './workload.ts';

export type Jobs = Readonly<Record<string, BenchJob>>;
type ByJob<T> = Readonly<Record<string, T>>;

/** How many fresh processes a figure of memory is the median of. */
export const freshProcesses = 5;

/** Highest resident memory during the first run of each of `fresh` processes. */
export async function measureMemory(jobs: Jobs, fresh: number = freshProcesses): Promise<ByJob<readonly Memory[]>> {
  const peaks = mapValues(jobs, (): Memory[] => []);
  for (let i = 0; i < fresh; i++) {
    for (const [name, job] of Object.entries(jobs)) {
      const child = await startChild(job);
      try {
        peaks[name]!.push(await child.run());
      } finally {
        child.stop();
      }
    }
  }
  return peaks;
}

/** Until then a process asks the system for memory in every step, which can take longer than the arithmetic. */
export const warmUpRounds = 4;

/** Idle time before a run, in ms: threads of the run before, another process's, spin for a while in the hope of work. */
export const pauseMs = 50;

export interface Timed {
  readonly facts: JobFacts;
  /** Milliseconds of each round, in the order of the rounds, which are the same for all jobs. */
  readonly ms: readonly number[];
}

/**
 * Times every job `rounds` times after {@link warmUpRounds} that warm up. Each has a process of its own, and they take turns, so
 * that a noisy machine disturbs all alike and ratios can be taken within a round.
 */
export async function measureTime(
  jobs: Jobs, rounds: number, onProgress: (message: string) => void = () => undefined,
): Promise<ByJob<Timed>> {
  const children: Record<string, Child> = {};
  try {
    for (const [name, job] of Object.entries(jobs)) children[name] = await startChild(job);
    const times = mapValues(jobs, (): number[] => []);
    for (let round = 1 - warmUpRounds; round <= rounds; round++) {
      for (const [name, child] of Object.entries(children)) {
        await setTimeout(pauseMs);
        const { ms } = await child.run();
        if (round > 0) times[name]!.push(ms);
      }
      onProgress(round > 0 ? `round ${round} of ${rounds}` : 'warming up');
    }
    return mapValues(jobs, (_, name) => ({ facts: children[name]!.facts, ms: times[name]! }));
  } finally {
    Object.values(children).forEach((child) => child.stop());
  }
}

const mapValues = <T, U>(given: Readonly<Record<string, T>>, f: (value: T, name: string) => U): Record<string, U> =>
  Object.fromEntries(Object.entries(given).map(([name, value]) => [name, f(value, name)]));
