import { describe, expect, it } from 'vitest';
import { blobModel } from '../../test/support/blobs.ts';
import { datasetFromTensors } from '../data/index.ts';
import { type ModelSpec, buildModel } from '../models/index.ts';
import type { Engine } from '../runtime/engine.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { float32, int64, toNumbers } from '../tensor/tensor.ts';
import { analyse } from './compile.ts';
import { type Trial, fastestStep, guessedSize, search } from './micro-batch.ts';
import type { TrainingInput } from './materials.ts';
import { prepare } from './train.ts';

/** A machine whose rate and memory at each size are known. */
function machine(rate: (size: number) => number, mib: (size: number) => number = () => 10, seconds = 0.01) {
  const open = new Set<number>();
  const tried: number[] = [];
  return {
    open, tried,
    measure: async (microBatch: number): Promise<Trial> => {
      tried.push(microBatch);
      open.add(microBatch);
      return { microBatch, unitsPerSecond: rate(microBatch), peakMiB: mib(microBatch), seconds };
    },
    drop: async (microBatch: number): Promise<void> => void open.delete(microBatch),
  };
}
const found = async (m: ReturnType<typeof machine>, more: Partial<Parameters<typeof search>[0]> = {}) =>
  search({ start: 16, top: 1024, limit: 1000, units: 1e9, ...m, ...more });

describe('the search for a physical batch', () => {
  it('doubles while that pays, and keeps the smallest that is as fast', async () => {
    const m = machine((size) => 1000 * Math.min(1, size / 128) * (1 + size / 1e5));
    expect((await found(m)).best.microBatch).toBe(128);
    expect(m.tried).toEqual([16, 32, 64, 128, 256]);
    expect([...m.open]).toEqual([128]);
  });

  it('halves where larger ones are slower', async () => {
    const m = machine((size) => 1000 / (1 + Math.abs(Math.log2(size / 4))));
    expect((await found(m)).best.microBatch).toBe(4);
    expect([...m.open]).toEqual([4]);
  });

  it('ends at one that holds a typical batch', async () => {
    const m = machine((size) => size);
    expect(await found(m, { top: 64 })).toMatchObject({ best: { microBatch: 64 }, why: 'it holds a typical batch' });
    expect(m.tried).toEqual([16, 32, 64]);
  });

  it('tries no size that the memory of smaller ones says is too large', async () => {
    const m = machine((size) => size, (size) => 100 + size);
    const { best, why } = await found(m, { limit: 250 });
    expect(best.microBatch).toBe(128);
    expect(m.tried).toEqual([16, 32, 64, 128]);
    expect(why).toMatch('256 might not fit into 250 MiB');
  });

  it('goes down until it fits, whatever the time', async () => {
    const m = machine((size) => size, (size) => 100 * size, 1e6);
    expect((await found(m, { limit: 250 })).best.microBatch).toBe(2);
    expect([...m.open]).toEqual([2]);
  });

  it('spends no more than its share of the run', async () => {
    const m = machine((size) => 1000 * size, undefined, 1);
    // At 16,000 units a second the run takes 1.25 s.
    const { best, why } = await found(m, { units: 20_000 });
    expect(best.microBatch).toBe(16);
    expect(m.tried).toEqual([16]);
    expect(why).toMatch('5 % of the run');
  });
});

describe('the first guess at a size', () => {
  const settings = { mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, engine: onnxruntimeEngine() } as const;
  const guessed = (model: ModelSpec, typical: number): number =>
    guessedSize(analyse({ model: buildModel(model, { seed: 1 }), loss: 'cross-entropy' }), settings, typical);

  it('is large where sums are large beside the work of an example, and leaves parts for the lanes', () => {
    const head: ModelSpec = { name: 'mlp', input: [768], hidden: [], classes: 1000 };
    expect(guessed(head, 1_281_167)).toBe(2048);
    expect(guessed(head, 5000)).toBe(512);
    expect(guessed(head, 100)).toBe(64);
  });

  it('is the default where an example is much work', () => expect(guessed({ name: 'vgg11' }, 50_000)).toBe(64));
});

/** An engine that notes what it was fed. */
function recording(seen: number[][]): Engine {
  const engine = onnxruntimeEngine();
  return {
    name: engine.name,
    compile: async (graph, options) => {
      const session = await engine.compile(graph, options);
      return {
        release: session.release,
        run: (feeds) => {
          seen.push(Object.values(feeds).flatMap(toNumbers));
          return session.run(feeds);
        },
      };
    },
  };
}

describe('fastestStep', () => {
  it('measures the step, keeps one program and says what it saw', async () => {
    const analysis = analyse({ model: buildModel(blobModel, { seed: 1 }), loss: 'cross-entropy' });
    const { program, reason } = await fastestStep(
      analysis, { mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, engine: onnxruntimeEngine(), threads: 1 },
      { typical: 100, steps: 1e6, memoryMiB: 'auto' },
    );
    expect(Math.log2(program.microBatch) % 1).toBe(0);
    expect(program.microBatch).toBeLessThanOrEqual(128);
    expect(reason).toMatch(new RegExp(`\\b${program.microBatch}: \\d+/s in \\d+ MiB`));
    await program.release();
  });

  it('sees no number of the data', async () => {
    const marker = 12.25;
    const marked = datasetFromTensors(float32(new Float32Array(200 * 4).fill(marker), [200, 4]), int64(Array.from({ length: 200 }, (_, i) => i % 2)));
    const seen: number[][] = [];
    const recipe: TrainingInput = {
      model: blobModel, data: { train: marked }, privacy: { noiseMultiplier: 1, delta: 1e-4 },
      training: { batchSize: 50, steps: 2, optimizer: { name: 'sgd', learningRate: 0.1 } }, performance: { threads: 1 },
    };
    const run = await prepare(recipe, { engine: recording(seen) });
    expect(seen.length).toBeGreaterThan(1);
    expect(seen.flat()).not.toContain(marker);
    seen.length = 0;
    for await (const _ of run.steps());
    expect(seen.flat()).toContain(marker);
    await run.release();
  });
});
