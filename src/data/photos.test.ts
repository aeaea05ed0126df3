import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import sharp from 'sharp';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/support/temp.ts';
import { toNumbers } from '../tensor/tensor.ts';
import { type Dataset, allRows, batchOf, gatherColumn } from './dataset.ts';
import { readPicture } from './picture.ts';
import { loadData } from './spec.ts';

const png = (pixels: readonly number[], width: number, height: number, channels: 1 | 3 | 4 = 3): Promise<Buffer> =>
  sharp(Uint8Array.from(pixels), { raw: { width, height, channels } }).png().toBuffer();
const image = (dataset: Dataset, row: number): number[] => toNumbers(batchOf(dataset, Uint32Array.of(row)).features.get('input')!);
const grey = (of: number): number[] => [of, of, of];

describe('a folder of pictures for each class', () => {
  it('is read in the order of names, planes of red, green and blue', async () => {
    const { folder, write } = temporaryFolder();
    for (const name of ['dog', 'cat']) mkdirSync(join(folder, name));
    write('dog/b.png', await png([...grey(0), 255, 0, 51], 2, 1));
    write('cat/a.png', await png([...grey(102), ...grey(204)], 2, 1));
    write('cat/notes.txt', 'not a picture');
    const set = await loadData({ path: folder, labelFrom: 'folder' });
    expect(set.features.get('input')!.shape).toEqual([3, 1, 2]);
    expect(set.classNames).toEqual(['cat', 'dog']);
    expect(toNumbers(gatherColumn(set.labels, allRows(2)))).toEqual([0, 1]);
    expect(image(set, 0).map((x) => Math.round(x * 5))).toEqual([2, 4, 2, 4, 2, 4]);
    expect(image(set, 1).map((x) => Math.round(x * 5))).toEqual([0, 5, 0, 0, 0, 1]);
    const named = await loadData({ path: folder, labelFrom: 'folder', classes: ['dog', 'cat'], normalize: 'imagenet' });
    expect(toNumbers(gatherColumn(named.labels, allRows(2)))).toEqual([0, 1]);
    expect(image(named, 0)[0]).toBeCloseTo((0 - 0.485) / 0.229, 5);
    expect(image(named, 0)[5]).toBeCloseTo((0.2 - 0.406) / 0.225, 5);
  });

  it('brings pictures to one size: the shorter side, then the middle', async () => {
    // Four pixels wide, two high: columns of 0, 100, 200, 250.
    const row = [0, 100, 200, 250].flatMap(grey);
    const { data, shape } = await readPicture(await png([...row, ...row], 4, 2), { crop: 'center' }, 'p');
    expect([shape, [...data.subarray(0, 4)]]).toEqual([[3, 2, 2], [100, 200, 100, 200]]);
    expect((await readPicture(await png([...row, ...row], 4, 2), { resize: 4 }, 'p')).shape).toEqual([3, 4, 8]);
    expect((await readPicture(await png([...row, ...row], 4, 2), { resize: [3, 5] }, 'p')).shape).toEqual([3, 3, 5]);
    const one = await readPicture(await png([...row, ...row], 4, 2), { channels: 1 }, 'p');
    expect([one.shape, [...one.data]]).toEqual([[1, 2, 4], [0, 100, 200, 250, 0, 100, 200, 250]]);
  });

  it('turns pictures as their EXIF orientation says', async () => {
    // Orientation 6: stored on its side, to be turned a quarter to the right. Black left, white right becomes black above.
    const bytes = await sharp(Uint8Array.from([...grey(0), ...grey(255)]), { raw: { width: 2, height: 1, channels: 3 } })
      .withMetadata({ orientation: 6 }).png().toBuffer();
    const { data, shape } = await readPicture(bytes, {}, 'p');
    expect([shape, [...data.subarray(0, 2)]]).toEqual([[3, 2, 1], [0, 255]]);
    expect((await readPicture(bytes, { resize: [4, 2] }, 'p')).shape).toEqual([3, 4, 2]);
  });

  it('says what is wrong, and where', async () => {
    const { folder, write } = temporaryFolder();
    for (const name of ['a', 'b']) mkdirSync(join(folder, name));
    const refused = (spec: object, message: RegExp): Promise<void> =>
      expect(loadData({ path: folder, labelFrom: 'folder', ...spec })).rejects.toThrow(message);
    await refused({}, /no pictures/);
    write('a/1.png', await png(grey(0), 1, 1));
    write('b/2.png', await png([...grey(0), ...grey(0)], 2, 1));
    await refused({}, /different sizes[^]*2\.png[^]*1 × 2[^]*1 × 1[^]*resize/);
    await refused({ crop: 3 }, /smaller than its crop[^]*1\.png/);
    await refused({ classes: ['a', 'c'] }, /a folder that is no class[^]*"b"/);
    write('b/2.png', 'no picture');
    await refused({}, /cannot be read[^]*2\.png/);
  });
});

