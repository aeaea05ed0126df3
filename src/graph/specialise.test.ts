import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { type Tensor, type TensorType, float32, int64, tensor, toNumbers } from '../tensor/tensor.ts';
import { type Graph, type Node, type OperatorSemantics, type ValueInfo, intAttribute } from './ir.ts';
import { prune } from './prune.ts';
import { specialise } from './specialise.ts';
import { verify } from './verify.ts';

const folded: string[] = [];

/** Just enough operators: Shape, Gather of one element, Concat of vectors, Reshape, Neg, Split in two halves, Iota. */
const semantics: OperatorSemantics = {
  infer: (node, inputs, constants) => {
    const [x] = inputs;
    const first: TensorType = x ?? { dtype: 'float32', shape: [] };
    switch (node.op) {
      case 'Shape': return [{ dtype: 'int64', shape: [first.shape.length] }];
      case 'Gather': return [{ dtype: first.dtype, shape: [1] }];
      case 'Concat': return [{ dtype: first.dtype, shape: [inputs.reduce((n, t) => n + (t?.shape[0] ?? 0), 0)] }];
      case 'Reshape': {
        const target = constants[1];
        if (target === undefined) throw new GhostgradError({ what: 'Reshape to a shape that is not constant' });
        return [{ dtype: first.dtype, shape: toNumbers(target) }];
      }
      case 'Neg': return [first];
      case 'Split': return [first, first];
      case 'Iota': return [{ dtype: 'float32', shape: [intAttribute(node, 'n', 0)] }];
      default: throw new GhostgradError({ what: `unknown operator ${node.op}` });
    }
  },
  fold: (node, inputs, constants) => {
    const known = constants.flatMap((c) => c ?? []);
    folded.push(node.name);
    if (node.op === 'Shape') return inputs[0] && [int64(inputs[0].shape)];
    if (node.op === 'Iota') return [float32(new Float32Array(intAttribute(node, 'n', 0)))];
    if (known.length < node.inputs.length) return undefined;
    const [x] = known;
    if (node.op === 'Gather') return x && [int64([toNumbers(x)[intAttribute(node, 'at', 0)] ?? 0])];
    if (node.op === 'Concat') return [int64(known.flatMap(toNumbers))];
    if (node.op === 'Neg') return x && [tensor('float32', x.shape, Float32Array.from(toNumbers(x), (v) => -v))];
    return undefined;
  },
};

const node = (
  op: string,
  inputs: readonly string[],
  outputs: readonly string[],
  attributes: Node['attributes'] = {},
): Node => ({ op, domain: '', name: `${op}:${outputs[0] ?? ''}`, inputs, outputs, attributes });
const value = (name: string, shape: ValueInfo['shape'], dtype: ValueInfo['dtype'] = 'float32'): ValueInfo => ({
  name,
  dtype,
  shape,
});
const graphOf = (parts: Partial<Graph>): Graph => ({
  name: 'g',
  opset: 21,
  inputs: [value('x', ['batch', 'n', 2])],
  outputs: [value('y', null)],
  nodes: [],
  initializers: new Map(),
  metadata: {},
  ...parts,
});

/** x reshaped to [its first dimension, -1 written out as 6], the way exporters write Flatten. */
const flatten = graphOf({
  nodes: [
    node('Shape', ['x'], ['s']),
    node('Gather', ['s'], ['b'], { at: { type: 'int', value: 0 } }),
    node('Concat', ['b', 'rest'], ['t']),
    node('Reshape', ['x', 't'], ['r']),
    node('Neg', ['r'], ['y']),
    node('Neg', ['r'], ['unused']),
  ],
  initializers: new Map<string, Tensor>([
    ['rest', int64([6])],
    ['forgotten', float32([1])],
  ]),
  literals: new Set(['rest']),
});

