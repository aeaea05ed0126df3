import { describe, expect, it } from 'vitest';
import { datasetFromTensors } from '../src/data/index.ts';
import { buildModel } from '../src/models/index.ts';
import { int64 } from '../src/tensor/tensor.ts';
import { fittedTo, taskFor } from '../src/training/examples.ts';

const model = buildModel({ name: 'gpt2-small', vocabulary: 11, positions: 8, width: 8, depth: 1, heads: 2, ratio: 2 }, { seed: 3 });

/** Four texts of five tokens, and one token changed. */
const texts = (token: number) => {
  const ids = Array.from({ length: 20 }, (_, i) => (i === 17 ? token : i % 11));
  return datasetFromTensors({ input_ids: int64(ids, [4, 5]) }, int64(ids.map((id) => Math.abs(id) % 11), [4, 5]), { name: 'texts' });
};

const fitted = (token: number) => fittedTo(taskFor({ model, loss: 'causal-lm' }, texts(token)), texts(token));

describe('token ids', () => {
  it('are taken as tensors in memory', () => expect(fitted(10).features.get('input_ids')).toMatchObject({ dtype: 'int64', shape: [5] }));

  it.each([12, 50_256, -12])('beyond the table of embeddings are refused by place (%i)', (token) => {
    expect(() => fitted(token)).toThrow(/names no row of the table ".*texts, feature "input_ids", row 4.*element 3.*from 0 to 10.*tokenizer/s);
    expect(() => fitted(token)).not.toThrow(new RegExp(String(Math.abs(token))));
  });
});
