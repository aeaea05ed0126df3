import { describe, expect, it } from 'vitest';
import type { Node, TypedGraph, ValueInfo } from '../graph/ir.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import { withBareOutputs } from './bare-outputs.ts';
import { onnxruntimeEngine } from './node.ts';

const node = (op: string, inputs: string[], output: string): Node =>
  ({ op, domain: '', name: `make ${output}`, inputs, outputs: [output], attributes: {} });

const shapes: Record<string, number[]> = { x: [2, 3], doubled: [2, 3], flat: [6], tall: [3, 2], again: [6] };
const value = (name: string): ValueInfo => ({ name, dtype: 'float32', shape: shapes[name]! });

function graphOf(nodes: Node[], outputs: string[]): TypedGraph {
  return {
    name: 'reshaping', opset: 21, metadata: {}, inputs: [value('x')], outputs: outputs.map(value), nodes,
    initializers: new Map([['to flat', int64([6])], ['to tall', int64([3, 2])]]),
    types: new Map(Object.entries(shapes).map(([name, shape]) => [name, { dtype: 'float32', shape }])),
  };
}

describe('withBareOutputs', () => {
  const doubled = node('Add', ['x', 'x'], 'doubled');
  const flat = node('Reshape', ['doubled', 'to flat'], 'flat');
  const tall = node('Reshape', ['flat', 'to tall'], 'tall');

  it('gives what is before the Reshapes at the end, under the name of the output', () => {
    const bare = withBareOutputs(graphOf([doubled, flat, tall], ['tall']));
    expect(bare.nodes).toEqual([{ ...doubled, outputs: ['tall'] }]);
    expect(bare.outputs).toEqual([{ name: 'tall', dtype: 'float32', shape: [2, 3] }]);
    expect(bare.types.get('tall')?.shape).toEqual([2, 3]);
  });

  it.each([
    ['a value that is an output itself', [doubled, flat], ['doubled', 'flat']],
    ['a value that another node reads', [doubled, flat, node('Relu', ['doubled'], 'again')], ['flat', 'again']],
    ['a result that another node reads', [doubled, flat, node('Relu', ['flat'], 'again')], ['flat', 'again']],
    ['an input', [node('Reshape', ['x', 'to flat'], 'flat')], ['flat']],
  ])('leaves %s alone', (_, nodes, outputs) => {
    const graph = graphOf(nodes, outputs);
    expect(withBareOutputs(graph)).toBe(graph);
  });

  it('is not seen from outside: outputs have the shapes that the graph declares, over spare ones too', async () => {
    const session = await onnxruntimeEngine().compile(graphOf([doubled, flat, tall], ['tall']), { threads: 1 });
    const first = await session.run({ x: float32([1, 2, 3, 4, 5, 6], [2, 3]) });
    const { buffer } = first.outputs['tall']!.data;
    for (const { outputs } of [first, await session.run(first.feeds, first.outputs)]) {
      expect(outputs['tall']!.shape).toEqual([3, 2]);
    }
    expect(buffer.byteLength).toBe(0); // moved: the second run wrote over it
    await session.release();
  });
});
