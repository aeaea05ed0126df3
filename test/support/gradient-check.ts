import { expect } from 'vitest';
import { type Tensor, float32, isFloat, sameShape, toNumbers, zeros } from '../../src/tensor/tensor.ts';
import {
  type Sample, build, differentiable, dot, feedsOf, gradientContext, gradients, randomLike, shapes, withSession,
} from './operator-sample.ts';
import { testRandom } from './random-network.ts';

/** Checks that ONNX Runtime computes outputs of the types that the shape rule says; gives them back. */
export async function checkTypes(sample: Sample): Promise<Record<string, Tensor>> {
  const { b, node } = build(sample);
  const inferred = node.outputs.map((y) => b.type(y));
  const found = await withSession(b.build(node.outputs.map((y) => [y, y])), (run) => run(feedsOf(sample)));
  node.outputs.forEach((y, k) => {
    const { dtype, shape } = found[y]!;
    expect({ dtype, shape }, `output ${k} of ${shapes(sample)}`)
      .toEqual({ dtype: inferred[k]!.dtype, shape: [...inferred[k]!.shape] });
  });
  return found;
}

/** Checks that the folding rule computes what ONNX Runtime does. Every operand must be constant. */
export async function checkFold(sample: Sample): Promise<void> {
  const { b, node, operator } = build({ ...sample, inputs: sample.inputs.map((o) => o && { ...o, constant: true }) });
  const constants = sample.inputs.flatMap((o) => (o === undefined ? [] : [o.value]));
  const folded = operator.fold?.({ node, inputs: constants.map(({ dtype, shape }) => ({ dtype, shape })), constants });
  expect(folded, `${node.op} folds`).toBeDefined();
  const found = await withSession(b.build(node.outputs.map((y) => [y, y])), (run) => run({}));
  folded?.forEach((t, k) => {
    const expected = found[node.outputs[k]!]!;
    expect({ dtype: t.dtype, shape: t.shape }, shapes(sample))
      .toEqual({ dtype: expected.dtype, shape: expected.shape });
    if (isFloat(t.dtype)) {
      t.data.forEach((v, i) => { expect(Number(v), shapes(sample)).toBeCloseTo(Number(expected.data[i]), 4); });
    } else {
      expect(t.data, shapes(sample)).toEqual(expected.data);
    }
  });
}

/** What the gradient rule gives each float input for a cotangent of the first output; zeros where it gives nothing. */
export async function gradientOf(sample: Sample, dY: Tensor): Promise<number[][]> {
  const wrt = differentiable(sample);
  const built = build(sample);
  const found = gradients(built, gradientContext(built, sample, wrt, [0]));
  const given = wrt.flatMap((i) => (found[i] === undefined ? [] : [[`g${i}`, found[i]] as const]));
  const values = await withSession(built.b.build(given), (run) => run({ ...feedsOf(sample), dy0: dY }));
  return wrt.map((i) => toNumbers(values[`g${i}`] ?? zeros('float32', sample.inputs[i]!.value.shape)));
}

export interface GradientCheckOptions {
  /** Inputs whose gradient is checked; default: every float input. */
  readonly wrt?: readonly number[];
  /** Outputs that gradients flow back from; default: every float output. */
  readonly cotangents?: readonly number[];
  readonly seed?: number;
}

/** Step of the finite differences: extrapolated from two steps, the error is of the order of its 4th power. */
const step = 1 / 16;
const directions = 2;

/**
 * Checks an operator's gradient rule against finite differences: for random cotangents u and directions v,
 * <gradient, v> equals the derivative of <u, f(x + t·v)>. A gradient left out counts as zero.
 */
export async function checkGradient(sample: Sample, options: GradientCheckOptions = {}): Promise<void> {
  const wrt = options.wrt ?? differentiable(sample);
  const random = testRandom(options.seed ?? 1);
  const built = build(sample);
  const { b, node } = built;
  const context = gradientContext(built, sample, wrt, options.cotangents);
  const found = gradients(built, context);
  wrt.forEach((i) => {
    const g = found[i];
    if (g !== undefined) expect(b.type(g), `gradient ${i} of ${shapes(sample)}`)
      .toEqual({ dtype: 'float32', shape: b.shape(node.inputs[i]!) });
  });
  const cotangents: Record<string, Tensor> = Object.fromEntries(
    node.outputs.flatMap((y, k) =>
      (context.outputGradients[k] === undefined ? [] : [[`dy${k}`, randomLike(random, b.type(y))] as const])),
  );
  const x = feedsOf(sample);
  const given = wrt.flatMap((i) => (found[i] === undefined ? [] : [[`g${i}`, found[i]] as const]));
  const analytic = given.length === 0 ? {} : await withSession(b.build(given), (run) => run({ ...x, ...cotangents }));

  const forward = build(sample);
  await withSession(forward.b.build(node.outputs.map((y) => [y, y])), async (run) => {
    const weigh = async (feeds: Record<string, Tensor>) => {
      const y = await run(feeds);
      return node.outputs.reduce((sum, name, k) => sum
        + (cotangents[`dy${k}`] ? dot(y[name]!, cotangents[`dy${k}`]!) : 0), 0);
    };
    const y = await run(x);
    const magnitude = node.outputs.reduce((sum, name, k) =>
      sum + (cotangents[`dy${k}`] ? dot(absolute(y[name]!), absolute(cotangents[`dy${k}`]!)) : 0), 0);
    for (const i of wrt) {
      for (let trial = 0; trial < directions; trial++) {
        const v = randomLike(random, sample.inputs[i]!.value);
        const difference = async (h: number) =>
          (await weigh({ ...x, [`x${i}`]: moved(x[`x${i}`]!, v, h) }) - await weigh({ ...x,
            [`x${i}`]: moved(x[`x${i}`]!, v, -h) })) / (2 * h);
        const numeric = (4 * await difference(step / 2) - await difference(step)) / 3;
        const g = analytic[`g${i}`];
        const expected = g === undefined ? 0 : dot(g, v);
        const size = g === undefined ? 0 : dot(absolute(g), absolute(v));
        expect(Math.abs(numeric - expected),
          `input ${i} of ${shapes(sample)}: finite difference ${numeric}, rule ${expected}`)
          .toBeLessThan(1e-3 * size + 3e-5 * magnitude + 1e-6);
      }
    }
  });
}

const absolute = (t: Tensor): Tensor => float32(toNumbers(t).map(Math.abs), t.shape);

const moved = (x: Tensor, v: Tensor, h: number): Tensor => {
  if (!sameShape(x.shape, v.shape)) throw new Error('a direction of another shape');
  return float32(toNumbers(x).map((value, i) => value + h * Number(v.data[i])), x.shape);
};
