import { describe, expect, it } from 'vitest';
import { type Graph, type Node, latestOpset } from '../graph/ir.ts';
import { float32 } from '../tensor/tensor.ts';
import { trainableParameters } from '../training/compile.ts';
import { withOwnSettings } from './sharing.ts';

const node = (op: string, inputs: readonly string[], output: string): Node =>
  ({ op, domain: '', name: `${op}_${output}`, inputs, outputs: [output], attributes: {} });

const graphOf = (nodes: readonly Node[]): Graph => ({
  name: 'shared', opset: latestOpset, metadata: {}, nodes,
  inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 2] }], outputs: [{ name: 'y', dtype: 'float32', shape: ['batch', 2] }],
  initializers: new Map([['ones', float32([1, 1])], ['zeros', float32([0, 0])]]),
});

describe('withOwnSettings', () => {
  it('parts running statistics from the scale and shift that they were written together with', () => {
    const graph = withOwnSettings(graphOf([
      node('Identity', ['ones'], 'bn2.running_var'), node('Identity', ['ones'], 'bn2.weight'),
      node('BatchNormalization', ['x', 'ones', 'zeros', 'zeros', 'ones'], 'a'),
      node('BatchNormalization', ['a', 'bn2.weight', 'zeros', 'zeros', 'bn2.running_var'], 'y'),
    ]));
    expect(graph.nodes.map(({ inputs }) => inputs)).toEqual([
      ['x', 'ones', 'zeros', 'zeros/setting', 'ones/setting'],
      ['a', 'ones', 'zeros', 'zeros/setting', 'bn2.running_var'],
    ]);
    expect([...graph.initializers.keys()]).toEqual(['ones', 'zeros', 'zeros/setting', 'ones/setting', 'bn2.running_var']);
    expect([...trainableParameters(graph, 'all')]).toEqual(['ones', 'zeros']);
  });

  it('leaves statistics that only statistics share, outputs, and other models alone', () => {
    const statistics = graphOf([node('BatchNormalization', ['x', 'scale', 'shift', 'zeros', 'ones'], 'y')]);
    expect(withOwnSettings(statistics)).toBe(statistics);
    const output = graphOf([node('Identity', ['ones'], 'y')]);
    expect(withOwnSettings(output)).toBe(output);
  });
});
