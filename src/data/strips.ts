import { readFile } from 'node:fs/promises';
import { GhostgradError } from '../errors.ts';
import { sizeOf } from '../tensor/tensor.ts';
import { type Column, byteColumn, narrowColumn } from './column.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { unreadable } from './files.ts';
import { type Normalize, byteTables } from './normalise.ts';

export interface StripOptions {
  /** A JSON list of class numbers, one for each image, in the order of the strips. */
  readonly labels: string;
  /** Size of each image in the strip, in pixels. */
  readonly imageSize: readonly [height: number, width: number];
  /** Side of the square that is cut out of the middle of each image, in pixels; `center`: the shorter side. Default: none. */
  readonly crop?: 'center' | number | undefined;
  /** 3 (colour, the default) or 1 (grey). */
  readonly channels?: 1 | 3 | undefined;
  /** Default `unit`. */
  readonly normalize?: Normalize | undefined;
}

/**
 * Images in strips: pictures of which every row of pixels is one image, its rows one after another. Input `input`,
 * [channels, height, width], held as bytes; labels int64.
 *
 * @throws GhostgradError when a file cannot be read, strips and labels do not fit together, or images are smaller than the crop
 */
export async function readStrips(
  paths: readonly string[], { labels, imageSize, crop, channels = 3, normalize = 'unit' }: StripOptions,
): Promise<Dataset> {
  const whole = imageSize[0] * imageSize[1];
  const name = paths.join(', ');
  const window = windowIn(imageSize, crop, name);
  const shape = [channels, window.height, window.width];
  const strips = [];
  for (const path of paths) strips.push(await stripAt(path, whole, channels));
  const count = strips.reduce((sum, strip) => sum + strip.length / (channels * whole), 0);
  const pixels = new Uint8Array(count * sizeOf(shape));
  let at = 0;
  for (const strip of strips) {
    for (let image = 0; image < strip.length; image += channels * whole) {
      for (let c = 0; c < channels; c++) {
        for (let y = 0; y < window.height; y++) {
          const row = image + channels * ((window.top + y) * imageSize[1] + window.left) + c;
          for (let x = 0; x < window.width; x++) pixels[at++] = strip[row + channels * x]!;
        }
      }
    }
  }
  return datasetOf({
    name, features: new Map([['input', byteColumn(pixels, shape, byteTables(normalize, shape, name))]]),
    labels: await labelsAt(labels, count),
  });
}

/** What is kept of each image. */
function windowIn([height, width]: StripOptions['imageSize'], crop: StripOptions['crop'], where: string) {
  if (crop === undefined) return { top: 0, left: 0, height, width };
  const shorter = Math.min(height, width);
  const side = crop === 'center' ? shorter : crop;
  if (side > shorter) {
    throw new GhostgradError({
      what: 'images are smaller than their crop', where, found: `${height} × ${width} pixels`, expected: `at least ${side} each way`, fix: 'crop less',
    });
  }
  return { top: Math.floor((height - side) / 2), left: Math.floor((width - side) / 2), height: side, width: side };
}

/** The bytes of a strip: [images, area, channels]. */
async function stripAt(path: string, area: number, channels: 1 | 3): Promise<Uint8Array> {
  const bytes = await readFile(path).catch((error: unknown) => { throw unreadable(path, error); });
  const { default: sharp } = await import('sharp');
  const { data, info } = await sharp(bytes, { limitInputPixels: false }).removeAlpha().toColourspace(channels === 1 ? 'b-w' : 'srgb').raw()
    .toBuffer({ resolveWithObject: true }).catch((cause: unknown): never => {
      throw new GhostgradError({
        what: 'a picture cannot be read', where: path, found: cause instanceof Error ? cause.message.split('\n')[0]! : String(cause),
        expected: 'a PNG strip', fix: 'get or copy the file again',
      }, { cause });
    });
  if (info.width !== area || info.channels !== channels) {
    throw new GhostgradError({
      what: 'the strip holds images of another size', where: path, found: `rows of ${info.width} pixels, ${info.channels} channels`,
      expected: `rows of ${area} pixels (height × width of imageSize), ${channels} channels`,
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
