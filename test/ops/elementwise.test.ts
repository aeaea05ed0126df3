import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../../src/errors.ts';
import { type Attributes, int } from '../../src/graph/ir.ts';
import { type elementwise } from '../../src/ops/elementwise.ts';
import { type DType, float32, int64, tensor, toNumbers } from '../../src/tensor/tensor.ts';
import { operandAt, refusal, says } from '../support/batched.ts';
import { checkFold, checkGradient, checkTypes, gradientOf } from '../support/gradient-check.ts';
import { type Domain, type Operand, type Sample, build, constantOperand, floats } from '../support/operator-sample.ts';
import { type OperatorCase, batchedOperand, broadcastOperands, describeOperators } from '../support/operator-suite.ts';

type Name = keyof typeof elementwise;

const positive: Domain = { low: 0.5, high: 2 };
const inUnit: Domain = { low: -0.8, high: 0.8 };

const binary = (op: string, domains: readonly (Domain | undefined)[] = [undefined, undefined],
  attributes: Attributes = {}): OperatorCase => ({
  samples: broadcastOperands(domains).map((inputs) => ({ op, inputs, attributes })), parameters: domains
    .map((_, i) => i),
});

const variadic = (op: string): OperatorCase => ({
  samples: fc.integer({ min: 1, max: 4 }).chain((n) => broadcastOperands(Array<undefined>(n).fill(undefined)))
    .map((inputs) => ({ op, inputs })),
  parameters: [0, 1],
});

const one = (op: string, domain?: Domain, attributes: Attributes = {}): OperatorCase => ({
  samples: batchedOperand(domain).map((x) => ({ op, inputs: [x], attributes })),
});

const retyped = (dtype: DType, { value, batch }: Operand): Operand => ({
  value: dtype === 'bool' ? tensor('bool', value.shape, Uint8Array.from(toNumbers(value), (v) => Number(v > 0)))
    : value, batch,
});

const relation = (op: string, dtype: DType = 'float32'): OperatorCase => ({
  samples: broadcastOperands([undefined, undefined])
    .map((inputs) => ({ op, inputs: inputs.map((o) => retyped(dtype, o)) })), flows: false,
});

const still = (op: string, dtype: DType = 'float32'): OperatorCase => ({
  samples: batchedOperand().map((x) => ({ op, inputs: [retyped(dtype, x)] })), flows: false,
});

/** Values that lie apart, shuffled, so that no two operands tie. */
const apart = (op: string): OperatorCase => ({
  samples: fc.integer({ min: 1, max: 3 })
    .chain((n) => broadcastOperands(Array.from({ length: n }, () => ({ distinct: true }))))
    .map((inputs) => ({
      // Each operand has a fraction of a quarter to itself.
      op, inputs: inputs.map((o, i) =>
        ({ ...o, value: float32(toNumbers(o.value).map((v) => 2 * v + i * 0.17), o.value.shape) })),
    })),
  parameters: [0, 1],
});

