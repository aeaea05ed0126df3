import { describe, expect, it } from 'vitest';
import { type Graph, ints, latestOpset } from '../graph/ir.ts';
import { specialise } from '../graph/specialise.ts';
import { semantics } from '../ops/table.ts';
import { type Tensor, float32, int64 } from '../tensor/tensor.ts';
import { onnxruntimeEngine } from './node.ts';

/** A convolution of 8 channels behind a pad, and a maximum over what is negative behind another. */
const graph: Graph = {
  name: 'pads', opset: latestOpset, metadata: {},
  inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 8, 4, 4] }],
  outputs: [{ name: 'y', dtype: 'float32', shape: null }],
  nodes: [
    { op: 'Pad', domain: '', name: 'pad1', inputs: ['x', 'pads'], outputs: ['wide'], attributes: {} },
    { op: 'Conv', domain: '', name: 'conv', inputs: ['wide', 'w'], outputs: ['mixed'], attributes: { kernel_shape: ints([3, 3]) } },
    { op: 'Pad', domain: '', name: 'pad2', inputs: ['mixed', 'pads'], outputs: ['zeros'], attributes: {} },
    { op: 'MaxPool', domain: '', name: 'pool', inputs: ['zeros'], outputs: ['y'], attributes: { kernel_shape: ints([2, 2]) } },
  ],
  initializers: new Map<string, Tensor>([
    ['w', float32(Array.from({ length: 8 * 8 * 9 }, (_, i) => -Math.abs(Math.sin(i))), [8, 8, 3, 3])], ['pads', int64([0, 0, 1, 1, 0, 0, 1, 1])],
  ]),
  literals: new Set(['pads']),
};

describe('a frozen graph', () => {
  it.each([['y'], ['mixed']])('is computed by other kernels to the same numbers, pads in front of a maximum included: %s', async (output) => {
    const whole = { ...graph, outputs: [{ name: output, dtype: 'float32' as const, shape: null }] };
    const typed = specialise(whole, { x: [2, 8, 4, 4] }, semantics);
    const computed = async (frozen: boolean): Promise<readonly number[]> => {
      const session = await onnxruntimeEngine().compile(typed, { threads: 1, frozen });
      const { outputs } = await session.run({ x: float32(Array.from({ length: 256 }, (_, i) => 1 + Math.cos(i)), [2, 8, 4, 4]) });
      await session.release();
      return [...(outputs[output]!.data as Float32Array)];
    };
    const [one, other] = [await computed(false), await computed(true)];
    expect(Math.max(...one.map((v, i) => Math.abs(v - other[i]!)))).toBeLessThan(1e-5 * Math.max(...one.map(Math.abs)));
    // Where the maximum is a pad's, it is zero.
    if (output === 'y') expect(Math.max(...other)).toBe(0);
  });
});
