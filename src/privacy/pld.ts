import { type PrivacyEvent, showEvent } from './events.ts';
import { gaussianDelta, gaussianEpsilon, gaussianMu, notPureGaussian } from './exact-gaussian.ts';
import { type Directions, type Grid, type LossMass, losses, nodesOf, symmetric } from './loss-grid.ts';
import { mergedLosses } from './loss-merged.ts';
import { type LossPair, gaussianPair, laplacePair } from './loss-pair.ts';
import { type LossSum, lossSum } from './loss-sum.ts';
import type { Bracket } from './loss-tilted.ts';
import { refusal, refuseMixedNeighbors } from './refusal.ts';

/**
 * The accountant of privacy loss distributions (Meiser & Mohammadi 2018; Koskela, Jälkö & Honkela 2020; Doroshenko et al.
 * 2022): the losses of each release, rounded against us on a lattice, are summed by Fourier transform, in both directions
 * of neighbours. A second lattice, rounded for us, bounds from below: its distance is the error bound.
 */
export interface LossAccount {
  /** ε after the event was repeated `times` times, from above. */
  epsilon(times: number, delta: number): number;
  /** The same, and a bound of it from below. */
  epsilonBounds(times: number, delta: number): Bracket;
  deltaBounds(times: number, epsilon: number): Bracket;
  /** How finely losses were taken for the last question. */
  readonly grid: Settings | undefined;
}

/** How a question is computed. */
export interface Settings extends Grid {
  /** Mass that is cut off each release's losses at either end, and counts as lost. */
  readonly tail: number;
  /** The least δ that is asked for. */
  readonly least: number;
}

/** A release that many steps make alike. */
interface Source {
  readonly noise: 'gaussian' | 'laplace';
  readonly scale: number;
  readonly rate: number;
  /** Neighbours have a unit replaced, and samples a fixed size. */
  readonly replaced: boolean;
  readonly count: number;
}

interface Sources {
  /** Σ σ⁻² of Gaussian noise on all of the data, which together is one release of such noise. */
  readonly square: number;
  readonly sources: readonly Source[];
}

/** A lattice may raise ε by so much, relative to it. */
const accuracy = 1.5e-4;

/** So few points of a sum take hardly any time, and the most that accuracy is sought with. */
const fewPoints = 2 ** 13;
const mostSize = 2 ** 19;

/** Where one loss can be as large as this, ε means nothing, and is not resolved. */
const mostRange = 1e5;
const unresolved: LossSum = {
  delta: () => ({ low: 0, high: 1 }),
  epsilon: (_, __, bound) => (bound === 'high' ? Infinity : 0),
  size: () => 0,
};

/** Beyond this step, e^step is on its way to overflow. */
const mostStep = 100;

/**
 * Throws GhostgradError for an event that it does not know: it knows Gaussian and Laplace noise, on all of the data, on
 * Poisson samples and on samples without replacement, and compositions of these. `grid` is used instead of one that is
 * fine enough for the question.
 */
export function lossAccount(event: PrivacyEvent, grid?: Settings): LossAccount {
  refuseMixedNeighbors('pld', event);
  const known = sourcesOf(event);
  let settled: (Sums & { readonly delta: number; readonly times: number }) | undefined;

  const settle = (times: number, delta: number): Sums => {
    if (grid !== undefined) return (settled ??= { ...sumsOf(known, times, grid), delta, times });
    if (settled !== undefined && settled.times === times && settled.delta === delta) return settled;
    settled = { ...settledSums(known, times, delta), delta, times };
    return settled;
  };
  // Whoever is in no sample leaves no trace: δ(1) is at most the probability of being in any.
  const nothing = (times: number, delta: number): boolean => times * participation(known) * (1 + 1e-9) <= delta;
  const only = known.sources.length === 0 ? Math.sqrt(known.square) : undefined;

  return {
    get grid() {
      return settled?.settings;
    },
    epsilon: (times, delta) => {
      if (times === 0) return 0;
      if (only !== undefined) return gaussianEpsilon(only * Math.sqrt(times), delta);
      if (nothing(times, delta)) return 0;
      // Fewer repetitions of one event are summed on the same lattice.
      const reusable = settled !== undefined && settled.times >= times && settled.delta === delta && known.square === 0;
      const sums = reusable && settled !== undefined ? settled : settle(times, delta);
      return worst(sums.high, (sum) => sum.epsilon(countsOf(known, times), delta, 'high'));
    },
    epsilonBounds: (times, delta) => {
      if (times === 0) return { low: 0, high: 0 };
      if (only !== undefined) return exactly(gaussianEpsilon(only * Math.sqrt(times), delta));
      if (nothing(times, delta)) return { low: 0, high: 0 };
      return epsilonBounds(settle(times, delta), countsOf(known, times), delta);
    },
    deltaBounds: (times, epsilon) => {
      if (times === 0) return { low: 0, high: 0 };
      if (only !== undefined) return exactly(gaussianDelta(only * Math.sqrt(times), epsilon));
      const counts = countsOf(known, times);
      // The tail that may be cut off, and the lattice, depend on the answer.
      let guess = 1e-6;
      for (let pass = 0; ; pass++) {
        const sums = settle(times, guess);
        const high = worst(sums.high, (sum) => sum.delta(counts, epsilon).high);
        if ((high > guess / 30 && high < guess * 1e3) || pass === 8 || guess < 1e-250)
          return { low: worst(sums.low(), (sum) => sum.delta(counts, epsilon).low), high };
        guess = Math.min(0.5, Math.max(1e-251, high));
      }
    },
  };
}

