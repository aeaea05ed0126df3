import { describe, expect, it } from 'vitest';
import { graphOf, node, runGraph, value } from '../../test/graph/onnxruntime.ts';
import { randomTensor, testRandom } from '../../test/support/random-network.ts';
import { type Graph, type Node, float, int } from '../graph/ir.ts';
import { verify } from '../graph/verify.ts';
import { type Tensor, float32 } from '../tensor/tensor.ts';
import { analyse } from '../training/compile.ts';
import { groupsOf, withGroupNorm } from './batchnorm.ts';

const random = testRandom(5);

/** x [batch, 8, 3, 3] → 4 channels → BatchNorm → pooled logits. */
const network = (training: boolean, extra: Partial<Graph> = {}, more: readonly Node[] = []): Graph => graphOf({
  inputs: [value('x', ['batch', 8, 3, 3])], outputs: [value('y', ['batch', 4])],
  initializers: new Map<string, Tensor>([
    ['k', randomTensor(random, [4, 8, 1, 1])], ['scale', float32([1, 2, -1, 0.5])], ['shift', float32([0.5, 0, 1, -1])],
    ['mean', float32([1, 2, 3, 4])], ['variance', float32([1, 2, 3, 4])],
  ]),
  nodes: [
    node('Conv', ['x', 'k'], ['c']),
    node('BatchNormalization', ['c', 'scale', 'shift', 'mean', 'variance'], training ? ['n', 'newMean', 'newVariance'] : ['n'],
      { epsilon: float(1e-3), ...(training && { training_mode: int(1) }) }),
    node('GlobalAveragePool', ['n'], ['p']), node('Flatten', ['p'], ['y']), ...more,
  ],
  ...extra,
});

describe('withGroupNorm', () => {
  it.each([false, true])('normalises each example by itself (training mode: %s)', async (training) => {
    const outputs = [value('y', ['batch', 4]), ...(training ? [value('newMean', [4])] : [])];
    const model = withGroupNorm(network(training, { outputs }));
    verify(model);
    expect([...model.initializers.keys()]).toEqual(['k', 'scale', 'shift']);
    expect(model.outputs.map(({ name }) => name)).toEqual(['y']);
    // 4 channels of 9 positions: two groups of 18 numbers.
    expect(model.nodes.find(({ op }) => op === 'GroupNormalization')).toMatchObject({
      inputs: ['c', 'scale', 'shift'], outputs: ['n'], attributes: { num_groups: { value: 2 }, epsilon: { value: 1e-3 } },
    });
    const x = randomTensor(random, [2, 8, 3, 3], 3);
    const groups = (await runGraph({ ...model, outputs: [value('n', null)] }, { x }))['n']!.values;
    const before = (await runGraph({ ...network(false), initializers: model.initializers, nodes: network(false).nodes.slice(0, 1), outputs: [value('c', null)] }, { x }))['c']!.values;
    for (let start = 0; start < groups.length; start += 18) {
      const part = before.slice(start, start + 18);
      const mean = part.reduce((sum, v) => sum + v, 0) / 18;
      const variance = part.reduce((sum, v) => sum + (v - mean) ** 2, 0) / 18;
      part.forEach((v, i) => {
        const channel = Math.floor((start + i) / 9) % 4;
        const expected = ((v - mean) / Math.sqrt(variance + 1e-3)) * [1, 2, -1, 0.5][channel]! + [0.5, 0, 1, -1][channel]!;
        expect(groups[start + i]).toBeCloseTo(expected, 4);
      });
    }
    const analysis = analyse({ model, loss: 'cross-entropy' });
    expect(analysis).toMatchObject({ parameters: ['k', 'scale', 'shift'], violations: [], obstacles: [] });
  });

  it('chooses as many groups as hold enough', () => {
    expect([groupsOf(64, 49), groupsOf(48, 49), groupsOf(16, 196), groupsOf(512, 1), groupsOf(8, 1), groupsOf(7, 16)])
      .toEqual([32, 24, 16, 32, 1, 7]);
  });

  it('refuses by name where the statistics are used, and leaves other models as they are', () => {
    expect(() => withGroupNorm(network(true, {}, [node('Neg', ['newMean'], ['z'])]))).toThrow(/statistics[^]*Neg node/);
    const computed = network(false);
    const nodes = [node('Neg', ['shift'], ['s']), ...computed.nodes.map((n) => ({ ...n, inputs: n.inputs.map((i) => (i === 'scale' ? 's' : i)) }))];
    expect(() => withGroupNorm({ ...computed, nodes })).toThrow(/BatchNormalization node[^]*a scale "s"/);
    const without = { ...computed, nodes: computed.nodes.slice(0, 1) };
    expect(withGroupNorm(without)).toBe(without);
  });
});