describe('strips', () => {
  it('hold an image in every row of pixels', async () => {
    const { folder, write } = temporaryFolder();
    // Two images of 1 × 2 pixels in the first strip, one in the second.
    write('a.png', await png([255, 0, 0, 0, 255, 0, ...grey(51), ...grey(102)], 2, 2));
    write('b.png', await png([...grey(255), ...grey(0)], 2, 1));
    write('labels.json', '[3, 1, 2]');
    const set = await loadData({ strips: ['a.png', 'b.png'], labels: 'labels.json', imageSize: [1, 2] }, { base: folder });
    expect(set.features.get('input')!.shape).toEqual([3, 1, 2]);
    expect(image(set, 0)).toEqual([1, 0, 0, 1, 0, 0]);
    expect(image(set, 1).map((x) => Math.round(5 * x))).toEqual([1, 2, 1, 2, 1, 2]);
    expect(toNumbers(gatherColumn(set.labels, allRows(3)))).toEqual([3, 1, 2]);
    const refused = (spec: object, message: RegExp): Promise<void> =>
      expect(loadData({ strips: 'a.png', labels: 'labels.json', imageSize: [1, 2], ...spec }, { base: folder })).rejects.toThrow(message);
    await refused({}, /differ in number[^]*3 labels[^]*2/);
    await refused({ imageSize: [2, 2] }, /images of another size[^]*rows of 2 pixels[^]*rows of 4/);
    await refused({ labels: 'a.png' }, /not a list of labels/);
    await refused({ strips: 'labels.json' }, /cannot be read/);
    await refused({ crop: 2 }, /smaller than their crop[^]*1 × 2 pixels[^]*at least 2/);
  });

  it('are cut to the middle of each image, in colour or grey', async () => {
    const { folder, write } = temporaryFolder();
    // Two images of 3 × 4 pixels, whose red counts pixels of the strip.
    const levels = Array.from({ length: 24 }, (_, i) => 10 * i);
    write('a.png', await png(levels.flatMap((v) => [v, 0, 0]), 12, 2));
    write('grey.png', await png(levels.flatMap(grey), 12, 2));
    write('labels.json', '[0, 1]');
    const load = (spec: object) =>
      loadData({ strips: 'a.png', labels: 'labels.json', imageSize: [3, 4], normalize: 'none', ...spec } as never, { base: folder });
    const cut = await load({ crop: 2 });
    expect(cut.features.get('input')!.shape).toEqual([3, 2, 2]);
    expect(image(cut, 1)).toEqual([...[13, 14, 17, 18].map((i) => 10 * i), ...Array<number>(8).fill(0)]);
    const square = await load({ strips: 'grey.png', crop: 'center', channels: 1 });
    expect(square.features.get('input')!.shape).toEqual([1, 3, 3]);
    expect(image(square, 0)).toEqual([0, 1, 2, 4, 5, 6, 8, 9, 10].map((i) => 10 * i));
  });
});
