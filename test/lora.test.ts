import { describe, expect, it } from 'vitest';
import { liveBytes } from '../src/clipping/live.ts';
import { modes } from '../src/clipping/plan.ts';
import { defaultRho } from '../src/clipping/norm.ts';
import type { Graph } from '../src/graph/ir.ts';
import { buildModel } from '../src/models/index.ts';
import { type Adapter, mergedLora, savedAdapters, withLora } from '../src/models/lora.ts';
import { type FloatTensor, type Tensor, float32, int64, sizeOf, tensor } from '../src/tensor/tensor.ts';
import { analyse, compileTask, requireTrainable } from '../src/training/compile.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { specialise } from '../src/graph/specialise.ts';
import { semantics } from '../src/ops/table.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const random = testRandom(77);

/** Gemm by a stored [outputs, inputs] matrix as some exporters write it: MatMul by its transpose, and Add. */
const byTransposes = (model: Graph): Graph => ({
  ...model,
  nodes: model.nodes.flatMap((node) => {
    if (node.op !== 'Gemm') return [node];
    const [x, w, bias] = node.inputs as [string, string, string];
    const bare = (op: string, inputs: string[], output: string, attributes = {}): Graph['nodes'][number] =>
      ({ op, domain: '', name: `${node.name}.${op}`, inputs, outputs: [output], attributes });
    return [
      bare('Transpose', [w], `${w}.t`, { perm: { type: 'ints', value: [1, 0] } }),
      bare('MatMul', [x, `${w}.t`], `${node.name}.product`), bare('Add', [`${node.name}.product`, bias], node.outputs[0]!),
    ];
  }),
});
const models = {
  mlp: () => buildModel({ name: 'mlp', input: [6], hidden: [5], classes: 3 }, { seed: 1 }),
  transposes: () => byTransposes(buildModel({ name: 'mlp', input: [6], hidden: [5], classes: 3 }, { seed: 1 })),
  convolutions: () => buildModel({ name: 'resnet18-gn', size: 8, filters: 4, groups: 2, blocks: [1, 1] }, { seed: 2 }),
  transformer: () => buildModel({ name: 'bert-base', vocabulary: 11, positions: 8, width: 8, depth: 1, heads: 2, ratio: 2 }, { seed: 3 }),
} as const;

const shapesOf = (model: Graph, rows: number): Record<string, readonly number[]> => Object.fromEntries(model.inputs.map(({ name, dtype, shape }) =>
  [name, dtype === 'int64' ? [rows, 5] : [rows, ...(shape ?? []).slice(1).map(Number)]]));

function batchOf(model: Graph, rows: number): Batch {
  const input = (name: string, shape: readonly number[]): Tensor => {
    const below = (most: number): Tensor => int64(Array.from({ length: sizeOf(shape) }, () => Math.floor(random() * most)), shape);
    if (name === 'attention_mask') return int64(Array.from({ length: sizeOf(shape) }, () => 1), shape);
    if (model.inputs.find((i) => i.name === name)!.dtype !== 'int64') return randomTensor(random, shape);
    return below(name === 'token_type_ids' ? 2 : 11);
  };
  const inputs = Object.fromEntries(Object.entries(shapesOf(model, rows)).map(([name, shape]) => [name, input(name, shape)]));
  return { rows, inputs, labels: randomLabels(random, rows, 2) };
}

async function logits(model: Graph, { inputs, rows }: Batch): Promise<Float32Array> {
  const session = await onnxruntimeEngine().compile(specialise(model, shapesOf(model, rows), semantics), { threads: 1 });
  const { outputs } = await session.run(Object.fromEntries(Object.entries(inputs).map(([name, t]) => [name, { ...t, data: t.data.slice() }])));
  await session.release();
  return Object.values(outputs)[0]!.data as Float32Array;
}

const difference = (a: Float32Array, b: Float32Array): number => Math.max(...a.map((x, i) => Math.abs(x - b[i]!))) / Math.max(...b.map(Math.abs));

/** As training would leave it: B is no longer zero. */
const trained = (model: Graph, adapters: readonly Adapter[]): Graph => ({
  ...model,
  initializers: new Map([...model.initializers].map(([name, t]) =>
    [name, adapters.some(({ a, b }) => name === a || name === b) ? randomTensor(random, t.shape) : t])),
});
const names = (adapters: readonly Adapter[]): string[] => adapters.flatMap(({ a, b }) => [a, b]);