/** How many samples a unit is in on average, an upper bound of the probability of being in any; where all take part, ≥ 1. */
const participation = ({ square, sources }: Sources): number =>
  sources.reduce((sum, { rate, count }) => sum + rate * count, square > 0 ? 1 : 0);

const exactly = (value: number): Bracket => ({ low: value * (1 - 1e-12), high: value });

const worst = (sums: readonly LossSum[], of: (sum: LossSum) => number): number => Math.max(...sums.map(of));

const epsilonBounds = (sums: Sums, counts: readonly number[], delta: number): Bracket => ({
  // Cells' losses are those of their nodes to within 1e-12 of a step.
  low: worst(sums.low(), (sum) => sum.epsilon(counts, delta, 'low')) * (1 - 1e-9),
  high: worst(sums.high, (sum) => sum.epsilon(counts, delta, 'high')),
});

/** The sums on one lattice, from above and, computed when asked for, from below. */
interface Sums {
  readonly settings: Settings;
  readonly high: readonly LossSum[];
  low(): readonly LossSum[];
}

/** How often each mass of {@link sumsOf} is drawn. */
const countsOf = ({ square, sources }: Sources, times: number): readonly number[] => [
  ...sources.map(({ count }) => count * times),
  ...(square > 0 ? [1] : []),
];

function sumsOf({ square, sources }: Sources, times: number, settings: Settings): Sums {
  const pairs = pairsOf({ square, sources }, times, settings.tail);
  const summed = (directions: (pair: LossPair, centred: boolean) => Directions, lost: boolean): LossSum[] => {
    const each = pairs.map(({ source, pair }): Directions => {
      const found = directions(pair, source.replaced);
      if (!source.replaced) return found;
      const both: LossMass = symmetric(found, lost ? pair.outside : 0);
      return { remove: both, add: both };
    });
    const sums = [lossSum(each.map(({ remove }) => remove), settings.least)];
    // Where every release looks alike from both neighbours, one direction says all.
    if (pairs.some(({ source: { replaced, rate } }) => !replaced && rate < 1)) sums.push(lossSum(each.map(({ add }) => add), settings.least));
    return sums;
  };
  let low: LossSum[] | undefined;
  return {
    settings,
    high: summed((pair) => losses(pair, nodesOf(pair, settings, 0)), false),
    low: () => (low ??= summed((pair, centred) => mergedLosses(pair, settings, centred), true)),
  };
}

const wholeGaussian: Omit<Source, 'scale'> = { noise: 'gaussian', rate: 1, replaced: false, count: 1 };

/** The releases with their pairs; all noise on all of the data is one. */
function pairsOf(
  { square, sources }: Sources, times: number, tail: number,
): readonly { readonly source: Source; readonly pair: LossPair }[] {
  const all = square > 0 ? [...sources, { ...wholeGaussian, scale: 1 / Math.sqrt(square * times) }] : sources;
  return all.map((source) => ({ source, pair: pairOf(source, tail) }));
}

const pairOf = ({ noise, scale, rate }: Source, tail: number): LossPair =>
  noise === 'gaussian' ? gaussianPair(scale, rate, tail) : laplacePair(scale, rate);

