import { GhostgradError } from '../errors.ts';
import { poissonSample } from '../random/poisson.ts';
import type { Stream } from '../random/stream.ts';
import { randomSubset } from '../random/subset.ts';
import { unknownName } from '../suggest.ts';
import { outOfRange } from './check.ts';
import { type PrivacyEvent, poissonSampled, sampledWithoutReplacement, truncatedPoissonSampled } from './events.ts';
import { binomialTail } from './truncation.ts';

/**
 * How the examples of a step are drawn: each independently (`poisson`), the same cut to the most that a batch may hold
 * (`truncated-poisson`), a fixed number of them (`without-replacement`), or all (`full-batch`).
 */
export type Sampling = keyof typeof schemes;

/**
 * What differs between two neighbouring data sets: one example more (`add-remove`), one replaced by an example whose
 * gradient is 0 (`zero-out`), or one replaced by any other (`replace-one`).
 */
export type Neighbors = 'add-remove' | 'zero-out' | 'replace-one';

/** The public numbers of a draw. */
export interface Draw {
  /** Expected number of examples. */
  readonly batchSize: number;
  readonly datasetSize: number;
  /** The most examples that a truncated draw holds; null under other samplings. */
  readonly maxBatchSize: number | null;
}

interface Scheme {
  /** In words, before "Gaussian mechanism". */
  readonly words: string;
  /** Whether every draw has the expected size. */
  readonly isFixed: boolean;
  /** The relations that an accountant covers; the first is the default. */
  readonly neighbors: readonly Neighbors[];
  /** `event` on such a draw, its noise in units of what neighbours change in a batch. */
  readonly event: (draw: Draw, event: PrivacyEvent) => PrivacyEvent;
  /** The indices of a draw from `rows` examples, ascending. */
  readonly draw: (draw: Draw, rows: number, streamOf: (label: string) => Stream) => Uint32Array;
  /** What is wrong with a batch size of this scheme, and what it takes. */
  readonly flaw: (draw: Draw) => { readonly what: string; readonly expected: string; readonly fix: string } | undefined;
  /** Whether `rows` examples can be drawn from as `datasetSize` are; an expected size as an error says it, or undefined. */
  readonly rows: (datasetSize: number, rows: number) => string | undefined;
}

const rateOf = ({ batchSize, datasetSize }: Draw): number => batchSize / datasetSize;
const poissonDraw: Scheme['draw'] = (draw, rows, streamOf) => poissonSample(rows, rateOf(draw), streamOf('poisson'));
const mostOf = ({ maxBatchSize }: Draw): number => maxBatchSize ?? Infinity;
const fine = (): undefined => undefined;

