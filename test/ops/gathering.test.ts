import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { int, string } from '../../src/graph/ir.ts';
import type { BatchAxis } from '../../src/ops/batch.ts';
import { graphBuilder } from '../../src/ops/builder.ts';
import { type gathering, scatterAlong } from '../../src/ops/gathering.ts';
import type { scattering } from '../../src/ops/scatter.ts';
import { operatorOf, semantics } from '../../src/ops/table.ts';
import { type Shape, type Tensor, float32, int64, sizeOf, tensor, toNumbers } from '../../src/tensor/tensor.ts';
import { batchPlace, list, operandAt, refusal, says, withRows } from '../support/batched.ts';
import { checkFold, checkGradient, gradientOf } from '../support/gradient-check.ts';
import {
  type Operand, type Sample, build, constantOperand, floatOperand, gradientContext, withSession,
} from '../support/operator-sample.ts';
import { type OperatorCase, describeOperators, dimensions } from '../support/operator-suite.ts';
import { checkParameterUse } from '../support/parameter-check.ts';

type Name = keyof typeof gathering | keyof typeof scattering;

const indices = (shape: Shape, size: number, fromBack = true): fc.Arbitrary<Tensor> =>
  list(sizeOf(shape), fromBack ? -size : 0, size - 1).map((values) => int64(values, shape));

const placeIn = (shape: Shape) => batchPlace(shape.map((_, i) => i));

/** Either the data carries the batch, or the indices do, or (to be refused) both. */
const gathers: fc.Arbitrary<Sample> = fc.record({
  data: dimensions({ min: 1, max: 3 }), picked: dimensions({ min: 1, max: 2 }),
    who: fc.constantFrom('data', 'data', 'indices', 'indices', 'both'),
  constant: fc.boolean(), wide: fc.boolean(),
}).chain(({ data, picked, who, constant, wide }) =>
  fc.tuple(placeIn(data), placeIn(picked), fc.integer({ min: -data.length, max: data.length - 1 }))
  .chain(([dataAt, pickedAt, axis]) => {
    const dataBatch = who === 'indices' ? undefined : dataAt;
    const pickedBatch = who === 'data' ? undefined : pickedAt;
    const shape = dataBatch === undefined ? data : withRows(data, dataBatch);
    return fc.tuple(floatOperand(shape, {}, dataBatch),
      indices(pickedBatch === undefined ? picked : withRows(picked, pickedBatch), shape.at(axis)!))
      .map(([x, value]): Sample => ({
        op: 'Gather', attributes: { axis: int(axis) },
        inputs: [x, { value: wide ? value : tensor('int32', value.shape, Int32Array.from(toNumbers(value))),
          batch: pickedBatch, constant: constant && pickedBatch === undefined }],
      }));
  }));

/** Operands of one shape but for the axis looked along; the indices now and then do not carry the batch. */
const elements = (op: 'GatherElements' | 'ScatterElements', reduction = 'none'): fc.Arbitrary<Sample> =>
  dimensions({ min: 1, max: 3 }).chain((shape) =>
    fc.tuple(placeIn(shape), fc.nat({ max: shape.length - 1 }), fc.constantFrom(1, 2), fc.nat({ max: 5 }))
    .chain(([at, axis, count, kind]) => {
      const full = withRows(shape, at);
      // What is scattered goes to places of its own, so that no two writes race.
      const n = op === 'ScatterElements' && reduction === 'none' ? 1 : axis === at.axis ? full[axis]! : count;
      const small = full.map((size, i) => (i === axis ? Math.min(n, axis === at.axis ? size : n) : size));
      const batch = kind === 0 ? undefined : at;
      return fc.tuple(floatOperand(full, {}, at), indices(small, full[axis]!),
        floatOperand(small, {}, small[at.axis] === full[at.axis] ? at : undefined))
        .map(([x, value, updates]): Sample => ({
          op, attributes: { axis: int(axis), ...(op === 'ScatterElements' ? { reduction: string(reduction) } : {}) },
          inputs: [x, { value, batch: small[at.axis] === full[at.axis] ? batch : undefined },
            ...(op === 'ScatterElements' ? [updates] : [])],
        }));
    }));

