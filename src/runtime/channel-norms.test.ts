import { expect, it } from 'vitest';
import { type TypedGraph, float, int } from '../graph/ir.ts';
import { graphBuilder, mul } from '../ops/builder.ts';
import type { Operator } from '../ops/operator.ts';
import { entryOf, semantics } from '../ops/table.ts';
import { float32, sizeOf, toNumbers } from '../tensor/tensor.ts';
import { withStandardisedGroups } from './channel-norms.ts';
import { onnxruntimeEngine } from './node.ts';

const epsilon = 0.01;
const groups = 2;

/** Two GroupNorms of one value, and the gradient of the first. */
function graph(shape: readonly number[]): TypedGraph {
  const b = graphBuilder(semantics);
  const inputs = [['x', shape], ['scale', [shape[1]!]], ['bias', [shape[1]!]]].map(([name, of]) =>
    b.input(name as string, { dtype: 'float32', shape: of as number[] }));
  const attributes = { num_groups: int(groups), epsilon: float(epsilon) };
  const y = b.op('GroupNormalization', inputs, attributes);
  const other = b.op('GroupNormalization', [inputs[0]!, inputs[2]!, inputs[1]!], attributes);
  const { gradient } = entryOf(b.producerOf(y)!) as Operator;
  if ('reason' in gradient) throw new Error(gradient.reason);
  const found = gradient({ b, node: b.producerOf(y)!, inputs, outputs: [y], outputGradients: [mul(b, y, other)], needed: [true, true, true] });
  return b.build([['y', y], ['other', other], ...found.map((g, i): [string, string] => [`g${i}`, g!])]);
}

/** By definition, in float64. */
function normalised(x: readonly number[], [n, channels, ...spatial]: readonly number[], scale: readonly number[], bias: readonly number[]): number[] {
  const positions = sizeOf(spatial);
  const size = (channels! / groups) * positions;
  return Array.from({ length: n! * groups }, (_, g) => x.slice(g * size, (g + 1) * size)).flatMap((part, g) => {
    const mean = part.reduce((sum, v) => sum + v, 0) / size;
    const deviation = Math.sqrt(part.reduce((sum, v) => sum + (v - mean) ** 2, 0) / size + epsilon);
    return part.map((v, i) => {
      const c = (g % groups) * (channels! / groups) + Math.floor(i / positions);
      return ((v - mean) / deviation) * scale[c]! + bias[c]!;
    });
  });
}

it.each([[[3, 4, 5, 2]], [[2, 6, 7]], [[4, 6]]])('GroupNorms of %j are computed by one standardisation, which the gradient shares', async (shape) => {
  const given = graph(shape);
  const ops = withStandardisedGroups(given).nodes.map(({ op }) => op);
  expect(ops.filter((op) => op === 'GroupNormalization' || op === 'LayerNormalization')).toEqual(['LayerNormalization']);
  const numbers = (length: number, seed: number) => Array.from({ length }, (_, i) => Math.sin(seed + i * 1.7) * 2 + 0.5);
  const [x, scale, bias] = [numbers(sizeOf(shape), 1), numbers(shape[1]!, 2), numbers(shape[1]!, 3)];
  const feeds = { x: float32(x, shape), scale: float32(scale, [shape[1]!]), bias: float32(bias, [shape[1]!]) };
  const session = await onnxruntimeEngine().compile(given, { threads: 1 });
  const { outputs } = await session.run(feeds);
  await session.release();
  const expected = { y: normalised(x, shape, scale, bias), other: normalised(x, shape, bias, scale) };
  for (const [name, values] of Object.entries(expected)) {
    toNumbers(outputs[name]!).forEach((v, i) => { expect(v, name).toBeCloseTo(values[i]!, 4); });
  }
  // Loss Σ y²·other/2 with the other held fixed.
  const loss = (s: readonly number[], t: readonly number[], v: readonly number[]) =>
    normalised(v, shape, s, t).reduce((sum, y, i) => sum + (y ** 2 * expected.other[i]!) / 2, 0);
  const differences = (values: readonly number[], f: (moved: readonly number[]) => number) => values.map((v, i) =>
    (f(values.with(i, v + 1e-4)) - f(values.with(i, v - 1e-4))) / 2e-4);
  const slopes = [differences(x, (v) => loss(scale, bias, v)), differences(scale, (s) => loss(s, bias, x)), differences(bias, (t) => loss(scale, t, x))];
  slopes.forEach((slope, i) => toNumbers(outputs[`g${i}`]!).forEach((g, k) => { expect(g, `gradient ${i}`).toBeCloseTo(slope[k]!, 2); }));
});

it('leaves other graphs alone', () => {
  const b = graphBuilder(semantics);
  const plain = b.build([['y', b.op('Relu', [b.input('x', { dtype: 'float32', shape: [2, 3] })])]]);
  expect(withStandardisedGroups(plain)).toBe(plain);
});
