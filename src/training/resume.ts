import { join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { defaultThreads } from '../runtime/threads.ts';
import { showValue } from '../suggest.ts';
import type { RunSettings } from './checkpoint.ts';
import type { TrainingInput } from './materials.ts';
import type { Recipe } from './recipe.ts';
import { readRecipeFile, withSettings } from './recipe-file.ts';
import { forgetDeadLock, requireRun, resultIn } from './run-folder.ts';

/** What a run folder asks for: nothing more, or to go on. */
export type Resumption =
  | { readonly finished: Readonly<Record<string, unknown>> }
  | { readonly input: TrainingInput };

/**
 * How to go on with the run in a folder: a finished one has its result, an interrupted or stopped one its recipe.
 *
 * @param settings as in `withSettings`; only those of `performance`, which change neither privacy nor what is learned
 * @throws GhostgradError when there is no run, or one whose model or data were objects in memory
 */
export function resumptionOf(path: string, settings: readonly string[] = []): Resumption {
  requireRun(path);
  const result = resultIn(path);
  if (result !== undefined && result['ended'] !== 'stopped') {
    forgetDeadLock(path);
    return { finished: { ...result, runDir: path } };
  }
  const foreign = settings.find((setting) => !setting.startsWith('performance.'));
  if (foreign !== undefined) {
    throw new GhostgradError({
      what: 'the recipe of a run that began cannot be changed', where: `--set ${foreign}`,
      expected: 'settings of performance, if any', fix: 'leave it out, or start a new run',
    });
  }
  const file = join(path, 'recipe.yaml');
  const recipe = { ...withSettings(readRecipeFile(file), settings), output: path };
  if (JSON.stringify(recipe).includes('"(in memory: ')) {
    throw new GhostgradError({
      what: 'the run was given a model or data in memory', where: file, expected: 'files, which a command can read again',
      fix: 'go on from the program that started it: train(input, { resume: true }) with the same input',
    });
  }
  // What it holds is checked, key by key, when the run is prepared.
  return { input: recipe as unknown as TrainingInput };
}

/**
 * Throws GhostgradError where a recipe says otherwise than when the run began, apart from how it is computed and where it
 * is written.
 */
export function requireSameRecipe(before: RunSettings['recipe'], recipe: Recipe, where: string): void {
  const { performance: _, output: __, ...now } = plain(recipe);
  const { performance: ___, output: ____, ...then } = before;
  const paths = [...leaves(now), ...leaves(then)].map(([path]) => path);
  const at = (value: unknown, path: string): unknown => leaves(value).find(([key]) => key === path)?.[1];
  const odd = paths.find((path) => JSON.stringify(at(now, path)) !== JSON.stringify(at(then, path)));
  if (odd === undefined) return;
  const show = (value: unknown): string => (value === undefined ? 'nothing' : showValue(value));
  throw new GhostgradError({
    what: 'the recipe changed since the run began', where: `${where}: ${odd}`, found: show(at(now, odd)),
    expected: show(at(then, odd)), fix: 'put it back, or start a new run',
  });
}

/** Throws GhostgradError where the model is another than when the run began, apart from the values that are trained. */
export function requireSameModel(before: RunSettings, now: RunSettings): void {
  if (before.model === now.model) return;
  throw new GhostgradError({
    what: 'the model changed since the run began', where: 'model', expected: 'the model that the run began with',
    fix: 'put it back, or start a new run',
  });
}

/** How a run is computed now, where that is otherwise than before: why charged steps may come out another way. */
export function differences(before: RunSettings, now: RunSettings): string[] {
  const told = ({ microBatch, features, threads, engine, software }: RunSettings): Readonly<Record<string, unknown>> =>
    ({ 'micro-batch': microBatch, 'features computed once': features, threads, engine, ...software });
  const then = told(before);
  return Object.entries(told(now)).flatMap(([name, value]) =>
    then[name] === value ? [] : [`${name} ${String(value)} instead of ${String(then[name])}`]);
}

/** The recipe as a run records it: what was measured or decided for it is what a process that goes on with it does. */
export const asComputed = (recipe: Recipe, microBatch: number, features: Recipe['performance']['features']): Recipe =>
  ({ ...recipe, performance: { ...recipe.performance, microBatch, features } });

/** The threads of the earlier process, where they are not what one would take anyway. */
export const sameThreads = (before: number | undefined): number | undefined => (before === defaultThreads() ? undefined : before);

/** A recipe as JSON has it. */
export const plain = (recipe: Recipe): RunSettings['recipe'] =>
  JSON.parse(JSON.stringify(recipe)) as RunSettings['recipe'];

function leaves(value: unknown, path = ''): (readonly [path: string, value: unknown])[] {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return [[path, value]];
  return Object.entries(value).flatMap(([key, inner]) => leaves(inner, path === '' ? key : `${path}.${key}`));
}