const gatherND: fc.Arbitrary<Sample> = fc.record({
  shared: fc.constantFrom(0, 1, 2), depth: fc.constantFrom(1, 2), tail: dimensions({ min: 0, max: 1 }),
    picked: fc.constantFrom(1, 2, 3),
  at: fc.record({ before: fc.constantFrom(1, 2), after: fc.constantFrom(1, 2) }), both: fc.boolean(),
    axis: fc.nat({ max: 2 }),
}).chain(({ shared, depth, tail, picked, at, both, axis }) => {
  const leading: number[] = Array<number>(shared).fill(2);
  const data = [...leading, ...Array<number>(depth).fill(3), ...tail];
  const places = [...leading, picked, depth];
  // The batch in a shared axis, behind the places in the data, or before them in the indices.
  const inShared = shared > 0 && axis < shared;
  const dataBatch: BatchAxis | undefined = inShared ? { ...at, axis } : tail.length > 0
    ? { ...at, axis: shared + depth } : undefined;
  const placesBatch: BatchAxis | undefined = inShared ? (both ? { ...at, axis } : undefined) : dataBatch === undefined
    ? { ...at, axis: shared } : undefined;
  const grow = (shape: number[], own: BatchAxis | undefined) =>
    (own !== undefined ? withRows(shape, own) : inShared ? withRows(shape, { ...at, axis }) : shape);
  return fc.tuple(floatOperand(grow(data, dataBatch), {}, dataBatch), indices(grow(places, placesBatch), 3))
    .map(([x, value]): Sample =>
      ({ op: 'GatherND', inputs: [x, { value, batch: placesBatch }], attributes: { batch_dims: int(shared) } }));
});

/** Distinct places along the first axis or the first two, the batch behind them (or, to be refused, in them). */
const scatterND = (reduction: string): fc.Arbitrary<Sample> => fc.record({
  depth: fc.constantFrom(1, 2), tail: dimensions({ min: 1, max: 2 }),
    order: fc.shuffledSubarray([0, 1, 2], { minLength: 1 }), bad: fc.nat({ max: 7 }), plain: fc.nat({ max: 7 }),
}).chain(({ depth, tail, order, bad, plain }) => batchPlace(tail.map((_, i) => depth + i)).chain((at) => {
  const place = bad === 0 ? { axis: 0, before: 1, after: 1 } : at;
  const shape = bad === 0 ? [3, ...Array<number>(depth - 1).fill(3), ...tail]
    : withRows([...Array<number>(depth).fill(3), ...tail], at);
  const places = int64(order.flatMap((i) => Array<number>(depth).fill(i)), [order.length, depth]);
  const updates = [order.length, ...shape.slice(depth)];
  const updatesBatch = bad === 0 || plain === 0 ? undefined : { ...at, axis: at.axis - depth + 1 };
  return fc.tuple(floatOperand(shape, {}, place), floatOperand(updates, {}, updatesBatch))
    .map(([x, u]): Sample =>
      ({ op: 'ScatterND', inputs: [x, constantOperand(places), u], attributes: { reduction: string(reduction) } }));
}));

const reductions = ['none', 'add', 'mul', 'max', 'min'];