/**
 * Sums on a lattice about as coarse as {@link accuracy} allows: it is refined until ε falls by no more than that, or points
 * are too many. Every lattice's ε is valid.
 */
function settledSums(known: Sources, times: number, delta: number): Sums {
  const counts = countsOf(known, times);
  const draws = counts.reduce((sum, count) => sum + count, 0);
  const tail = Math.max(1e-290, (delta * 1e-6) / draws);
  const range = Math.max(...pairsOf(known, times, tail).map(({ pair }) => pair.loss(pair.to) - pair.loss(pair.from)));
  if (range > mostRange) return { settings: { step: mostStep, resolution: 1, tail, least: delta }, high: [unresolved], low: () => [unresolved] };
  const sizeOf = (sums: Sums): number => Math.max(...sums.high.map((sum) => sum.size(counts, delta)));
  if (draws === 1) return sumsOf(known, times, { step: Math.min(range / 2 ** 14, mostStep), resolution: 1024, tail, least: delta });
  let settings: Settings = { step: Math.min(range / 1024, mostStep), resolution: 64, tail, least: delta };
  let sums = sumsOf(known, times, settings);
  for (let pass = 0, size = sizeOf(sums); pass < 4 && (size < fewPoints / 8 || size > fewPoints * 8); pass++) {
    settings = { ...settings, step: Math.min(mostStep, range / 16, settings.step * Math.max(1 / 64, size / fewPoints)) };
    sums = sumsOf(known, times, settings);
    size = sizeOf(sums);
  }
  let best = { sums, epsilon: worst(sums.high, (sum) => sum.epsilon(counts, delta, 'high')) };
  let before = best.epsilon;
  let factor = 0.5;
  for (let pass = 0; pass < 8 && sizeOf(sums) < mostSize; pass++) {
    settings = { ...settings, step: settings.step * factor, resolution: Math.min(1024, settings.resolution * 2) };
    sums = sumsOf(known, times, settings);
    const epsilon = worst(sums.high, (sum) => sum.epsilon(counts, delta, 'high'));
    if (epsilon <= best.epsilon) best = { sums, epsilon };
    // Of second order in the step, once losses are resolved: then this part of the fall is left.
    const left = ((before - epsilon) / epsilon) * (factor ** 2 / (1 - factor ** 2));
    if (epsilon === 0 || left < accuracy) break;
    factor = Math.max(1 / 8, Math.min(0.5, 0.8 * Math.sqrt(accuracy / left)));
    before = epsilon;
  }
  return best.sums;
}

const expected =
  'Gaussian or Laplace noise on all of the data, on Poisson samples or on samples without replacement, and compositions';

/** The releases of `event`, those alike counted together. */
function sourcesOf(event: PrivacyEvent): Sources {
  let square = 0;
  const found = new Map<string, Source>();
  const add = (key: string, source: Source): void => {
    const count = source.count + (found.get(key)?.count ?? 0);
    found.set(key, { ...source, count });
  };
  const collect = (part: PrivacyEvent, count: number): void => {
    if (count === 0) return;
    switch (part.kind) {
      case 'gaussian':
      case 'gaussian-with-counts':
        square += count * gaussianMu(part) ** 2;
        return;
      case 'laplace':
        return add(showEvent(part), { noise: 'laplace', scale: part.scale, rate: 1, replaced: false, count });
      case 'self-composed':
        return collect(part.event, count * part.count);
      case 'composed':
        return part.events.forEach((e) => collect(e, count));
      case 'poisson-sampled':
      case 'sampled-without-replacement': {
        const replaced = part.kind === 'sampled-without-replacement';
        const rate = replaced ? part.sampleSize / part.datasetSize : part.rate;
        if (rate === 1) return collect(part.event, count);
        if (part.event.kind === 'laplace')
          return add(showEvent(part), { noise: 'laplace', scale: part.event.scale, rate, replaced, count });
        if (notPureGaussian(part.event) !== undefined) throw refusal('pld', part, expected);
        const mu = gaussianMu(part.event);
        if (mu > 0) add(`${part.kind}/${rate}/${mu}`, { noise: 'gaussian', scale: 1 / mu, rate, replaced, count });
        return;
      }
      default:
        throw refusal('pld', part, expected);
    }
  };
  collect(event, 1);
  return { square, sources: [...found.values()] };
}
