import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { backpropagate } from '../../src/autodiff/reverse.ts';
import { type Attributes, float, int, string } from '../../src/graph/ir.ts';
import { type activations } from '../../src/ops/activations.ts';
import { graphBuilder } from '../../src/ops/builder.ts';
import { semantics } from '../../src/ops/table.ts';
import { float32, int64 } from '../../src/tensor/tensor.ts';
import { operandAt, refusal, says } from '../support/batched.ts';
import { checkGradient, gradientOf } from '../support/gradient-check.ts';
import { type Domain, type Sample, build, floatOperand, withSession } from '../support/operator-sample.ts';
import { type OperatorCase, batchedOperand, broadcastOperands, describeOperators } from '../support/operator-suite.ts';
import { testRandom } from '../support/random-network.ts';

type Name = keyof typeof activations;

const kinked: Domain = { avoid: [0] };

const one = (op: Name, domain?: Domain, ...attributes: Attributes[]): OperatorCase => ({
  samples: fc.tuple(batchedOperand(domain), fc.constantFrom(...(attributes.length > 0 ? attributes : [{}])))
    .map(([x, chosen]) => ({ op, inputs: [x], attributes: chosen })),
});

const alpha = (x: number): Attributes => ({ alpha: float(x) });

/** The axis is any but, now and then, the one that carries the batch. */
const overAxis = (op: Name, flows = true): OperatorCase => ({
  samples: batchedOperand({ distinct: op === 'Hardmax' })
    .chain((x) => fc.integer({ min: -x.value.shape.length, max: x.value.shape.length - 1 })
    .map((axis): Sample => ({ op, inputs: [x], attributes: { axis: int(axis) } }))),
  flows,
});

/** The bias is a vector along the last axis. */
const biased = (op: Name, optional: boolean): OperatorCase => ({
  samples: batchedOperand().chain((x) => fc.tuple(floatOperand([x.value.shape.at(-1)!]), fc.boolean())
    .map(([bias, has]): Sample => ({ op, inputs: has || !optional ? [x, bias] : [x] }))),
  parameters: [1],
});

const cases: Readonly<Record<Name, OperatorCase>> = {
  Relu: one('Relu', kinked),
  LeakyRelu: one('LeakyRelu', kinked, {}, alpha(0), alpha(0.3), alpha(-0.5)),
  PRelu: {
    samples: broadcastOperands([kinked, undefined])
      .filter(([x, slope]) => x!.value.shape.length >= slope!.value.shape.length
        && x!.value.data.length >= slope!.value.data.length)
      .filter(([x, slope]) =>
        slope!.value.shape.every((n, i) => n === 1
        || n === x!.value.shape[i + x!.value.shape.length - slope!.value.shape.length]))
      .map((inputs) => ({ op: 'PRelu', inputs })),
    parameters: [1],
  },
  ThresholdedRelu: one('ThresholdedRelu', { avoid: [1, 0.5] }, {}, alpha(0.5)),
  Elu: one('Elu', kinked, {}, alpha(0.4)),
  Selu: one('Selu', kinked, {}, { ...alpha(1.2), gamma: float(0.7) }, { ...alpha(1), gamma: float(1.5) }),
  Celu: one('Celu', kinked, {}, alpha(0.4)),
  Sigmoid: one('Sigmoid'),
  HardSigmoid: one('HardSigmoid', { avoid: [-2.5, 2.5, -1, 1] }, {}, { alpha: float(0.5), beta: float(0.5) }),
  HardSwish: one('HardSwish', { low: -5, high: 5, avoid: [-3, 3] }),
  Tanh: one('Tanh'), Softplus: one('Softplus'), Softsign: one('Softsign', kinked), Mish: one('Mish'),
  Shrink: one('Shrink', { avoid: [-0.5, 0.5] }, {}, { lambd: float(0.5), bias: float(0.3) }),
  Gelu: one('Gelu', undefined, {}, { approximate: string('tanh') }),
  'com.microsoft:FastGelu': biased('com.microsoft:FastGelu', true),
  'com.microsoft:BiasGelu': biased('com.microsoft:BiasGelu', false),
  'com.microsoft:Gelu': one('com.microsoft:Gelu'), Swish: one('Swish', undefined, {}, alpha(0.5)),
  'com.microsoft:QuickGelu': one('com.microsoft:QuickGelu', undefined, {}, alpha(1)),
  Softmax: overAxis('Softmax'), LogSoftmax: overAxis('LogSoftmax'), Hardmax: overAxis('Hardmax', false),
};

describeOperators(cases);

describe('at a kink', () => {
  it('Relu, and what is built like it, has no slope at 0', async () => {
    const sample = (op: string): Sample => ({ op, inputs: [{ value: float32([-1, -0, 0, 1]) }] });
    expect(await gradientOf(sample('Relu'), float32([5, 6, 7, 8]))).toEqual([[0, 0, 0, 8]]);
    expect(await gradientOf(sample('ThresholdedRelu'), float32([5, 6, 7, 8]))).toEqual([[0, 0, 0, 0]]);
  });

  it('Relu passes gradients on for the smallest positive values', async () => {
    const tiny = float32([1e-45, 1e-39, 1e-30]);
    expect(await gradientOf({ op: 'Relu', inputs: [{ value: tiny }] }, float32([1, 2, 3]))).toEqual([[1, 2, 3]]);
  });
});

