import { describe, expect, it } from 'vitest';
import { testRandom } from '../../test/support/random-network.ts';
import { datasetFromTensors } from '../data/index.ts';
import { onnxruntimeEngine } from '../runtime/node.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import type { TrainingInput } from '../training/materials.ts';
import { auditLosses } from './loss-audit.ts';

/** Random points with random labels: what a model knows of them it has by heart. */
function noisePoints(rows: number, width: number) {
  const random = testRandom(4);
  return datasetFromTensors(
    float32(Array.from({ length: rows * width }, () => 2 * random() - 1), [rows, width]),
    int64(Array.from({ length: rows }, () => (random() < 0.5 ? 0 : 1))), { name: 'noise' },
  );
}

const recipe = (privacy: TrainingInput['privacy']): TrainingInput => ({
  model: { name: 'mlp', input: 40, hidden: [32], classes: 2 },
  data: { train: noisePoints(500, 40) },
  privacy,
  clipping: { norm: 1 },
  training: { batchSize: 500, steps: 100, optimizer: { name: 'adam', learningRate: 0.01 }, seed: 1 },
  performance: { threads: 1, microBatch: 64 },
});
const engine = onnxruntimeEngine({ thread: 'caller' });

describe('an audit by the losses of one run', () => {
  it('finds what a run with hardly any noise has by heart, and nothing in a run with much', async () => {
    const leaky = await auditLosses({ recipe: recipe({ noiseMultiplier: 0.05, delta: 1e-5, sampling: 'full-batch', noise: 'float' }), engine });
    expect(leaky).toMatchObject({ canaries: 100, confidence: 0.999, alarms: [] });
    expect(leaky.epsilonLowerBound).toBeGreaterThan(0.5);
    const sound = await auditLosses({ recipe: recipe({ epsilon: 1, delta: 1e-5, sampling: 'full-batch' }), engine });
    expect(sound.alarms).toEqual([]);
    expect(sound.epsilonLowerBound).toBeLessThan(0.5);
  });

  it('refuses recipes whose neighbours it cannot make', async () => {
    const replaced = recipe({ epsilon: 1, delta: 1e-5, sampling: 'full-batch', neighbors: 'replace-one' });
    await expect(auditLosses({ recipe: replaced, engine })).rejects.toThrow('cannot be audited by losses');
    await expect(auditLosses({ recipe: recipe('none'), engine })).rejects.toThrow('cannot be audited by losses');
  });
});