const cases: Readonly<Record<Name, OperatorCase>> = {
  Add: binary('Add'), Sub: binary('Sub'), Mul: binary('Mul'), Div: binary('Div', [undefined, positive]),
  Pow: binary('Pow', [positive, { low: -1.5, high: 1.5 }]),
  Mod: binary('Mod', [{ low: 1.15, high: 1.3 }, { low: 0.8, high: 0.9 }], { fmod: int(1) }),
  Max: apart('Max'), Min: apart('Min'), Sum: variadic('Sum'), Mean: variadic('Mean'),
  Neg: one('Neg'), Abs: one('Abs', { avoid: [0] }), Sqrt: one('Sqrt', positive), Exp: one('Exp'),
    Log: one('Log', positive),
  Reciprocal: one('Reciprocal', positive), Erf: one('Erf'), Sin: one('Sin'), Cos: one('Cos'), Tan: one('Tan', inUnit),
  Asin: one('Asin', inUnit), Acos: one('Acos', inUnit), Atan: one('Atan'), Sinh: one('Sinh'), Cosh: one('Cosh'),
    Asinh: one('Asinh'),
  Acosh: one('Acosh', { low: 1.5, high: 3 }), Atanh: one('Atanh', { low: -0.7, high: 0.7 }),
  Sign: still('Sign'), Floor: still('Floor'), Ceil: still('Ceil'), Round: still('Round'),
  Equal: relation('Equal'), Greater: relation('Greater'), GreaterOrEqual: relation('GreaterOrEqual'),
    Less: relation('Less'),
  LessOrEqual: relation('LessOrEqual'), And: relation('And', 'bool'), Or: relation('Or', 'bool'),
    Xor: relation('Xor', 'bool'),
  Not: still('Not', 'bool'), IsNaN: still('IsNaN'), IsInf: still('IsInf'),
  Clip: {
    samples: fc.tuple(batchedOperand({ avoid: [-1, 0.5] }), fc.boolean(), fc.boolean()).map(([x, low, high]) => ({
      op: 'Clip', inputs: [x, low ? { value: float32([-1], []) } : undefined, high ? { value: float32([0.5], []) }
        : undefined],
    })),
    parameters: [1, 2],
  },
  Where: {
    samples: broadcastOperands([undefined, undefined, undefined])
      .map(([c, x, y]) => ({ op: 'Where', inputs: [retyped('bool', c!), x, y] })),
    parameters: [1, 2],
  },
  Cast: one('Cast', undefined, { to: int(1) }),
  CastLike: { samples: batchedOperand().map((x) => ({ op: 'CastLike', inputs: [x, constantOperand(float32([1]))] })) },
  Dropout: { samples: batchedOperand().map((x) => ({ op: 'Dropout', inputs: [x], outputs: 2 })) },
  Identity: one('Identity'),
};

describeOperators(cases);

describe('Pow', () => {
  it.each([0, 0.5, 1, 2, 3, -1])('with the constant exponent %f has the gradient of finite differences', async (n) => {
    await fc.assert(fc.asyncProperty(floats([3, 2], positive), async (x) => {
      await checkGradient({ op: 'Pow', inputs: [{ value: x }, constantOperand(float32([n], []))] });
      await checkGradient({ op: 'Pow', inputs: [{ value: x }, constantOperand(int64([n === 0.5 ? 4 : n], []))] });
    }), { numRuns: 5 });
  });

  it('is flat at 0 where the exponent is 0, whether constant or not', async () => {
    const value = float32([0, -1, 2]);
    await checkGradient({ op: 'Pow', inputs: [{ value }, { value: float32([0, 0, 0]) }] }, { wrt: [0] });
  });
});

describe('Max and Min', () => {
  it.each(['Max', 'Min'])('%s gives a tie to the first operand alone', async (op) => {
    const sample: Sample = { op, inputs: [0, 1, 2].map(() => ({ value: float32([1, 2]) })) };
    expect(await gradientOf(sample, float32([3, 4]))).toEqual([[3, 4], [0, 0], [0, 0]]);
  });
});

describe('Cast', () => {
  it('hands gradients back in the type they came from, and none to integers', async () => {
    const types: readonly [number, DType][] = [[11, 'float64'], [7, 'int64'], [9, 'bool'], [6, 'int32']];
    for (const [to, dtype] of types) {
      const sample: Sample = { op: 'Cast', inputs: [{ value: float32([0, 1.5, -2]) }], attributes: { to: int(to) } };
      expect((await checkTypes(sample))['y0']!.dtype).toBe(dtype);
    }
    const { b, node, operator } = build({ op: 'Cast', inputs: [{ value: float32([1, 2]) }],
      attributes: { to: int(11) } });
    const dY = b.input('dy', b.type('y0'));
    if ('reason' in operator.gradient) throw new Error('Cast has a gradient');
    const [g] = operator.gradient({ b, node, inputs: node.inputs, outputs: node.outputs, outputGradients: [dY],
      needed: [true] });
    expect(b.type(g!)).toEqual({ dtype: 'float32', shape: [2] });
  });
});

