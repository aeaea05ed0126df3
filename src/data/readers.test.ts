import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { idxBytes } from '../../test/support/idx.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { GhostgradError } from '../errors.ts';
import { encodeSafetensors } from '../tensor/safetensors.ts';
import { type Tensor, float32, int64, tensor, toNumbers } from '../tensor/tensor.ts';
import { readSafetensorsData } from './arrays.ts';
import { readCsv } from './csv.ts';
import { type Dataset, allRows, batchOf, gatherColumn } from './dataset.ts';
import { decodeIdx } from './idx.ts';
import { readIdxFolder, readIdxPair } from './images.ts';
import { loadData } from './spec.ts';

const whole = (dataset: Dataset): { x: Tensor; y: Tensor } => {
  const { features, labels } = batchOf(dataset, allRows(dataset.size));
  return { x: features.get('input')!, y: labels };
};

const refusal = async (act: Promise<unknown>): Promise<string> => {
  const error = await act.then(() => undefined, (e: unknown) => e);
  expect(error).toBeInstanceOf(GhostgradError);
  expect((error as GhostgradError).stack).not.toContain('secret');
  return (error as GhostgradError).message;
};

describe('IDX', () => {
  it('reads bytes and big-endian numbers of every width', () => {
    expect(decodeIdx(idxBytes([2, 3], [1, 2, 3, 4, 5, 255])))
      .toEqual(tensor('uint8', [2, 3], Uint8Array.of(1, 2, 3, 4, 5, 255)));
    expect(decodeIdx(Uint8Array.of(0, 0, 0x0b, 1, 0, 0, 0, 2, 1, 2, 255, 254)))
      .toEqual(tensor('int16', [2], Int16Array.of(258, -2)));
    expect(decodeIdx(Uint8Array.of(0, 0, 0x0c, 1, 0, 0, 0, 1, 0, 0, 1, 0)))
      .toEqual(tensor('int32', [1], Int32Array.of(256)));
    expect(decodeIdx(Uint8Array.of(0, 0, 0x0d, 1, 0, 0, 0, 1, 0x3f, 0xc0, 0, 0))).toEqual(float32([1.5]));
    expect(decodeIdx(Uint8Array.of(0, 0, 0x0e, 1, 0, 0, 0, 1, 0xc0, 0, 0, 0, 0, 0, 0, 0)))
      .toEqual(tensor('float64', [1], Float64Array.of(-2)));
    expect(decodeIdx(Uint8Array.of(0, 0, 0x09, 0, 0xff))).toEqual(tensor('int8', [], Int8Array.of(-1)));
  });

  it('refuses other files, and any length but the right one', () => {
    const good = idxBytes([2, 2], [1, 2, 3, 4]);
    expect(() => decodeIdx(Uint8Array.of(1, 0, 8, 1), 'a file')).toThrow(/not a whole IDX file \(a file\)/);
    expect(() => decodeIdx(Uint8Array.of(0, 0, 7, 1, 0, 0, 0, 0))).toThrow(/IDX/);
    for (let length = 0; length < good.length; length++) {
      expect(() => decodeIdx(good.subarray(0, length))).toThrow(GhostgradError);
    }
    expect(() => decodeIdx(Uint8Array.of(...good, 0))).toThrow(/17 bytes[^]*16 bytes for uint8\[2, 2\]/);
  });

  it('pairs images with labels, plain or gzip', async () => {
    const { write } = temporaryFolder();
    const images = write('images.gz', gzipSync(idxBytes([2, 2, 2], [0, 255, 51, 0, 1, 2, 3, 4])));
    const labels = write('labels', idxBytes([2], [3, 9]));
    const dataset = await readIdxPair(images, labels);
    const { x, y } = whole(dataset);
    expect(x.shape).toEqual([2, 1, 2, 2]);
    expect(toNumbers(x).slice(0, 4)).toEqual([0, 1, Math.fround(0.2), 0]);
    expect(y).toEqual(int64([3, 9]));
    const scaled = whole(await readIdxPair(images, labels, { normalize: { mean: 0.5, std: 0.25 } }));
    expect(toNumbers(scaled.x).slice(0, 2)).toEqual([-2, 2]);
  });

  it('refuses damaged, absent and ill-matched files', async () => {
    const { folder, write } = temporaryFolder();
    const packed = gzipSync(idxBytes([2, 1, 1], [1, 2]));
    const images = write('images.gz', packed);
    const labels = write('labels', idxBytes([3], [1, 2, 3]));
    expect(await refusal(readIdxPair(images, labels))).toMatch(/2 rows of features and 3 labels/);
    expect(await refusal(readIdxPair(write('cut.gz', packed.subarray(0, packed.length - 9)), labels)))
      .toMatch(/cut\.gz[^]*truncated gzip/);
    expect(await refusal(readIdxPair(`${folder}/none`, labels)))
      .toMatch(/cannot read the data[^]*none[^]*no such file/);
    expect(await refusal(readIdxPair(folder, labels))).toMatch(/a folder/);
    expect(await refusal(readIdxFolder(folder, 'test'))).toMatch(/no IDX files[^]*t10k-images-idx3-ubyte/);
  });
});

