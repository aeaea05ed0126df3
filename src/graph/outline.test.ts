import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, statSync, truncateSync, writeFileSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { type Tensor, float32, int64 } from '../tensor/tensor.ts';
import { decodeModel } from './decode.ts';
import { encodeModel } from './encode.ts';
import { readModel } from './file.ts';
import { type Graph, type Node, latestOpset } from './ir.ts';
import { outline } from './outline.ts';

const folder = mkdtempSync(join(tmpdir(), 'outline-'));
afterAll(() => { rmSync(folder, { recursive: true }); });

const ramp = (n: number) => float32(Array.from({ length: n }, (_, i) => i / 7), [n]);
const constant: Node = {
  op: 'Constant', domain: '', name: 'c', inputs: [], outputs: ['big_constant'], attributes: { value: { type: 'tensor', value: ramp(70_000) } },
};
const graph: Graph = {
  name: 'large', opset: latestOpset, metadata: { note: 'kept' },
  inputs: [{ name: 'x', dtype: 'float32', shape: ['batch', 300_000] }], outputs: [{ name: 'y', dtype: 'float32', shape: ['batch', 300_000] }],
  initializers: new Map<string, Tensor>([['weight', ramp(300_000)], ['small', int64([1, 2, 3])], ['other', ramp(100_000)]]),
  nodes: [constant, { op: 'Add', domain: '', name: 'add', inputs: ['x', 'weight'], outputs: ['y'], attributes: {} }],
};
const digest = ({ buffer, byteOffset, byteLength }: ArrayBufferView) =>
  createHash('sha256').update(new Uint8Array(buffer, byteOffset, byteLength)).digest('hex');
const bytes = encodeModel(graph);
const read = (offset: number, length: number) => bytes.slice(offset, offset + length);

describe('the outline of a model file', () => {
  it('holds everything but the bytes of large tensors', () => {
    expect(bytes.length).toBeGreaterThan(1.8e6);
    expect(outline(read, bytes.length, 'large.onnx')!.length).toBeLessThan(2000);
  });

  it('reads as the whole file does', () => {
    const path = join(folder, 'large.onnx');
    writeFileSync(path, bytes);
    const [found, expected] = [readModel(path), decodeModel(bytes)];
    const bits = ({ initializers }: Graph) => [...initializers].map(([name, t]) => [name, t.dtype, t.shape, digest(t.data)]);
    expect(bits(found)).toEqual(bits(expected));
    expect({ ...found, initializers: [] }).toEqual({ ...expected, initializers: [] });
  });

  it('gives each tensor memory of its own', () => {
    const path = join(folder, 'large.onnx');
    const { initializers } = readModel(path);
    for (const { data } of initializers.values()) expect(data.buffer.byteLength).toBe(data.byteLength);
  });

  it('leaves what is not well formed to the decoder', () => {
    const path = join(folder, 'cut.onnx');
    writeFileSync(path, bytes);
    for (const kept of [0.3, 0.7, 0.999]) {
      writeFileSync(path, bytes);
      truncateSync(path, Math.floor(kept * bytes.length));
      expect(outline((offset, length) => readFileSync(path).subarray(offset, offset + length), statSync(path).size, 'cut.onnx')).toBeUndefined();
      expect(() => readModel(path)).toThrow(/not|truncated|damaged/);
    }
    expect(outline(() => Uint8Array.of(255, 255, 255, 255, 255, 255, 255, 255, 255, 255), 10, 'x')).toBeUndefined();
  });
});