describe('far from the origin gradients stay finite', () => {
  it.each([...Object.keys(cases)].filter((op) => !op.includes('Bias') && op !== 'PRelu' && op !== 'Hardmax'))('%s',
    async (op) => {
    const [g] = await gradientOf({ op, inputs: [{ value: float32([-90, -30, 0, 30, 90], [1, 5]) }] },
      float32([1, 1, 1, 1, 1], [1, 5]));
    expect(g!.every(Number.isFinite)).toBe(true);
  });
});

describe('normalisation over an axis', () => {
  it('is refused over the batch, whole or merged, and proved elsewhere', () => {
    const sample = (op: string, axis: number, x = operandAt([3, 4], 0)): Sample =>
      ({ op, inputs: [x], attributes: { axis: int(axis) } });
    for (const op of ['Softmax', 'LogSoftmax', 'Hardmax']) {
      expect(says(sample(op, 0))).toMatchObject(refusal(/normalises over axis 0, which carries the batch/));
      expect(says(sample(op, -2))).toMatchObject(refusal(/axis 0/));
      expect(says(sample(op, -1))).toEqual([{ axis: 0, before: 1, after: 1 }]);
      expect(says(sample(op, 0, { ...operandAt([6, 4]), batch: { axis: 0, before: 1, after: 2 } })))
        .toMatchObject(refusal(/normalises/));
    }
  });

  it('normalises over the last axis unless told otherwise', async () => {
    expect(says({ op: 'Softmax', inputs: [operandAt([3, 4], 1)] })).toMatchObject(refusal(/axis 1/));
    await checkGradient({ op: 'Softmax', inputs: [{ value: float32([1, 2, 3, 4, 5, 6], [2, 3]) }] });
  });

  it('needs an axis of the input', () => {
    expect(() => build({ op: 'Softmax', inputs: [operandAt([3, 4])], attributes: { axis: int(2) } }))
      .toThrow(/axis 2[^]*from -2 to 1/);
  });

  it('LogSoftmax has the gradient of cross-entropy where a probability has underflowed', async () => {
    const [g] = await gradientOf({ op: 'LogSoftmax', inputs: [{ value: float32([0, 200], [1, 2]) }] },
      float32([-1, 0], [1, 2]));
    expect(g).toEqual([-1, 1]);
  });

  it('adds to the gradient of LogSoftmax what a loss of few classes sends back, and lays nothing else out', async () => {
    await fc.assert(fc.asyncProperty(
      fc.integer({ min: 1, max: 4 }), fc.integer({ min: 2, max: 6 }), fc.integer({ min: 1, max: 3 }), fc.nat(),
      async (rows, classes, picks, seed) => {
        const random = testRandom(seed + 1);
        const x = float32(Array.from({ length: rows * classes }, () => random() * 8 - 4), [rows, classes]);
        const [indices, sent] = [
          int64(Array.from({ length: rows * picks }, () => Math.floor(random() * classes)), [rows, picks]),
          float32(Array.from({ length: rows * picks }, () => random() * 2 - 1), [rows, picks]),
        ];
        const b = graphBuilder(semantics);
        const logits = b.input('x', { dtype: 'float32', shape: [rows, classes] });
        const logarithms = b.op('LogSoftmax', [logits], { axis: int(1) });
        const picked = b.op('GatherElements', [logarithms, b.constant(indices)], { axis: int(-1) });
        const { nodes } = b.build([['picked', picked]]);
        const gradient = backpropagate(b, nodes.map((node) => ({ ...node, outputs: node.outputs.map((o) => (o === 'picked' ? picked : o)) })),
          new Map([[picked, b.constant(sent)]]), () => true).get(logits)!;
        const graph = b.build([['g', gradient]]);
        const large = graph.nodes.filter(({ outputs }) => graph.types.get(outputs[0]!)?.shape.join() === `${rows},${classes}`);
        expect(large.map(({ op }) => op)).toEqual(['LogSoftmax', 'Exp', 'Mul', 'ScatterElements']);
        const { g } = await withSession(graph, (run) => run({ x }));
        for (let i = 0; i < rows; i++) {
          const z = x.data.subarray(i * classes, (i + 1) * classes);
          const total = z.reduce((sum, value) => sum + Math.exp(value), 0);
          const u = sent.data.subarray(i * picks, (i + 1) * picks);
          const wanted = Array.from(z, (value) => (-Math.exp(value) / total) * u.reduce((sum, value2) => sum + value2, 0));
          u.forEach((value, k) => { wanted[Number(indices.data[i * picks + k])]! += value; });
          wanted.forEach((value, c) => { expect(Number(g!.data[i * classes + c])).toBeCloseTo(value, 5); });
        }
      },
    ), { numRuns: 30 });
  });
});

describe('shape rules', () => {
  it('refuse slopes and biases that do not fit', () => {
    expect(() => build({ op: 'PRelu', inputs: [operandAt([2, 3]), operandAt([4, 2, 3])] })).toThrow(/slopes/);
    expect(() => build({ op: 'com.microsoft:BiasGelu', inputs: [operandAt([2, 3]), operandAt([2])] }))
      .toThrow(/bias \[2\]/);
  });
});
