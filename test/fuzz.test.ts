import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { GhostgradError } from '../src/errors.ts';
import { type Attributes, type Graph, int, ints, latestOpset, string } from '../src/graph/ir.ts';
import { type Tensor, float32, int64 } from '../src/tensor/tensor.ts';
import { explain } from '../src/training/explain.ts';
import { openModel } from '../src/training/model.ts';
import { type Bytes, damagedBytes, damagedFields, strangeModel } from './support/mutations.ts';
import { testRandom } from './support/random-network.ts';

const models = new URL('fixtures/models/', import.meta.url);
const files = readdirSync(models).filter((name) => name.endsWith('.onnx') && !name.startsWith('resnet20'));
const originals = files.map((name): Bytes => Uint8Array.from(readFileSync(new URL(name, models))));
const folder = mkdtempSync(join(tmpdir(), 'ghostgrad-fuzz-'));
afterAll(() => { rmSync(folder, { recursive: true }); });

/** The sizes that the fixtures leave open, by name. */
const openSizes: Readonly<Record<string, number>> = { sequence: 8, width: 32, h: 32, w: 32 };

/** Explains a model; sizes that the fixtures leave open are given where the model still has such inputs. */
function explained(model: Graph): ReturnType<typeof explain> {
  const shapes = model.inputs.flatMap(({ name, shape }) => {
    const sizes = shape?.slice(1).map((n) => (typeof n === 'string' ? openSizes[n] : n)) ?? [];
    return sizes.length > 0 && sizes.every((n) => typeof n === 'number') ? [[name, sizes] as const] : [];
  });
  const found = explain({ model, exampleShapes: Object.fromEntries(shapes), batchSize: 8 });
  for (const { reason, fix } of [...found.unsupported, ...found.violations]) {
    expect(reason).not.toBe('');
    expect(fix).not.toBe('');
  }
  return found;
}

/** Runs what must answer or refuse with one clear error, which takes less than a second of the processor. */
function answersOrRefuses(what: () => unknown): 'answered' | 'refused' {
  const before = process.cpuUsage();
  try {
    what();
    return 'answered';
  } catch (error) {
    if (!(error instanceof GhostgradError)) throw error;
    const { user, system } = process.cpuUsage(before);
    expect(error.parts.what).not.toBe('');
    expect((user + system) / 1e6, error.message).toBeLessThan(1);
    return 'refused';
  }
}

function explainsBytes(bytes: Bytes): 'answered' | 'refused' {
  const path = join(folder, 'fuzzed.onnx');
  writeFileSync(path, bytes);
  return answersOrRefuses(() => explained(openModel(path)));
}

/** The most memory that the process has had, in MiB. */
const peak = (): number => process.resourceUsage().maxRSS / 1024;

/** Checks many damaged files, and that they did not fill the memory. */
function fuzz(damage: (random: () => number, original: Bytes) => Bytes, numRuns: number): void {
  originals.forEach((bytes) => explainsBytes(bytes));
  const before = peak();
  fc.assert(fc.property(fc.integer({ min: 1, max: 2 ** 30 }), fc.nat({ max: files.length - 1 }), (seed, i) => {
    explainsBytes(damage(testRandom(seed), originals[i]!));
  }), { numRuns });
  expect(peak() - before).toBeLessThan(300);
}

describe('explain answers, or refuses with names and reasons', () => {
  it('every sound file is answered', () => {
    for (const bytes of originals) expect(explainsBytes(bytes)).toBe('answered');
  });

  it('bytes cut off, flipped, put in or taken out', () => { fuzz(damagedBytes, 60); });

  it('every beginning of a file is refused', () => {
    const bytes = originals[files.findIndex((name) => name.startsWith('mlp'))]!;
    for (let end = 0; end < bytes.length; end += end < 400 ? 7 : 211) {
      expect(explainsBytes(bytes.slice(0, end)), `${end} bytes`).toBe('refused');
    }
  });

  it('fields of real models: sizes, types, names, operators, attributes, data in other files', () => { fuzz(damagedFields, 80); });

  it('any operators with any operands and attributes', () => { fuzz(strangeModel, 400); });

  it('messages nested without end', () => {
    // A graph in an attribute of a node of a graph in an attribute …: field 7 of the model, then 1 (node), 5 (attribute), 6 (graph).
    let bytes: number[] = [];
    const wrapped = (field: number): void => {
      const { length } = bytes;
      const size: number[] = [];
      for (let n = length; ; n >>>= 7) {
        size.push(n < 128 ? n : (n & 127) | 128);
        if (n < 128) break;
      }
      bytes = [(field << 3) | 2, ...size, ...bytes];
    };
    for (let depth = 0; depth < 2000; depth++) [6, 5, 1].forEach(wrapped);
    wrapped(7);
    expect(explainsBytes(Uint8Array.from(bytes))).toBe('refused');
  });
});

type Step = readonly [op: string, inputs: readonly string[], attributes?: Attributes];