/** For extrema: values of the data and the updates that finite differences leave in their order. */
const apart = (samples: fc.Arbitrary<Sample>): fc.Arbitrary<Sample> => samples.map((sample) => {
  const [x, indices, updates] = sample.inputs as [Operand, Operand, Operand];
  const ranked = (t: Tensor, offset: number): Tensor => {
    const order = toNumbers(t).map((v, i) => ({ v, i })).sort((a, b) => a.v - b.v).map(({ i }) => i);
    return float32(order.map((_, i) => order.indexOf(i) * 0.5 + offset - order.length / 4), t.shape);
  };
  const shift = (sizeOf(x.value.shape) - sizeOf(updates.value.shape)) / 4;
  return { ...sample, inputs: [{ ...x, value: ranked(x.value, 0) }, indices, { ...updates, value: ranked(updates.value, 0.25 - shift) }] };
});
const forReduction = (make: (reduction: string) => fc.Arbitrary<Sample>): fc.Arbitrary<Sample> =>
  fc.oneof(...reductions.map((r) => (r.startsWith('m') && r !== 'mul' ? apart(make(r)) : make(r))));

const cases: Readonly<Record<Name, OperatorCase>> = {
  Gather: { samples: gathers, parameters: [0] },
  GatherElements: { samples: elements('GatherElements') },
  ScatterElements: { samples: forReduction((r) => elements('ScatterElements', r)) },
  GatherND: { samples: gatherND },
  ScatterND: { samples: forReduction(scatterND) },
  OneHot: {
    samples: dimensions({ min: 1, max: 3 })
      .chain((shape) => fc.tuple(placeIn(shape), fc.integer({ min: -shape.length - 1, max: shape.length }))
      .chain(([at, axis]) => indices(withRows(shape, at), 4).map((value): Sample => ({
        op: 'OneHot', attributes: { axis: int(axis) },
        inputs: [{ value, batch: at }, constantOperand(int64([4], [])), { value: float32([-1, 2]) }],
      })))),
  },
};

describeOperators(cases, 60);

describe('scatterAlong', () => {
  const shape = [2, 5, 3];

  it('adds each entry to where it came from, whatever the indices', async () => {
    const lists = fc.oneof(
      fc.array(fc.nat({ max: 6 }), { minLength: 1, maxLength: 5 }),
      fc.tuple(fc.nat({ max: 2 }), fc.integer({ min: 1, max: 5 }))
        .map(([start, n]) => Array.from({ length: n }, (_, i) => start + i)),
      fc.constantFrom([4, 3, 2, 1, 0], [1, 0, 1, 2, 1], [0, 0, 0], [6], [0, 2, 4, 6]),
    );
    await fc.assert(fc.asyncProperty(lists, async (picked) => {
      const b = graphBuilder(semantics);
      const g = b.input('g', { dtype: 'float32', shape: [shape[0]!, picked.length, shape[2]!] });
      const sum = scatterAlong(b, g, picked, 1, 7);
      const value = float32(Array.from({ length: 6 * picked.length }, (_, i) => i + 1), [2, picked.length, 3]);
      const { y } = await withSession(b.build([['y', sum]]), (run) => run({ g: value }));
      const expected = Array<number>(2 * 7 * 3).fill(0);
      value.data.forEach((v, i) => {
        const [o, k, c] = [Math.floor(i / (3 * picked.length)), Math.floor(i / 3) % picked.length, i % 3];
        expected[(o * 7 + picked[k]!) * 3 + c]! += v;
      });
      expect(toNumbers(y!)).toEqual(expected);
    }), { numRuns: 60 });
  });

  it('needs no scattering for a few runs of neighbours', () => {
    const b = graphBuilder(semantics);
    const g = b.input('g', { dtype: 'float32', shape: [2, 4] });
    const graph = b.build([['y', scatterAlong(b, g, [1, 2, 3, 4], 1, 7)]]);
    expect(graph.nodes.map((node) => node.op)).not.toContain('ScatterND');
  });
});

