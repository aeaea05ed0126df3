import { describe, expect, it } from 'vitest';
import { buildModel } from '../models/index.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { analyse, compileTask } from '../training/compile.ts';
import { contractionsOf } from './contractions.ts';
import { layerKinds, layerModel, predictLayer } from './layer.ts';
import { fitsOf } from './sweep.ts';
import { fitExponent } from './statistics.ts';
import { type BenchJob, benchAnalysis, prepare, stepOptions } from './workload.ts';

const model = { model: 'cnn-tanh', threads: 1, batchSize: 4 } as const;
const jobs: readonly BenchJob[] = [
  { kind: 'gemm', size: 16, threads: 1 },
  { kind: 'step', mode: 'book-keeping', ...model },
  { kind: 'contractions', ...model },
  { kind: 'logical', mode: 'book-keeping', logical: 11, ...model },
  { kind: 'layer', layer: 'linear', positions: 9, width: 8, batchSize: 3, mode: 'ghost', threads: 1 },
  { kind: 'layer', layer: 'convolution', positions: 16, width: 4, batchSize: 3, mode: 'instantiate', threads: 1 },
];

describe('prepare', () => {
  it.each(jobs)('makes a job that runs again and again: $kind', async (job) => {
    const { facts, run } = await prepare(job);
    expect(facts.flops).toBeGreaterThan(0);
    await run();
    await run();
  });

  it('counts the arithmetic of a model once, whatever the mode', async () => {
    const flops = async (mode: 'non-private' | 'instantiate') => (await prepare({ kind: 'step', mode, ...model })).facts;
    const [plain, instantiated] = [await flops('non-private'), await flops('instantiate')];
    expect(plain.extraFlopShare).toBe(0);
    expect(instantiated.extraFlopShare).toBeGreaterThan(0);
    expect(instantiated.flops).toBe(plain.flops);
  });

  it('trains adapters alone where they are asked for', () => {
    const all = benchAnalysis({ model: 'cnn-tanh' }).parameters;
    const adapters = benchAnalysis({ model: 'cnn-tanh', lora: 3 }).parameters;
    const weights = all.filter((name) => !name.endsWith('bias'));
    expect([...adapters].sort()).toEqual(weights.flatMap((name) => [`${name}.lora_A`, `${name}.lora_B`]).sort());
  });

  it('refuses a sequence for a model that reads none', async () => {
    await expect(prepare({ kind: 'step', mode: 'ghost', sequence: 5, ...model })).rejects.toThrow('reads no sequence');
  });
});

describe('contractionsOf', () => {
  const analysis = analyse({ model: buildModel('cnn-tanh', { seed: 1 }), loss: 'cross-entropy' });
  const step = (rows: number) => compileTask(analysis, rows, stepOptions('non-private', analysis));

  it('holds every layer once, and counts its multiplications', async () => {
    const { graph, flops } = contractionsOf(step(2));
    expect(graph.nodes.filter(({ op }) => op === 'Conv')).toHaveLength(2);
    expect(graph.nodes.filter(({ op }) => op === 'Gemm' || op === 'MatMul')).toHaveLength(2);
    // 16 kernels of 8×8 at 13×13 places, 32 of 16×4×4 at 5×5, then 512·32 and 32·10.
    expect(flops).toBe(2 * 2 * (16 * 64 * 169 + 32 * 256 * 25 + 512 * 32 + 320));
    expect(contractionsOf(step(6)).flops).toBe(3 * flops);
    const session = await onnxruntimeEngine().compile(graph, { threads: 1 });
    await session.release();
  });
});

describe('one layer alone', () => {
  const predictionOf = (layer: (typeof layerKinds)[number], positions: number, width: number, mode: 'ghost' | 'instantiate' | 'non-private') => {
    const analysis = analyse({ model: layerModel({ layer, positions, width }), loss: 'output:loss' });
    const step = compileTask(analysis, 2, stepOptions(mode, analysis));
    return { step, prediction: predictLayer(step.layers[0]!, 2, mode) };
  };

  it.each(layerKinds)('has the sizes that were asked for: %s', (layer) => {
    const { step, prediction } = predictionOf(layer, 36, 8, 'ghost');
    expect(step.layers).toHaveLength(1);
    expect(step.layers[0]!.contraction).toMatchObject({ T: 36, d: layer === 'linear' ? 8 : 72, p: 8 });
    expect(prediction.norm).toBe('ghost');
  });

  it('is predicted to cost what the complexity model says: T² by ghost norms, T by instantiated gradients', () => {
    const exponent = (mode: 'ghost' | 'instantiate') => fitExponent([4096, 16384].map((positions) => {
      // The plan is that of a small layer: at such sizes the mode itself would choose otherwise.
      const { step } = predictionOf('linear', 16, 16, mode);
      const [layer] = step.layers;
      const { d, p } = layer!.contraction;
      const costs = { ghost: 2 * positions ** 2 * (d + p), instantiate: 2 * positions * d * p, product: 2 * positions * d * p, weighted: d * p };
      return [positions, predictLayer({ contraction: { ...layer!.contraction, T: positions }, plan: { ...layer!.plan, costs } }, 2, mode).flops] as const;
    }));
    expect(exponent('ghost')).toBeCloseTo(2, 1);
    expect(exponent('instantiate')).toBeCloseTo(1, 2);
    const space = (mode: 'ghost' | 'instantiate' | 'non-private') => predictionOf('linear', 64, 8, mode).prediction.MiB * 2 ** 18;
    expect(space('ghost') - space('non-private')).toBe(2 * 2 * 64 ** 2);
    expect(space('instantiate') - space('non-private')).toBe(2 * 8 * 8);
  });

  it('refuses a convolution whose positions are no square', () => {
    expect(() => layerModel({ layer: 'convolution', positions: 12, width: 4 })).toThrow(/square[^]*16/);
  });
});

describe('fitsOf', () => {
  it('fits each mode norm by norm', () => {
    const point = (value: number, norm: string, power: number) => ({
      mode: 'book-keeping' as const, norm, value, medianMs: 3 * value ** power, minMs: 1, peakMiB: 7, predictedFlops: value ** 2,
    });
    const fits = fitsOf([point(16, 'ghost', 2), point(32, 'ghost', 2), point(64, 'instantiate', 1), point(128, 'instantiate', 1)]);
    expect(fits.map(({ norm, points, time, memory }) => [norm, points, time.exponent, time.predicted, memory.exponent, memory.spread])).toEqual([
      ['ghost', 2, expect.closeTo(2), expect.closeTo(2), expect.closeTo(0), 1],
      ['instantiate', 2, expect.closeTo(1), expect.closeTo(2), expect.closeTo(0), 1],
    ]);
  });
});