/** input [batch, ...shape] → steps, each of which takes `x` (the one before) and literals → output. */
function chain(steps: readonly Step[], literals: Readonly<Record<string, Tensor>>, shape: readonly number[] = [4]): Graph {
  return {
    name: 'chain', opset: latestOpset, metadata: {}, initializers: new Map<string, Tensor>([...Object.entries(literals), ['w', float32([1])]]),
    literals: new Set(Object.keys(literals)),
    inputs: [{ name: 'input', dtype: 'float32', shape: ['batch', ...shape] }],
    outputs: [{ name: 'y', dtype: 'float32', shape: null }],
    nodes: [
      { op: 'Mul', domain: '', name: 'weigh', inputs: ['input', 'w'], outputs: ['v0'], attributes: {} },
      ...steps.map(([op, inputs, attributes = {}], i) => ({
        op, domain: '', name: `${op}_${i}`, attributes, inputs: inputs.map((v) => (v === 'x' ? `v${i}` : v)), outputs: [`v${i + 1}`],
      })),
      { op: 'Identity', domain: '', name: 'end', inputs: [`v${steps.length}`], outputs: ['y'], attributes: {} },
    ],
  };
}

const vast = [2 ** 24, 2 ** 31, 2 ** 40, 2 ** 53];
const scalar = (n: number): Tensor => int64([n], []);

/** Graphs of a few bytes that speak of sizes that no memory holds. */
const vastGraphs = (n: number): Readonly<Record<string, Graph>> => ({
  input: chain([['Relu', ['x']]], {}, [n]),
  'inputs that a pool, a resampling and a convolution go over': chain([['Unsqueeze', ['x', 'axis']], ['AveragePool', ['x'], { kernel_shape: ints([3]) }]], { axis: int64([1]) }, [n]),
  'a pool as large as its input': chain([['Unsqueeze', ['x', 'axis']], ['MaxPool', ['x'], { kernel_shape: ints([n]) }]], { axis: int64([1]) }, [n]),
  'steps of a pool': chain([['Unsqueeze', ['x', 'axis']], ['MaxPool', ['x'], { kernel_shape: ints([2]), strides: ints([n]) }]], { axis: int64([1]) }, [16]),
  'the maximum of all': chain([['Unsqueeze', ['x', 'axis']], ['GlobalMaxPool', ['x']]], { axis: int64([1]) }, [n]),
  resampling: chain([['Unsqueeze', ['x', 'axis']], ['Resize', ['x', '', '', 'sizes'], { mode: string('linear') }]], { axis: int64([1]), sizes: int64([1009, 1, n]) }),
  'resampling from there': chain([['Unsqueeze', ['x', 'axis']], ['Resize', ['x', '', '', 'sizes'], { mode: string('linear') }]], { axis: int64([1]), sizes: int64([1009, 1, 7]) }, [n]),
  Expand: chain([['Unsqueeze', ['x', 'axis']], ['Expand', ['x', 'to']]], { axis: int64([1]), to: int64([1, n, 1]) }),
  Tile: chain([['Tile', ['x', 'to']]], { to: int64([1, n]) }),
  Pad: chain([['Pad', ['x', 'pads']]], { pads: int64([0, 0, 0, n]) }),
  'Pad that mirrors': chain([['Pad', ['x', 'pads'], { mode: string('reflect') }]], { pads: int64([0, 0, 0, n]) }),
  'Pad that repeats the edge': chain([['Pad', ['x', 'pads'], { mode: string('edge') }]], { pads: int64([0, n, 0, n]) }),
  ConstantOfShape: chain([['ConstantOfShape', ['size']], ['Add', ['v0', 'x']]], { size: int64([n, 4]) }),
  'ConstantOfShape of many axes': chain([['ConstantOfShape', ['size']], ['Add', ['v0', 'x']]], { size: int64([n, n, n, n]) }),
  'ConstantOfShape, summed': chain([['ConstantOfShape', ['size']], ['ReduceSum', ['x']], ['Add', ['v0', 'x']]], { size: int64([n]) }),
  Range: chain([['Range', ['zero', 'end', 'one']], ['Cast', ['x'], { to: int(1) }], ['ReduceSum', ['x']], ['Add', ['v0', 'x']]], { zero: scalar(0), one: scalar(1), end: scalar(n) }),
  'Range without an end': chain([['Range', ['zero', 'end', 'zero']], ['Cast', ['x'], { to: int(1) }], ['ReduceSum', ['x']], ['Add', ['v0', 'x']]], { zero: scalar(0), end: scalar(n) }),
  OneHot: chain([['Cast', ['x'], { to: int(7) }], ['OneHot', ['x', 'depth', 'values']], ['ReduceSum', ['x', 'axis']], ['Add', ['v0', 'x']]], { depth: scalar(n), values: float32([0, 1]), axis: int64([2]) }),
  EyeLike: chain([['ConstantOfShape', ['size']], ['EyeLike', ['x'], { k: int(n) }], ['ReduceSum', ['x']], ['Add', ['v0', 'x']]], { size: int64([n, n]) }),
  'Split into as many': chain([['Split', ['x'], { num_outputs: int(n) }]], {}),
  'Reshape to it': chain([['Reshape', ['x', 'to']]], { to: int64([0, n]) }),
  'Slice in steps of it': chain([['Slice', ['x', 'from', 'to', 'axes', 'steps']]], { from: int64([0]), to: int64([n]), axes: int64([1]), steps: int64([-n]) }),
  'axes beyond counting': chain([['Unsqueeze', ['x', 'axes']]], { axes: int64([n]) }),
  Trilu: chain([['Trilu', ['x', 'k']]], { k: scalar(n) }, [4, 4]),
  'blocks of channels': chain([['Unsqueeze', ['x', 'axes']], ['DepthToSpace', ['x'], { blocksize: int(n) }]], { axes: int64([2, 3]) }),
  'a cumulative sum': chain([['CumSum', ['x', 'axis']]], { axis: scalar(1) }, [n]),
  'a Fourier transform': chain([['Unsqueeze', ['x', 'last']], ['DFT', ['x', '', 'axis']]], { last: int64([-1]), axis: scalar(1) }, [n]),
  'a Fourier transform made longer': chain([['Unsqueeze', ['x', 'last']], ['DFT', ['x', 'length', 'axis']]], { last: int64([-1]), length: scalar(n), axis: scalar(1) }),
  'short Fourier transforms': chain([['STFT', ['x', 'step', '', 'length']]], { step: scalar(1), length: scalar(4) }, [n]),
  'a window of it': chain([['HannWindow', ['size']], ['ReduceSum', ['x']], ['Add', ['v0', 'x']]], { size: scalar(n) }),
  'a sequence turned around': chain([['Unsqueeze', ['x', 'last']], ['ReverseSequence', ['x', 'lengths'], { time_axis: int(1), batch_axis: int(2) }]], { last: int64([-1]), lengths: int64([2]) }, [n]),
  'a grid': chain([['Reshape', ['x', 'shape']], ['AffineGrid', ['x', 'size']]], { shape: int64([-1, 2, 3]), size: int64([1009, 1, n, n]) }, [6]),
  'blocks into an image': chain([['Unsqueeze', ['x', 'last']], ['Col2Im', ['x', 'image', 'block']]], { last: int64([-1]), image: int64([n, n]), block: int64([1, 1]) }, [4]),
  'cropped or padded': chain([['CenterCropPad', ['x', 'size'], { axes: ints([1]) }]], { size: int64([n]) }),
  classes: chain([['MatMul', ['x', 'row']]], { row: float32([1, 2], [1, 2]) }, [n, 1]),
});

