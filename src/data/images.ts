import { join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import type { Tensor } from '../tensor/tensor.ts';
import { featureColumn, labelColumn } from './arrays.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { kindOf, readBytes } from './files.ts';
import { decodeIdx } from './idx.ts';
import type { Normalize } from './normalise.ts';

export const splits = ['train', 'test'] as const;
export type Split = (typeof splits)[number];

export interface IdxOptions {
  /** Default `unit`. */
  readonly normalize?: Normalize | undefined;
  /** What messages call the data; default: the images' path. */
  readonly name?: string | undefined;
}

/**
 * Images and labels in two IDX files, plain or gzip: input `input`, [1, height, width] for grey images.
 *
 * @throws GhostgradError when a file cannot be read, is truncated, or the two differ in number
 */
export async function readIdxPair(
  images: string, labels: string, { normalize, name = images }: IdxOptions = {},
): Promise<Dataset> {
  const read = async (path: string): Promise<Tensor> => decodeIdx(await readBytes(path), path);
  const [pixels, classes] = await Promise.all([read(images), read(labels)]);
  return datasetOf({
    name,
    features: new Map([['input', featureColumn(withChannel(pixels), images, normalize)]]),
    labels: labelColumn(classes, labels),
  });
}

/** Grey images, [rows, height, width], get an axis for their one channel. */
const withChannel = (t: Tensor): Tensor => {
  const [rows, height, width, ...rest] = t.shape;
  if (rows === undefined || height === undefined || width === undefined || rest.length > 0) return t;
  return { ...t, shape: [rows, 1, height, width] };
};

const parts: Readonly<Record<Split, string>> = { train: 'train', test: 't10k' };

/** The names that MNIST and its relatives are published under. */
const candidates = (split: Split, kind: 'images-idx3' | 'labels-idx1'): readonly string[] =>
  [kind, kind.replace('-', '.')].flatMap((k) => [`${parts[split]}-${k}-ubyte`, `${parts[split]}-${k}-ubyte.gz`]);

/** Paths of a split's two files in a folder, or undefined when the folder lacks one. */
export async function findIdx(
  folder: string, split: Split,
): Promise<readonly [images: string, labels: string] | undefined> {
  const first = async (names: readonly string[]): Promise<string | undefined> => {
    for (const name of names) if (await kindOf(join(folder, name)) === 'file') return join(folder, name);
    return undefined;
  };
  const images = await first(candidates(split, 'images-idx3'));
  const labels = await first(candidates(split, 'labels-idx1'));
  return images === undefined || labels === undefined ? undefined : [images, labels];
}

/** One split of a folder in MNIST's layout. Throws GhostgradError when its files are not there. */
export async function readIdxFolder(folder: string, split: Split, options: IdxOptions = {}): Promise<Dataset> {
  const found = await findIdx(folder, split);
  if (found === undefined) {
    throw new GhostgradError({
      what: 'no IDX files', where: folder, found: `no pair for the split ${split}`,
      expected: `${parts[split]}-images-idx3-ubyte and ${parts[split]}-labels-idx1-ubyte, plain or .gz`,
    });
  }
  return readIdxPair(...found, options);
}
