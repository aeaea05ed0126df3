import type { Metadata } from 'sharp';
import { GhostgradError } from '../errors.ts';

/** How pictures are brought to one size. */
export interface PictureOptions {
  /** The shorter side, in pixels, before the crop; or [height, width], whatever the proportions. Default: as they are. */
  readonly resize?: number | readonly [number, number] | undefined;
  /** `center`, the square about the middle that the shorter side allows, or its side in pixels. Default: none. */
  readonly crop?: 'center' | number | undefined;
  /** 3 (colour, the default) or 1 (grey). */
  readonly channels?: 1 | 3 | undefined;
}

export interface Picture {
  /** [channels, height, width], bytes, row-major. */
  readonly data: Uint8Array;
  readonly shape: readonly [channels: number, height: number, width: number];
}

/**
 * A picture's pixels, turned as its EXIF orientation says; transparency over black.
 *
 * @param source a path, or the bytes of a file
 * @throws GhostgradError for what is no picture that can be read, and for one smaller than the crop
 */
export async function readPicture(
  source: string | Uint8Array, { resize, crop, channels = 3 }: PictureOptions, where: string,
): Promise<Picture> {
  // Loaded where there are pictures: it is a library of its own size.
  const { default: sharp } = await import('sharp');
  const square = typeof crop === 'number' ? crop : undefined;
  try {
    const { width, height } = upright(await sharp(source).metadata());
    const size = sizeAfter(resize, height, width);
    const side = square ?? Math.min(...size);
    if (crop !== undefined && side > Math.min(...size)) {
      throw new GhostgradError({
        what: 'a picture is smaller than its crop', where, found: `${size.join(' × ')} pixels after resizing`,
        expected: `at least ${side} each way`, fix: 'resize to at least the crop, or crop less',
      });
    }
    let image = sharp(source).rotate().flatten({ background: '#000' }).toColourspace(channels === 1 ? 'b-w' : 'srgb');
    if (resize !== undefined) image = image.resize({ height: size[0], width: size[1], fit: 'fill', kernel: 'cubic' });
    if (crop !== undefined) {
      const [top, left] = size.map((length) => Math.floor((length - side) / 2));
      image = image.extract({ top: top!, left: left!, height: side, width: side });
    }
    const { data, info } = await image.raw().toBuffer({ resolveWithObject: true });
    return { data: planar(data, info.channels, channels), shape: [channels, info.height, info.width] };
  } catch (cause) {
    if (cause instanceof GhostgradError) throw cause;
    throw new GhostgradError({
      what: 'a picture cannot be read', where, found: cause instanceof Error ? cause.message.split('\n')[0]! : String(cause),
      expected: 'a JPEG, PNG, WebP, GIF, TIFF or AVIF file', fix: 'repair the file, or take it out of the folder',
    }, { cause });
  }
}

/** Orientations from 5 lie on their side. */
const upright = ({ width, height, orientation = 1 }: Metadata): { readonly width: number; readonly height: number } =>
  (orientation >= 5 ? { width: height, height: width } : { width, height });

function sizeAfter(resize: PictureOptions['resize'], height: number, width: number): readonly [number, number] {
  if (resize === undefined) return [height, width];
  if (typeof resize !== 'number') return resize;
  const scale = resize / Math.min(height, width);
  return [Math.max(resize, Math.round(height * scale)), Math.max(resize, Math.round(width * scale))];
}

/** Pixels side by side, `held` bytes each, become `channels` planes. */
function planar(data: Uint8Array, held: number, channels: number): Uint8Array {
  const area = data.length / held;
  const planes = new Uint8Array(channels * area);
  for (let c = 0; c < channels; c++) {
    const from = Math.min(c, held - 1);
    for (let i = 0; i < area; i++) planes[c * area + i] = data[i * held + from]!;
  }
  return planes;
}
