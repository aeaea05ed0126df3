import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { defaultRho } from '../src/clipping/norm.ts';
import { loadData } from '../src/data/index.ts';
import { type Graph, latestOpset } from '../src/graph/ir.ts';
import { writeModel } from '../src/graph/file.ts';
import { buildModel } from '../src/models/index.ts';
import { type Tensor, float32, int64 } from '../src/tensor/tensor.ts';
import { analyse, requireTrainable } from '../src/training/compile.ts';
import { evaluate } from '../src/training/evaluate.ts';
import { evaluatePrivately } from '../src/training/private-evaluation.ts';
import { type RecipeInput, train } from '../src/index.ts';
import { ghostgrad, json, refused } from './support/cli.ts';
import { type Batch, normOf, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { testRandom } from './support/random-network.ts';
import { temporaryFolder } from './support/temp.ts';
import { wordTokenizer } from './support/word-tokenizer.ts';

const vocabulary = 11;
const small = { name: 'gpt2-small', vocabulary, positions: 8, width: 8, depth: 1, heads: 2, ratio: 2 } as const;
const drawn = buildModel(small, { seed: 4 });
/** With embeddings as large as training would leave them, so that layers between them can tell tokens apart. */
const model: Graph = {
  ...drawn,
  initializers: new Map([...drawn.initializers].map(([name, t]) =>
    [name, name === 'transformer.wte.weight' ? float32([...t.data].map((x) => 20 * Number(x)), t.shape) : t])),
};

const analysisAt = (tokens: number) => {
  const analysis = analyse({ model, loss: 'causal-lm', exampleShapes: { input_ids: [tokens] } });
  requireTrainable(analysis);
  return analysis;
};
const batchOf = (ids: readonly (readonly number[])[], labels: readonly (readonly number[])[]): Batch => {
  const matrix = (rows: readonly (readonly number[])[]): Tensor<'int64'> => int64(rows.flat(), [rows.length, rows[0]!.length]);
  return { rows: ids.length, inputs: { input_ids: matrix(ids) }, labels: matrix(labels) };
};

describe('gradients of texts', () => {
  const tokens = 6;
  const padded = analysisAt(tokens);

  it('are those of the text alone: what pads it, and what is behind ignored labels, changes nothing', async () => {
    await fc.assert(fc.asyncProperty(fc.integer({ min: 2, max: tokens }), fc.nat(), async (length, seed) => {
      const random = testRandom(seed + 1);
      const id = (): number => Math.floor(random() * vocabulary);
      const text = Array.from({ length }, id);
      const fill = (padding: () => number): number[] => Array.from({ length: tokens }, (_, t) => text[t] ?? padding());
      const row = fill(() => -100);
      const alone = await oracle(analysisAt(length), batchOf([text], [text]));
      const [zeros, noise, other] = (await oracle(padded, batchOf([fill(() => 0), fill(id), fill(id)], [row, row, fill(() => -1)]))).gradients;
      for (const gradient of [zeros!, noise!, other!]) {
        // The table of positions is as long as it is for all.
        expect(relativeDifference(gradient, alone.gradients[0]!)).toBeLessThan(1e-5);
      }
    }), { numRuns: 6 });
  });

  it('add up over a prompt and its completion, of which either may be ignored; of nothing to predict they are zero', async () => {
    const ids = [3, 1, 4, 1, 5, 9];
    const part = (from: number, to: number): number[] => ids.map((token, t) => (t >= from && t < to ? token : -100));
    const labels = [ids, part(0, 3), part(3, 6), part(0, 1)];
    const { gradients: [whole, prompt, completion, nothing], losses } = await oracle(padded, batchOf(labels.map(() => ids), labels));
    expect(relativeDifference(weightedSum([prompt!, completion!], [1, 1]), whole!)).toBeLessThan(1e-5);
    expect(losses[1]! + losses[2]!).toBeCloseTo(losses[0]!, 4);
    expect([losses[3], normOf(nothing!)]).toEqual([0, 0]);
    expect(normOf(prompt!)).toBeGreaterThan(0.1);
  });

  it('are clipped text by text in a private step, however many of their tokens are ignored', async () => {
    const random = testRandom(8);
    const ids = Array.from({ length: 5 }, () => Array.from({ length: tokens }, () => Math.floor(random() * vocabulary)));
    // Of the last text nothing is to be predicted.
    const batch = batchOf(ids, ids.map((row, i) => row.map((token, t) => (t >= i && t < tokens - (i % 3) && i < 4 ? token : -100))));
    const truth = await oracle(padded, batch);
    const threshold = Math.min(...truth.norms.slice(0, 4)) * 1.2;
    for (const mode of ['book-keeping', 'ghost', 'instantiate'] as const) {
      const found = await runStep(padded, batch, { mode, clipping: { function: 'abadi', gamma: 0.01 }, rho: defaultRho, rowsPerUnit: 1 }, threshold);
      truth.norms.forEach((norm, i) => { expect(Math.abs(found.norms[i]! - norm)).toBeLessThanOrEqual(1e-3 * norm); });
      truth.norms.forEach((norm, i) => { expect(found.weights[i]! * norm).toBeLessThanOrEqual(threshold * (1 + defaultRho)); });
      expect(relativeDifference(found.sums, weightedSum(truth.gradients, [...found.weights]))).toBeLessThan(1e-3);
    }
  });
});

/** A model whose logits depend on the last token alone: row i of a table for token i. */
const bigrams = (table: readonly (readonly number[])[]): Graph => ({
  name: 'bigrams', opset: latestOpset, metadata: {},
  initializers: new Map([['table', float32(table.flat(), [table.length, table.length])]]),
  inputs: [{ name: 'input_ids', dtype: 'int64', shape: ['batch', 'sequence'] }],
  outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 'sequence', table.length] }],
  nodes: [{ op: 'Gather', domain: '', name: 'look-up', inputs: ['table', 'input_ids'], outputs: ['logits'], attributes: {} }],
});

