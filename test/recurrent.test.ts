import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Attributes, type Graph, type Node, int, latestOpset, string } from '../src/graph/ir.ts';
import { type Tensor, int64, tensor } from '../src/tensor/tensor.ts';
import { type Analysis, type Task, analyse, compileTask } from '../src/training/compile.ts';
import { openModel } from '../src/training/model.ts';
import { type Batch, oracle, relativeDifference, runStep, weightedSum } from './support/oracle.ts';
import { randomLabels, randomTensor, testRandom } from './support/random-network.ts';

const clipping = { function: 'abadi', gamma: 0.01 } as const;
const rho = 1e-3;
const modes = ['book-keeping', 'ghost', 'instantiate'] as const;

/** Steps of the analysis in every mode equal the gradients taken one example at a time. */
async function agreesWithOracle(analysis: Analysis, batch: Batch): Promise<void> {
  const expected = await oracle(analysis, batch);
  expect(analysis).toMatchObject({ violations: [], obstacles: [] });
  const threshold = [...expected.norms].sort((a, b) => a - b)[Math.floor(batch.rows / 2)]!;
  for (const mode of modes) {
    const found = await runStep(analysis, batch, { mode, clipping, rho, rowsPerUnit: 1 }, threshold);
    expect(relativeDifference(new Map([['norms', found.norms]]), new Map([['norms', expected.norms]])), mode).toBeLessThan(1e-4);
    const sum = weightedSum(expected.gradients, Array.from(found.weights));
    for (const [name, g] of sum) {
      expect(relativeDifference(new Map([[name, found.sums.get(name)!]]), new Map([[name, g]])), `${name}, ${mode}`).toBeLessThan(1e-4);
    }
  }
  for (const norm of expected.norms) expect(norm).toBeGreaterThan(0);
}

describe('a model with two LSTM layers, as PyTorch exports it', () => {
  const steps = 9;
  const task: Task = {
    model: openModel('test/fixtures/models/lstm-tiny-random.onnx'),
    loss: 'cross-entropy', exampleShapes: { input_ids: [steps] },
  };
  const random = testRandom(11);
  const rows = 4;
  const batch: Batch = {
    rows, labels: randomLabels(random, rows, 4),
    inputs: { input_ids: tensor('int64', [rows, steps], BigInt64Array.from({ length: rows * steps }, () => BigInt(Math.floor(random() * 100)))) },
  };

  it('is proved to keep its rows apart, time first as it is', () => {
    const { violations, obstacles, parameters } = analyse(task);
    expect({ violations, obstacles }).toEqual({ violations: [], obstacles: [] });
    expect(parameters.length).toBe(9);
  });

  it('has the clipped sums and norms of gradients taken one example at a time', async () => {
    await agreesWithOracle(analyse(task), batch);
  });

  it('grows in proportion to its steps, backward pass and norms included', () => {
    const [one, two, three] = [16, 32, 48].map((length) => compileTask(
      analyse({ ...task, exampleShapes: { input_ids: [length] } }), rows, { mode: 'book-keeping', clipping, rho, rowsPerUnit: 1 },
    ).graph.nodes.length) as [number, number, number];
    expect(three - two).toBeLessThan(1.1 * (two - one));
    // Two layers.
    expect((three - two) / 16).toBeLessThan(2 * 36);
  });

  it('stays whole where it is frozen, and is unrolled from the first layer that is trained', () => {
    const stepNodes = (trainable: readonly string[]): readonly Node[] => compileTask(
      analyse({ ...task, trainable }), rows, { mode: 'book-keeping', clipping, rho, rowsPerUnit: 1 }).graph.nodes;
    const whole = (nodes: readonly Node[]): string[] => nodes.filter(({ op }) => op === 'LSTM').map(({ name }) => name);
    expect(whole(stepNodes(['fc.*']))).toEqual(['/lstm/LSTM', '/lstm/LSTM_1']);
    expect(whole(stepNodes(['onnx::LSTM_215']))).toEqual(['/lstm/LSTM']);
    expect(whole(stepNodes(['embedding.*']))).toEqual([]);
  });
});

