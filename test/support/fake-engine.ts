import type { Engine, Feeds } from '../../src/runtime/engine.ts';
import { type Tensor, type TensorType, allocate, sizeOf, tensor } from '../../src/tensor/tensor.ts';

/**
 * An engine that computes nothing of the graph: every output is a function of all feeds, the same every time. For tests of
 * what happens around the steps, thousands of which are then cheap.
 */
export const fakeEngine: Engine = {
  name: 'fake',
  compile: async (graph) => ({
    run: async (feeds) => {
      const state = checksum(feeds);
      const outputs = graph.outputs.map(({ name }, k) => [name, filled(graph.types.get(name)!, state + k)] as const);
      return { outputs: Object.fromEntries(outputs), feeds };
    },
    release: async () => undefined,
  }),
};

function checksum(feeds: Feeds): number {
  let state = 0;
  for (const name of Object.keys(feeds).sort())
    for (const x of feeds[name]!.data) state = (state * 1.000003 + Math.abs(Number(x))) % 1000;
  return state;
}

function filled({ dtype, shape }: TensorType, state: number): Tensor {
  const data = allocate(dtype, sizeOf(shape));
  for (let i = 0; i < data.length; i++) data[i] = 0.1 * (1 + Math.sin(state + i));
  return tensor(dtype, shape, data);
}