describe('perplexity', () => {
  const words = ['a', 'b'];
  const random = testRandom(5);
  const table = Array.from({ length: 6 }, () => Array.from({ length: 6 }, () => 2 * random()));
  const cost = (before: number, token: number): number =>
    Math.log(table[before]!.reduce((sum, z) => sum + Math.exp(z), 0)) - table[before]![token]!;
  const texts = () => {
    const { folder, write } = temporaryFolder();
    write('t.json', wordTokenizer(words));
    write('a.txt', 'a b a\nb | a a a a\n');
    return loadData({ path: 'a.txt', tokenizer: 't.json', maxLength: 5, separator: ' |' }, { base: folder });
  };
  // <s> a b a, and <s> b <unk for |> a a, of which the prompt costs nothing.
  const total = cost(2, 4) + cost(4, 5) + cost(5, 4) + cost(1, 4) + cost(4, 4);

  it('is e to the mean cost of a predicted token; the loss is the mean over texts', async () => {
    for (const batchSize of [undefined, 1]) {
      const { perplexity, loss, ...counts } = await evaluate(bigrams(table), await texts(), { loss: 'causal-lm', batchSize, threads: 1 });
      expect(counts).toEqual({ accuracy: null, examples: 2, tokens: 5 });
      expect(perplexity).toBeCloseTo(Math.exp(total / 5), 4);
      expect(loss).toBeCloseTo(total / 2, 4);
    }
  });

  it('is not told of private texts, whose number of tokens is theirs: their mean loss is, with noise', async () => {
    const found = await evaluatePrivately(bigrams(table), await texts(), { loss: 'causal-lm', epsilon: 4, delta: 1e-5, lossBound: 20 });
    expect(Object.keys(found)).not.toEqual(expect.arrayContaining(['perplexity']));
    expect(Object.keys(found)).not.toEqual(expect.arrayContaining(['tokens']));
    expect(Math.abs(found.loss! - total / 2)).toBeLessThan(6 * found.deviations.loss!);
  });

  it('is of tokens that the model knows: others are refused', async () => {
    await expect(evaluate(bigrams(table.slice(0, 5).map((row) => row.slice(0, 5))), await texts(), { loss: 'causal-lm' }))
      .rejects.toThrow(/names no row of the table[^]*row 1[^]*from 0 to 4/);
  });
});

