import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import type * as FileSystem from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { type Tensor, float32, int64, toNumbers } from '../tensor/tensor.ts';
import { writeFileAtomically } from '../files.ts';
import { readModel, writeModel } from './file.ts';
import type { Graph } from './ir.ts';

/** How many more writes succeed before the disk is full. */
let room = Infinity;

vi.mock('node:fs', async (original) => {
  const fs = await original<typeof FileSystem>();
  return {
    ...fs,
    writeSync: (...args: Parameters<typeof fs.writeSync>) => {
      if (room-- <= 0) throw Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' });
      return fs.writeSync(...args);
    },
  };
});

let folder = '';
beforeEach(() => { folder = mkdtempSync(join(tmpdir(), 'ghostgrad-file-')); });
afterEach(() => {
  room = Infinity;
  rmSync(folder, { recursive: true, force: true });
});

const graph: Graph = {
  name: 'g',
  opset: 21,
  metadata: {},
  inputs: [{ name: 'x', dtype: 'float32', shape: [3] }],
  outputs: [{ name: 'y', dtype: 'float32', shape: [3] }],
  nodes: [{ op: 'Add', domain: '', name: 'add', inputs: ['x', 'w'], outputs: ['y'], attributes: {} }],
  initializers: new Map<string, Tensor>([
    ['w', float32([1, 2, 3])],
    ['empty', float32([])],
    ['v', int64([4, 5])],
    ['c', float32([6])],
  ]),
  literals: new Set(['c']),
};
const values = (g: Graph): unknown => Object.fromEntries([...g.initializers].map(([name, t]) => [name, toNumbers(t)]));

describe('a model file', () => {
  it('is read as it was written', () => {
    const path = join(folder, 'model.onnx');
    writeModel(path, graph);
    expect(readdirSync(folder)).toEqual(['model.onnx']);
    const back = readModel(path);
    expect(values(back)).toEqual(values(graph));
    expect([...back.literals ?? []]).toEqual(['c']);
  });

  it('keeps large weights beside it, aligned, and literals inside', () => {
    const path = join(folder, 'model.onnx');
    writeModel(path, graph, { inlineLimit: 10 });
    expect(readdirSync(folder).sort()).toEqual(['model.onnx', 'model.onnx.data']);
    expect(statSync(join(folder, 'model.onnx.data')).size).toBe(2 * 4096);
    expect(values(readModel(path))).toEqual(values(graph));
  });

  it('is never without its weights while it is replaced, and leaves no old ones', () => {
    const path = join(folder, 'model.onnx');
    writeModel(path, graph, { inlineLimit: 0 });
    room = 7;
    const changed = { ...graph, initializers: new Map([...graph.initializers, ['w', float32([7, 8, 9])]]) };
    expect(() => { writeModel(path, changed, { inlineLimit: 0 }); }).toThrow(/no space left/);
    room = Infinity;
    expect(values(readModel(path))).toEqual(values(graph));
    expect(readdirSync(folder).sort()).toEqual(['model.onnx', 'model.onnx.data']);
    writeModel(path, changed, { inlineLimit: 0 });
    expect(values(readModel(path))).toEqual(values(changed));
    expect(readdirSync(folder).sort()).toEqual(['model.onnx', 'model.onnx.data.1']);
    writeModel(path, graph, { inlineLimit: 0 });
    expect(readdirSync(folder).sort()).toEqual(['model.onnx', 'model.onnx.data']);
  });

  it('is refused when its weights are missing or cut short', () => {
    const path = join(folder, 'model.onnx');
    writeModel(path, graph, { inlineLimit: 0 });
    truncateSync(join(folder, 'model.onnx.data'), 4100);
    expect(() => readModel(path)).toThrow(/too short[^]*4100 bytes/);
    rmSync(join(folder, 'model.onnx.data'));
    expect(() => readModel(path)).toThrow(/model\.onnx\.data\)[^]*no such file/);
  });

  it('that cannot be read says why', () => {
    expect(() => readModel(join(folder, 'none.onnx'))).toThrow(/none\.onnx\)[^]*no such file/);
    expect(() => readModel(folder)).toThrow(/a folder/);
    writeFileSync(join(folder, 'empty.onnx'), '');
    expect(() => readModel(join(folder, 'empty.onnx'))).toThrow(/empty\.onnx\)[^]*an empty file/);
    expect(() => readModel(join(folder, 'none.onnx'))).toThrow(GhostgradError);
  });
});

describe('an atomic write', () => {
  it('puts the pieces one after another, with the permissions asked for', () => {
    const path = join(folder, 'file');
    writeFileAtomically(path, [Uint8Array.of(1, 2), new Uint8Array(0), Uint8Array.of(3)], 0o600);
    expect([...readFileSync(path)]).toEqual([1, 2, 3]);
    if (process.platform !== 'win32') expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  it('leaves the old file and nothing else when the disk is full', () => {
    const path = join(folder, 'file');
    writeFileSync(path, 'old');
    room = 1;
    expect(() => {
      writeFileAtomically(path, [Uint8Array.of(1), Uint8Array.of(2)]);
    }).toThrow(/file\)[^]*no space left on the disk[^]*fix/);
    expect(readFileSync(path, 'utf8')).toBe('old');
    expect(readdirSync(folder)).toEqual(['file']);
  });

  it('says why a folder cannot be written', () => {
    expect(() => { writeFileAtomically(join(folder, 'none', 'file'), []); }).toThrow(GhostgradError);
    expect(() => { writeFileAtomically(join(folder, 'none', 'file'), []); }).toThrow(/no such file or folder/);
    mkdirSync(join(folder, 'taken'));
    expect(() => { writeFileAtomically(join(folder, 'taken'), []); }).toThrow(GhostgradError);
    expect(readdirSync(folder)).toEqual(['taken']);
  });

  it.skipIf(process.platform === 'win32' || process.getuid?.() === 0)('respects permissions', () => {
    chmodSync(folder, 0o500);
    try {
      expect(() => { writeFileAtomically(join(folder, 'file'), []); }).toThrow(/no permission/);
      expect(existsSync(join(folder, 'file'))).toBe(false);
    } finally {
      chmodSync(folder, 0o700);
    }
  });
});
