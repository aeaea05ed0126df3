import { GhostgradError } from '../errors.ts';
import { type LossPair, integrals } from './loss-pair.ts';
import { logAdd } from './special.ts';

/**
 * Privacy losses on a lattice, offset + step·k: the probability of each, and that of a loss without bound. Entries with
 * one index are one loss.
 */
export interface LossMass {
  readonly step: number;
  readonly offset: number;
  /** k of each entry, and the log of its probability. */
  readonly index: Int32Array;
  readonly log: Float64Array;
  readonly infinity: number;
}

/** Either direction of neighbours: a unit removed (losses log P/Q under P) or added (log Q/P under Q). */
export interface Directions {
  readonly remove: LossMass;
  readonly add: LossMass;
}

/** Where a pair's losses are taken: places on the lattice, from low to high. */
export interface Nodes {
  readonly step: number;
  readonly offset: number;
  readonly index: Int32Array;
  readonly x: Float64Array;
  /** The place of index 0. */
  readonly join: number;
  /** Whether nodes are there for some losses only. */
  readonly partial: boolean;
}

/** How finely: the lattice's step, and how many nodes at most within one deviation of the noise. */
export interface Grid {
  readonly step: number;
  readonly resolution: number;
}

/** Neighbours no further apart, in losses: e to that is far from overflow. */
const mostApart = 300;

/**
 * Nodes over all losses of `pair`. Neighbours are a lattice step apart where losses are dense, and else by
 * `spread / resolution` in x: rare, large losses need no step as fine as the many small ones. At most `most` nodes on either side of the middle.
 */
export function nodesOf(pair: LossPair, { step, resolution }: Grid, offset: number, most = Infinity): Nodes {
  const wide = pair.spread / resolution;
  const walk = (sign: 1 | -1): number[] => {
    const end = pair.loss(sign > 0 ? pair.to : pair.from);
    const last = sign > 0 ? Math.ceil((end - offset) / step) : Math.floor((end - offset) / step);
    const found: number[] = [];
    for (let k = 0; k * sign < last * sign && found.length < most;) {
      const x = pair.at(offset + step * k);
      const apart = Math.min(mostApart, Math.abs(pair.loss(x + sign * wide) - pair.loss(x)));
      const stride = Math.max(1, Math.floor(apart / step));
      k = sign * Math.min(k * sign + stride, last * sign);
      found.push(k);
    }
    return found;
  };
  const below = walk(-1).reverse();
  const above = walk(1);
  const index = Int32Array.from([...below, 0, ...above]);
  const x = Float64Array.from(index, (k) => pair.at(offset + step * k));
  const partial = Math.max(below.length, above.length) >= most;
  if (!partial) {
    // Where losses hardly differ, rounding of theirs is not to leave out places.
    x[0] = pair.from;
    x[x.length - 1] = pair.to;
  }
  return { step, offset, index, x, join: below.length, partial };
}

/** Bins of log masses by position, to which more may be added. */
const bins = (count: number): Float64Array => new Float64Array(count).fill(-Infinity);
const put = (into: Float64Array, i: number, log: number): void => {
  into[i] = logAdd(into[i]!, log);
};

/**
 * A pair on the lattice that dominates `pair`: the hockey-stick curve δ(e^ε) is replaced by its chords between nodes
 * (Doroshenko et al. 2022), that is, Q's mass between two nodes is parted between them so that the mean of e^loss, and with
 * it P's mass, stays. Losses beyond the ends count as unbounded. What the chords add is of second order in the step.
 */
export function losses(pair: LossPair, { step, offset, index, x }: Nodes): Directions {
  const log = bins(index.length);
  /** The share of a loss in the i-th cell that falls to its upper end, and to its lower end. */
  const cell = (i: number): readonly ((loss: number) => number)[] => {
    const [low, high] = [offset + step * index[i]!, offset + step * index[i + 1]!];
    const [width, back] = [Math.expm1(step * (index[i + 1]! - index[i]!)), -Math.expm1(-step * (index[i + 1]! - index[i]!))];
    const clamped = (share: number): number => Math.min(1, Math.max(0, share));
    return [(loss) => clamped(Math.expm1(loss - low) / width), (loss) => clamped(-Math.expm1(loss - high) / back)];
  };
  for (let i = 0; i + 1 < index.length; i++) {
    const [up, down] = cell(i);
    const { logScale, mass, weighted } = integrals(pair, x[i]!, x[i + 1]!, up!);
    // A small rest is summed up by itself, not as a difference.
    const rest = weighted < 0.99 * mass ? mass - weighted : integrals(pair, x[i]!, x[i + 1]!, down!).weighted;
    put(log, i, logScale + Math.log(rest));
    put(log, i + 1, logScale + Math.log(weighted));
  }
  for (const [mass, at] of [[pair.atoms.below, pair.from], [pair.atoms.above, pair.to]] as const) {
    if (mass === -Infinity) continue;
    const loss = pair.loss(at);
    const i = Math.min(index.length - 2, Math.max(0, index.findLastIndex((k) => offset + step * k <= loss)));
    const [up, down] = cell(i);
    put(log, i, mass + Math.log(down!(loss)));
    put(log, i + 1, mass + Math.log(up!(loss)));
  }
  const toP = log.map((value, i) => value + offset + step * index[i]!);
  const infinity = pair.outside;
  return {
    remove: whole(trimmed({ step, offset, index, log: toP, infinity })),
    add: whole(trimmed({ step, offset: -offset, index: index.map((k) => -k), log, infinity })),
  };
}

/** Probabilities that do not add up to 1 would claim too little: an error in computing them, never to be returned. */
function whole(mass: LossMass): LossMass {
  const total = mass.log.reduce((sum, log) => sum + Math.exp(log), mass.infinity);
  if (Math.abs(total - 1) < 1e-9 + 2 * mass.infinity) return mass;
  throw new GhostgradError({
    what: 'privacy losses could not be computed: their probabilities do not add up to 1',
    found: `${total} on a lattice of step ${mass.step}`,
    fix: 'use the accountant "rdp", and report this as a bug of ghostgrad',
  });
}

function trimmed({ index, log, ...rest }: LossMass): LossMass {
  const kept = [...index.keys()].filter((i) => log[i]! > -Infinity);
  return { ...rest, index: Int32Array.from(kept, (i) => index[i]!), log: Float64Array.from(kept, (i) => log[i]!) };
}

/**
 * The losses of sampling without replacement where a unit is replaced (Zhu, Dong & Wang 2022, Theorem 11): by advanced
 * joint convexity (Balle, Barthe & Gaboardi 2018) δ(e^ε) is at most that of P against Q for ε ≥ 0, and that of Q against P
 * for ε < 0. Above 0 these are P's losses, below their mirror images, and what is left has the loss 0.
 * `lost` is the mass of losses that the directions left out. `offset` is 0.
 */
export function symmetric({ remove, add }: Directions, lost: number): LossMass {
  const above = [...remove.index.keys()].filter((i) => remove.index[i]! > 0);
  const below = [...add.index.keys()].filter((i) => add.index[i]! < 0);
  const index = Int32Array.from([...above.map((i) => remove.index[i]!), ...below.map((i) => add.index[i]!), 0]);
  const known = [...above.map((i) => remove.log[i]!), ...below.map((i) => add.log[i]!)];
  const rest = 1 - known.reduce((sum, log) => sum + Math.exp(log), remove.infinity + lost);
  const log = Float64Array.from([...known, Math.log(Math.max(0, rest))]);
  return trimmed({ ...remove, index, log });
}
