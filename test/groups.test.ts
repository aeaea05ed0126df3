import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type ClipFunctionSpec, clipFunctionNames } from '../src/clipping/clip-functions.ts';
import { type Partition, groupStyles, partitionOf } from '../src/clipping/groups.ts';
import { clipWeights, defaultRho, safeNorm } from '../src/clipping/norm.ts';
import { modes } from '../src/clipping/plan.ts';
import { type Attributes, type Graph, int, ints, latestOpset } from '../src/graph/ir.ts';
import { graphBuilder } from '../src/ops/builder.ts';
import { semantics } from '../src/ops/table.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Tensor, float32, int64, tensor } from '../src/tensor/tensor.ts';
import { type Analysis, analyse, requireTrainable } from '../src/training/compile.ts';
import { compileStep } from '../src/training/step.ts';
import { type Batch, groupNorms, normOf, oracle, parametersOf, relativeDifference, runStep } from './support/oracle.ts';
import { networkChoice, randomLabels, randomNetwork, randomTensor, testRandom } from './support/random-network.ts';

const privateModes = modes.filter((mode) => mode !== 'non-private');
const gamma = 0.01;
const own = { expression: 'where(n < R, 1, R / (n + 0.1 * R))' };
const functions: readonly ClipFunctionSpec[] = [...clipFunctionNames, own];

/** The clip functions again, in float64; what must hold of them is the cap at R/n. */
function weightOf(spec: ClipFunctionSpec, n: number, R: number): number {
  if (spec === own) return n < R ? 1 : R / (n + 0.1 * R);
  switch (spec) {
    case 'abadi': return Math.min(1, R / n);
    case 'automatic': return R / (n + gamma);
    case 'normalize': return R / n;
    case 'global': return n < R ? 1 : 0;
    case 'psac': return R / (n + gamma / (n + gamma));
    default: throw new Error('no such clip function');
  }
}

describe('clip weights on extreme norms', () => {
  const norms = [0, 1e-30, 1e-12, 1e-3, 0.5, 1, 1e3, 1e18, 1e30, Infinity, NaN];
  const thresholds = [1e-6, 1, 1e6];

  /** [function][group][unit]; every group has the same norms. */
  async function weightsOf(specs: readonly ClipFunctionSpec[]): Promise<number[][][]> {
    const b = graphBuilder(semantics);
    const U = norms.length;
    const parts = { squared: b.input('squared', { dtype: 'float32', shape: [U] }) };
    const norm = safeNorm(b, thresholds.map(() => [parts]), U, defaultRho);
    const mask = b.input('mask', { dtype: 'bool', shape: [U] });
    const R = b.input('R', { dtype: 'float32', shape: [thresholds.length] });
    const graph = b.build(specs.map((spec, i) => [`w${i}`, clipWeights(b, norm, mask, R, { function: spec, gamma }).all]));
    const session = await onnxruntimeEngine().compile(graph, { threads: 1 });
    const { outputs } = await session.run({
      squared: float32(norms.map((n) => n * n), [U]), mask: tensor('bool', [U], new Uint8Array(U).fill(1)), R: float32(thresholds),
    });
    await session.release();
    return specs.map((_, i) => thresholds.map((__, k) => Array.from((outputs[`w${i}`]!.data as Float32Array).subarray(k * U, (k + 1) * U))));
  }

  function expectBounded(weights: readonly (readonly number[])[]): void {
    weights.forEach((row, k) => row.forEach((w, u) => {
      expect(w >= 0 && w < Infinity).toBe(true);
      const n = norms[u]!;
      // A square that is not finite in float32 is of a unit that is removed.
      if (!(n * n < 3e38)) expect(w).toBe(0);
      else expect(w * n).toBeLessThanOrEqual(thresholds[k]! * (1 + defaultRho));
    }));
  }

  it('are those of the function, within [0, R/n], and never NaN', async () => {
    const found = await weightsOf(functions);
    functions.forEach((spec, i) => {
      expectBounded(found[i]!);
      thresholds.forEach((R, k) => norms.forEach((n, u) => {
        if (!(n >= 1e-12 && n <= 1e18) || n === R) return;
        const expected = weightOf(spec, n, R);
        expect(Math.abs(found[i]![k]![u]! - expected), `${JSON.stringify(spec)} of ${n} at ${R}`).toBeLessThanOrEqual(1e-5 * expected);
      }));
    });
  });

  const leaf = fc.constantFrom('n', 'R', 'gamma', '0', '1', '1e30', '-3', '0.5');
  const { tree } = fc.letrec<{ tree: string }>((tie) => ({
    tree: fc.oneof(
      { depthSize: 'small', withCrossShrink: true }, leaf,
      fc.tuple(tie('tree'), fc.constantFrom('+', '-', '*', '/', '^', '<', '>='), tie('tree')).map(([x, op, y]) => `(${x} ${op} ${y})`),
      fc.tuple(fc.constantFrom('sqrt', 'exp', 'log', 'abs', '-'), tie('tree')).map(([f, x]) => `${f}(${x})`),
      fc.tuple(fc.constantFrom('min', 'max'), tie('tree'), tie('tree')).map(([f, x, y]) => `${f}(${x}, ${y})`),
      fc.tuple(tie('tree'), tie('tree'), tie('tree')).map(([c, x, y]) => `where(${c}, ${x}, ${y})`),
    ),
  }));

  it('stay within [0, R/n] whatever a user writes', async () => {
    await fc.assert(fc.asyncProperty(fc.array(tree, { minLength: 20, maxLength: 20 }), async (expressions) => {
      const known = ['0/0', '1/0', '-1', 'log(-n)', 'R/0*n', 'exp(exp(n))', '1e38*1e38'];
      (await weightsOf([...expressions, ...known].map((expression) => ({ expression })))).forEach(expectBounded);
    }), { numRuns: 8 });
  });
});