describe('Gather', () => {
  const table = float32([1, 2, 3, 4, 5, 6], [3, 2]);

  it('takes a table of parameters by rows, or along another axis', async () => {
    const ids = (values: number[]): Operand =>
      ({ value: int64(values, [2, 2]), batch: { axis: 0, before: 1, after: 1 } });
    const use = (axis: number, values: number[]) => {
      const sample: Sample = { op: 'Gather', inputs: [{ value: table }, ids(values)], attributes: { axis: int(axis) } };
      const built = build(sample);
      const at = { axis: 0, before: 1, after: 1 };
      const context = gradientContext(built, sample, [], [0]);
      return operatorOf(built.node).parameter!({ ...context, index: 0, inputBatch: [undefined, at],
        outputBatch: [{ ...at, axis }] }).kind;
    };
    expect(use(0, [0, -1, 2, 2])).toBe('gather');
    expect(use(1, [0, -1, 1, 1])).toBe('opaque');
    for (const [axis, values] of [[0, [0, -1, 2, 2]], [1, [0, -1, 1, 1]]] as const) {
      await checkParameterUse({ op: 'Gather', inputs: [{ value: table }, ids([...values])],
        attributes: { axis: int(axis) } }, 0);
    }
  });

  it('adds up what repeated and backward indices took', async () => {
    const sample = (values: number[], constant: boolean): Sample =>
      ({ op: 'Gather', inputs: [{ value: table }, { value: int64(values), constant }] });
    for (const values of [[0, 0, 2], [-1, -3, -1], [2, 1, 0], []]) {
      await checkGradient(sample(values, true));
      await checkGradient(sample(values, false));
    }
  });

  it('picks no examples, and looks nothing up across them', () => {
    const at = (x: Operand, y: Operand, axis = 0): Sample =>
      ({ op: 'Gather', inputs: [x, y], attributes: { axis: int(axis) } });
    const ids: Operand = { value: int64([0, 1, 2]) };
    expect(says(at(operandAt([3, 4], 0), ids))).toMatchObject(refusal(/picks examples by their position/));
    expect(says(at(operandAt([3, 4], 0), ids, 1))).toEqual([{ axis: 0, before: 1, after: 1 }]);
    expect(says(at(operandAt([3, 4], 1), { value: int64([0, 1], [1, 2]) })))
      .toEqual([{ axis: 2, before: 1, after: 1 }]);
    expect(says(at(operandAt([4, 5], 1), { value: int64([0, 1, 2]), batch: { axis: 0, before: 1, after: 1 } })))
      .toMatchObject(refusal(/in every example/));
  });
});

describe('scattering and the batch', () => {
  const at: BatchAxis = { axis: 0, before: 1, after: 1 };

  it('is refused where an index could name another example', () => {
    const places = constantOperand(int64([1], [1, 1]));
    expect(says({ op: 'ScatterND', inputs: [operandAt([3, 2], 0), places, operandAt([1, 2])] }))
      .toMatchObject(refusal(/indices name/));
    expect(says({ op: 'ScatterND', inputs: [operandAt([2, 3], 1), places, operandAt([1, 3], 1)] }))
      .toEqual([{ ...at, axis: 1 }]);
    const chosen: Operand = { value: int64([0, 1, 1], [3, 1]), batch: at };
    expect(says({ op: 'ScatterND', inputs: [operandAt([2, 4]), chosen, operandAt([3, 4], 0)] }))
      .toMatchObject(refusal(/indices name/));
    expect(says({ op: 'GatherElements', inputs: [operandAt([3, 2], 0), { value: int64([0, 1], [1, 2]) }],
      attributes: { axis: int(1) } }))
      .toMatchObject(refusal(/position in the batch/));
    expect(says({ op: 'GatherElements',
      inputs: [operandAt([3, 2], 0), { value: int64([0, 1, 0, 1, 0, 0], [3, 2]), batch: at }],
      attributes: { axis: int(0) } }))
      .toMatchObject(refusal(/moves values along axis 0/));
    expect(says({ op: 'GatherND', inputs: [operandAt([3, 2], 0), { value: int64([0, 1, 0], [3, 1]), batch: at }] }))
      .toMatchObject(refusal(/across examples/));
    const values: Operand = { value: float32([0, 1]), batch: at };
    expect(says({ op: 'OneHot', inputs: [{ value: int64([0, 1]) }, constantOperand(int64([3], [])), values] }))
      .toMatchObject(refusal(/to every example/));
  });

  it('gives the gradient of products with zeros, and shares that of ties', async () => {
    const dY = float32([1, 2, 4]);
    const sample = (reduction: string, updates: number[]): Sample => ({
      op: 'ScatterElements', attributes: { reduction: string(reduction) },
      inputs: [{ value: float32([3, 5, 7]) }, { value: int64([1, 1, 2]) }, { value: float32(updates) }],
    });
    expect(await gradientOf(sample('mul', [0, 2, 3]), dY)).toEqual([[1, 0, 12], [20, 0, 28]]);
    expect(await gradientOf(sample('mul', [0, 0, 3]), dY)).toEqual([[1, 0, 12], [0, 0, 28]]);
    expect(await gradientOf(sample('max', [5, 5, 9]), float32([1, 3, 4]))).toEqual([[1, 1, 0], [1, 1, 4]]);
    expect(await gradientOf(sample('min', [6, 2, 7]), dY)).toEqual([[1, 0, 2], [0, 2, 2]]);
  });
});

