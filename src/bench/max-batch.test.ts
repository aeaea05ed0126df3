import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Probe, nextBatch } from './max-batch.ts';

/** Searches with a machine whose step takes `peak(batch)` MiB and is stopped beyond 1.5 times the bound. */
function search(peak: (batch: number) => number, memoryMiB: number, limit = 16384): readonly Probe[] {
  const probes: Probe[] = [];
  for (let batchSize = nextBatch(probes, memoryMiB, limit); batchSize !== undefined; batchSize = nextBatch(probes, memoryMiB, limit)) {
    const peakMiB = peak(batchSize);
    probes.push(peakMiB > 1.5 * memoryMiB
      ? { batchSize, outcome: 'stopped' }
      : { batchSize, peakMiB, outcome: peakMiB <= memoryMiB ? 'fits' : 'exceeds' });
    expect(probes.length).toBeLessThan(40);
  }
  return probes;
}

const largest = (probes: readonly Probe[]): number =>
  Math.max(0, ...probes.filter(({ outcome }) => outcome === 'fits').map(({ batchSize }) => batchSize));

describe('nextBatch', () => {
  it('finds the largest batch to 2 %, whatever the memory does with the batch', () => {
    fc.assert(fc.property(
      fc.double({ min: 0.01, max: 200, noNaN: true }), fc.double({ min: 0, max: 50, noNaN: true }),
      fc.double({ min: 0.5, max: 2, noNaN: true }), fc.integer({ min: 1, max: 300 }), fc.integer({ min: 1, max: 4000 }),
      (perExample, fixed, power, stair, limit) => {
        const peak = (batch: number): number => fixed + perExample * (Math.ceil(batch / stair) * stair) ** power;
        const probes = search(peak, 1000, limit);
        const found = largest(probes);
        expect(found).toBeLessThanOrEqual(limit);
        if (found < limit) expect(peak(found + Math.max(1, Math.floor(0.02 * found)))).toBeGreaterThan(1000);
      },
    ));
  });

  it('needs few processes where memory is linear', () => {
    for (const perExample of [0.3, 4.9, 80, 600]) {
      const probes = search((batch) => 20 + perExample * batch, 4096);
      const exact = Math.floor((4096 - 20) / perExample);
      expect(largest(probes)).toBeGreaterThanOrEqual(Math.min(exact, 16384) / 1.021 - 1);
      expect(probes.length).toBeLessThanOrEqual(8);
    }
  });

  it('stops at the limit, and at nothing where one example is too much', () => {
    expect(largest(search(() => 1, 100, 77))).toBe(77);
    const none = search(() => 101, 100);
    expect(largest(none)).toBe(0);
    expect(none.at(-1)?.batchSize).toBe(1);
  });
});