const node = (op: string, inputs: string[], output: string, attributes: Attributes = {}) =>
  ({ op, domain: '', name: output, inputs, outputs: [output], attributes });

/** A table tied to the scores through its transpose, a product of two parameters, a normalisation, and a head. */
function tiedModel(seed: number): Graph {
  const random = testRandom(seed);
  const drawn = (shape: readonly number[]) => randomTensor(random, shape, 0.7);
  return {
    name: 'tied', opset: latestOpset, metadata: {},
    initializers: new Map<string, Tensor>([
      ['blocks.0.table', drawn([6, 4])], ['blocks.0.down', drawn([4, 2])], ['blocks.0.up', drawn([2, 4])],
      ['blocks.1.norm.weight', drawn([4])], ['blocks.1.norm.bias', drawn([4])], ['head.weight', drawn([3, 6])], ['head.bias', drawn([3])],
      ['axes', int64([1])],
    ]),
    literals: new Set(['axes']),
    inputs: [{ name: 'input', dtype: 'int64', shape: ['batch', 5] }], outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }],
    nodes: [
      node('Gather', ['blocks.0.table', 'input'], 'e'), node('MatMul', ['blocks.0.down', 'blocks.0.up'], 'low'), node('MatMul', ['e', 'low'], 'm'),
      node('Tanh', ['m'], 't'), node('LayerNormalization', ['t', 'blocks.1.norm.weight', 'blocks.1.norm.bias'], 'l'),
      node('Transpose', ['blocks.0.table'], 'turned', { perm: ints([1, 0]) }), node('MatMul', ['l', 'turned'], 's'),
      node('ReduceMean', ['s', 'axes'], 'r', { keepdims: int(0) }), node('Gemm', ['r', 'head.weight', 'head.bias'], 'logits', { transB: int(1) }),
    ],
  };
}

interface Case {
  readonly analysis: Analysis;
  readonly batch: Batch;
}

function tiedCase(seed: number, rows: number): Case {
  const random = testRandom(seed + 1);
  const input = int64(Array.from({ length: rows * 5 }, () => Math.floor(random() * 6)), [rows, 5]);
  return { analysis: analyse({ model: tiedModel(seed), loss: 'cross-entropy' }), batch: { rows, inputs: { input }, labels: randomLabels(random, rows, 3) } };
}

