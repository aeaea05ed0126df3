import { AttributeProto_AttributeType as AttributeType, TensorProto_DataType as DataType } from 'onnx-buf';
import { describe, expect, it } from 'vitest';
import { type GraphInit, encoded } from '../../test/graph/messages.ts';
import { toNumbers } from '../tensor/tensor.ts';
import { decodeModel } from './decode.ts';

type Nodes = NonNullable<GraphInit['node']>;

const integers = (output: string, values: readonly number[], shape: readonly number[] = []): Nodes[number] => ({
  opType: 'Constant', output: [output],
  attribute: [{ name: 'value', type: AttributeType.TENSOR, t: { dataType: DataType.INT64, dims: shape.map(BigInt), int64Data: values.map(BigInt) } }],
});

/** If axis `asked` of `seen` has the size `size`, x squeezed at axis 1, else `other`. */
function question({ asked = 1, seen = 'x', size = 1, other = 'x' }: { asked?: number; seen?: string; size?: number; other?: string } = {}) {
  const then = { node: [integers('axes', [1], [1]), { opType: 'Squeeze', input: ['x', 'axes'], output: ['s'] }], output: [{ name: 's' }] };
  const otherwise = { node: [{ opType: 'Identity', input: [other], output: ['i'] }], output: [{ name: 'i' }] };
  return decodeModel(encoded({
    node: [
      integers('axis', [asked]), integers('size', [size]),
      { opType: 'Relu', input: ['x'], output: ['r'] },
      { opType: 'Shape', input: [seen], output: ['shape'] }, { opType: 'Gather', input: ['shape', 'axis'], output: ['n'] },
      { opType: 'Equal', input: ['n', 'size'], output: ['isOne'] },
      {
        opType: 'If', name: 'squeeze', input: ['isOne'], output: ['y'],
        attribute: [{ name: 'then_branch', type: AttributeType.GRAPH, g: then }, { name: 'else_branch', type: AttributeType.GRAPH, g: otherwise }],
      },
    ],
  }));
}

describe('plainSqueezes', () => {
  it('makes a Squeeze of the question whether an axis has size 1', () => {
    const graph = question();
    const squeeze = graph.nodes.find(({ name }) => name === 'squeeze')!;
    expect(squeeze).toMatchObject({ op: 'Squeeze', domain: '', inputs: ['x', 'y/axes'], outputs: ['y'], attributes: {} });
    expect(toNumbers(graph.initializers.get('y/axes')!)).toEqual([1]);
    expect(graph.literals?.has('y/axes')).toBe(true);
  });

  it.each<[string, Parameters<typeof question>[0]]>([
    ['another axis', { asked: 2 }], ['another value', { seen: 'r' }], ['another size', { size: 2 }], ['another result otherwise', { other: 'r' }],
  ])('leaves a question of %s alone', (_, changes) => {
    expect(question(changes).nodes.find(({ name }) => name === 'squeeze')?.op).toBe('If');
  });
});
