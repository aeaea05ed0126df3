import { InferenceSession, Tensor } from 'onnxruntime-node';
import { describe, expect, it } from 'vitest';
import { encodeModel } from '../graph/encode.ts';
import type { TypedGraph } from '../graph/ir.ts';
import { unread, withUnread } from './unread.ts';

const negation: TypedGraph = {
  name: 'negation', opset: 21, metadata: {}, initializers: new Map(), types: new Map(),
  inputs: [{ name: 'x', dtype: 'float32', shape: [3] }], outputs: [{ name: 'y', dtype: 'float32', shape: [3] }],
  nodes: [{ op: 'Neg', domain: '', name: 'negate', inputs: ['x'], outputs: ['y'], attributes: {} }],
};

describe('withUnread', () => {
  it('adds a first output, which stops a run when it is done and its results are where they were wanted', async () => {
    const session = await InferenceSession.create(withUnread(encodeModel(negation)));
    expect(session.outputNames).toEqual([unread, 'y']);
    const x = new Tensor('float32', Float32Array.of(1, -2, 3), [3]);
    const y = new Tensor('float32', new Float32Array(3), [3]);
    await expect(session.run({ x }, { [unread]: null, y })).rejects.toThrow('Non tensor type is temporarily not supported.');
    expect([...y.data]).toEqual([-1, 2, -3]);
    // Whoever does not ask for it reads the others.
    expect([...(await session.run({ x }, { y: null }))['y']!.data as Float32Array]).toEqual([-1, 2, -3]);
    await session.release();
  });
});
