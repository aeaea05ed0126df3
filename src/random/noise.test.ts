import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { continuousDeviation } from './discrete-gaussian.ts';
import { addNoise, chunksOf, noiseChunk, type NoiseTarget } from './noise.ts';
import { noiseThreads } from './noise-threads.ts';
import { type StepKeys, ratchet } from './ratchet.ts';
import { stream } from './stream.ts';

const lengths = [3 * noiseChunk + 17, 5, noiseChunk, 0];
const shared = (length: number, fill: (i: number) => number): Float32Array => {
  const values = new Float32Array(new SharedArrayBuffer(4 * length));
  for (let i = 0; i < length; i++) values[i] = fill(i);
  return values;
};
type Law = 'float' | 'discrete';
const targetsOf = (kind: Law, fill = (i: number) => i % 7): NoiseTarget[] =>
  lengths.map((length, k): NoiseTarget => ({
    label: `noise:${k}`, values: shared(length, fill), ...(k === 0 && { remainder: shared(length, (i) => 2 ** -20 * (i % 5)) }),
    law: kind === 'float' ? { deviation: k + 0.5 } : { grid: (k + 0.5) / continuousDeviation(k + 1), levels: k + 1 },
  }));
const keys = (): StepKeys => ratchet(3).advance();

function onOneThread(kind: Law, fill?: (i: number) => number): NoiseTarget[] {
  const targets = targetsOf(kind, fill);
  keys().noise.use((streamOf) => addNoise(targets, 0.25, streamOf));
  return targets;
}

describe.each(['float', 'discrete'] as const)('addNoise, %s', (kind) => {
  it('gives every chunk a stream of its own, the first that of the label alone', () => {
    const [long] = onOneThread(kind, () => 0);
    const firsts = chunksOf(targetsOf(kind)).filter(({ target }) => target === 0).map(({ start }) => long!.values[start]);
    expect(new Set(firsts).size).toBe(4);
    const alone = targetsOf(kind, () => 0).slice(1, 2);
    keys().noise.use((streamOf) => addNoise(alone, 0.25, () => streamOf('noise:1')));
    expect(onOneThread(kind, () => 0)[1]!.values).toEqual(alone[0]!.values);
  });

  it('has the variance asked for in every chunk, and none is like another', () => {
    const values = Float32Array.from(onOneThread(kind, () => 0)[0]!.values);
    const chunk = (at: number) => values.subarray(at * noiseChunk, (at + 1) * noiseChunk);
    for (const at of [0, 1, 2]) {
      const variance = chunk(at).reduce((sum, x) => sum + x * x, 0) / noiseChunk / (0.5 * 0.25) ** 2;
      expect(Math.abs(variance - 1)).toBeLessThan(5 * Math.sqrt(2 / noiseChunk));
      const product = chunk(at).reduce((sum, x, i) => sum + x * chunk((at + 1) % 3)[i]!, 0) / (0.5 * 0.25) ** 2;
      expect(Math.abs(product / Math.sqrt(noiseChunk))).toBeLessThan(5);
    }
  });
});

describe('noiseThreads', () => {
  const opened = [1, 2, 3].map((count) => noiseThreads(count));
  afterAll(() => Promise.all(opened.map((threads) => threads.close())));

  it.each(['float', 'discrete'] as const)('come to the values of one thread, whatever their number: %s', async (kind) => {
    const expected = onOneThread(kind);
    for (const threads of opened) {
      threads.start();
      for (let again = 0; again < 2; again++) {
        const targets = targetsOf(kind);
        await keys().noise.use((_, keyOf) => threads.addNoise(targets, 0.25, keyOf));
        targets.forEach(({ values }, k) => expect(values.every((x, i) => x === expected[k]!.values[i])).toBe(true));
      }
    }
  });

  it('leave no key behind, neither of the step nor of a chunk', async () => {
    const step = keys();
    const given: Uint8Array[] = [];
    await step.noise.use((_, keyOf) => noiseThreads(2).addNoise(targetsOf('discrete'), 1, (label, index) => {
      const key = keyOf(label, index);
      given.push(key);
      return key;
    }));
    expect(given).toHaveLength(chunksOf(targetsOf('discrete')).length);
    expect(given.every((key) => key.every((byte) => byte === 0))).toBe(true);
    expect(() => step.noise.use(() => undefined)).toThrow('used twice');
  });

  it('refuse arrays that they would only have copies of', async () => {
    const law = { deviation: 1 };
    const own = [{ label: 'a', values: new Float32Array(3), law }];
    const double = [{ label: 'a', values: new Float64Array(new SharedArrayBuffer(8)), law }];
    const half = [{ label: 'a', values: shared(3, () => 1), remainder: new Float32Array(3), law }];
    const key = () => new Uint8Array(32);
    for (const targets of [own, double, half])
      await expect(noiseThreads(1).addNoise(targets, 1, key)).rejects.toThrow('shared memory');
  });

  it.each(['float', 'discrete'] as const)('refuse values that are not finite: %s', async (kind) => {
    const targets = targetsOf(kind, (i) => (i === 2 * noiseChunk + 3 ? NaN : 0));
    await expect(noiseThreads(2).addNoise(targets, 1, (label, index) => stream(new Uint8Array(32), label, index) && new Uint8Array(32)))
      .rejects.toThrow('not finite');
  });

  const folder = mkdtempSync(join(tmpdir(), 'noise-'));
  const failing = (name: string, code: string): URL => {
    writeFileSync(join(folder, `${name}.mjs`), `import { parentPort } from 'node:worker_threads';\nparentPort.on('message', (request) => { ${code} });\n`);
    return pathToFileURL(join(folder, `${name}.mjs`));
  };
  it.each([
    ['throws', 'throw new Error("injected")', /injected/],
    ['ends', 'process.exit(7)', /ended with code 7/],
    ['does nothing and says it was done', 'parentPort.postMessage(0)', /0 of 6 parts/],
  ])('fail as a whole when a thread %s, and stay so', async (name, code, message) => {
    const threads = noiseThreads(2, failing(name, code));
    const run = () => keys().noise.use((_, keyOf) => threads.addNoise(targetsOf('float'), 1, keyOf));
    await expect(run()).rejects.toThrow(message);
    await expect(run()).rejects.toThrow('the noise could not be added');
  });
});