describe('Dropout', () => {
  it('is refused in training mode, constant or computed', () => {
    const sample = (mode: Operand): Sample =>
      ({ op: 'Dropout', inputs: [operandAt([2, 3], 0), constantOperand(float32([0.5], [])), mode] });
    const on = tensor('bool', [], Uint8Array.of(1));
    expect(() => build(sample(constantOperand(on)))).toThrow(/training mode.*\n.*training_mode true[^]*inference mode/);
    expect(() => build(sample({ value: on }))).toThrow(GhostgradError);
    expect(() => build(sample(constantOperand(tensor('bool', [], Uint8Array.of(0)))))).not.toThrow();
  });
});

describe('the batch rule of elementwise operators', () => {
  const add = (x: Operand, y: Operand): Sample => ({ op: 'Add', inputs: [x, y] });
  const column = (values: readonly number[]): Operand => constantOperand(float32(values, [3, 1]));

  it('follows the batch through broadcasting', () => {
    expect(says(add(operandAt([3, 2], 0), operandAt([2])))).toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(says(add(operandAt([3], 0), operandAt([2, 1])))).toEqual([{ axis: 1, before: 1, after: 1 }]);
  });

  it('refuses operands that carry the batch in different places', () => {
    expect(says(add(operandAt([3, 1], 0), operandAt([3], 0)))).toMatchObject(refusal(/different places/));
    const merged = { ...operandAt([6, 2]), batch: { axis: 0, before: 2, after: 1 } };
    const other = { ...operandAt([6, 2]), batch: { axis: 0, before: 1, after: 2 } };
    expect(says(add(merged, other))).toMatchObject(refusal(/different places/));
  });

  it('refuses operands of a value for each row, unless all rows are given the same', () => {
    expect(says(add(operandAt([3, 2], 0), operandAt([3, 1])))).toMatchObject(refusal(/by their position in the batch/));
    expect(says(add(operandAt([3, 2], 0), column([1, 1, 2])))).toMatchObject(refusal(/by their position in the batch/));
    expect(says(add(operandAt([3, 2], 0), column([1, 1, 1])))).toEqual([{ axis: 0, before: 1, after: 1 }]);
    const merged: Operand = { ...operandAt([6, 1]), batch: { axis: 0, before: 1, after: 2 } };
    const repeated = (values: number[]) => says(add(merged, constantOperand(float32(values, [6, 1]))));
    expect(repeated([1, 2, 1, 2, 1, 2])).toEqual([{ axis: 0, before: 1, after: 2 }]);
    expect(repeated([1, 1, 2, 2, 1, 1])).toMatchObject(refusal(/by their position/));
  });
});

describe('shape rules', () => {
  const operand = (dtype: DType, shape: number[]): Operand =>
    ({ value: dtype === 'int64' ? int64(Array<number>(shape.reduce((a, n) => a * n, 1)).fill(0), shape)
      : operandAt(shape).value });

  it('refuse operands that do not fit, naming the node', () => {
    expect(() => build({ op: 'Add', inputs: [operand('float32', [2]), operand('float32', [3])] }))
      .toThrow(/Add node "node"[^]*broadcast/);
    expect(() => build({ op: 'Add', inputs: [operand('float32', [2]), operand('int64', [2])] }))
      .toThrow(/one element type/);
    expect(() => build({ op: 'Add', inputs: [operand('float32', [2]), undefined] }))
      .toThrow(/input 1 of Add is required/);
    expect(() => build({ op: 'Clip', inputs: [operand('float32', [2]), operand('float32', [2])] })).toThrow(/scalars/);
    expect(() => build({ op: 'Where', inputs: [1, 2, 3].map(() => operand('float32', [2])) }))
      .toThrow(/bool condition/);
    expect(() => build({ op: 'Cast', inputs: [operand('float32', [2])], attributes: { to: int(8) } }))
      .toThrow(/STRING/);
  });
});