describe('CSV', () => {
  const read = async (text: string, options = {}): Promise<Dataset> =>
    readCsv(temporaryFolder().write('table.csv', text), options);

  it('takes all but the label as features, in the order of the file', async () => {
    const dataset = await read('\uFEFFage,label,pay\r\n1,0, -2.5e1\r\n"3",1,.5\r\n\r\n');
    expect(whole(dataset)).toEqual({ x: float32([1, -25, 3, 0.5], [2, 2]), y: int64([0, 1]) });
    expect(dataset.features.get('input')!.elementNames).toEqual(['age', 'pay']);
  });

  it('takes the columns, classes, delimiter and scaling that it is told', async () => {
    const dataset = await read('a;b;c;kind\n1;2;3;cat\n4;5;6;a dog\n', {
      label: 'kind', features: ['c', 'a'], classes: ['a dog', 'cat'], delimiter: ';',
      normalize: { mean: [3, 0], std: 2 },
    });
    expect(whole(dataset)).toEqual({ x: float32([0, 0.5, 1.5, 2], [2, 2]), y: int64([1, 0]) });
    expect(dataset.classNames).toEqual(['a dog', 'cat']);
  });

  it('scales by public bounds, and spreads categories over elements of their own', async () => {
    const { write } = temporaryFolder();
    const path = write('t.csv', 'age,work,label,hours\n20,state,0,3\n90,?,1,-2\n5,own,1,1e2\n');
    const set = await readCsv(path, {
      features: { age: { min: 10, max: 60 }, work: { categories: ['own', 'state'] }, hours: 'number' },
    });
    const input = set.features.get('input')!;
    expect(input.elementNames).toEqual(['age', 'work=own', 'work=state', 'hours']);
    expect(toNumbers(gatherColumn(input, allRows(3))).map((x) => Math.round(x * 1e5) / 1e5))
      .toEqual([0.2, 0, 1, 3, 1, 0, 0, -2, 0, 1, 0, 100]);
    await expect(readCsv(path, { features: { work: { min: 0, max: 1 } } })).rejects.toThrow(/column "work"[^]*text/);
    await expect(loadData({ path, features: { age: { min: 3, max: 3 } } })).rejects.toThrow(/features/);
  });

  it('reads targets that are not whole numbers', async () => {
    expect(whole(await read('x,label\n1,0.5\n2,1\n')).y).toEqual(float32([0.5, 1]));
  });

  it('holds thousands of rows', async () => {
    const dataset = await read(`x,label\n${Array.from({ length: 5000 }, (_, i) => `${i},${i % 3}`).join('\n')}\n`);
    expect(dataset.size).toBe(5000);
    expect(toNumbers(batchOf(dataset, Uint32Array.of(4999)).features.get('input')!)).toEqual([4999]);
  });

  it('names row, line, column and rule of a bad cell, and never shows it', async () => {
    const cases: readonly (readonly [string, RegExp])[] = [
      [
        'x,y,label\n1,2,0\n1,secret,0\n',
        /table\.csv, row 2 \(counting from 1\), line 3, column "y"[^]*text[^]*finite decimal number/,
      ],
      ['x,y,label\n1,,0\n', /row 1 [^]*column "y"[^]*an empty cell/],
      ['x,y,label\n1,NaN,0\n', /column "y"[^]*text/],
      ['x,y,label\n1,Infinity,0\n', /column "y"[^]*text/],
      ['x,y,label\n1,1e39,0\n', /column "y"[^]*beyond float32's range/],
      ['x,y,label\n1,0x10,0\n', /column "y"[^]*text/],
      ['x,y,label\n1,2,secret\n', /a label is not a number[^]*column "label"[^]*classes: \[name, name\]/],
      ['x,y,label\n1,2,\n', /a label is not a number[^]*an empty cell/],
      ['x,y,label\n\n1,secret\n', /row 1 [^]*line 3[^]*2 cells[^]*3 cells/],
      ['x,y,label\n1,"secret"x,0\n', /malformed[^]*line 2[^]*after a closing quotation mark/],
      ['x,y,label\n1,"secret\n', /malformed[^]*not closed/],
      ['x,y,label\n1,se"cret,0\n', /malformed[^]*inside an unquoted cell/],
      ['secret,31,1\nsecret,32,0\n', /the first line is not a header/],
      ['x,,label\n1,2,0\n', /the first line is not a header/],
      ['x,x,label\n1,2,0\n', /two columns of one name[^]*"x"/],
      ['x,lable\n1,2\n', /unknown column "label"[^]*did you mean "lable"/],
      ['label\n1\n', /no features/],
      ['', /the table is empty/],
      ['x,label\n', /no rows/],
    ];
    for (const [text, message] of cases) expect(await refusal(read(text))).toMatch(message);
    expect(await refusal(read('x,label\n1,secret\n', { classes: ['a', 'b'] })))
      .toMatch(/not a known class[^]*one of a, b/);
    expect(await refusal(read('x,label\n1,2\n', { features: ['label'] }))).toMatch(/label is among the features/);
    expect(await refusal(readCsv('/no/such/table.csv'))).toMatch(/cannot read the data[^]*no such file/);
  });
});

describe('safetensors', () => {
  const save = (tensors: Record<string, Tensor>): string =>
    temporaryFolder().write('data.safetensors', encodeSafetensors(new Map(Object.entries(tensors))));

  it('reads features and labels of every supported type', async () => {
    const y = int64([1, 0]);
    const values = [1.5, -2];
    const floats: readonly Tensor[] = [
      float32(values, [2, 1]), tensor('float64', [2, 1], Float64Array.from(values)),
      tensor('float16', [2, 1], Uint16Array.of(0x3e00, 0xc000)),
      tensor('bfloat16', [2, 1], Uint16Array.of(0x3fc0, 0xc000)),
    ];
    for (const x of floats) {
      expect(whole(await readSafetensorsData(save({ x, y })))).toEqual({ x: float32(values, [2, 1]), y });
    }
    const halves = tensor('float16', [4, 1], Uint16Array.of(1, 0x7bff, 0x8400, 0x7c00));
    expect(toNumbers(whole(await readSafetensorsData(save({ x: halves, y: int64([0, 0, 0, 0]) }))).x))
      .toEqual([2 ** -24, 65504, -(2 ** -14), Infinity]);
    const bytes = { x: tensor('uint8', [2, 1], Uint8Array.of(255, 51)), y: tensor('uint8', [2], Uint8Array.of(4, 5)) };
    expect(whole(await readSafetensorsData(save(bytes)))).toEqual({ x: float32([1, 0.2], [2, 1]), y: int64([4, 5]) });
    const targets = await readSafetensorsData(save({ a: float32([1, 2], [2, 1]), b: float32([0.5, 1]) }), {
      features: 'a', label: 'b', normalize: { mean: 1, std: 2 },
    });
    expect(whole(targets)).toEqual({ x: float32([0, 0.5], [2, 1]), y: float32([0.5, 1]) });
  });

  it('gives the same rows where they stay in the file, whatever the order they are asked for in', async () => {
    const { write } = temporaryFolder();
    const rows = 500;
    const numbers = Array.from({ length: 6 * rows }, (_, i) => (i * 37) % 101 - 50);
    const kinds = {
      f4: tensor('float32', [rows, 2, 3], Float32Array.from(numbers)),
      f8: tensor('float64', [rows, 2, 3], Float64Array.from(numbers)),
      f2: tensor('float16', [rows, 2, 3], Uint16Array.from(numbers, (x) => (x + 50) * 200)),
      b2: tensor('bfloat16', [rows, 2, 3], Uint16Array.from(numbers, (x) => 0x4000 + x)),
      u1: tensor('uint8', [rows, 2, 3], Uint8Array.from(numbers, (x) => x + 50)),
      y: tensor('int64', [rows], BigInt64Array.from({ length: rows }, (_, i) => BigInt(i % 7))),
    };
    const path = write('s.safetensors', encodeSafetensors(new Map<string, Tensor>(Object.entries(kinds))));
    for (const features of ['f4', 'f8', 'f2', 'b2', 'u1']) {
      for (const normalize of [undefined, { mean: [1, 2], std: [2, 3] }]) {
        const [held, streamed] = await Promise.all([false, true].map((stream) => readSafetensorsData(path, { features, stream, normalize })));
        for (const indices of [[0, 1, 2, 3], [499, 3, 4, 5, 3, 0], [], Array.from({ length: rows }, (_, i) => i)]) {
          const [a, b] = [held!, streamed!].map((set) => batchOf(set, Uint32Array.from(indices), indices.length + 2));
          expect(b, `${features} ${indices.length}`).toEqual(a);
        }
        expect(streamed!.features.get('input')!.firstNonFinite()).toBeUndefined();
      }
    }
  });

  it('finds what is not finite in a file, and says when the file changed', async () => {
    const { write } = temporaryFolder();
    const x = Float32Array.from({ length: 300 }, (_, i) => (i === 217 ? NaN : i));
    const file = new Map<string, Tensor>([['x', tensor('float32', [100, 3], x)], ['y', tensor('float32', [100], new Float32Array(100))]]);
    const set = await readSafetensorsData(write('n.safetensors', encodeSafetensors(file)), { stream: true });
    expect(set.features.get('input')!.firstNonFinite()).toEqual({ row: 72, element: 1 });
    expect(() => gatherColumn(set.features.get('input')!, Uint32Array.of(100))).toThrow(RangeError);
    write('n.safetensors', '');
    expect(() => gatherColumn(set.features.get('input')!, Uint32Array.of(0))).toThrow('the data changed while it was used');
  });

  it('refuses absent arrays, other types and damaged files', async () => {
    const path = save({ x: float32([1], [1, 1]), labels: int64([1]), ids: int64([1], [1, 1]) });
    expect(await refusal(readSafetensorsData(path, { label: 'label' })))
      .toMatch(/unknown array "label"[^]*did you mean "labels"/);
    expect(await refusal(readSafetensorsData(path, { features: 'ids', label: 'labels' })))
      .toMatch(/int64\[1, 1\][^]*float32/);
    expect(await refusal(readSafetensorsData(temporaryFolder().write('x.safetensors', 'nonsense!'))))
      .toMatch(/safetensors/);
  });
});
