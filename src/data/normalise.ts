import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import { type Shape, sizeOf } from '../tensor/tensor.ts';

const numbers = z.union([z.number(), z.array(z.number()).min(1)]);
const positives = z.union([z.number().positive(), z.array(z.number().positive()).min(1)]);

/**
 * How features are scaled, by **public** constants (computing them from private data would cost privacy that nothing
 * accounts for). `none`: as stored. `unit`: bytes to [0, 1]. `{ mean, std }`: (x − mean) / std, bytes first to [0, 1];
 * one number for all, or one for each channel of an image or each feature of a row. `imagenet`, `clip`, `inception`: that,
 * by the constants of published backbones for colour images.
 */
export const normalizeSchema = z.union([
  z.enum(['none', 'unit', 'imagenet', 'clip', 'inception']), z.strictObject({ mean: numbers, std: positives }),
]);

/** What published backbones were trained with, on bytes in [0, 1]: torchvision's, OpenAI CLIP's and Inception's constants. */
const presets = {
  imagenet: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] },
  clip: { mean: [0.48145466, 0.4578275, 0.40821073], std: [0.26862954, 0.26130258, 0.27577711] },
  inception: { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] },
} as const;

export type Normalize = z.input<typeof normalizeSchema>;

interface Affine {
  readonly mean: readonly number[];
  readonly std: readonly number[];
}

/**
 * Tables that turn bytes into float32: one, or one for each channel (the first axis of `shape`).
 * Throws GhostgradError when there are as many constants as neither fits.
 */
export function byteTables(normalize: Normalize, shape: Shape, where: string): readonly Float32Array[] {
  if (normalize === 'none') return [Float32Array.from({ length: 256 }, (_, v) => v)];
  const { mean, std } = normalize === 'unit' ? { mean: [0], std: [1] } : parts(normalize, shape, where);
  return mean.map((m, i) => Float32Array.from({ length: 256 }, (_, v) => (v / 255 - m) / std[i]!));
}

/** Scales rows of float32 values in place. Throws GhostgradError for `unit`, or constants that do not fit in number. */
export function normaliseFloats(data: Float32Array, normalize: Normalize, shape: Shape, where: string): void {
  if (normalize === 'none') return;
  if (normalize === 'unit') {
    throw new GhostgradError({
      what: 'normalize: unit is for bytes', where, found: 'floating-point features', expected: 'none or { mean, std }',
    });
  }
  const { mean, std } = parts(normalize, shape, where);
  const run = sizeOf(shape) / mean.length;
  for (let i = 0; i < data.length; i++) {
    const part = Math.floor(i / run) % mean.length;
    data[i] = (data[i]! - mean[part]!) / std[part]!;
  }
}

/** The constants as lists of equal length, which is 1 or the length of the first axis. */
function parts(normalize: Exclude<Normalize, 'none' | 'unit'>, shape: Shape, where: string): Affine {
  const { mean, std } = typeof normalize === 'string' ? presets[normalize] : normalize;
  const lists = [mean, std].map((x) => (typeof x === 'number' ? [x] : x));
  const count = Math.max(...lists.map((list) => list.length));
  const channels = shape[0] ?? 1;
  if ((count !== 1 && count !== channels) || lists.some((list) => list.length !== 1 && list.length !== count)) {
    throw new GhostgradError({
      what: 'normalize does not fit the features', where,
      found: `${lists[0]?.length} means and ${lists[1]?.length} standard deviations`,
      expected: channels === 1 ? 'one of each' : `one of each, or ${channels}`,
    });
  }
  const repeated = (list: readonly number[]): readonly number[] =>
    list.length === count ? list : Array.from({ length: count }, () => list[0] ?? 0);
  const [means = [], stds = []] = lists.map(repeated);
  return { mean: means, std: stds };
}
