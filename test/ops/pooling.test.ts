import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, int, ints } from '../../src/graph/ir.ts';
import { graphBuilder } from '../../src/ops/builder.ts';
import { maxPoolGradientByIndices, maxPoolGradientBySlices } from '../../src/ops/pooling.ts';
import { operatorOf, semantics } from '../../src/ops/table.ts';
import { slidingWindows } from '../../src/ops/windows.ts';
import { type Tensor, float32, sizeOf, toNumbers } from '../../src/tensor/tensor.ts';
import { checkBatchRule } from '../support/batch-check.ts';
import { accepted, batchPlace, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkGradient, checkTypes } from '../support/gradient-check.ts';
import {
  type Domain, type Sample, build, floatOperand, randomLike, withSession,
} from '../support/operator-sample.ts';
import { testRandom } from '../support/random-network.ts';
import { windows } from '../support/window-sample.ts';

const numRuns = 50;
const windowed = ['MaxPool', 'AveragePool', 'LpPool'];

/** No ties where a maximum is taken, no zeros where an absolute value is: there the gradient is not that of finite differences. */
const domainOf = (op: string): Domain => (op.includes('Lp') ? { avoid: [0] } : { distinct: op.includes('Max') });

const pools = (op: string): fc.Arbitrary<Sample> => accepted(fc.record({
  w: windows(), n: fc.integer({ min: 1, max: 2 }), c: fc.integer({ min: 1, max: 2 }), ceil: fc.constantFrom(0, 1),
  include: fc.constantFrom(0, 1), p: fc.constantFrom(1, 2, 3),
}).chain(({ w, n, c, ceil, include, p }) => {
  const attributes: Attributes = {
    ...(windowed.includes(op) ? { ...w.attributes, ceil_mode: int(ceil) } : {}),
    ...(op.includes('Lp') ? { p: int(p) } : {}),
    ...(op === 'AveragePool' ? { count_include_pad: int(include) } : {}),
  };
  return floatOperand([n, c, ...w.spatial], domainOf(op)).map((x): Sample => ({ op, inputs: [x], attributes }));
}));

describe.each([...windowed, 'GlobalAveragePool', 'GlobalMaxPool', 'GlobalLpPool'])('%s', (op) => {
  it('has the type that ONNX Runtime computes', async () => {
    await fc.assert(fc.asyncProperty(pools(op), async (sample) => {
      await checkTypes(op === 'MaxPool' ? { ...sample, outputs: 2 } : sample);
    }), { numRuns });
  });

  it('keeps images and channels apart, and is refused along spatial axes', async () => {
    const samples = fc.record({ w: windows([1, 2]), at: batchPlace([0, 0, 1, 2]) }).chain(({ w, at }) =>
      floatOperand(withRows([2, 2, ...w.spatial], at), {}, at)
        .map((x): Sample => ({ op, inputs: [x], attributes: windowed.includes(op) ? w.attributes : {} })));
    await fc.assert(fc.asyncProperty(accepted(samples), async (sample) => {
      expect(await checkBatchRule(sample)).toBe(sample.inputs[0]!.batch!.axis < 2 ? 'proved' : 'refused');
    }), { numRuns });
  });
});

describe.each([...windowed, 'GlobalAveragePool', 'GlobalMaxPool', 'GlobalLpPool'])('%s', (op) => {
  it('has the gradient of finite differences', async () => {
    await fc.assert(fc.asyncProperty(pools(op), (sample) => checkGradient(sample)), { numRuns });
  });
});

