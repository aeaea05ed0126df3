import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { datasetFromTensors } from '../src/index.ts';
import { type ModelName, type ModelSpec, buildModel } from '../src/models/index.ts';
import { relativePositions } from '../src/models/beit.ts';
import { noDraws } from '../src/random/initial.ts';
import { type Tensor, int64, sizeOf, toNumbers } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { explain } from '../src/training/explain.ts';
import type { LossName } from '../src/training/loss.ts';
import { bindShapes } from '../src/training/shapes.ts';
import { prepare } from '../src/training/train.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(31);
const ids = (shape: readonly number[], below: number): Tensor<'int64'> =>
  int64(Array.from({ length: sizeOf(shape) }, () => Math.floor(random() * below)), shape);

/** Every family at the smallest size that has all its parts. */
const tiny = {
  'resnet18-gn': { name: 'resnet18-gn', size: 8, filters: 4, groups: 2, blocks: [1, 1] },
  'resnet50-gn': { name: 'resnet50-gn', size: 8, filters: 4, groups: 2, blocks: [1, 1] },
  'wrn-16-4-gn': { name: 'wrn-16-4-gn', size: 8, depth: 10, widening: 1, groups: 4 },
  'vit-tiny': { name: 'vit-tiny', size: 8, width: 8, depth: 2, heads: 2, ratio: 2 },
  'beit-base-224': { name: 'beit-base-224', size: 8, patch: 4, width: 8, depth: 2, heads: 2, ratio: 2 },
  'bert-base': { name: 'bert-base', vocabulary: 11, positions: 8, width: 8, depth: 2, heads: 2, ratio: 2 },
  'gpt2-small': { name: 'gpt2-small', vocabulary: 11, positions: 8, width: 8, depth: 2, heads: 2, ratio: 2 },
  'lstm': { name: 'lstm', vocabulary: 11, embedding: 4, hidden: 5 },
} satisfies { readonly [name: string]: ModelSpec };
const names = Object.keys(tiny) as (keyof typeof tiny)[];

const tokens = 5;

function taskOf(name: keyof typeof tiny) {
  const model = buildModel(tiny[name], { seed: 3 });
  const isText = model.inputs[0]?.name === 'input_ids';
  const loss: LossName = name === 'gpt2-small' ? 'causal-lm' : 'cross-entropy';
  const { exampleShapes } = bindShapes(model, isText ? { sequence: [tokens] } : {});
  return { model, loss, exampleShapes };
}

/** Rows for a task; the masks of text end at different places. */
function batchOf({ model, loss }: ReturnType<typeof taskOf>, rows: number): Batch {
  const mask = int64(Array.from({ length: rows * tokens }, (_, i) => (i % tokens <= Math.floor(i / tokens) % tokens ? 1 : 0)), [rows, tokens]);
  const inputs = Object.fromEntries(model.inputs.map((input): [string, Tensor] => [
    input.name,
    input.name === 'attention_mask' ? mask
    : input.dtype === 'int64' ? ids([rows, tokens], 11) : randomTensor(random, [rows, ...(input.shape ?? []).slice(1).map(Number)]),
  ]));
  return { rows, inputs, labels: loss === 'causal-lm' ? ids([rows, tokens], 11) : randomLabels(random, rows, 2) };
}

describe('every family of models', () => {
  it('has the published number of parameters', () => {
    // torchvision, timm and Hugging Face with these classes, inputs and stems; the twins of bench/pytorch_models.py agree.
    const expected: readonly (readonly [ModelName, number])[] = [
      ['resnet18-gn', 11_173_962], ['resnet50-gn', 23_520_842], ['wrn-16-4-gn', 2_748_890], ['vit-tiny', 5_362_762],
      ['vit-small', 21_342_346], ['vit-tiny-224', 5_526_346], ['vit-small-224', 21_669_514], ['beit-base-224', 85_769_674],
      ['bert-base', 109_483_778], ['gpt2-small', 124_439_808], ['lstm', 3_613_186],
    ];
    for (const [name, count] of expected) {
      const { initializers, literals } = buildModel(name, { draws: noDraws });
      const sizes = [...initializers].filter(([key]) => literals?.has(key) !== true).map(([, { shape }]) => sizeOf(shape));
      expect([name, sizes.reduce((a, b) => a + b, 0)]).toEqual([name, count]);
    }
  });

  it.each(names)('%s is proved, with nothing in the way, and trains whole', (name) => {
    const { parameters, batchIndependent, unsupported, violations, loss } = explain(taskOf(name));
    expect({ batchIndependent, unsupported, violations }).toEqual({ batchIndependent: true, unsupported: [], violations: [] });
    expect(parameters.trainable).toBe(parameters.total);
    expect(loss.output).toBe('logits');
  });

  it.each(names)('%s: a private step equals the oracle', async (name) => {
    const task = taskOf(name);
    const analysis = analyse(task);
    requireTrainable(analysis);
    const batch = batchOf(task, 4);
    const truth = await oracle(analysis, batch);
    const threshold = Math.min(...truth.norms) * 0.8;
    for (const mode of ['book-keeping', 'ghost'] as const) {
      const found = await runStep(analysis, batch, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 }, threshold);
      truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm)).toBeLessThanOrEqual(1e-3 * norm));
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, [...found.weights]))).toBeLessThan(1e-3);
    }
  });

  it('refuses sizes that do not fit', () => {
    expect(() => buildModel({ name: 'vit-tiny', heads: 5 }, { draws: noDraws })).toThrow(/model vit-tiny[^]*5 heads for a width of 192/);
    expect(() => buildModel({ name: 'vit-tiny', patch: 5 }, { draws: noDraws })).toThrow(/size 32, patch 5/);
    expect(() => buildModel({ name: 'wrn-16-4-gn', depth: 17 }, { draws: noDraws })).toThrow(/a depth of 10, 16, 22/);
    expect(() => buildModel({ name: 'resnet18-gn', groups: 24 }, { draws: noDraws })).toThrow(/layer norm1 of model resnet18-gn[^]*24 groups/);
  });

  it('BEiT tells pairs of tokens by the offset of their patches', () => {
    // A grid of 2 × 2: 9 offsets, 4 being none; then class to patch, patch to class, and the class token to itself.
    expect(toNumbers(relativePositions(2))).toEqual([
      11, 9, 9, 9, 9,
      10, 4, 3, 1, 0,
      10, 5, 4, 2, 1,
      10, 7, 6, 4, 3,
      10, 8, 7, 5, 4,
    ]);
  });
});

describe('a recipe', () => {
  it('trains a small ViT', async () => {
    const { name, ...options } = tiny['vit-tiny'];
    const run = await prepare({
      model: { name, ...options, classes: 2 },
      data: { train: datasetFromTensors(randomTensor(random, [24, 3, 8, 8]), randomLabels(random, 24, 2)) },
      privacy: { epsilon: 4, delta: 1e-3 }, training: { batchSize: 8, steps: 2, seed: 5 },
    });
    const before = toNumbers(run.model().initializers.get('blocks.0.attn.qkv.weight')!);
    let steps = 0;
    for await (const { step } of run.steps()) steps = step;
    await run.finish();
    expect(steps).toBe(2);
    expect(toNumbers(run.model().initializers.get('blocks.0.attn.qkv.weight')!)).not.toEqual(before);
  });
});
