import type { Feeds } from '../runtime/engine.ts';
import { type TensorType, zeros } from '../tensor/tensor.ts';

/**
 * Deterministic inputs: what is computed does not matter, that it is ordinary numbers does.
 *
 * @param choices for inputs of whole numbers: how many values from 0 on are valid. Those not named are 1 everywhere
 */
export function feedsFor(inputs: Readonly<Record<string, TensorType>>, choices: ReadonlyMap<string, number>): Feeds {
  let state = 1;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
  return Object.fromEntries(Object.entries(inputs).map(([name, type]) => {
    const t = zeros(type.dtype, type.shape);
    if (t.dtype === 'bool') t.data.fill(1 as never);
    if (t.dtype === 'int64') {
      const count = choices.get(name);
      for (let i = 0; i < t.data.length; i++) t.data[i] = count === undefined ? 1n : BigInt(Math.floor(((uniform() + 1) / 2) * count));
    }
    if (t.dtype === 'float32') {
      const fan = type.shape.length > 1 ? type.shape.slice(1).reduce((a, n) => a * n, 1) : 1;
      const scale = type.shape.length === 0 ? 0 : Math.sqrt(2 / Math.max(1, Math.min(fan, 4608)));
      const data = t.data as Float32Array;
      for (let i = 0; i < data.length; i++) data[i] = type.shape.length === 0 ? 1 : uniform() * scale * 1.7;
    }
    return [name, t];
  }));
}