/** One entry for each sampling. */
const schemes = {
  'poisson': {
    words: 'Poisson-sampled',
    isFixed: false,
    neighbors: ['add-remove', 'zero-out'],
    event: (draw, event) => poissonSampled(rateOf(draw), event),
    draw: poissonDraw,
    flaw: fine,
    rows: fine,
  },
  'full-batch': {
    words: 'full-batch',
    isFixed: true,
    neighbors: ['add-remove', 'zero-out', 'replace-one'],
    // At a rate of 1 every example is drawn.
    event: (draw, event) => poissonSampled(rateOf(draw), event),
    draw: poissonDraw,
    flaw: ({ batchSize, datasetSize }) => batchSize === datasetSize ? undefined : {
      what: 'full-batch sampling with a smaller batch', expected: `all ${datasetSize} examples`,
      fix: `batchSize: ${datasetSize}, or sampling: poisson`,
    },
    rows: fine,
  },
  'truncated-poisson': {
    words: 'Poisson-sampled and truncated',
    isFixed: false,
    neighbors: ['add-remove', 'zero-out'],
    event: (draw, event) => truncatedPoissonSampled({ rate: rateOf(draw), most: mostOf(draw), datasetSize: draw.datasetSize }, event),
    draw: (draw, rows, streamOf) => {
      const drawn = poissonDraw(draw, rows, streamOf);
      if (drawn.length <= mostOf(draw)) return drawn;
      return randomSubset(drawn.length, mostOf(draw), streamOf('truncation')).map((i) => drawn[i]!);
    },
    flaw: (draw) => mostOf(draw) >= draw.batchSize ? undefined : {
      what: 'maxBatchSize is below the batch size', expected: `at least ${Math.ceil(draw.batchSize)}`,
      fix: 'leave maxBatchSize out: the least that costs next to no δ is then taken',
    },
    // How often a draw is cut is accounted for at the public size.
    rows: (datasetSize, rows) => (rows <= datasetSize + 1 ? undefined : `at most the public ${datasetSize}`),
  },
  'without-replacement': {
    words: 'fixed-size-sampled',
    isFixed: true,
    neighbors: ['replace-one'],
    event: ({ batchSize, datasetSize }, event) => sampledWithoutReplacement({ sampleSize: batchSize, datasetSize }, event),
    draw: ({ batchSize }, rows, streamOf) => randomSubset(rows, batchSize, streamOf('subset')),
    flaw: ({ batchSize }) => Number.isInteger(batchSize) ? undefined : {
      what: 'a batch of fixed size is a whole number of examples', expected: 'a whole number', fix: `batchSize: ${Math.round(batchSize)}`,
    },
    rows: (datasetSize, rows) => (rows === datasetSize ? undefined : `exactly the public ${datasetSize}`),
  },
} as const satisfies Readonly<Record<string, Scheme>>;

export const samplings = ['poisson', 'full-batch', 'truncated-poisson', 'without-replacement'] as const satisfies readonly Sampling[];

/** In words, e.g. for a certificate's mechanism. */
export const samplingWords = (sampling: Sampling): string => schemes[sampling].words;

/** Whether every draw has the expected size. */
export const hasFixedSize = (sampling: Sampling): boolean => schemes[sampling].isFixed;

/** The neighbouring relation that is meant where none is named. */
export const defaultNeighbors = (sampling: Sampling): Neighbors => schemes[sampling].neighbors[0];

const reasons: Readonly<Record<string, string>> = {
  'shuffle': 'batches from a shuffled data set are not independent draws; no accountant here covers them',
  'shuffling': 'batches from a shuffled data set are not independent draws; no accountant here covers them',
  'balls-in-bins': 'each example in exactly one batch of an epoch: no accountant here covers it',
};

/** `name` itself. Throws GhostgradError for samplings that are unknown or that no accountant here covers. */
export function supportedSampling(name: string, where = 'privacy.sampling'): Sampling {
  if (Object.hasOwn(schemes, name)) return name as Sampling;
  const reason = Object.hasOwn(reasons, name) ? reasons[name] : undefined;
  if (reason === undefined) throw unknownName('sampling', name, samplings, where);
  throw new GhostgradError({
    what: `sampling "${name}" cannot be used: ${reason}`, where, expected: samplings.join(', '), fix: 'sampling: poisson',
  });
}

/** `name` itself. Throws GhostgradError for relations that are unknown or not covered under `sampling`. */
export function supportedNeighbors(name: string, sampling: Sampling): Neighbors {
  const all: readonly string[] = ['add-remove', 'zero-out', 'replace-one'] satisfies Neighbors[];
  if (!all.includes(name)) throw unknownName('neighbouring relation', name, all, 'privacy.neighbors');
  const covered: readonly string[] = schemes[sampling].neighbors;
  if (covered.includes(name)) return name as Neighbors;
  throw new GhostgradError({
    what: `neighbors "${name}" cannot be used with sampling "${sampling}": no accountant here covers the pair`,
    where: 'privacy.neighbors',
    expected: `${covered.join(' or ')}, or ${samplings.filter((s) => (schemes[s].neighbors as readonly string[]).includes(name)).map((s) => `sampling ${s}`).join(' or ')}`,
    fix: name === 'replace-one' ? 'neighbors: add-remove (any (ε, δ) of it gives (2ε, (1 + e^ε)·δ) under replace-one)' : `neighbors: ${covered[0]!}`,
  });
}