const cases = (rows: number): fc.Arbitrary<Case> => fc.oneof(
  networkChoice.map((choice) => {
    const network = randomNetwork(choice);
    const random = testRandom(choice.seed + 1);
    return {
      analysis: analyse({ model: network.model, loss: 'cross-entropy', trainable: network.trainable }),
      batch: { rows, inputs: { input: randomTensor(random, [rows, ...network.inputShape]) }, labels: randomLabels(random, rows, network.classes) },
    };
  }),
  fc.integer({ min: 1, max: 2 ** 30 }).map((seed) => tiedCase(seed, rows)),
);

// Those of devices are made as named ones are.
const styles = groupStyles.filter((style) => style !== 'per-device');
type Style = (typeof styles)[number];

const groupsOf = ({ task: { model }, parameters }: Analysis, style: Style): Partition => {
  const [first = ''] = parameters;
  const groups = style !== 'groups' ? {} : parameters.length === 1 ? { all: ['*'] } : { first: [first], rest: ['*'] };
  return partitionOf({ style, groups }, model, parameters);
};

describe('every mode, clip function and group style equals the oracle', () => {
  it.each(privateModes.flatMap((mode) => styles.map((style) => [mode, style] as const)))('%s, %s', async (mode, style) => {
    const each = fc.constantFrom(1, 2).chain((rows) => fc.tuple(fc.constant(rows), cases(2 * rows)));
    await fc.assert(fc.asyncProperty(each, async ([rowsPerUnit, { analysis, batch }]) => {
      requireTrainable(analysis);
      const groups = groupsOf(analysis, style);
      const truth = await oracle(analysis, batch, rowsPerUnit);
      const norms = truth.gradients.map((gradient) => groupNorms(gradient, groups));
      // Below it a gradient is rounding alone, and nothing can be compared.
      fc.pre(norms.flat().every((n) => n > 1e-4));
      const thresholds = groups.map((_, k) => 0.8 * Math.max(...norms.map((of) => of[k]!)) + 0.01 * k);
      const expectedAt = (spec: ClipFunctionSpec) => new Map(groups.flatMap(({ parameters }, k) => parameters.map((name) => [name,
        truth.gradients.reduce((sum, gradient, i) => sum.map((s, j) => s + weightOf(spec, norms[i]![k]!, thresholds[k]!) * gradient.get(name)![j]!),
          new Float64Array(truth.gradients[0]!.get(name)!.length))] as const)));
      for (const spec of functions) {
        const found = await runStep(analysis, batch, { mode, clipping: { function: spec, gamma, groups }, rho: defaultRho, rowsPerUnit }, thresholds);
        norms.flat().forEach((n, i) => expect(Math.abs(found.norms[i]! - n)).toBeLessThanOrEqual(2e-4 * n));
        expect(relativeDifference(found.sums, expectedAt(spec), 0.01 * Math.max(...thresholds))).toBeLessThan(5e-4);
      }
    }), { numRuns: 2 });
  });
});

/** loss = x·a + x²·b: an x of 1e15 has a gradient of 1e30 for b, whose square is not finite, and an ordinary one for a. */
const overflows: Graph = {
  name: 'overflows', opset: latestOpset, metadata: {},
  initializers: new Map<string, Tensor>([['a', float32([0], [1])], ['b', float32([0], [1])], ['axis', int64([1])]]), literals: new Set(['axis']),
  inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 1] }], outputs: [{ name: 'loss', dtype: 'float32', shape: ['batch'] }],
  nodes: [
    node('Mul', ['x', 'a'], 'xa'), node('Mul', ['x', 'x'], 'xx'), node('Mul', ['xx', 'b'], 'xb'), node('Add', ['xa', 'xb'], 's'),
    node('Squeeze', ['s', 'axis'], 'loss'),
  ],
};

