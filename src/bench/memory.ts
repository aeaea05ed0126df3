import { readFileSync, writeFileSync } from 'node:fs';

/** The highest resident memory of a process while it ran a job, in MiB. */
export interface Memory {
  /** Less what it had before. */
  readonly peakMiB: number;
  /** In all: runtime, model and inputs included, and what starting left free, which a step uses again. */
  readonly residentMiB: number;
}

/** Resident memory of this process in MiB, now and at its highest since {@link resetPeak}. */
export interface ResidentMemory {
  readonly current: number;
  readonly peak: number;
}

/** Reads the kernel's account on Linux; elsewhere the process's own (its peak then counts from the start). */
export function residentMemory(): ResidentMemory {
  try {
    const status = readFileSync('/proc/self/status', 'utf8');
    const field = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) / 1024;
    return { current: field('VmRSS'), peak: field('VmHWM') };
  } catch {
    return { current: process.memoryUsage.rss() / 2 ** 20, peak: process.resourceUsage().maxRSS / 1024 };
  }
}

/** Lets the peak count from now on, where the kernel can. */
export function resetPeak(): void {
  try {
    writeFileSync('/proc/self/clear_refs', '5');
  } catch {
    // Without it the peak counts from the start of the process, which only makes the figure larger.
  }
}

/** Resident memory of a process in MiB; undefined where the kernel does not tell, or the process has ended. */
export function residentMemoryOf(pid: number): number | undefined {
  try {
    const kilobytes = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
    return kilobytes === undefined ? undefined : Number(kilobytes) / 1024;
  } catch {
    return undefined;
  }
}