describe('shape rules', () => {
  it('refuse what does not fit', () => {
    const ids = (shape: number[]): Operand => ({ value: int64(Array<number>(sizeOf(shape)).fill(0), shape) });
    expect(() => build({ op: 'Gather', inputs: [operandAt([2]), operandAt([2])] })).toThrow(/indices float32/);
    expect(() => build({ op: 'GatherElements', inputs: [operandAt([2, 2]), ids([2])] })).toThrow(/same rank/);
    expect(() => build({ op: 'GatherND', inputs: [operandAt([2]), ids([1, 2])] })).toThrow(/at most the rank/);
    expect(() => build({ op: 'ScatterElements', inputs: [operandAt([2]), ids([2]), operandAt([1])] }))
      .toThrow(/updates/);
    expect(() => build({ op: 'ScatterND', inputs: [operandAt([2, 3]), ids([1, 1]), operandAt([1, 2])] }))
      .toThrow(/float32\[1, 3\]/);
  });
});

describe('folding', () => {
  it('of the others is what ONNX Runtime computes', async () => {
    const x = int64(Array.from({ length: 12 }, (_, i) => i), [2, 3, 2]);
    const fold = (op: string, inputs: Tensor[], attributes = {}) => checkFold({ op, inputs: inputs.map(constantOperand), attributes });
    await fold('GatherElements', [x, int64([0, -1, 1, 0], [1, 2, 2])], { axis: int(1) });
    await fold('GatherND', [x, int64([1, -1, 0, 2], [2, 2])]);
    await fold('GatherND', [x, int64([1, -1], [2, 1])], { batch_dims: int(1) });
    for (const reduction of ['none', 'add']) {
      await fold('ScatterElements', [x, int64([2, 0], [1, 1, 2]), int64([50, 60], [1, 1, 2])], { axis: int(1), reduction: string(reduction) });
      await fold('ScatterND', [x, int64([1, -2, 0, 0], [2, 2]), int64([1, 2, 3, 4], [2, 2])], { reduction: string(reduction) });
    }
    await fold('OneHot', [int64([0, -1, 5, 2], [2, 2]), int64([3], []), int64([4, 9])], { axis: int(1) });
  });

  it('of Gather is what ONNX Runtime computes', async () => {
    const x = int64([0, 1, 2, 3, 4, 5], [2, 3]);
    await fc.assert(fc.asyncProperty(fc.constantFrom(0, 1, -1), fc.constantFrom<number[]>([], [2], [1, 3]), fc.nat(),
      async (axis, shape, seed) => {
      const size = x.shape.at(axis)!;
      const picked = int64(Array.from({ length: sizeOf(shape) }, (_, i) => ((seed + i) % (2 * size)) - size), shape);
      await checkFold({ op: 'Gather', inputs: [x, picked].map(constantOperand), attributes: { axis: int(axis) } });
    }), { numRuns: 20 });
  });
});