describe('groups of a step', () => {
  // Fused with the backward pass, a group's sum is formed before the other groups are known: each is bounded by itself.
  const removed = privateModes.map((mode) => ({ mode, ...(mode === 'per-layer' ? { from: 'that', first: 4 } : { from: 'every', first: 2 }) }));

  it.each(removed)('$mode removes a unit from $from group when one is not finite', async ({ mode, first }) => {
    const groups = [{ name: 'first', parameters: ['a'] }, { name: 'second', parameters: ['b'] }];
    const program = await compileStep(analyse({ model: overflows, loss: 'output:loss' }), {
      mode, clipping: { function: 'abadi', gamma, groups }, engine: onnxruntimeEngine(), microBatch: 2, threads: 1,
    });
    const found = await program.run(new Map([['a', float32([0], [1])], ['b', float32([0], [1])]]), {
      size: 2, feeds: () => ({ x: float32([1e15, 3], [2, 1]) }),
    }, [2, 0.5]);
    expect([found.sums.get('a')![0], found.sums.get('b')![0]]).toEqual([first, 0.5]);
    expect([found.groups, found.norms.length, found.norms[2], found.norms[3]]).toEqual([2, 4, 3, 9]);
    await expect(program.run(found.parameters, { size: 0, feeds: () => ({}) }, [1])).rejects.toThrow(/one threshold for each.*first, second/s);
    await expect(program.run(found.parameters, { size: 0, feeds: () => ({}) }, [1, 0])).rejects.toThrow(/out of range.*"second"/s);
    await program.release();
  });

  it('must be a partition of the parameters', async () => {
    const compile = (groups: Partition) => compileStep(analyse({ model: overflows, loss: 'output:loss' }), {
      mode: 'book-keeping', clipping: { function: 'abadi', gamma, groups }, engine: onnxruntimeEngine(),
    });
    await expect(compile([{ name: 'one', parameters: ['a'] }])).rejects.toThrow(/"b" is in no clipping group/);
    await expect(compile([{ name: 'one', parameters: ['a', 'b'] }, { name: 'two', parameters: ['b'] }])).rejects.toThrow(/"b" is in two/);
  });
});

/** One unit's data made hostile, or (undefined) the unit taken away. */
const hostile = fc.constantFrom(undefined, 1e-20, 30, 1e4, 1e12, 1e25, NaN);

describe('neighbouring batches', () => {
  it.each(privateModes)('%s: one unit moves each group by at most its threshold, and all by √ΣC²', async (mode) => {
    const each = fc.record({
      of: networkChoice, style: fc.constantFrom(...styles), spec: fc.constantFrom(...functions), at: fc.integer({ min: 0, max: 3 }),
      before: hostile, after: hostile, scale: fc.constantFrom(1e-4, 0.1, 10),
    });
    await fc.assert(fc.asyncProperty(each, async ({ of, style, spec, at, before, after, scale }) => {
      const network = randomNetwork(of);
      const analysis = analyse({ model: network.model, loss: 'cross-entropy', trainable: network.trainable });
      requireTrainable(analysis);
      const groups = groupsOf(analysis, style);
      const thresholds = groups.map((_, k) => scale * (1 + (k % 3)));
      const random = testRandom(of.seed + 1);
      const input = randomTensor(random, [4, ...network.inputShape]);
      const labels = randomLabels(random, 4, network.classes);
      const sums = async (factor: number | undefined) => {
        const each4 = input.data.length / 4;
        const data = input.data.map((x, i) => (Math.floor(i / each4) === at ? x * (factor ?? 1) : x));
        const { sums: found } = await runStep(
          analysis, { rows: 4, inputs: { input: { ...input, data } }, labels },
          { mode, clipping: { function: spec, gamma, groups }, rho: defaultRho, rowsPerUnit: 1 }, thresholds,
          [0, 1, 2, 3].map((row) => row !== at || factor !== undefined),
        );
        return found;
      };
      const [one, other] = [await sums(before), await sums(after)];
      const moved = new Map([...one].map(([name, sum]) => [name, Float64Array.from(sum, (x, i) => x - other.get(name)![i]!)]));
      // Replacing is taking one away and adding another.
      const times = before === undefined || after === undefined ? 1 : 2;
      groupNorms(moved, groups).forEach((n, k) => expect(n).toBeLessThanOrEqual(times * thresholds[k]! * (1 + defaultRho)));
      expect(normOf(moved)).toBeLessThanOrEqual(times * Math.hypot(...thresholds) * (1 + defaultRho));
    }), { numRuns: 6 });
  });
});

it('parameters of the oracle and of the step are the same', () => {
  const { analysis } = tiedCase(3, 2);
  expect(groupsOf(analysis, 'per-block').map(({ name }) => name)).toEqual(['blocks.0', 'blocks.1', 'head']);
  expect([...parametersOf(analysis).keys()].sort()).toEqual([...analysis.parameters].sort());
});