describe('specialise', () => {
  it('folds the arithmetic of shapes and drops what leads nowhere', () => {
    const graph = specialise(flatten, { x: [4, 3, 2] }, semantics);
    verify(graph);
    expect(graph.nodes.map(({ op }) => op)).toEqual(['Reshape', 'Neg']);
    expect([...graph.initializers.keys()]).toEqual(['t']);
    expect([...graph.literals ?? []]).toEqual(['t']);
    expect(graph.outputs).toEqual([{ name: 'y', dtype: 'float32', shape: [4, 6] }]);
    expect(graph.inputs).toEqual([{ name: 'x', dtype: 'float32', shape: [4, 3, 2] }]);
    expect(graph.types.get('r')).toEqual({ dtype: 'float32', shape: [4, 6] });
    expect(graph.types.has('unused')).toBe(false);
  });

  it('keeps whatever hangs on a parameter, and folds the same from a literal', () => {
    const base = graphOf({
      inputs: [], nodes: [node('Neg', ['w'], ['y'])], initializers: new Map([['w', float32([1, 2])]]),
    });
    const parameter = specialise(base, {}, semantics);
    verify(parameter);
    expect(parameter.nodes.map(({ op }) => op)).toEqual(['Neg']);
    expect([...parameter.literals ?? []]).toEqual([]);
    const literal = specialise({ ...base, literals: new Set(['w']) }, {}, semantics);
    verify(literal);
    expect(literal.nodes).toEqual([]);
    expect([...literal.initializers.get('y')?.data ?? []]).toEqual([-1, -2]);
    expect([...literal.literals ?? []]).toEqual(['y']);
  });

  it('does not fold large values, nor even compute them', () => {
    folded.length = 0;
    const iota = (n: number): Graph =>
      graphOf({ inputs: [], nodes: [node('Iota', [], ['y'], { n: { type: 'int', value: n } })] });
    expect(specialise(iota(1_000_000), {}, semantics).nodes).toHaveLength(0);
    expect(folded).toEqual(['Iota:y']);
    expect(specialise(iota(1_000_001), {}, semantics).nodes).toHaveLength(1);
    expect(folded).toEqual(['Iota:y']);
  });

  it('lets fixed inputs, and those that follow from others, be left out', () => {
    const graph = graphOf({
      inputs: [value('x', ['batch', 3]), value('mask', ['batch', 5], 'bool'), value('fixed', [2, 2])],
      nodes: [node('Neg', ['x'], ['y'])],
    });
    expect(specialise(graph, { x: [4, 3] }, semantics).inputs.map(({ shape }) => shape)).toEqual([
      [4, 3],
      [4, 5],
      [2, 2],
    ]);
  });

  it.each<[string, Readonly<Record<string, readonly number[]>>, RegExp]>([
    ['no shape', {}, /input "x"[^]*\[batch, n, 2\]/],
    ['an unknown input', { z: [1] }, /"z"[^]*"x"/],
    ['a wrong rank', { x: [1, 2] }, /rank 2[^]*rank 3/],
    ['a wrong size', { x: [1, 2, 3] }, /3 in axis 2/],
    ['a negative size', { x: [-1, 2, 2] }, /whole numbers/],
    ['a fractional size', { x: [1.5, 2, 2] }, /whole numbers/],
    ['symbols that disagree', { x: [1, 2, 2], x2: [3] }, /batch = 3[^]*batch = 1, as in input "x"/],
  ])('refuses %s', (_, shapes, message) => {
    const graph = { ...flatten, inputs: [...flatten.inputs, value('x2', ['batch'])] };
    expect(() => specialise(graph, shapes, semantics)).toThrow(GhostgradError);
    expect(() => specialise(graph, shapes, semantics)).toThrow(message);
  });

  it('passes on what an operator refuses', () => {
    expect(() =>
      specialise(graphOf({ nodes: [node('Frobnicate', ['x'], ['y'])] }), { x: [1, 1, 2] }, semantics),
    ).toThrow(/Frobnicate/);
    expect(() => specialise(graphOf({ nodes: [node('Neg', ['x'], ['y', 'z'])] }), { x: [1, 1, 2] }, semantics)).toThrow(
      /more outputs/,
    );
  });

  it('ignores operators it does not know where they lead to no output', () => {
    const nodes = [node('Frobnicate', ['x'], ['z']), node('Neg', ['x'], ['y'])];
    expect(specialise(graphOf({ nodes }), { x: [1, 1, 2] }, semantics).nodes.map(({ op }) => op)).toEqual(['Neg']);
  });

  it('skips optional outputs that are left out', () => {
    const graph = specialise(graphOf({ nodes: [node('Split', ['x'], ['', 'y'])] }), { x: [1, 1, 2] }, semantics);
    verify(graph);
    expect(graph.types.has('')).toBe(false);
  });
});

describe('prune', () => {
  const graph = graphOf({
    inputs: [value('x', [2]), value('label', [1])],
    outputs: [value('logits', null), value('loss', null)],
    nodes: [
      node('Neg', ['x'], ['features']),
      node('Neg', ['features'], ['logits']),
      node('Concat', ['logits', 'label'], ['loss']),
    ],
    initializers: new Map([['w', float32([1])]]),
  });

  it('keeps the inputs of a whole graph and only the needed ones of chosen outputs', () => {
    expect(prune(graph).inputs).toHaveLength(2);
    expect(prune(graph).initializers.size).toBe(0);
    const logits = prune(graph, ['logits']);
    verify(logits);
    expect(logits.nodes.map(({ outputs }) => outputs[0])).toEqual(['features', 'logits']);
    expect(logits.inputs.map(({ name }) => name)).toEqual(['x']);
  });

  it('takes an inner value as an output, with its type where that is known', () => {
    expect(prune(graph, ['features']).outputs).toEqual([{ name: 'features', dtype: 'float32', shape: null }]);
    const typed = specialise(
      { ...graph, nodes: graph.nodes.slice(0, 2), outputs: [value('logits', null)] },
      { x: [2], label: [1] },
      semantics,
    );
    const features = prune(typed, ['features']);
    verify(features);
    expect(features.outputs).toEqual([{ name: 'features', dtype: 'float32', shape: [2] }]);
    expect([...features.types.keys()]).toEqual(['x', 'features']);
  });

  it('refuses an output that does not exist and names those that do', () => {
    expect(() => prune(graph, ['pooled'])).toThrow(/"pooled"[^]*"logits", "loss"/);
  });
});
