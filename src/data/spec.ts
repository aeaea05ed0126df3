import { extname, isAbsolute, resolve } from 'node:path';
import { z } from 'zod';
import { GhostgradError } from '../errors.ts';
import { parseWith } from '../parse.ts';
import { showValue } from '../suggest.ts';
import { type Shape, sizeOf } from '../tensor/tensor.ts';
import { readSafetensorsData } from './arrays.ts';
import { reshaped } from './column.ts';
import { featureSchema, readCsv } from './csv.ts';
import { type Dataset, datasetOf } from './dataset.ts';
import { kindOf, unreadable } from './files.ts';
import { findIdx, readIdxFolder, readIdxPair, splits } from './images.ts';
import { looksNamed, readNamed, setNames } from './named.ts';
import { normalizeSchema } from './normalise.ts';
import { hasFolders, readPhotos } from './photos.ts';
import { readSequences } from './sequences.ts';
import { readStrips } from './strips.ts';
import { readText } from './text.ts';

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
const classes = z.array(className).min(2).optional();
const table = { path: text, label: text.optional(), classes, delimiter: text.optional(), quotes: z.boolean().optional() };
const csvSchema = z.strictObject({
  ...table, features: z.union([z.array(text).min(1), z.record(text, featureSchema)]).optional(), ...common,
});
const textSchema = z.strictObject({
  ...table, text: z.union([text, z.tuple([text, text])]), tokenizer: text, maxLength: z.number().int().positive().optional(),
  size: common.size,
});
const sequenceSchema = z.strictObject({
  path: text, target: z.literal('next-token').optional(), text: text.optional(), prompt: text.optional(), completion: text.optional(),
  separator: text.optional(), promptLoss: z.boolean().optional(), tokenizer: text, maxLength: z.number().int().min(2).optional(),
  bos: text.optional(), eos: text.optional(), delimiter: text.optional(), quotes: z.boolean().optional(), size: common.size,
});
const pixelCount = z.number().int().positive();
const window = {
  crop: z.union([z.literal('center'), pixelCount]).optional(), channels: z.union([z.literal(1), z.literal(3)]).optional(),
};
const photoSchema = z.strictObject({
  path: text, labelFrom: z.literal('folder'), classes, resize: z.union([pixelCount, z.tuple([pixelCount, pixelCount])]).optional(),
  ...window, ...common,
});
const stripSchema = z.strictObject({
  strips: z.union([text, z.array(text).min(1)]), labels: text, imageSize: z.tuple([pixelCount, pixelCount]), ...window, ...common,
});
const safetensorsSchema = z.strictObject({
  path: text, features: text.optional(), label: text.optional(), stream: z.boolean().optional(), ...common,
});

/** A data spec: a named set or a path, or a mapping with its options. */
export type DataSpec =
  | string
  | z.input<typeof setSchema>
  | z.input<typeof pairSchema>
  | z.input<typeof idxFolderSchema>
  | z.input<typeof csvSchema>
  | z.input<typeof textSchema>
  | z.input<typeof sequenceSchema>
  | z.input<typeof photoSchema>
  | z.input<typeof stripSchema>
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
 * - the same with `features: { age: { min: 0, max: 100 }, work: { categories: ['a', 'b'] } }`, by public bounds and categories
 * - `{ path: 'reviews.tsv', text: 'sentence', tokenizer: 'tokenizer.json', maxLength: 64 }`, texts as tokens
 * - `{ path: 'reviews.tsv', text: 'sentence', target: 'next-token', tokenizer: 'tokenizer.json', maxLength: 64 }` for a language
 *   model, or with `prompt` and `completion` in place of `text` and `target`, or a `.txt` file with a text a line
 * - `{ path: 'photos', labelFrom: 'folder', resize: 256, crop: 'center', normalize: 'imagenet' }`, a folder for each class
 * - `{ strips: ['a.png', 'b.png'], labels: 'labels.json', imageSize: [32, 32], crop: 28, channels: 1 }`, an image in each row of pixels
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
  if ('query' in spec) throw unsupported('data: query', 'the option query');
  if ('set' in spec) {
    const read = parseWith(setSchema, spec, 'data');
    return adjusted(await readNamed(fromBase(read.set, base), read.normalize), read);
  }
  if ('strips' in spec) {
    const read = parseWith(stripSchema, spec, 'data');
    const paths = typeof read.strips === 'string' ? [read.strips] : read.strips;
    return adjusted(await readStrips(paths.map((path) => resolve(base, path)), { ...read, labels: resolve(base, read.labels) }), read);
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
      expected: 'set, path, strips and labels, or images and labels',
    });
  }
  return loadPath({ ...spec, path: resolve(base, path) }, path, base);
}

