import { readFile } from 'node:fs/promises';
import { GhostgradError } from '../errors.ts';
import { type Column, byteColumn, narrowColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { unreadable } from './files.ts';
import { type Normalize, byteTables } from './normalise.ts';

export interface StripOptions {
  /** A JSON list of class numbers, one for each image, in the order of the strips. */
  readonly labels: string;
  /** Size of each image, in pixels. */
  readonly imageSize: readonly [height: number, width: number];
  /** Default `unit`. */
  readonly normalize?: Normalize | undefined;
}

/**
 * Images in strips: pictures of which every row of pixels is one colour image, its rows one after another. Input `input`,
 * [3, height, width], held as bytes; labels int64.
 *
 * @throws GhostgradError when a file cannot be read, or strips and labels do not fit together
 */
export async function readStrips(paths: readonly string[], { labels, imageSize, normalize = 'unit' }: StripOptions): Promise<Dataset> {
  const [height, width] = imageSize;
  const area = height * width;
  const strips = [];
  for (const path of paths) strips.push(await stripAt(path, area));
  const count = strips.reduce((sum, strip) => sum + strip.length / (3 * area), 0);
  const pixels = new Uint8Array(count * 3 * area);
  let at = 0;
  for (const strip of strips) {
    for (let from = 0; from < strip.length; from += 3 * area, at += 3 * area) {
      for (let c = 0; c < 3; c++) for (let i = 0; i < area; i++) pixels[at + c * area + i] = strip[from + 3 * i + c]!;
    }
  }
  const name = paths.join(', ');
  const shape = [3, height, width];
  return datasetOf({
    name, features: new Map([['input', byteColumn(pixels, shape, byteTables(normalize, shape, name))]]),
    labels: await labelsAt(labels, count),
  });
}

/** The bytes of a strip: [images, area, 3]. */
async function stripAt(path: string, area: number): Promise<Uint8Array> {
  const bytes = await readFile(path).catch((error: unknown) => { throw unreadable(path, error); });
  const { default: sharp } = await import('sharp');
  const { data, info } = await sharp(bytes, { limitInputPixels: false }).removeAlpha().toColourspace('srgb').raw()
    .toBuffer({ resolveWithObject: true }).catch((cause: unknown): never => {
      throw new GhostgradError({
        what: 'a picture cannot be read', where: path, found: cause instanceof Error ? cause.message.split('\n')[0]! : String(cause),
        expected: 'a PNG strip', fix: 'get or copy the file again',
      }, { cause });
    });
  if (info.width !== area || info.channels !== 3) {
    throw new GhostgradError({
      what: 'the strip holds images of another size', where: path, found: `rows of ${info.width} pixels, ${info.channels} channels`,
      expected: `rows of ${area} pixels (height × width of imageSize), 3 channels`,
    });
  }
  return data;
}

async function labelsAt(path: string, count: number): Promise<Column<'int64'>> {
  const text = await readFile(path, 'utf8').catch((error: unknown) => { throw unreadable(path, error); });
  let labels: unknown;
  try {
    labels = JSON.parse(text);
  } catch { /* Told below; the parser's own message would quote the file. */ }
  if (!Array.isArray(labels) || !labels.every((x): x is number => Number.isSafeInteger(x) && (x as number) >= 0)) {
    throw new GhostgradError({ what: 'not a list of labels', where: path, expected: 'a JSON list of class numbers, 0, 1, …' });
  }
  if (labels.length !== count) {
    throw new GhostgradError({
      what: 'images and labels differ in number', where: path, found: `${labels.length} labels`, expected: `${count}, one for each image`,
    });
  }
  return narrowColumn(Int32Array.from(labels));
}
