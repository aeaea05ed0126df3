import { describe, expect, it } from 'vitest';
import { specialise } from '../src/graph/specialise.ts';
import type { Graph } from '../src/graph/ir.ts';
import { activationNames, buildModel, modelNames } from '../src/models/index.ts';
import { semantics } from '../src/ops/table.ts';
import { noDraws } from '../src/random/initial.ts';
import { onnxruntimeEngine } from '../src/runtime/node.ts';
import { type Shape, float32, sizeOf, toNumbers } from '../src/tensor/tensor.ts';

const tokens = 12;

const inputShape = (graph: Graph, batch: number): Shape =>
  [batch, ...(graph.inputs[0]?.shape ?? []).slice(1).map((d) => (typeof d === 'number' ? d : tokens))];

describe('every model', () => {
  it('is made of operators of the table, whatever its activation, and infers logits for each row', () => {
    const graphs = [
      ...modelNames.map((name) => buildModel(name, { draws: noDraws })),
      ...activationNames.map((activation) => buildModel({ name: 'mlp', input: 4, hidden: [3], activation })),
    ];
    for (const graph of graphs) {
      const shapes = Object.fromEntries(graph.inputs.map(({ name }) => [name, inputShape(graph, 2)]));
      const declared = (graph.outputs[0]?.shape ?? []).slice(1).map((d) => (typeof d === 'number' ? d : tokens));
      const typed = specialise(graph, shapes, semantics);
      expect(typed.types.get('logits')).toEqual({ dtype: 'float32', shape: [2, ...declared] });
    }
  });

  it('runs in ONNX Runtime, row by row as in a batch', async () => {
    for (const name of ['mlp', 'cnn-tanh', 'vgg11'] as const) {
      const graph = buildModel(name, { seed: 1 });
      // The batch stays open, as in the file that a user gets.
      const session = await onnxruntimeEngine().compile({ ...graph, types: new Map() }, { threads: 1 });
      const logits = async (batch: number, values: (i: number) => number): Promise<number[]> => {
        const shape = inputShape(graph, batch);
        const pixels = Array.from({ length: sizeOf(shape) }, (_, i) => values(i));
        const { outputs } = await session.run({ input: float32(pixels, shape) });
        return toNumbers(outputs['logits']!);
      };
      const size = sizeOf(inputShape(graph, 1));
      const both = await logits(2, (i) => Math.sin(i));
      const second = await logits(1, (i) => Math.sin(size + i));
      await session.release();
      expect(both).toHaveLength(20);
      // He's draws keep the scale; none may vanish or explode with depth.
      expect(Math.max(...both.map(Math.abs))).toBeGreaterThan(1e-3);
      expect(Math.max(...both.map(Math.abs))).toBeLessThan(1e3);
      second.forEach((x, i) => expect(both[10 + i]).toBeCloseTo(x, 4));
    }
  });
});