async function loadPath({ packing, ...spec }: Mapping & { readonly path: string }, written: string, base: string): Promise<Dataset> {
  const where = `data "${written}"`;
  if (packing !== undefined && packing !== false) throw packed(where);
  const kind = await kindOf(spec.path);
  const extension = extname(spec.path).toLowerCase();
  if (kind === 'folder' && ('labelFrom' in spec || (!('split' in spec) && await hasFolders(spec.path)))) {
    const read = parseWith(photoSchema, { labelFrom: 'folder', ...spec }, where);
    return adjusted(await readPhotos(read.path, read), read);
  }
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
      if (isForNextToken(spec)) return sequences(spec, where, base);
      if ('text' in spec || 'tokenizer' in spec) {
        // Sentences between tabs are as they are: a quotation mark in them encloses nothing.
        const tabs = extension === '.tsv';
        const read = { delimiter: tabs ? '\t' : ',', quotes: !tabs, ...parseWith(textSchema, spec, where) };
        return adjusted(await readText(read.path, { ...read, tokenizer: resolve(base, read.tokenizer) }), read);
      }
      const { delimiter = extension === '.tsv' ? '\t' : ',', ...read } = parseWith(csvSchema, spec, where);
      return adjusted(await readCsv(read.path, { ...read, delimiter }), read);
    }
    case '.txt':
      return sequences(spec, where, base);
    case '.safetensors': {
      const read = parseWith(safetensorsSchema, spec, where);
      return adjusted(await readSafetensorsData(read.path, read), read);
    }
    default:
      if (kind === 'absent') throw unreadable(spec.path, Object.assign(new Error('no such file'), { code: 'ENOENT' }));
      throw unsupported(where, extension === '' ? 'a file without an extension' : `a ${extension} file`);
  }
}

const isForNextToken = (spec: Mapping): boolean => ['target', 'prompt', 'completion'].some((key) => key in spec);

/** Texts for a language model, of a `.txt` file or a table. */
async function sequences(spec: Mapping & { readonly path: string }, where: string, base: string): Promise<Dataset> {
  const [isTable, tabs] = [!spec.path.toLowerCase().endsWith('.txt'), spec.path.toLowerCase().endsWith('.tsv')];
  const read = { delimiter: tabs ? '\t' : ',', quotes: !tabs, ...parseWith(sequenceSchema, spec, where) };
  const columns = ['text', 'prompt', 'completion'].filter((key) => key in spec);
  if (isTable ? !['text', 'prompt completion'].includes(columns.join(' ')) : columns.length > 0) {
    throw new GhostgradError({
      what: isTable ? 'which columns hold the texts?' : 'a .txt file has no columns', where, found: columns.join(', ') || 'none',
      expected: isTable ? 'text, or prompt and completion' : 'a text a line',
      fix: isTable ? undefined : 'remove them; separator parts a line into prompt and completion',
    });
  }
  return adjusted(await readSequences(read.path, { ...read, tokenizer: resolve(base, read.tokenizer) }), read);
}

/** The folder of `name:split@folder` is a path like any other. */
function fromBase(set: string, base: string): string {
  const at = set.indexOf('@');
  return at < 0 || isAbsolute(set.slice(at + 1)) ? set : `${set.slice(0, at)}@${resolve(base, set.slice(at + 1))}`;
}

const packed = (where: string): GhostgradError => new GhostgradError({
  what: 'texts are not packed together', where: `${where}, option packing`,
  found: 'packing, which puts the texts of several people into one row',
  expected: 'one text a row: gradients are clipped row by row, and a row of several texts would bound what all of them add, not each',
  fix: 'remove it; choose maxLength as short as most texts are, and padding costs little',
});

const unsupported = (where: string, found: string): GhostgradError => new GhostgradError({
  what: 'this form of data is not supported yet', where, found,
  expected: `a named set (${setNames.join(', ')}), .csv, .tsv, .txt or .safetensors, IDX files, strips, or a folder of pictures for each class`,
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
