import { extname, isAbsolute, resolve } from 'node:path';
import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import { parseWith } from '../parse.ts';
import { showValue } from '../suggest.ts';
import { type Shape, sizeOf } from '../tensor/tensor.ts';
import { readSafetensorsData } from './arrays.ts';
import { reshaped } from './column.ts';
import { readCsv } from './csv.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { kindOf, unreadable } from './files.ts';
import { findIdx, readIdxFolder, readIdxPair, splits } from './images.ts';
import { looksNamed, readNamed, setNames } from './named.ts';
import { normalizeSchema } from './normalise.ts';

const common = {
  /** The number of examples, declared public; default: as many as there are, taken to be public. */
  size: z.number().int().positive().optional(),
  /** Another shape of as many elements for each example, e.g. [784] for an image of 28 × 28. */
  shape: z.array(z.number().int().positive()).optional(),
  normalize: normalizeSchema.optional(),
};
const text = z.string().min(1);
const className = z.union([z.string(), z.number()]).transform(String);

const setSchema = z.strictObject({ set: text, ...common });
const pairSchema = z.strictObject({ images: text, labels: text, ...common });
const idxFolderSchema = z.strictObject({ path: text, split: z.enum(splits), ...common });
const csvSchema = z.strictObject({
  path: text, label: text.optional(), features: z.array(text).min(1).optional(),
  classes: z.array(className).min(2).optional(), delimiter: text.optional(), ...common,
});
const safetensorsSchema = z.strictObject({ path: text, features: text.optional(), label: text.optional(), ...common });

/** A data spec: a named set or a path, or a mapping with its options. */
export type DataSpec =
  | string
  | z.input<typeof setSchema>
  | z.input<typeof pairSchema>
  | z.input<typeof idxFolderSchema>
  | z.input<typeof csvSchema>
  | z.input<typeof safetensorsSchema>;

export interface LoadOptions {
  /** Folder that relative paths start from; default: the current one. */
  readonly base?: string | undefined;
}

type Mapping = Readonly<Record<string, unknown>>;

/**
 * The dataset that a spec describes:
 *
 * - `mnist:train`, `fashion-mnist:test@folder`, `{ set: 'mnist:train', normalize: 'unit' }`
 * - `table.csv`, `{ path: 'table.csv', label: 'income', features: ['age'], classes: ['low', 'high'] }` (also `.tsv`)
 * - `features.safetensors`, `{ path: 'features.safetensors', features: 'x', label: 'y' }`
 * - `{ path: 'folder', split: 'train' }` in MNIST's layout, `{ images: 'a.gz', labels: 'b.gz' }` (IDX)
 *
 * @throws GhostgradError for anything else, unknown keys, and files that cannot be read
 */
export async function loadData(spec: DataSpec, { base = process.cwd() }: LoadOptions = {}): Promise<Dataset> {
  if (typeof spec === 'string') return loadMapping(looksNamed(spec) ? { set: spec } : { path: spec }, base);
  if (typeof spec !== 'object' || spec === null || Array.isArray(spec)) {
    throw new GhostgradError({
      what: 'invalid data spec', found: showValue(spec), expected: 'a named set, a path or a mapping',
    });
  }
  return loadMapping(spec, base);
}

async function loadMapping(spec: Mapping, base: string): Promise<Dataset> {
  refusePlanned(spec);
  if ('set' in spec) {
    const read = parseWith(setSchema, spec, 'data');
    return adjusted(await readNamed(fromBase(read.set, base), read.normalize), read);
  }
  if ('images' in spec || 'labels' in spec) {
    const read = parseWith(pairSchema, spec, 'data');
    const images = resolve(base, read.images);
    return adjusted(await readIdxPair(images, resolve(base, read.labels), read), read);
  }
  const { path } = spec;
  if (typeof path !== 'string' || path === '') {
    throw new GhostgradError({
      what: 'a data spec needs a source', where: 'data', found: `keys ${Object.keys(spec).join(', ') || '(none)'}`,
      expected: 'set, path, or images and labels',
    });
  }
  return loadPath({ ...spec, path: resolve(base, path) }, path);
}

async function loadPath(spec: Mapping & { readonly path: string }, written: string): Promise<Dataset> {
  const where = `data "${written}"`;
  const kind = await kindOf(spec.path);
  const extension = extname(spec.path).toLowerCase();
  if (kind === 'folder') {
    const pairs = await Promise.all(splits.map((split) => findIdx(spec.path, split)));
    const isIdx = pairs.some((pair) => pair !== undefined);
    if (!isIdx && !('split' in spec)) throw unsupported(where, 'a folder without IDX files');
    const read = parseWith(idxFolderSchema, spec, where);
    return adjusted(await readIdxFolder(read.path, read.split, read), read);
  }
  switch (extension) {
    case '.csv':
    case '.tsv': {
      const { delimiter = extension === '.tsv' ? '\t' : ',', ...read } = parseWith(csvSchema, spec, where);
      return adjusted(await readCsv(read.path, { ...read, delimiter }), read);
    }
    case '.safetensors': {
      const read = parseWith(safetensorsSchema, spec, where);
      return adjusted(await readSafetensorsData(read.path, read), read);
    }
    default:
      if (kind === 'absent') throw unreadable(spec.path, Object.assign(new Error('no such file'), { code: 'ENOENT' }));
      throw unsupported(where, extension === '' ? 'a file without an extension' : `a ${extension} file`);
  }
}

/** The folder of `name:split@folder` is a path like any other. */
function fromBase(set: string, base: string): string {
  const at = set.indexOf('@');
  return at < 0 || isAbsolute(set.slice(at + 1)) ? set : `${set.slice(0, at)}@${resolve(base, set.slice(at + 1))}`;
}

const planned = ['labelFrom', 'resize', 'crop', 'text', 'tokenizer', 'maxLength', 'query'] as const;

function refusePlanned(spec: Mapping): void {
  const key = planned.find((name) => name in spec);
  if (key !== undefined) throw unsupported(`data: ${key}`, `the option ${key}`);
}

const unsupported = (where: string, found: string): GhostgradError => new GhostgradError({
  what: 'this form of data is not supported yet', where, found,
  expected: `a named set (${setNames.join(', ')}), .csv, .tsv or .safetensors, or IDX files`,
});

/** What every form may set: the public size, and the shape of an example. */
function adjusted(
  dataset: Dataset, { size, shape }: { readonly size?: number | undefined; readonly shape?: Shape | undefined },
): Dataset {
  const features = shape === undefined ? dataset.features : new Map([...dataset.features].map(([name, column]) => {
    if (sizeOf(shape) !== sizeOf(column.shape)) {
      throw new GhostgradError({
        what: 'shape does not fit the examples', where: dataset.name, found: `[${shape.join(', ')}]`,
        expected: `as many elements as [${column.shape.join(', ')}]`,
      });
    }
    return [name, reshaped(column, shape)] as const;
  }));
  return datasetOf({ ...dataset, features, declaredSize: size });
}
