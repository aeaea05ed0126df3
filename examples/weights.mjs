// Weights of a TensorFlow.js model in the order and the layout of an ONNX graph beside this file, as models/weights.json says.
import { readFileSync } from 'node:fs';

const tables = JSON.parse(readFileSync(new URL('models/weights.json', import.meta.url), 'utf8'));

/**
 * The bytes of NAME.weights, to which the graph models/NAME.onnx refers.
 *
 * @param shards the package's weights, all of them: bytes to be scaled, or float32
 */
export function rebuilt(name, shards) {
  const { weights, bytes } = tables[name];
  const all = Buffer.alloc(bytes);
  let end = 0;
  for (const weight of weights) {
    const values = ordered(valuesOf(weight, shards), weight);
    end += Buffer.from(values.buffer).copy(all, end);
  }
  return all;
}

function valuesOf({ at, shape, scale, min }, shards) {
  const size = shape.reduce((a, b) => a * b, 1);
  if (scale !== undefined) {
    const values = new Float32Array(size);
    for (let i = 0; i < size; i++) values[i] = shards[at + i] * scale + min;
    return values;
  }
  return new Float32Array(Uint8Array.from(shards.subarray(at, at + 4 * size)).buffer);
}

/** Values of `shape` with its axes in another order. */
function ordered(values, { shape, order = shape.map((_, axis) => axis) }) {
  const result = new Float32Array(values.length);
  let at = 0;
  const walk = (depth, place) => {
    if (depth === order.length) {
      result[at++] = values[place];
      return;
    }
    const axis = order[depth];
    const stride = shape.slice(axis + 1).reduce((a, b) => a * b, 1);
    for (let i = 0; i < shape[axis]; i++) walk(depth + 1, place + i * stride);
  };
  walk(0, 0);
  return result;
}
