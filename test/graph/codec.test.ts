import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../../src/errors.ts';
import { decodeModel } from '../../src/graph/decode.ts';
import { encodeChunks, encodeModel } from '../../src/graph/encode.ts';
import { readModel, writeModel } from '../../src/graph/file.ts';
import { type Attribute, type Graph, type Node, float, int, ints, string } from '../../src/graph/ir.ts';
import { verify } from '../../src/graph/verify.ts';
import { type DType, type Tensor, allocate, dtypes, float32, int64, sizeOf, tensor } from '../../src/tensor/tensor.ts';
import { comparable, graphOf, node, run, runGraph, value } from './onnxruntime.ts';

const models = new URL('../fixtures/models/', import.meta.url);
const files = readdirSync(models).filter((name) => name.endsWith('.onnx'));
// A plain copy, since slice() of Node's Buffer does not copy.
const bytesOf = (file: string): Uint8Array => Uint8Array.from(readFileSync(new URL(file, models)));

/** A tensor with every byte pattern, the odd ones (NaN, denormals) included. */
const anyTensor = (dtype: DType): fc.Arbitrary<Tensor> =>
  fc.array(fc.nat({ max: 3 }), { maxLength: 3 }).chain((shape) => {
    const { BYTES_PER_ELEMENT } = allocate(dtype, 1);
    const length = sizeOf(shape) * BYTES_PER_ELEMENT;
    return fc.uint8Array({ minLength: length, maxLength: length }).map((bytes) => {
      const data = allocate(dtype, sizeOf(shape));
      new Uint8Array(data.buffer).set(dtype === 'bool' ? bytes.map((b) => b & 1) : bytes);
      return tensor(dtype, shape, data);
    });
  });
const someTensor = fc.constantFrom(...dtypes).chain(anyTensor);

const someAttribute: fc.Arbitrary<Attribute> = fc.oneof(
  fc.maxSafeInteger().map(int),
  fc.float({ noNaN: true }).map(float),
  fc.string({ unit: 'grapheme' }).map(string),
  fc.array(fc.maxSafeInteger()).map(ints),
  fc.array(fc.float({ noNaN: true })).map((v): Attribute => ({ type: 'floats', value: v })),
  fc.array(fc.string()).map((v): Attribute => ({ type: 'strings', value: v })),
  someTensor.map((v): Attribute => ({ type: 'tensor', value: v })),
);

/** Any graph that is well formed; its operators need not exist. */
const someGraph: fc.Arbitrary<Graph> = fc
  .record({
    weights: fc.array(someTensor, { maxLength: 4 }),
    literals: fc.array(someTensor, { maxLength: 3 }),
    inputs: fc.array(
      fc.record({
        dtype: fc.constantFrom(...dtypes),
        shape: fc.option(
          fc.array(fc.oneof(fc.nat({ max: 9 }), fc.constantFrom('batch', 'sequence', '__proto__'), fc.constant(null)), {
            maxLength: 4,
          }),
        ),
      }),
      { minLength: 1, maxLength: 3 },
    ),
    nodes: fc.array(
      fc.record({
        op: fc.constantFrom('Add', 'Conv', 'Concat'),
        domain: fc.constantFrom('', 'com.microsoft', 'com.example'),
        operands: fc.array(fc.option(fc.nat()), { maxLength: 4 }),
        outputs: fc.integer({ min: 1, max: 3 }),
        attributes: fc.dictionary(fc.oneof(fc.string(), fc.constant('__proto__')), someAttribute, { maxKeys: 3 }),
      }),
      { maxLength: 6 },
    ),
    metadata: fc.dictionary(fc.string(), fc.string(), { maxKeys: 3 }),
    opset: fc.integer({ min: 7, max: 26 }),
  })
  .map(({ weights, literals, inputs, nodes, metadata, opset }) => {
    const initializers = new Map([
      ...weights.map((t, i) => [`w${i}`, t] as const),
      ...literals.map((t, i) => [`c${i}`, t] as const),
    ]);
    const known = [...initializers.keys(), ...inputs.map((_, i) => `x${i}`)];
    const made: Node[] = nodes.map(({ operands, outputs, ...rest }, i) => {
      const names = Array.from({ length: outputs }, (_, k) => `v${i}.${k}`);
      const used = operands.map((at) => (at === null ? '' : (known[at % known.length] ?? '')));
      known.push(...names);
      return {
        ...rest,
        name: `node ${i}`,
        inputs: used,
        outputs: names,
        attributes: Object.fromEntries(Object.entries(rest.attributes)),
      };
    });
    const domains = Object.fromEntries(made.filter(({ domain }) => domain !== '').map(({ domain }) => [domain, 1]));
    return graphOf({
      opset,
      initializers,
      nodes: made,
      domains,
      literals: new Set(literals.map((_, i) => `c${i}`)),
      inputs: inputs.map(({ dtype, shape }, i) => ({ name: `x${i}`, dtype, shape })),
      outputs: [value(known.at(-1) ?? '', null)],
      metadata: Object.fromEntries(Object.entries(metadata)),
    });
  });