interface Choice {
  readonly op: 'LSTM' | 'GRU' | 'RNN';
  readonly direction: 'forward' | 'reverse' | 'bidirectional';
  readonly layout: 0 | 1;
  readonly steps: number;
  readonly lengths: boolean;
  /** input_forget, or linear_before_reset; and peepholes. */
  readonly variant: boolean;
  readonly seed: number;
}

const choices: fc.Arbitrary<Choice> = fc.record({
  op: fc.constantFrom('LSTM', 'GRU', 'RNN'), direction: fc.constantFrom('forward', 'reverse', 'bidirectional'),
  layout: fc.constantFrom(0, 1), steps: fc.integer({ min: 2, max: 4 }), lengths: fc.boolean(), variant: fc.boolean(),
  seed: fc.integer({ min: 1, max: 2 ** 30 }),
});

const [inputs, hidden, classes] = [3, 4, 3];

/** One recurrent layer over input [batch, steps, 3], and a linear layer over all its hidden states. */
function recurrentNetwork({ op, direction, layout, steps, lengths, variant, seed }: Choice): Graph {
  const random = testRandom(seed);
  const initializers = new Map<string, Tensor>();
  const literals = new Set(['flat']);
  initializers.set('flat', int64([0, -1]));
  const weight = (name: string, shape: readonly number[]): string => {
    initializers.set(name, randomTensor(random, shape));
    return name;
  };
  const directions = direction === 'bidirectional' ? 2 : 1;
  const height = { LSTM: 4, GRU: 3, RNN: 1 }[op] * hidden;
  const nodes: Node[] = [];
  const node = (kind: string, operands: readonly string[], attributes: Attributes = {}): string => {
    nodes.push({ op: kind, domain: '', name: `node${nodes.length}`, inputs: operands, outputs: [`v${nodes.length}`], attributes });
    return nodes.at(-1)!.outputs[0]!;
  };
  const swap = (x: string, perm: readonly number[]): string => (layout === 1 ? x : node('Transpose', [x], { perm: { type: 'ints', value: perm } }));
  const states = node(op, [
    swap('input', [1, 0, 2]), weight('W', [directions, height, inputs]), weight('R', [directions, height, hidden]),
    weight('B', [directions, 2 * height]), lengths ? 'lengths' : '',
    ...(op === 'LSTM' && variant ? ['', '', weight('P', [directions, 3 * hidden])] : []),
  ], {
    hidden_size: int(hidden), direction: string(direction), layout: int(layout),
    ...(op === 'GRU' && { linear_before_reset: int(variant ? 1 : 0) }),
  });
  const flat = node('Reshape', [swap(states, [2, 0, 1, 3]), 'flat']);
  nodes.push({
    op: 'Gemm', domain: '', name: 'head', attributes: { transB: int(1) }, outputs: ['logits'],
    inputs: [flat, weight('head', [classes, steps * directions * hidden])],
  });
  return {
    name: 'recurrent', opset: latestOpset, metadata: {}, nodes, initializers, literals,
    inputs: [
      { name: 'input', dtype: 'float32', shape: ['batch', steps, inputs] },
      ...(lengths ? [{ name: 'lengths', dtype: 'int32', shape: ['batch'] } as const] : []),
    ],
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', classes] }],
  };
}

describe('networks with one recurrent layer', () => {
  it('have the clipped sums and norms of gradients taken one example at a time', async () => {
    await fc.assert(fc.asyncProperty(choices, async (choice) => {
      const random = testRandom(choice.seed + 1);
      const rows = 4;
      const input = randomTensor(random, [rows, choice.steps, inputs]);
      const lengths = tensor('int32', [rows], Int32Array.from({ length: rows }, () => 1 + Math.floor(random() * choice.steps)));
      await agreesWithOracle(analyse({ model: recurrentNetwork(choice), loss: 'cross-entropy' }), {
        rows, labels: randomLabels(random, rows, classes), inputs: { input, ...(choice.lengths && { lengths }) },
      });
    }), { numRuns: 12 });
  });
});