describe('a recipe for a language model', () => {
  const words = ['the', 'cat', 'sat', 'on', 'a', 'mat', 'dog'];
  const project = () => {
    const { folder, write } = temporaryFolder();
    const random = testRandom(3);
    const text = (): string => `the ${random() < 0.5 ? 'cat' : 'dog'} sat on a mat`;
    const lines = (count: number): string => Array.from({ length: count }, text).join('\n');
    const texts = (name: string, count: number) => ({ path: write(name, lines(count)), tokenizer: tokenizerPath, maxLength: 8, eos: '</s>' });
    const tokenizerPath = write('tokenizer.json', wordTokenizer(words));
    const path = join(folder, 'lm.onnx');
    writeModel(path, model);
    const recipe = {
      model: { path }, data: { train: texts('train.txt', 120), test: texts('test.txt', 20) }, loss: 'causal-lm',
      privacy: { epsilon: 8, delta: 1e-3 }, clipping: { norm: 1 },
      training: { batchSize: 60, steps: 12, optimizer: { name: 'adam', learningRate: 0.05 }, seed: 1 },
      performance: { threads: 1 }, output: join(folder, 'run'),
    } satisfies RecipeInput;
    return { folder, write, path, recipe };
  };

  it.each([['all', 'all'], ['adapters', { lora: { rank: 2, alpha: 4 } }]] as const)('lowers perplexity, training %s', async (_, trainable) => {
    const { folder, path, recipe } = project();
    const test = `{path: ${JSON.stringify(recipe.data.test.path)}, tokenizer: ${JSON.stringify(recipe.data.test.tokenizer)}, maxLength: 8, eos: "</s>"}`;
    const before = json(await ghostgrad(['evaluate', path, '--data', test, '--loss', 'causal-lm', '--json'])) as { perplexity: number; tokens: number };
    const { test: after, runDir } = await train({ ...recipe, trainable });
    expect(after).toMatchObject({ accuracy: null, examples: 20, tokens: 140 });
    expect(before.tokens).toBe(140);
    expect(after!.perplexity).toBeLessThan(0.6 * before.perplexity);
    // The saved model says what it was trained for, and takes texts of any length.
    const args = ['evaluate', join(runDir!, 'model.onnx'), '--data', test.replace('maxLength: 8', 'maxLength: 7')];
    expect((json(await ghostgrad([...args, '--json'])) as { tokens: number }).tokens).toBe(120);
    expect((await ghostgrad(args)).out).toMatch(/^perplexity +[\d.]+\nloss +[\d.]+\nexamples +20\ntokens +120$/m);
    // Public figures tell nothing of the texts' lengths.
    const [line] = readFileSync(join(folder, 'run', 'metrics.jsonl'), 'utf8').split('\n');
    expect(Object.keys(JSON.parse(line!) as object)).toEqual(['step', 'epsilon', 'learningRate']);
  });

  it('says what to do where the data has a label for each text', async () => {
    const { folder, write, recipe } = project();
    const path = write('labelled.tsv', 'text\tlabel\nthe cat\t1\n');
    const { tokenizer } = recipe.data.train;
    const file = write('r.yaml', JSON.stringify({ ...recipe, data: { train: { path, text: 'text', tokenizer, maxLength: 8 } }, output: join(folder, 'other') }));
    expect(await refused(['train', file])).toMatch(/learns from texts alone[^]*target: next-token/);
  });
});