describe('encode and decode', () => {
  it('give back any graph', () => {
    fc.assert(fc.property(someGraph, (graph) => {
      verify(graph);
      const decoded = decodeModel(encodeModel(graph));
      verify(decoded);
      expect(comparable(decoded)).toEqual(comparable(graph));
    }), { numRuns: 200 });
  });

  it.each(files)('give back %s, which computes the same', async (file) => {
    const original = bytesOf(file);
    const graph = decodeModel(original);
    verify(graph);
    const encoded = encodeModel(graph);
    // A file may name operator sets that no node is of.
    const used = Object.fromEntries(Object.entries(graph.domains ?? {}).filter(([domain]) => graph.nodes.some((n) => n.domain === domain)));
    expect(comparable(decodeModel(encoded))).toEqual(comparable({ ...graph, domains: used }));
    const feeds = Object.fromEntries(graph.inputs.map(({ name, dtype, shape }) => {
      // Images need room for their kernels.
      const concrete = (shape ?? []).map((d, axis) => (typeof d === 'number' ? d : axis < 2 ? 2 : 32));
      const places = Array.from({ length: sizeOf(concrete) }, (_, i) => i);
      return [name, dtype === 'int64' ? int64(places.map((i) => i % 2), concrete) : float32(places.map(Math.sin), concrete)];
    }));
    expect(await run(encoded, feeds)).toEqual(await run(original, feeds));
  });

  it.each(dtypes)('store %s so that ONNX Runtime reads the same values', async (dtype) => {
    const data = allocate(dtype, 4);
    if (data instanceof BigInt64Array || data instanceof BigUint64Array) data.set([0n, 1n, 2n, 3n]);
    else data.set(dtype === 'bool' ? [0, 1, 1, 0] : [0, 1, 2, 3]);
    const t = tensor(dtype, [2, 2], data);
    // ONNX Runtime has no bfloat16 outputs in JavaScript; a cast shows that it read the bits.
    const graph = graphOf({
      inputs: [value('x', [1])], outputs: [value('y', [2, 2]), value('x2', [1])], initializers: new Map([['w', t]]),
      nodes: [node('Cast', ['w'], ['y'], { to: int(1) }), node('Identity', ['x'], ['x2'])],
    });
    const half = 2 ** -24;
    const expected: Partial<Record<DType, number[]>> = {
      bool: [0, 1, 1, 0],
      float16: [0, half, 2 * half, 3 * half],
      bfloat16: Array.from(new Float32Array(new Uint16Array([0, 0, 0, 1, 0, 2, 0, 3]).buffer)),
    };
    const { y } = await runGraph(graph, { x: float32([1]) });
    expect(y?.values).toEqual(expected[dtype] ?? [0, 1, 2, 3]);
  });

  it('store external data where ONNX Runtime finds it', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'ghostgrad-external-'));
    try {
      const path = join(folder, 'model.onnx');
      writeModel(path, decodeModel(bytesOf('mlp-random.onnx')), { inlineLimit: 0 });
      const feeds = { input: float32(Array.from({ length: 40 }, (_, i) => Math.cos(i)), [2, 20]) };
      expect(await run(path, feeds)).toEqual(await run(bytesOf('mlp-random.onnx'), feeds));
      expect(comparable(readModel(path))).toEqual(comparable(decodeModel(bytesOf('mlp-random.onnx'))));
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });

  it('keep -1 and the int64 extremes of attributes', () => {
    const attributes = { a: ints([-1, 2 ** 63, -(2 ** 63), Number.MAX_SAFE_INTEGER]), b: int(2 ** 63) };
    const graph = graphOf({
      inputs: [value('x', [1])],
      outputs: [value('y', [1])],
      nodes: [node('Foo', ['x'], ['y'], attributes)],
    });
    expect(decodeModel(encodeModel(graph)).nodes[0]?.attributes).toEqual(attributes);
  });

  it('do not copy weights into the pieces of a model', () => {
    const w = float32([1, 2, 3]);
    const chunks = encodeChunks(
      graphOf({ inputs: [], outputs: [value('w', [3])], nodes: [], initializers: new Map([['w', w]]) }),
    );
    expect(chunks.some((chunk) => chunk.buffer === w.data.buffer)).toBe(true);
  });

  it('give every tensor memory of its own', () => {
    const { initializers } = decodeModel(bytesOf('mlp-random.onnx'));
    const buffers = new Set([...initializers.values()].map((t) => t.data.buffer));
    expect(buffers.size).toBe(initializers.size);
    for (const t of initializers.values()) expect(t.data.buffer.byteLength).toBe(t.data.byteLength);
  });

  it('let ONNX Runtime run literals that are outputs, and outputs that are inputs', async () => {
    const graph = graphOf({
      inputs: [value('x', [2])], outputs: [value('c', [2], 'int64'), value('y', [2])],
      initializers: new Map([['c', int64([3, 4])]]), literals: new Set(['c']), nodes: [node('Relu', ['x'], ['y'])],
    });
    expect((await runGraph(graph, { x: float32([-1, 1]) }))['c']?.values).toEqual([3, 4]);
  });

  it('refuse a subgraph by the name of its node', () => {
    const graph = graphOf({
      inputs: [value('x', [1])],
      outputs: [value('y', [1])],
      nodes: [node('If', ['x'], ['y'], { then_branch: { type: 'other', value: 'GRAPH' } })],
    });
    expect(() => encodeModel(graph)).toThrow(/If node "If:y"/);
  });

  it('refuse a model beyond the limit of protobuf', () => {
    const huge = { dtype: 'uint8', shape: [2 ** 31], data: new Uint8Array(2 ** 31) } as const;
    const graph = graphOf({
      inputs: [],
      outputs: [value('w', [2 ** 31], 'uint8')],
      nodes: [],
      initializers: new Map([['w', huge]]),
    });
    expect(() => encodeModel(graph)).toThrow(/writeModel/);
  });

  it('are quick for thousands of nodes', () => {
    const nodes = Array.from({ length: 5000 }, (_, i) => node('Relu', [`v${i}`], [`v${i + 1}`]));
    const graph = graphOf({ inputs: [value('v0', [1])], outputs: [value('v5000', [1])], nodes });
    const start = performance.now();
    expect(decodeModel(encodeModel(graph)).nodes).toHaveLength(5000);
    expect(performance.now() - start).toBeLessThan(2000);
  });
});