describe.each(Object.keys(models) as (keyof typeof models)[])('adapters on %s', (kind) => {
  const original = models[kind]();

  it('change nothing at first, and a merged model computes what the adapted one does', async () => {
    const { model, adapters } = withLora(original, { rank: 2, alpha: 3 }, 5);
    const batch = batchOf(original, 3);
    const before = await logits(original, batch);
    expect(difference(await logits(model, batch), before)).toBeLessThan(1e-6);
    const after = trained(model, adapters);
    const [adapted, merged] = await Promise.all([logits(after, batch), logits(mergedLora(original, after, adapters), batch)]);
    expect(difference(adapted, before)).toBeGreaterThan(1e-2);
    expect(difference(merged, adapted)).toBeLessThan(1e-5);
    expect(mergedLora(original, after, adapters).nodes).toEqual(original.nodes);
  });

  it('have the gradients and norms of the oracle, in every mode', async () => {
    const { model, adapters } = withLora(original, { rank: 2 }, 5);
    const analysis = analyse({
      model: trained(model, adapters), loss: 'cross-entropy', trainable: names(adapters),
      exampleShapes: Object.fromEntries(Object.entries(shapesOf(original, 1)).map(([name, shape]) => [name, shape.slice(1)])),
    });
    requireTrainable(analysis);
    expect([...analysis.parameters].sort()).toEqual(names(adapters).sort());
    const batch = batchOf(original, 4);
    const truth = await oracle(analysis, batch);
    const threshold = Math.min(...truth.norms) * 1.1;
    for (const mode of modes.filter((m) => m !== 'non-private' && m !== 'per-layer')) {
      const found = await runStep(analysis, batch, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 }, threshold);
      truth.norms.forEach((norm, i) => expect(Math.abs(found.norms[i]! - norm), mode).toBeLessThanOrEqual(1e-3 * norm));
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, [...found.weights])), mode).toBeLessThan(1e-4);
    }
  });
});

describe('the memory of adapters', () => {
  it('is planned to be within a tenth of that without privacy, in deep transformers', () => {
    const original = buildModel({ name: 'bert-base', vocabulary: 50, positions: 16, width: 32, depth: 4, heads: 2 }, { seed: 3 });
    const { model, adapters } = withLora(original, { rank: 2 }, 5);
    const analysis = analyse({
      model, loss: 'cross-entropy', trainable: names(adapters),
      exampleShapes: Object.fromEntries(model.inputs.map(({ name }) => [name, [16]])),
    });
    const live = (mode: 'non-private' | 'book-keeping'): number =>
      liveBytes(compileTask(analysis, 8, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 }).graph);
    expect(live('book-keeping')).toBeLessThan(1.1 * live('non-private'));
  });
});

describe('adapters', () => {
  it('are put where targets say, and are refused elsewhere', () => {
    const model = models.transformer();
    const { adapters } = withLora(model, { targets: ['*query*', '*value*'] });
    expect(adapters.length).toBeGreaterThan(1);
    expect(adapters.every(({ weight }) => /query|value/.test(weight))).toBe(true);
    expect(() => withLora(model, { targets: ['*LayerNorm*'] })).toThrow(/LayerNorm/);
  });

  it('leave tied weights alone that are looked up as well', () => {
    const tied = buildModel({ name: 'gpt2-small', vocabulary: 11, positions: 8, width: 8, depth: 1, heads: 2, ratio: 2 }, { seed: 3 });
    const { adapters } = withLora(tied, {});
    expect(adapters.length).toBeGreaterThan(0);
    expect(adapters.some(({ weight }) => /wte|embed/.test(weight))).toBe(false);
  });

  it('go beside weights of a few bits, and stay in the model that is saved', () => {
    const quantised: Graph = {
      name: 'q', opset: 21, metadata: {}, inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 32] }],
      outputs: [{ name: 'y', dtype: 'float32', shape: ['batch', 4] }],
      initializers: new Map<string, Tensor>([
        ['w', tensor('uint8', [4, 1, 16], new Uint8Array(64).fill(0x97))], ['s', float32([1, 2, 3, 4], [4])],
      ]),
      domains: { 'com.microsoft': 1 },
      nodes: [{
        op: 'MatMulNBits', domain: 'com.microsoft', name: 'm', inputs: ['x', 'w', 's'], outputs: ['y'],
        attributes: Object.fromEntries(Object.entries({ K: 32, N: 4, bits: 4, block_size: 32 }).map(([key, value]) => [key, { type: 'int', value }])),
      }],
    };
    const { model, adapters } = withLora(quantised, { rank: 3 });
    expect(adapters).toMatchObject([{ weight: 'w', merged: undefined }]);
    expect(model.initializers.get('w.lora_A')!.shape).toEqual([32, 3]);
    expect(mergedLora(quantised, model, adapters)).toBe(model);
    const analysis = analyse({ model: { ...model, outputs: [{ ...model.outputs[0]!, shape: ['batch', 4] }] }, loss: 'cross-entropy', trainable: names(adapters) });
    expect(() => { requireTrainable(analysis); }).not.toThrow();
  });

  it("are saved in PEFT's layout", () => {
    for (const kind of ['mlp', 'transposes', 'transformer'] as const) {
      const { model, adapters } = withLora(models[kind](), { rank: 2 });
      const { tensors, metadata } = savedAdapters(model, adapters, { rank: 2, alpha: 3 });
      expect(metadata).toMatchObject({ r: '2', lora_alpha: '3' });
      expect(tensors.size).toBe(2 * adapters.length);
      for (const [name, { shape }] of tensors) expect(name.endsWith('lora_A.weight') ? shape[0] : shape[1], name).toBe(2);
      const [{ a, outputsFirst }] = adapters as [Adapter];
      const [first] = tensors.values() as Iterable<FloatTensor> as unknown as [FloatTensor];
      if (outputsFirst) expect(first).toBe(model.initializers.get(a));
    }
  });
});
