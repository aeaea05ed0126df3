import { describe, expect, it } from 'vitest';
import type { TypedGraph } from '../graph/ir.ts';
import { type TensorType, float32, int64 } from '../tensor/tensor.ts';
import { onnxruntimeEngine } from './node.ts';

const product: TypedGraph = {
  name: 'product', opset: 21, metadata: {},
  inputs: [{ name: 'x', dtype: 'float32', shape: [2, 3] }, { name: 'w', dtype: 'float32', shape: [3, 1] }],
  outputs: [{ name: 'y', dtype: 'float32', shape: [2, 1] }],
  initializers: new Map(),
  nodes: [{ op: 'MatMul', domain: '', name: 'm', inputs: ['x', 'w'], outputs: ['y'], attributes: {} }],
  types: new Map([
    ['x', { dtype: 'float32', shape: [2, 3] }], ['w', { dtype: 'float32', shape: [3, 1] }], ['y', { dtype: 'float32', shape: [2, 1] }],
  ]),
};

describe('onnxruntimeEngine', () => {
  it('computes in another thread, moves buffers out and hands the feeds back', async () => {
    const session = await onnxruntimeEngine().compile(product, { threads: 1 });
    const x = float32([1, 2, 3, 4, 5, 6], [2, 3]);
    const w = float32([1, 0, -1], [3, 1]);
    const { outputs, feeds } = await session.run({ x, w });
    expect(Array.from(outputs['y']?.data as Float32Array)).toEqual([-2, -2]);
    expect(x.data.length).toBe(0); // moved
    expect(Array.from(feeds['x']?.data as Float32Array)).toEqual([1, 2, 3, 4, 5, 6]);
    const again = await session.run(feeds);
    expect(Array.from(again.outputs['y']?.data as Float32Array)).toEqual([-2, -2]);
    await session.release();
  });

  it("computes in the caller's thread, where nothing moves and timers have their turn between runs", async () => {
    const engine = onnxruntimeEngine({ thread: 'caller' });
    const session = await engine.compile(product, { threads: 1 });
    const feeds = { x: float32([1, 2, 3, 4, 5, 6], [2, 3]), w: float32([1, 0, -1], [3, 1]) };
    let ticks = 0;
    const timer = setInterval(() => ticks++, 1);
    const first = await session.run(feeds);
    for (let i = 0; ticks === 0 && i < 10_000; i++) await session.run(feeds);
    clearInterval(timer);
    expect(ticks).toBeGreaterThan(0);
    expect(Array.from(first.outputs['y']?.data as Float32Array)).toEqual([-2, -2]);
    expect(first.feeds['x']?.data).toBe(feeds.x.data);
    const { outputs } = await session.run({ ...feeds, w: float32([1, 1, 1], [3, 1]) }, first.outputs);
    expect(Array.from(outputs['y']?.data as Float32Array)).toEqual([6, 15]);
    expect(outputs['y']?.data).toBe(first.outputs['y']?.data);
    await expect(engine.compile({ ...product, nodes: [{ ...product.nodes[0]!, op: 'NoSuchOp' }] })).rejects.toThrow(/does not take/);
    await session.release();

    // Of several at a time each has its own thread.
    const beside = await engine.compile(product, { threads: 1, concurrent: true });
    await beside.run(feeds);
    expect(feeds.x.data.length).toBe(0);
    await beside.release();
  });

  it('says which input has moved away, and serves the next call', async () => {
    const session = await onnxruntimeEngine().compile(product, { threads: 1 });
    const feeds = { x: float32([1, 2, 3, 4, 5, 6], [2, 3]), w: float32([1, 0, -1], [3, 1]) };
    const { feeds: back } = await session.run(feeds);
    await expect(session.run(feeds)).rejects.toThrow(/input "x"[^]*moved to the engine/);
    expect(Array.from((await session.run(back)).outputs['y']?.data as Float32Array)).toEqual([-2, -2]);
    await session.release();
  });

  it('writes outputs over spare ones, where they are of that shape', async () => {
    const session = await onnxruntimeEngine().compile(product, { threads: 1 });
    const first = await session.run({ x: float32([1, 2, 3, 4, 5, 6], [2, 3]), w: float32([1, 0, -1], [3, 1]) });
    const y = first.outputs['y']!;
    const second = await session.run({ ...first.feeds, w: float32([1, 1, 1], [3, 1]) }, first.outputs);
    expect(y.data.length).toBe(0); // moved
    expect(Array.from(second.outputs['y']?.data as Float32Array)).toEqual([6, 15]);
    const third = await session.run({ ...second.feeds }, { y: float32([0], [1, 1]), z: float32([0]) });
    expect(Array.from(third.outputs['y']?.data as Float32Array)).toEqual([6, 15]);
    expect(Object.keys(third.outputs)).toEqual(['y']);
    await session.release();
  });

  it.each(['own', 'caller'] as const)('fails where a run fails, and serves the next call: thread %s', async (thread) => {
    const types = new Map([['x', { dtype: 'float32', shape: [2] }], ['at', { dtype: 'int64', shape: [1] }], ['y', { dtype: 'float32', shape: [1] }]] as const);
    const value = (name: 'x' | 'at' | 'y') => ({ name, ...types.get(name)! });
    const pick: TypedGraph = {
      ...product, types, inputs: [value('x'), value('at')], outputs: [value('y')],
      nodes: [{ op: 'Gather', domain: '', name: 'pick', inputs: ['x', 'at'], outputs: ['y'], attributes: {} }],
    };
    const session = await onnxruntimeEngine({ thread }).compile(pick, { threads: 1 });
    await expect(session.run({ x: float32([3, 4]), at: int64([7]) })).rejects.toThrow(/out of data bounds/);
    expect(Array.from((await session.run({ x: float32([3, 4]), at: int64([1]) })).outputs['y']?.data as Float32Array)).toEqual([4]);
    await session.release();
  });

  it.each([1, 2])('keeps the zeros of a Pad before a MaxPool: %i on each side', async (pad) => {
    const all = (n: number) => ({ type: 'ints', value: [n] } as const);
    const [x, y] = [{ name: 'x', dtype: 'float32', shape: [1, 1, 3] }, { name: 'y', dtype: 'float32', shape: [1, 1, 2 + 2 * pad] }] as const;
    const padded: TypedGraph = {
      name: 'padded', opset: 21, metadata: {}, inputs: [x], outputs: [y],
      initializers: new Map([['pads', int64([0, 0, pad, 0, 0, pad])]]),
      types: new Map<string, TensorType>([['x', x], ['y', y], ['wide', { dtype: 'float32', shape: [1, 1, 3 + 2 * pad] }]]),
      nodes: [
        { op: 'Pad', domain: '', name: 'pad', inputs: ['x', 'pads'], outputs: ['wide'], attributes: { mode: { type: 'string', value: 'constant' } } },
        { op: 'MaxPool', domain: '', name: 'pool', inputs: ['wide'], outputs: ['y'], attributes: { kernel_shape: all(2), strides: all(1) } },
      ],
    };
    const session = await onnxruntimeEngine().compile(padded, { threads: 1 });
    const { outputs } = await session.run({ x: float32([-1, -2, -3], [1, 1, 3]) });
    const zeros = new Array<number>(pad).fill(0);
    expect(Array.from(outputs['y']?.data as Float32Array)).toEqual([...zeros, -1, -2, ...zeros]);
    await session.release();
  });

  it('leaves the event loop free while it computes', async () => {
    const n = 700;
    const big: TypedGraph = { ...product, types: new Map(), inputs: [{ name: 'x', dtype: 'float32', shape: [n, n] }, { name: 'w', dtype: 'float32', shape: [n, n] }], outputs: [{ name: 'y', dtype: 'float32', shape: [n, n] }] };
    const session = await onnxruntimeEngine().compile(big, { threads: 1 });
    let ticks = 0;
    const timer = setInterval(() => ticks++, 1);
    await session.run({ x: float32(new Float32Array(n * n), [n, n]), w: float32(new Float32Array(n * n), [n, n]) });
    clearInterval(timer);
    expect(ticks).toBeGreaterThan(0);
    await session.release();
  });

  it('names the graph that the runtime refuses, and the input that is missing', async () => {
    const wrong = { ...product, nodes: [{ ...product.nodes[0]!, op: 'NoSuchOperator' }] };
    await expect(onnxruntimeEngine().compile(wrong)).rejects.toThrow(/does not take the graph "product"/);
    const session = await onnxruntimeEngine().compile(product, { threads: 1 });
    await expect(session.run({ x: float32([1, 2, 3, 4, 5, 6], [2, 3]) })).rejects.toThrow(/expected: w/);
    await expect(session.run({ x: float32([1, 2, 3, 4, 5, 6], [2, 3]), w: int64([1, 2, 3], [3, 1]) })).rejects.toThrow();
    await session.release();
  });
});
