import { freemem } from 'node:os';

/** Bytes that this process may still take: what the system, or the container around the process, has to give. */
export const availableMemory = (): number => process.availableMemory?.() ?? freemem();

/** How often the memory is looked at, ms. */
const interval = 4;

/**
 * What `work` comes to, and the most memory in MiB that the process held while it was busy, beyond `before` bytes. The
 * engine computes in threads of its own, which leaves this one free to look; what is shorter than a few milliseconds and
 * below the process's own high-water mark is missed.
 */
export async function withPeakMemory<T>(
  before: number, work: () => Promise<T>,
): Promise<{ readonly result: T; readonly peakMiB: number }> {
  let peak = process.memoryUsage.rss();
  const look = (): void => {
    peak = Math.max(peak, process.memoryUsage.rss());
  };
  const mark = process.resourceUsage().maxRSS;
  const timer = setInterval(look, interval);
  try {
    const result = await work();
    look();
    const { maxRSS } = process.resourceUsage();
    return { result, peakMiB: Math.max(0, Math.max(peak, maxRSS > mark ? maxRSS * 1024 : 0) - before) / 2 ** 20 };
  } finally {
    clearInterval(timer);
  }
}