describe('folding', () => {
  const whole = fc.array(fc.integer({ min: -9, max: 9 }), { minLength: 6, maxLength: 6 });
  const nonzero = fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 3, maxLength: 3 });

  it.each(['Add', 'Sub', 'Mul', 'Div', 'Mod', 'Max', 'Min', 'Equal', 'Greater', 'GreaterOrEqual', 'Less',
    'LessOrEqual'])(
    '%s of integers is what ONNX Runtime computes', async (op) => {
      await fc.assert(fc.asyncProperty(whole, nonzero, (x, y) =>
        checkFold({ op, inputs: [constantOperand(int64(x, [2, 3])), constantOperand(int64(y))] })), { numRuns: 10 });
    });

  it('Mod of negative divisors, and Pow', async () => {
    const inputs = [int64([7, -7, 7, -7]), int64([3, 3, -3, -3])].map(constantOperand);
    await checkFold({ op: 'Mod', inputs });
    const reals = float32([-Infinity, -2, 0.5, Infinity, 3]);
    await checkFold({ op: 'Clip', inputs: [reals, float32([-1], []), float32([2], [])].map(constantOperand) });
    await checkFold({ op: 'Clip', inputs: [constantOperand(int64([-3, 0, 9])), constantOperand(int64([0], []))] });
    for (const side of ['positive', 'negative']) {
      await checkFold({ op: 'IsInf', inputs: [constantOperand(reals)], attributes: { [`detect_${side}`]: int(0) } });
    }
    for (const op of ['Sum', 'Mean']) await checkFold({ op, inputs: [float32([1, 2]), float32([3]), float32([4, 6])].map(constantOperand) });
    for (const op of ['Exp', 'Log', 'Reciprocal']) await checkFold({ op, inputs: [constantOperand(float32([0.5, 2, 4]))] });
    await checkFold({ op: 'Mod', inputs, attributes: { fmod: int(1) } });
    await checkFold({ op: 'Pow', inputs: [int64([2, 3]), int64([3, 2])].map(constantOperand) });
  });

  it.each(['Add', 'Sub', 'Mul', 'Div', 'Max', 'Min', 'Greater'])('%s of floats', async (op) => {
    await fc.assert(fc.asyncProperty(floats([2, 3]), floats([3]), (x, y) =>
      checkFold({ op, inputs: [x, y].map((value) => constantOperand(value)) })), { numRuns: 10 });
  });

  it.each(['Neg', 'Abs', 'Sqrt', 'Sign', 'Floor', 'Ceil', 'Round', 'IsNaN'])('%s', async (op) => {
    const value = float32(op === 'Sqrt' ? [0, 1, 2.25] : [-2.5, -1.5, -0.2, 0, 0.5, 1.5, 2.4]);
    await checkFold({ op, inputs: [constantOperand(value)] });
  });

  it('logic, choice and casts', async () => {
    const [a, b] = [[0, 0, 1, 1], [0, 1, 0, 1]].map((bits) => tensor('bool', [4], Uint8Array.from(bits)));
    for (const op of ['And', 'Or', 'Xor']) await checkFold({ op, inputs: [constantOperand(a!), constantOperand(b!)] });
    await checkFold({ op: 'Not', inputs: [constantOperand(a!)] });
    await checkFold({ op: 'Where', inputs: [a!, int64([1, 2, 3, 4]), int64([9])].map(constantOperand) });
    for (const to of [1, 6, 7, 9, 11]) await checkFold({ op: 'Cast',
      inputs: [constantOperand(float32([-1.7, 0, 2.9]))], attributes: { to: int(to) } });
    await checkFold({ op: 'Cast', inputs: [constantOperand(int64([-3, 0, 2]))], attributes: { to: int(1) } });
    await checkFold({ op: 'CastLike', inputs: [float32([1.9]), int64([0])].map(constantOperand) });
    await checkFold({ op: 'Identity', inputs: [constantOperand(int64([3]))] });
  });

  it('leaves a division of integers by zero to the running graph', () => {
    const { node, operator } = build({ op: 'Div', inputs: [int64([1]), int64([0])].map(constantOperand) });
    const constants = [int64([1]), int64([0])];
    expect(operator.fold?.({ node, inputs: constants, constants })).toBeUndefined();
  });
});
