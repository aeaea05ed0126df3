import { existsSync, mkdtempSync, rmSync, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { type FrozenCut, frozenCut } from '../autodiff/frozen.ts';
import { type Column, type Dataset, datasetOf, floatColumn } from '../data/index.ts';
import { rowsFrom } from '../data/dataset.ts';
import { type StreamedColumn, streamedColumn } from '../data/streamed.ts';
import { GhostgradError } from '../errors.ts';
import type { Files } from '../files.ts';
import { prune } from '../graph/prune.ts';
import type { Engine } from '../runtime/engine.ts';
import { type Shape, type TensorType, sizeOf } from '../tensor/tensor.ts';
import { headerAt } from './array-file.ts';
import type { Analysis } from './compile.ts';
import { softwareOf } from './embed.ts';
import { type FeatureContents, writeFeatures } from './feature-file.ts';
import { dataDigest, modelDigest } from './fingerprint.ts';
import { bytesOf, forwardBatch, forwardChunks } from './forward.ts';
import { availableMemory } from './peak-memory.ts';
import type { Recipe } from './recipe.ts';

/** What a run computes once, in front of the part that it trains. */
export interface Features {
  /** Of the part behind them; the given one where there are none. */
  readonly analysis: Analysis;
  /** What that part is fed with. Its rows are there once {@link Features.compute} has resolved to true. */
  readonly data: Dataset;
  readonly used: boolean;
  /** For people to read. */
  readonly reason: string;
  /** What `performance.features` of this run is from here on. */
  readonly setting: Recipe['performance']['features'];
  /** Computes them unless they are there; false where the signal stopped it, and a later call goes on. */
  compute(options?: { readonly signal?: AbortSignal | undefined; readonly onProgress?: ((rows: number, of: number) => void) | undefined }): Promise<boolean>;
  /** @param finished whether no later process goes on with the run: then nothing of them is kept that the user did not name */
  release(finished: boolean): void;
}

export interface FeatureSettings {
  readonly analysis: Analysis;
  /** Fitted to the task. */
  readonly data: Dataset;
  readonly setting: Recipe['performance']['features'];
  /** Expected passes of the run over the data. */
  readonly passes: number;
  /** The folder of the run, where they are kept for a process that goes on with it; none for a run in memory. */
  readonly run?: string | undefined;
  readonly engine: Engine;
  readonly threads?: number | undefined;
  readonly files?: Files | undefined;
}

/** Share of the free memory that features may take, beside the step's own ({@link memoryShare}). */
const memoryShareOfFeatures = 0.2;
/** Share of the free disk. */
const diskShare = 0.5;
/** A file that is larger is read batch by batch, whatever memory there is. */
const largestInMemory = 2 ** 31;
/**
 * Multiplications that reading one number must spare. A core takes some ten in a nanosecond; from memory a number comes in a
 * nanosecond or two, from a disk in ten to forty.
 */
const worthwhile = { memory: 32, disk: 512 };

/**
 * Decides whether a run computes the frozen part of its model once for each example, and where that is kept.
 *
 * Every example's features depend on that example alone, which the batch proof of the **whole** model has shown before: the
 * step behind them clips the same per-example gradients as the step of the whole model, and nothing of the privacy plan changes.
 *
 * `auto` takes them when three things hold: the run passes over the data more than once; each number that is read back spares
 * enough arithmetic; and they fit into a fifth of the free memory, or into half of the free disk.
 *
 * @throws GhostgradError when the recipe asks for them and there is no frozen part
 */
export function featuresFor(settings: FeatureSettings): Features {
  const { analysis, data, setting } = settings;
  const none = (reason: string): Features => ({
    analysis, data, used: false, reason, setting: 'off', compute: async () => true, release: () => undefined,
  });
  if (setting === 'off') return none('as the recipe says');
  const cut = frozenCut(analysis.proof, new Set(analysis.parameters), analysis.batch);
  if (setting === 'auto') {
    const { passes } = settings;
    const against = cut === undefined ? 'nothing is computed in front of what is trained'
      : passes > 1 ? notWorthwhile(cut, settings) : `the run passes over the data ${passes === 1 ? 'once' : 'less than once'}`;
    if (against !== undefined) return none(against);
  } else if (cut === undefined) {
    throw new GhostgradError({
      what: 'the model has no frozen part to compute once', where: 'performance.features', found: setting,
      expected: 'a part that leads from the inputs to what is trained', fix: 'say features: auto, or train less: trainable: head',
    });
  }
  return computedOnce(cut!, settings);
}

const bytesOfRow = (cut: FrozenCut, analysis: Analysis): number =>
  4 * cut.computed.reduce((sum, value) => sum + sizeOf(rowShape(analysis, value)), 0);

/** The shape of a value for one example. */
const rowShape = ({ proof }: Analysis, value: string): Shape => proof.types.get(value)!.shape.slice(1);

function notWorthwhile(cut: FrozenCut, { analysis, data, run }: FeatureSettings): string | undefined {
  const bytes = bytesOfRow(cut, analysis);
  const spared = (4 * cut.products) / bytes;
  const inMemory = fitsMemory(bytes * data.size);
  const [needed, where] = inMemory ? [worthwhile.memory, 'memory'] : [worthwhile.disk, 'a disk'];
  if (spared < needed) return `a number read from ${where} would spare ${Math.floor(spared)} multiplications, less than ${needed}`;
  const room = diskFor(run);
  if ((inMemory && run === undefined) || bytes * data.size <= diskShare * room) return undefined;
  return `features of ${mib(bytes * data.size)} do not fit into half of the free disk (${mib(room)})`;
}

const fitsMemory = (bytes: number): boolean => bytes <= Math.min(largestInMemory, memoryShareOfFeatures * availableMemory());

const diskFor = (run: string | undefined): number => {
  let path = run ?? tmpdir();
  while (!existsSync(path) && dirname(path) !== path) path = dirname(path);
  const { bavail, bsize } = statfsSync(path);
  return bavail * bsize;
};

function computedOnce(cut: FrozenCut, settings: FeatureSettings): Features {
  const { analysis, data, setting, run, engine, threads, passes } = settings;
  const bytes = bytesOfRow(cut, analysis) * data.size;
  const inMemory = fitsMemory(bytes);
  const named = setting === 'auto' || setting === 'on' ? undefined : setting;
  const stored = named ?? (run === undefined ? undefined : join(run, 'private', 'features.safetensors'));
  // A run that nobody goes on with keeps them in memory, or where the system cleans up.
  const scratch = stored === undefined && !inMemory ? mkdtempSync(join(tmpdir(), 'ghostgrad-')) : undefined;
  const path = stored ?? (scratch && join(scratch, 'features.safetensors'));

  const columns = new Map(cut.computed.map((value) => [value, laterColumn(rowShape(analysis, value), data.size)]));
  const batch = Math.min(forwardBatch(analysis.proof), data.size);
  const chunks = (start: number, rows: number) =>
    forwardChunks(analysis.task, cut.computed, data, { batch: rows, start, like: analysis.proof, engine, threads });
  let there = false;

  const compute: Features['compute'] = async ({ signal, onProgress } = {}) => {
    if (there) return true;
    if (path === undefined) {
      const held = new Map(cut.computed.map((value) => [value, new Float32Array(data.size * sizeOf(rowShape(analysis, value)))]));
      for await (const { start, count, outputs } of chunks(0, batch)) {
        for (const [value, array] of held) {
          const width = array.length / data.size;
          array.set((outputs[value]!.data as Float32Array).subarray(0, count * width), start * width);
        }
        onProgress?.(start + count, data.size);
        if (signal?.aborted === true) return false;
      }
      for (const [value, array] of held) columns.get(value)!.is(floatColumn(array, rowShape(analysis, value)));
      return (there = true);
    }
    const contents = contentsOf(cut, settings, batch);
    const { complete } = await writeFeatures(path, contents, async function* (start, rows) {
      for await (const { count, outputs } of chunks(start, rows)) {
        yield new Map(cut.computed.map((value) => {
          const values = outputs[value]!.data as Float32Array;
          return [value, bytesOf(values.subarray(0, (count * values.length) / rows))];
        }));
      }
    }, { overwrite: named === undefined ? 'stale' : false, mode: 0o600, files: settings.files, signal, onProgress });
    if (!complete) return false;
    const { entries, dataStart } = headerAt(path);
    for (const value of cut.computed) {
      const array = { path, offset: dataStart + entries.get(value)!.begin, dtype: 'float32' as const, rows: data.size, shape: rowShape(analysis, value) };
      const column = streamedColumn(array);
      columns.get(value)!.is(inMemory ? loaded(column) : column);
    }
    return (there = true);
  };

  return {
    analysis: { ...analysis, task: { ...analysis.task, fed: cut.values } },
    data: datasetOf({ ...data, features: new Map(cut.values.map((value) => [value, columns.get(value) ?? data.features.get(value)!])) }),
    used: true,
    reason: `${cut.computed.join(', ')}: ${bytesOfRow(cut, analysis) / 4} numbers of each example, ${mib(bytes)} ` +
      `${inMemory ? 'in memory' : 'read batch by batch'}${path === undefined ? '' : ` and in ${path}`}, ` +
      (setting === 'auto' ? `for ${Number(passes.toPrecision(3))} passes over the data` : 'as the recipe says'),
    setting: named ?? 'on',
    compute,
    release: (finished) => {
      for (const column of columns.values()) column.close();
      if (scratch !== undefined) rmSync(scratch, { recursive: true, force: true });
      if (named === undefined && stored !== undefined && finished) (settings.files?.remove ?? removeFile)(stored);
    },
  };
}

const removeFile = (path: string): void => rmSync(path, { force: true });

function contentsOf(cut: FrozenCut, { analysis, data, engine }: FeatureSettings, batch: number): FeatureContents {
  return {
    key: {
      model: modelDigest(prune(analysis.proof, cut.computed), []), output: cut.computed.join(', '), data: dataDigest(data),
      dtype: 'float32', software: softwareOf(engine),
    },
    rows: data.size, batch, spec: data.name,
    types: new Map(cut.computed.map((value): [string, TensorType] => [value, { dtype: 'float32', shape: rowShape(analysis, value) }])),
  };
}

/** A column whose values come later. */
interface LaterColumn extends Column<'float32'> {
  is(column: Column<'float32'> & Partial<StreamedColumn>): void;
  close(): void;
}

function laterColumn(shape: Shape, size: number): LaterColumn {
  let column: (Column<'float32'> & Partial<StreamedColumn>) | undefined;
  const known = (): Column<'float32'> => {
    if (column === undefined) throw new Error('the features are not there yet');
    return column;
  };
  return {
    dtype: 'float32', size, shape,
    gather: (indices, into) => known().gather(indices, into),
    firstNonFinite: () => known().firstNonFinite(),
    is: (given) => {
      column = given;
    },
    close: () => column?.close?.(),
  };
}

function loaded(column: StreamedColumn): Column<'float32'> {
  const width = sizeOf(column.shape);
  const values = new Float32Array(column.size * width);
  const rows = Math.max(1, Math.floor(2 ** 18 / Math.max(1, width)));
  for (let row = 0; row < column.size; row += rows) {
    const count = Math.min(rows, column.size - row);
    column.gather(rowsFrom(row, count), values.subarray(row * width, (row + count) * width));
  }
  column.close();
  return floatColumn(values, column.shape);
}

const mib = (bytes: number): string => `${Math.ceil(bytes / 2 ** 20)} MiB`;