/** Throws GhostgradError for sizes that `sampling` cannot draw. */
export function checkDraw(sampling: Sampling, draw: Draw): void {
  const { batchSize, datasetSize, maxBatchSize } = draw;
  if (!(batchSize > 0 && batchSize <= datasetSize)) {
    throw outOfRange('batchSize', batchSize, `more than 0 and at most the ${datasetSize} examples`);
  }
  if (maxBatchSize !== null && sampling !== 'truncated-poisson') {
    throw new GhostgradError({
      what: 'maxBatchSize without truncated sampling', where: 'maxBatchSize', found: `sampling ${sampling}`,
      expected: 'sampling truncated-poisson, whose accounting covers the cut', fix: 'remove maxBatchSize, or say sampling: truncated-poisson',
    });
  }
  if (maxBatchSize !== null && !(Number.isSafeInteger(maxBatchSize) && maxBatchSize >= 1)) {
    throw outOfRange('maxBatchSize', maxBatchSize, 'a whole number of at least 1');
  }
  const flaw = schemes[sampling].flaw(draw);
  if (flaw !== undefined) throw new GhostgradError({ where: 'batchSize', found: String(maxBatchSize ?? batchSize), ...flaw });
}

/** What one step releases that has `event` on a draw. */
export const sampledEvent = (sampling: Sampling, draw: Draw, event: PrivacyEvent): PrivacyEvent => schemes[sampling].event(draw, event);

/**
 * The indices of a step's examples out of `rows`, ascending; possibly none.
 * Throws GhostgradError as {@link checkRows} does.
 */
export function drawn(sampling: Sampling, draw: Draw, rows: number, streamOf: (label: string) => Stream): Uint32Array {
  checkRows(sampling, draw.datasetSize, rows);
  return schemes[sampling].draw(draw, rows, streamOf);
}

/** Throws GhostgradError for a number of examples that the accounting of `sampling` at the public size does not cover. */
export function checkRows(sampling: Sampling, datasetSize: number, rows: number): void {
  const expected = schemes[sampling].rows(datasetSize, rows);
  if (expected === undefined) return;
  throw new GhostgradError({
    what: `the data cannot be sampled as the privacy plan says (${sampling})`, where: 'data.size', found: `${rows} examples`, expected,
    fix: 'give the true size, or take sampling: poisson, which needs none',
  });
}

/** The share of δ that draws cut short may spend by default. */
const truncationShare = 1e-3;

/**
 * The least size to cut draws to at which the cuts of all steps cost at most a thousandth of δ: (1 + e^ε)·steps·τ, where τ
 * is how likely a draw is cut (Chua et al. 2024).
 */
export function leastMaxBatchSize(
  { batchSize, datasetSize }: Omit<Draw, 'maxBatchSize'>, { steps, epsilon, delta }: { readonly steps: number; readonly epsilon: number; readonly delta: number },
): number {
  const most = (truncationShare * delta) / steps / (1 + Math.exp(epsilon));
  const isEnough = (size: number): boolean => binomialTail(datasetSize + 1, batchSize / datasetSize, size) <= most;
  let [low, high] = [Math.floor(batchSize), datasetSize + 1];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (isEnough(middle)) high = middle;
    else low = middle;
  }
  return Math.min(high, datasetSize);
}

/** Throws GhostgradError where the cuts of all steps alone spend δ: then no noise meets it. */
export function checkTruncation(draw: Draw, { steps, delta }: { readonly steps: number; readonly delta: number }): void {
  const { batchSize, datasetSize, maxBatchSize } = draw;
  if (maxBatchSize === null || 2 * steps * binomialTail(datasetSize + 1, batchSize / datasetSize, maxBatchSize) < delta) return;
  throw new GhostgradError({
    what: 'draws are cut so often that it alone spends δ', where: 'maxBatchSize', found: String(maxBatchSize),
    expected: `at least ${leastMaxBatchSize(draw, { steps, delta, epsilon: 0 })} for ${steps} steps at delta ${delta}`,
    fix: 'leave maxBatchSize out: the least that costs next to no δ is then taken',
  });
}