describe('damaged files', () => {
  const original = bytesOf('mlp-random.onnx');
  const attempt = (bytes: Uint8Array): void => {
    try {
      verify(decodeModel(bytes, { where: 'damaged.onnx' }));
    } catch (error) {
      expect(error).toBeInstanceOf(GhostgradError);
      expect(String(error)).toContain('damaged.onnx');
    }
  };

  it('are refused or valid when cut short anywhere', () => {
    const step = 13;
    let refused = 0;
    for (let n = 0; n < original.length; n += step) {
      attempt(original.subarray(0, n));
      try { decodeModel(original.subarray(0, n)); } catch { refused++; }
    }
    // The version of the operator set stands at the end, so no prefix is a model.
    expect(refused).toBe(Math.ceil(original.length / step));
  });

  it('are refused or valid when bytes are changed, in bounded time', () => {
    const start = performance.now();
    fc.assert(fc.property(
      fc.array(fc.tuple(fc.nat({ max: original.length - 1 }), fc.nat({ max: 255 })), { minLength: 1, maxLength: 8 }),
      (changes) => {
        const bytes = original.slice();
        for (const [at, byte] of changes) bytes[at] = byte;
        attempt(bytes);
      },
    ), { numRuns: 800 });
    expect(performance.now() - start).toBeLessThan(30_000);
  });

  it('are refused or valid when the structure between the weights is changed', () => {
    const graph = decodeModel(original);
    const small = encodeModel({
      ...graph,
      initializers: new Map(
        [...graph.initializers].map(([name, t]) => [name, tensor(t.dtype, [0], allocate(t.dtype, 0))]),
      ),
    });
    fc.assert(fc.property(fc.nat({ max: small.length - 1 }), fc.nat({ max: 255 }), (at, byte) => {
      const bytes = small.slice();
      bytes[at] = byte;
      attempt(bytes);
    }), { numRuns: 1500 });
  });

  it.each<[string, string | Uint8Array, RegExp]>([
    ['nothing', '', /an empty file/],
    ['text', 'hello, this is not a model', /do not parse|no graph/],
    ['a Git LFS pointer', 'version https://git-lfs.github.com/spec/v1\noid sha256:0', /git lfs pull/],
    ['a PyTorch archive', 'PK\x03\x04......', /torch\.onnx\.export/],
    ['zeros', new Uint8Array(1000), /do not parse/],
  ])('are told from %s', (_, content, message) => {
    const bytes = typeof content === 'string' ? new TextEncoder().encode(content) : content;
    expect(() => decodeModel(bytes, { where: 'model.onnx' })).toThrow(GhostgradError);
    expect(() => decodeModel(bytes, { where: 'model.onnx' })).toThrow(message);
  });
});
