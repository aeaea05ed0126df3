import { describe, expect, it } from 'vitest';
import { modes } from '../src/clipping/plan.ts';
import { type Attributes, type Graph, int, latestOpset } from '../src/graph/ir.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Tensor, float32, int64 } from '../src/tensor/tensor.ts';
import { analyse } from '../src/training/compile.ts';
import { compileStep } from '../src/training/step.ts';

const privateModes = modes.filter((mode) => mode !== 'non-private');

const node = (op: string, inputs: string[], output: string, attributes: Attributes = {}) =>
  ({ op, domain: '', name: output, inputs, outputs: [output], attributes });

/** loss = (alpha·x·w)·s: the gradient of w is alpha·s·x. */
const product = (alpha: number): Graph => ({
  name: 'range', opset: latestOpset, metadata: {},
  initializers: new Map<string, Tensor>([['w', float32([1e-30, 1e-30], [2, 1])], ['axis', int64([1])]]),
  literals: new Set(['axis']),
  inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 2] }, { name: 's', dtype: 'float32', shape: ['batch', 1] }],
  outputs: [{ name: 'loss', dtype: 'float32', shape: ['batch'] }],
  nodes: [
    node('Gemm', ['x', 'w'], 'y', { alpha: { type: 'float', value: alpha } }),
    node('Mul', ['y', 's'], 'z'), node('Squeeze', ['z', 'axis'], 'loss'),
  ],
});

/** The clipped sum of w for some units. */
async function sumOf(
  mode: (typeof modes)[number], alpha: number, x: readonly number[], s: readonly number[], threshold: number,
): Promise<number[]> {
  const program = await compileStep(analyse({ model: product(alpha), loss: 'output:loss' }), {
    mode, clipping: { function: 'abadi', gamma: 0.01 }, engine: onnxruntimeEngine(), microBatch: s.length, threads: 1,
  });
  const { sums } = await program.run(new Map([['w', float32([1e-30, 1e-30], [2, 1])]]), {
    size: s.length, feeds: () => ({ x: float32(x, [s.length, 2]), s: float32(s, [s.length, 1]) }),
  }, [threshold]);
  await program.release();
  return [...sums.get('w')!];
}

describe('at the edges of float32', () => {
  it.each(privateModes)('%s keeps the bound where the square of an operand underflows', async (mode) => {
    const threshold = 1e-6;
    expect(Math.hypot(...await sumOf(mode, 1, [2e-23, 2e-23], [9e18], threshold))).toBeLessThanOrEqual(threshold * 1.001);
  });

  it.each(privateModes)('%s drops a unit whose gradient overflows by the scale of a Gemm', async (mode) => {
    const [first, second] = await sumOf(mode, 100, [9e18, 1e18, 0.1, 0.1], [9e18, 1], 1);
    expect(first).toBeCloseTo(Math.SQRT1_2, 5);
    expect(second).toBeCloseTo(Math.SQRT1_2, 5);
  });
});

describe('parameters without a gradient', () => {
  it('are not trained where only integers pass their values on, or an exponent of 0 takes the gradient away', async () => {
    const model: Graph = {
      ...product(1),
      initializers: new Map<string, Tensor>([
        ['w', float32([1, 1], [2, 1])], ['v', float32([1, 1], [2, 1])], ['u', float32([1, 1], [2, 1])],
        ['axis', int64([1])], ['nought', float32([0], [])],
      ]),
      literals: new Set(['axis', 'nought']),
      nodes: [
        node('MatMul', ['x', 'v'], 'xv'), node('Cast', ['xv'], 'whole', { to: int(7) }), node('Cast', ['whole'], 'back', { to: int(1) }),
        node('MatMul', ['x', 'u'], 'xu'), node('Pow', ['xu', 'nought'], 'one'),
        node('MatMul', ['x', 'w'], 'xw'), node('Sum', ['xw', 'back', 'one', 's'], 'z'), node('Squeeze', ['z', 'axis'], 'loss'),
      ],
    };
    const analysis = analyse({ model, loss: 'output:loss' });
    expect(analysis.parameters).not.toContain('v');
    const program = await compileStep(analysis, {
      mode: 'book-keeping', clipping: { function: 'abadi', gamma: 0.01 }, engine: onnxruntimeEngine(), microBatch: 1, threads: 1,
    });
    // The plan's groups hold the one list, the clipped sum the other.
    expect([...program.parameters].sort()).toEqual([...analysis.parameters].sort());
    await program.release();
  });
});