describe('sizes that no memory holds are not allocated', () => {
  it.each(vast)('%d', (n) => {
    const before = peak();
    for (const [name, graph] of Object.entries(vastGraphs(n))) {
      const losses = ['mse', 'cross-entropy'] as const;
      for (const loss of losses) expect(() => answersOrRefuses(() => explain({ model: graph, loss, batchSize: 2 })), name).not.toThrow();
    }
    expect(peak() - before).toBeLessThan(200);
  });

  it('a layer unrolled over time', () => {
    const weights = { a: float32(new Float32Array(8), [1, 8, 1]), r: float32(new Float32Array(16), [1, 8, 2]) };
    const model = chain([['Transpose', ['x'], { perm: ints([1, 0, 2]) }], ['LSTM', ['x', 'a', 'r'], { hidden_size: int(2) }]], weights, [2 ** 24, 1]);
    expect(explain({ model, loss: 'mse' }).unsupported).toMatchObject([{ operator: 'LSTM', reason: expect.stringMatching(/too long a sequence/) as string }]);
  });

  it('many folded values of modest size fill no memory either', () => {
    const before = peak();
    const steps = Array.from({ length: 300 }, (_, i): Step[] => [['ConstantOfShape', ['size']], ['ReduceMax', ['x']], ['Add', [`v${Math.max(0, 3 * i)}`, 'x']]]).flat();
    explain({ model: chain(steps, { size: int64([1_000_000]) }), loss: 'mse' });
    expect(peak() - before).toBeLessThan(600);
  });

  it('nor do declared sizes of weights, with the data missing', () => {
    const text = new TextEncoder().encode('w');
    // model { graph { initializer { dims: 2^40, data_type: FLOAT, name: "w", raw_data: 4 bytes } } }
    const tensor = [0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0x10, 1, 0x42, text.length, ...text, 0x4a, 4, 0, 0, 0, 0];
    const graph = [0x2a, tensor.length, ...tensor];
    const before = peak();
    expect(explainsBytes(Uint8Array.from([0x3a, graph.length, ...graph]))).toBe('refused');
    expect(peak() - before).toBeLessThan(50);
  });
});
