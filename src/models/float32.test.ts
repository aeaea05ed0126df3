import { describe, expect, it } from 'vitest';
import { graphOf, node, runGraph, value } from '../../test/graph/onnxruntime.ts';
import { type Graph, int } from '../graph/ir.ts';
import { dataTypeOf } from '../graph/onnx.ts';
import { upgrade } from '../graph/upgrade.ts';
import { type DType, type Tensor, float32, int64, tensor, toNumbers } from '../tensor/tensor.ts';
import { inFloat32 } from './float32.ts';

/** Bits of small numbers: 1, -2, 0.5, the smallest subnormal, and the infinities. */
const half = (bits: readonly number[], shape: readonly number[] = [bits.length]): Tensor =>
  tensor('float16', shape, Uint16Array.from(bits));
const brain = (bits: readonly number[], shape: readonly number[] = [bits.length]): Tensor =>
  tensor('bfloat16', shape, Uint16Array.from(bits));
const numbersOf = (graph: Graph, name: string): number[] => toNumbers(graph.initializers.get(name)!);

describe('inFloat32', () => {
  it('takes weights of any width, to the bit', () => {
    const graph = graphOf({
      inputs: [value('x', ['n'], 'float16')], outputs: [value('y', ['n'], 'float16')],
      nodes: [node('Add', ['x', 'h'], ['y'])],
      initializers: new Map<string, Tensor>([
        ['h', half([0x3c00, 0xc000, 0x3800, 0x0001, 0x03ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00])],
        ['nan', half([0x7e00])],
        ['b', brain([0x3f80, 0xc000, 0x7f80, 0x0001])],
      ]),
    });
    const found = inFloat32(graph);
    expect([...found.inputs, ...found.outputs, ...found.initializers.values()].every(({ dtype }) => dtype === 'float32')).toBe(true);
    expect(numbersOf(found, 'h')).toEqual([1, -2, 0.5, 2 ** -24, 1023 * 2 ** -24, 65504, -65504, Infinity, -Infinity]);
    expect(numbersOf(found, 'nan')).toEqual([NaN]);
    expect(numbersOf(found, 'b')).toEqual([1, -2, Infinity, 2 ** -133]);
    expect(inFloat32(found)).toBe(found);
  });

  it('leaves a float32 model, and the float64 of its shape arithmetic, as they are', () => {
    const graph = graphOf({
      inputs: [value('x', ['n'])], outputs: [value('y', ['n'])], literals: new Set(['two']),
      initializers: new Map<string, Tensor>([['two', tensor('float64', [], Float64Array.of(2))]]),
      nodes: [
        node('Shape', ['x'], ['s']), node('Cast', ['s'], ['d'], { to: int(dataTypeOf.float64) }),
        node('Mul', ['d', 'two'], ['m']), node('Cast', ['m'], ['r'], { to: int(dataTypeOf.int64) }),
        node('Reshape', ['x', 'r'], ['y']),
      ],
    });
    expect(inFloat32(graph)).toBe(graph);
  });

  it('keeps a float64 number that float32 cannot hold finite', () => {
    const graph = graphOf({
      inputs: [value('x', ['n'], 'float64')], outputs: [value('y', ['n'], 'float64')], nodes: [node('Add', ['x', 'c'], ['y'])],
      initializers: new Map<string, Tensor>([['c', tensor('float64', [3], Float64Array.of(-1.79e308, 0.1, Infinity))]]),
    });
    const [least, tenth, most] = numbersOf(inFloat32(graph), 'c');
    expect(least).toBeLessThan(-3.4e38);
    expect([Number.isFinite(least), tenth, most]).toEqual([true, Math.fround(0.1), Infinity]);
  });

  it('drops casts of weights, so that these meet the data themselves', () => {
    const graph = graphOf({
      inputs: [value('x', ['n', 2])], outputs: [value('y', ['n', 2]), value('v', [2, 2])],
      initializers: new Map<string, Tensor>([['w', half([0x3c00, 0, 0, 0x4000], [2, 2])]]),
      nodes: [
        node('Cast', ['w'], ['v'], { to: int(dataTypeOf.float32) }), node('Cast', ['w'], ['u'], { to: int(dataTypeOf.float32) }),
        node('MatMul', ['x', 'u'], ['y']),
      ],
    });
    const found = inFloat32(graph);
    // One of them makes an output of the model, and stays for its name.
    expect(found.nodes.map(({ op, inputs }) => [op, ...inputs])).toEqual([['Cast', 'w'], ['MatMul', 'x', 'w']]);
  });

  it('computes what the float16 model does, up to rounding', async () => {
    const cast = (from: string, to: string, dtype: DType) => node('Cast', [from], [to], { to: int(dataTypeOf[dtype]) });
    const graph = upgrade(graphOf({
      opset: 17, inputs: [value('x', ['n', 2])], outputs: [value('y', ['n', 2], 'float16')],
      initializers: new Map<string, Tensor>([
        ['w', half([0x3c00, 0x3800, 0xb800, 0x4000], [2, 2])], ['low', half([0xbc00], [])], ['high', half([0x4200], [])],
        ['shape', int64([2])],
      ]),
      nodes: [
        cast('x', 'h', 'float16'), node('MatMul', ['h', 'w'], ['p']), node('Clip', ['p', 'low', 'high'], ['c']),
        node('ConstantOfShape', ['shape'], ['one'], { value: { type: 'tensor', value: half([0x3c00]) } }),
        node('Add', ['c', 'one'], ['a']), cast('a', 'f', 'float32'), cast('f', 'g', 'float16'), node('Neg', ['g'], ['y']),
      ],
    }));
    const x = float32([1.25, -2, 0.5, 3], [2, 2]);
    const found = await runGraph(inFloat32(graph), { x });
    // By hand: x·w clipped to [-1, 3], plus 1, negated.
    expect(found['y']!.values).toEqual([-3.25, -0, -0, -4]);
  });
});
