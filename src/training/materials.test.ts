import { describe, expect, it } from 'vitest';
import { datasetFromTensors } from '../data/index.ts';
import { buildModel } from '../models/index.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import { type TrainingInput, loadMaterials } from './materials.ts';
import { resolveRecipe } from './recipe.ts';

const model = buildModel({ name: 'mlp', input: [4], hidden: [5, 5], classes: 2 }, { seed: 1 });
const train = datasetFromTensors(float32(new Float32Array(24), [6, 4]), int64([0, 1, 0, 1, 0, 1]), { name: 'rows' });
const [weights, biases] = [[0, 1, 2].map((i) => [...model.initializers.keys()][2 * i]!), [0, 1, 2].map((i) => [...model.initializers.keys()][2 * i + 1]!)];

async function trained(changes: Pick<TrainingInput, 'trainable'> & Partial<TrainingInput>): Promise<readonly string[]> {
  const recipe = resolveRecipe({ model: 'mlp', data: { train: 'rows' }, privacy: 'none', training: { batchSize: 2, steps: 1 }, ...changes });
  const { trainable } = await loadMaterials({ ...recipe, model, data: { train } } as TrainingInput, recipe, 1);
  return [...trainable].sort();
}
const adaptersOf = (names: readonly string[]): string[] => names.flatMap((name) => [`${name}.lora_A`, `${name}.lora_B`]);

describe('what a recipe trains', () => {
  it('may be adapters beside words and names; what is trained itself, or frozen, has none', async () => {
    expect(await trained({ trainable: [{ lora: {} }, 'head'] })).toEqual([...adaptersOf(weights.slice(0, 2)), weights[2]!, biases[2]!].sort());
    expect(await trained({ trainable: [{ lora: { rank: 2 } }, 'bias'], freeze: [weights[0]!, biases[1]!] }))
      .toEqual([...adaptersOf(weights.slice(1)), biases[0]!, biases[2]!].sort());
    expect(await trained({ trainable: { lora: {} } })).toEqual(adaptersOf(weights).sort());
    expect(await trained({ trainable: 'all', freeze: ['bias'] })).toEqual([...weights].sort());
  });

  it('is refused where it is nothing, or asks for adapters twice', async () => {
    await expect(trained({ trainable: [{ lora: {} }, { lora: { rank: 2 } }] })).rejects.toThrow('adapters are asked for twice');
    await expect(trained({ trainable: 'bias', freeze: ['bias'] })).rejects.toThrow('everything is frozen');
    await expect(trained({ trainable: 'head', freeze: ['nothing*'] })).rejects.toThrow('matches no parameter');
  });
});
