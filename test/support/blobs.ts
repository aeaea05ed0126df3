import { type Dataset, datasetFromTensors } from '../../src/data/index.ts';
import type { ModelSpec } from '../../src/models/index.ts';
import { float32, int64 } from '../../src/tensor/tensor.ts';

/** Two clouds of points in four dimensions, easily told apart; the same every time. */
export function blobs(rows = 200): Dataset {
  let state = 1;
  const uniform = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
  const labels = Array.from({ length: rows }, (_, i) => i % 2);
  const features = labels.flatMap((label) =>
    [0, 1, 2, 3].map((i) => uniform() + (label === 1 ? 1 : -1) * (i % 2 === 0 ? 1 : 0.5)),
  );
  return datasetFromTensors(float32(features, [rows, 4]), int64(labels), { name: 'blobs' });
}

/** A model for {@link blobs}. */
export const blobModel: ModelSpec = { name: 'mlp', input: 4, hidden: [8], classes: 2, activation: 'tanh' };