describe('the gradient of MaxPool', () => {
  /** The definition, element by element: to the first maximum of each window, in row-major order. */
  function definition(x: Tensor, dY: Tensor, attributes: Attributes): number[] {
    const node = { op: 'MaxPool', domain: '', name: 'pool', inputs: [], outputs: [], attributes };
    const spatial = x.shape.slice(2);
    const kernel = attributes['kernel_shape']?.type === 'ints' ? attributes['kernel_shape'].value : [];
    const { strides, dilations, pads, counts } = slidingWindows(node, spatial, kernel, 'pooling');
    const places = (shape: readonly number[]) => Array.from({ length: sizeOf(shape) }, (_, i) =>
      shape.map((n, axis) => Math.floor(i / sizeOf(shape.slice(axis + 1))) % n));
    const values = toNumbers(x);
    const found = values.map(() => 0);
    for (let plane = 0; plane < x.shape[0]! * x.shape[1]!; plane++) {
      places(counts).forEach((window, w) => {
        const inside = places(kernel)
          .map((k) => k.map((n, a) => window[a]! * strides[a]! + n * dilations[a]! - pads[a]!))
          .filter((at) => at.every((n, a) => n >= 0 && n < spatial[a]!))
          .map((at) => plane * sizeOf(spatial) + at.reduce((flat, n, a) => flat * spatial[a]! + n, 0));
        const first = inside.find((i) => inside.every((j) => values[j]! <= values[i]!))!;
        found[first]! += Number(dY.data[plane * sizeOf(counts) + w]);
      });
    }
    return found;
  }

  it('goes to the first of equal maxima, by indices and by slices', async () => {
    const tied = pools('MaxPool').map((sample): Sample => {
      const x = sample.inputs[0]!.value;
      const random = testRandom(x.data.length);
      return { ...sample, inputs: [{ value: float32(toNumbers(x).map(() => Math.floor(random() * 3)), x.shape) }] };
    });
    await fc.assert(fc.asyncProperty(tied, async (sample) => {
      const x = sample.inputs[0]!.value;
      const kernel = sample.attributes?.['kernel_shape'];
      const { b, node } = build(sample);
      const geometry = slidingWindows(node, x.shape.slice(2), kernel?.type === 'ints' ? kernel.value : [], 'pooling');
      const dY = randomLike(testRandom(7), b.type('y0'));
      const dy = b.input('dy', b.type('y0'));
      const graph = b.build([
        ['slices', maxPoolGradientBySlices(b, 'x0', 'y0', dy, geometry)],
        ['indices', maxPoolGradientByIndices(b, 'x0', 'y0', dy, geometry)],
      ]);
      const found = await withSession(graph, (run) => run({ x0: x, dy: dY }));
      const expected = definition(x, dY, node.attributes);
      for (const name of ['slices', 'indices']) {
        expect(found[name]!.shape).toEqual([...x.shape]);
        toNumbers(found[name]!).forEach((v, i) => { expect(v, `${name}, element ${i}`).toBeCloseTo(expected[i]!, 5); });
      }
    }), { numRuns });
  });

  it('is by slices where the indices count column by column', () => {
    const b = graphBuilder(semantics);
    b.input('x', { dtype: 'float32', shape: [1, 1, 4, 4] });
    const node = {
      op: 'MaxPool', domain: '', name: 'pool', inputs: ['x'], outputs: ['y'],
      attributes: { kernel_shape: ints([2, 2]), storage_order: int(1) },
    };
    b.add(node);
    const dy = b.input('dy', b.type('y'));
    const rule = operatorOf(node).gradient;
    if ('reason' in rule) throw new Error(rule.reason);
    const [g] = rule({ b, node, inputs: ['x'], outputs: ['y'], outputGradients: [dy], needed: [true] });
    expect(b.build([['g', g!]]).nodes.map((n) => n.op)).not.toContain('ScatterElements');
  });
});

describe('pooling', () => {
  it('refuses to give out indices, which tell where in the batch an example lies', () => {
    const attributes = { kernel_shape: ints([2]) };
    expect(says({ op: 'MaxPool', inputs: [operandAt([3, 1, 4], 0)], attributes, outputs: 2 }))
      .toMatchObject(refusal(/indices/));
  });

  it('refuses windows that ONNX Runtime refuses or disagrees with itself about', () => {
    const pool = (spatial: number[], attributes: Attributes) => () =>
      build({ op: 'MaxPool', inputs: [operandAt([1, 1, ...spatial])], attributes });
    expect(pool([4], { kernel_shape: ints([2]), pads: ints([2, 0]) })).toThrow(/pads smaller than the kernel/);
    expect(pool([1], { kernel_shape: ints([2]) })).toThrow(/no smaller than the kernel/);
    const behind = { kernel_shape: ints([2]), strides: ints([2]), pads: ints([0, 1]), ceil_mode: int(1) };
    expect(pool([6], behind)).toThrow(/begins behind/);
    expect(pool([6], {})).toThrow(/one positive entry for each spatial axis/);
  });
});
