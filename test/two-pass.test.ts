import { expect, it } from 'vitest';
import { modes } from '../src/clipping/plan.ts';
import { type Graph, int, latestOpset } from '../src/graph/ir.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Tensor, float32, int64 } from '../src/tensor/tensor.ts';
import { analyse } from '../src/training/compile.ts';
import { compileStep } from '../src/training/step.ts';
import { testRandom } from './support/random-network.ts';

const terms = 16;

/** loss = Σ_j relu(u·w)·x_j: what flows back to relu is Σ_j x_j, summed in float32 on the way. */
const model: Graph = {
  name: 'cancels', opset: latestOpset, metadata: {},
  initializers: new Map<string, Tensor>([['w', float32([1], [1, 1])], ['axis', int64([1])]]),
  literals: new Set(['axis']),
  inputs: [{ name: 'u', dtype: 'float32', shape: ['batch', 1] }, { name: 'x', dtype: 'float32', shape: ['batch', terms] }],
  outputs: [{ name: 'loss', dtype: 'float32', shape: ['batch'] }],
  nodes: [
    { op: 'MatMul', domain: '', name: 'product', inputs: ['u', 'w'], outputs: ['z'], attributes: {} },
    { op: 'Relu', domain: '', name: 'relu', inputs: ['z'], outputs: ['r'], attributes: {} },
    { op: 'Mul', domain: '', name: 'spread', inputs: ['r', 'x'], outputs: ['s'], attributes: {} },
    { op: 'ReduceSum', domain: '', name: 'sum', inputs: ['s', 'axis'], outputs: ['loss'], attributes: { keepdims: int(0) } },
  ],
};

it.each(modes.filter((mode) => mode !== 'non-private'))('%s keeps the bound where the backward pass cancels', async (mode) => {
  const program = await compileStep(analyse({ model, loss: 'output:loss' }), {
    mode, clipping: { function: 'abadi', gamma: 0.01 }, engine: onnxruntimeEngine(), microBatch: 1, threads: 1,
  });
  const random = testRandom(5);
  for (let i = 0; i < 60; i++) {
    // Whole numbers that float32 holds, in pairs that differ by a few units: their sum is exact, unless they were scaled.
    const large = Array.from({ length: terms / 2 }, () => 2 ** 23 + Math.floor(random() * 2 ** 22));
    const x = [...large, ...large.map((n) => -(n + Math.floor(random() * 9) - 4))];
    const { sums } = await program.run(new Map([['w', float32([1], [1, 1])]]), {
      size: 1, feeds: () => ({ u: float32([1], [1, 1]), x: float32(x, [1, terms]) }),
    }, [1]);
    expect(Math.abs(sums.get('w')![0]!)).toBeLessThanOrEqual(1 + program.rho);
  }
  await program.release();
});
