import { readdir } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { byteColumn, narrowColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { kindOf, unreadable } from './files.ts';
import { type Normalize, byteTables } from './normalise.ts';
import { type Picture, type PictureOptions, readPicture } from './picture.ts';

export interface PhotoOptions extends PictureOptions {
  /** Names of the classes, in the order of their labels; default: the folders' names in alphabetical order, taken to be public. */
  readonly classes?: readonly string[] | undefined;
  /** Default `unit`. */
  readonly normalize?: Normalize | undefined;
}

const extensions = new Set(['.jpg', '.jpeg', '.png', '.webp', '.gif', '.tif', '.tiff', '.avif']);

/** Pictures decoded at once. */
const side = 8;

/**
 * A folder with one folder of pictures for each class: input `input`, [channels, height, width], held as bytes; labels int64.
 *
 * @throws GhostgradError when it has no such folders, a picture cannot be read, or pictures differ in size
 */
export async function readPhotos(path: string, { classes, normalize = 'unit', ...options }: PhotoOptions = {}): Promise<Dataset> {
  const found = await foldersIn(path);
  const names = classes ?? found;
  if (names.length < 2) {
    throw new GhostgradError({
      what: 'no folders of pictures', where: path, found: `${names.length} folders`, expected: 'a folder for each class, two at least',
    });
  }
  const stray = found.find((name) => !names.includes(name));
  if (stray !== undefined) {
    throw new GhostgradError({
      what: 'a folder that is no class', where: path, found: `"${stray}"`, expected: names.join(', '), fix: 'name it under classes, or move it away',
    });
  }
  const files = (await Promise.all(names.map(async (name, label) =>
    (await filesIn(join(path, name))).map((file) => ({ file, label }))))).flat();
  if (files.length === 0) {
    throw new GhostgradError({ what: 'no pictures', where: path, expected: [...extensions].join(', ') });
  }
  const first = await readPicture(files[0]!.file, options, files[0]!.file);
  const width = first.data.length;
  const pixels = new Uint8Array(files.length * width);
  pixels.set(first.data);
  let next = 1;
  const work = async (): Promise<void> => {
    for (let at = next++; at < files.length; at = next++) {
      const { file } = files[at]!;
      const picture = await readPicture(file, options, file);
      requireSize(picture, first, file);
      pixels.set(picture.data, at * width);
    }
  };
  await Promise.all(Array.from({ length: side }, work));
  return datasetOf({
    name: path,
    features: new Map([['input', byteColumn(pixels, first.shape, byteTables(normalize, first.shape, path))]]),
    labels: narrowColumn(Int32Array.from(files, ({ label }) => label)),
    classNames: names,
  });
}

function requireSize({ shape }: Picture, first: Picture, where: string): void {
  if (shape.every((x, i) => x === first.shape[i])) return;
  throw new GhostgradError({
    what: 'pictures of different sizes', where, found: shape.slice(1).join(' × '), expected: first.shape.slice(1).join(' × '),
    fix: 'say resize: 256 and crop: center, or resize: [height, width]',
  });
}

/** Folders with a folder of pictures in them are read as classes. */
export const hasFolders = async (path: string): Promise<boolean> => (await kindOf(path)) === 'folder' && (await foldersIn(path)).length > 0;

async function foldersIn(path: string): Promise<readonly string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch((error: unknown) => { throw unreadable(path, error); });
  return entries.filter((entry) => entry.isDirectory() && !entry.name.startsWith('.')).map(({ name }) => name).sort();
}

async function filesIn(path: string): Promise<readonly string[]> {
  const entries = await readdir(path).catch((error: unknown) => { throw unreadable(path, error); });
  return entries.filter((name) => extensions.has(extname(name).toLowerCase())).sort().map((name) => join(path, name));
}
