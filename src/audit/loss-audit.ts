import { type AnyColumn, type Column, type ColumnType, type Dataset, datasetOf } from '../data/index.ts';
import { GhostgradError } from '../errors.ts';
import { ratchet } from '../random/ratchet.ts';
import type { Stream } from '../random/stream.ts';
import type { Engine } from '../runtime/engine.ts';
import { allocate, sizeOf } from '../tensor/tensor.ts';
import { evaluate } from '../training/evaluate.ts';
import { type TrainingInput, loadMaterials, recordedAs } from '../training/materials.ts';
import { resolveRecipe } from '../training/recipe.ts';
import { prepare } from '../training/train.ts';
import { oneRunBest } from './one-run.ts';

export interface LossAuditOptions {
  readonly recipe: TrainingInput;
  readonly file?: string | undefined;
  readonly engine: Engine;
  /** Rows that become canaries, half of which are trained on. Default 1000, at most a fifth of the data. */
  readonly canaries?: number | undefined;
  /** Default 0.999. */
  readonly confidence?: number | undefined;
  /** Which rows, labels and coins. Default 0. */
  readonly seed?: number | string | undefined;
  readonly onStep?: ((step: number, steps: number) => void) | undefined;
}

export interface LossAudit {
  readonly epsilonLowerBound: number;
  readonly confidence: number;
  readonly epsilonClaimed: number;
  readonly delta: number;
  readonly canaries: number;
  /** Canaries that the attacker made a guess about, and guesses that were right. */
  readonly guesses: number;
  readonly right: number;
  readonly alarms: readonly string[];
}

/**
 * The one-run audit of Steinke, Nasr & Jagielski 2023 with the eyes of somebody who has the trained model alone: rows of the
 * recipe's own data get wrong labels, each is trained on or not by a coin, and those of the lowest loss in the end are guessed
 * to have been. One run of the recipe as it is; the bound holds however the canaries influence one another.
 *
 * @throws GhostgradError for a recipe without privacy, or one whose neighbours replace a record
 */
export async function auditLosses(options: LossAuditOptions): Promise<LossAudit> {
  const { recipe: input, file, engine, confidence = 0.999, seed = 0 } = options;
  const recipe = resolveRecipe(recordedAs(input), file);
  const { trainingSet, source } = await loadMaterials(input, recipe, seed);
  const canaries = Math.min(options.canaries ?? 1000, Math.floor(trainingSet.size / 5));
  const { data, planted, present } = ratchet(`canaries ${JSON.stringify(seed)}`).advance().noise
    .use((streamOf) => withCanaries(trainingSet, canaries, streamOf('canaries')));
  const size = recipe.data.size ?? trainingSet.declaredSize ?? trainingSet.size;
  const { output: _, ...rest } = input;
  const run = await prepare({ ...rest, data: { train: data, size } }, { file, engine });
  try {
    const { plan } = run;
    if (plan === null) throw refusedRecipe('privacy: none', 'a recipe that claims an ε');
    if (plan.neighbors === 'replace-one') throw refusedRecipe('neighbors: replace-one', 'add-remove or zero-out: a canary is there or not');
    for await (const { step, steps } of run.steps()) options.onStep?.(step, steps);
    const losses: number[] = [];
    await evaluate(run.model(), planted, { loss: recipe.loss, output: source.output, engine, onLoss: (loss) => losses.push(loss) });
    const scores = Float64Array.from(losses, (loss) => -loss);
    const numbers = [canaries / 50, canaries / 10, canaries / 2].map(Math.ceil);
    const { epsilon, guesses, right } = oneRunBest(scores, present, { numbers, delta: plan.delta, confidence });
    return {
      epsilonLowerBound: epsilon, confidence, epsilonClaimed: plan.epsilon, delta: plan.delta, canaries, guesses, right,
      alarms: epsilon > plan.epsilon
        ? [`the lower bound ${epsilon.toPrecision(4)} is above the claimed ε of ${plan.epsilon.toPrecision(4)}`] : [],
    };
  } finally {
    await run.release();
  }
}

const refusedRecipe = (found: string, expected: string): GhostgradError => new GhostgradError({
  what: 'a recipe that cannot be audited by losses', where: 'audit', found, expected, fix: 'audit in gradient space (the default method)',
});

/** The data with `count` of its rows mislabelled, of which each is left out by a coin; and the mislabelled rows by themselves. */
function withCanaries(
  dataset: Dataset, count: number, random: Stream,
): { readonly data: Dataset; readonly planted: Dataset; readonly present: Uint8Array } {
  const { size, labels } = dataset;
  const order = Uint32Array.from({ length: size }, (_, i) => i);
  // The first rows of a random order.
  for (let i = 0; i < count; i++) {
    const other = i + Math.min(size - i - 1, Math.floor(random.uniform() * (size - i)));
    [order[i], order[other]] = [order[other]!, order[i]!];
  }
  const chosen = order.slice(0, count);
  const labelOf = rowsAsText(labels);
  const donors = chosen.map((row) => {
    let donor = row;
    // Another row's label that differs from this row's own; where all are alike, there is none.
    for (let tries = 0; tries < 100 && labelOf(donor) === labelOf(row); tries++) {
      donor = Math.min(size - 1, Math.floor(random.uniform() * size));
    }
    return donor;
  });
  const present = Uint8Array.from(chosen, () => random.word() & 1);
  const kept = [...chosen.keys()].filter((i) => present[i] === 1);
  const others = order.slice(count).sort();
  const at = (rows: readonly number[] | Uint32Array, labelled: readonly number[] | Uint32Array): Dataset =>
    rowsOf(dataset, Uint32Array.from(rows), Uint32Array.from(labelled));
  return {
    data: at([...others, ...kept.map((i) => chosen[i]!)], [...others, ...kept.map((i) => donors[i]!)]),
    planted: at(chosen, donors),
    present,
  };
}

/** Rows of the data with the labels of others. */
const rowsOf = (dataset: Dataset, rows: Uint32Array, labelled: Uint32Array): Dataset => datasetOf({
  ...dataset, name: `${dataset.name}, with canaries`,
  features: new Map([...dataset.features].map(([name, column]) => [name, columnOf(column, rows)])),
  labels: columnOf(dataset.labels, labelled),
});

const columnOf = (column: AnyColumn, rows: Uint32Array): AnyColumn =>
  (column.dtype === 'float32' ? partOf(column, rows) : partOf(column, rows));

/** The rows of a column, which stay where they are. */
const partOf = <D extends ColumnType>(column: Column<D>, rows: Uint32Array): Column<D> => ({
  ...column, size: rows.length, gather: (indices, into) => column.gather(indices.map((i) => rows[i] ?? column.size), into),
});

function rowsAsText(column: AnyColumn): (row: number) => string {
  const data = allocate(column.dtype, column.size * sizeOf(column.shape));
  column.gather(Uint32Array.from({ length: column.size }, (_, i) => i), data as never);
  const width = sizeOf(column.shape);
  return (row) => data.slice(row * width, (row + 1) * width).join();
}
