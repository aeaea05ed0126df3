import { circle } from './fft.ts';
import type { LossMass } from './loss-grid.ts';
import type { Product } from './loss-spectrum.ts';

/** Bounds of a number from both sides. */
export interface Bracket {
  readonly low: number;
  readonly high: number;
}

/** The distribution of a sum of losses, near a tail. */
export interface Tail {
  /** Bounds of δ(e^ε). */
  delta(epsilon: number): Bracket;
  /** Undefined where it cannot be resolved on these points. */
  epsilon(delta: number, bound: keyof Bracket): Crossing | undefined;
}

export interface Crossing {
  readonly epsilon: number;
  /** What the allowance for rounding and truncation is of δ there. */
  readonly blur: number;
}

/** The most points of a transform. */
export const mostPoints = 2 ** 22;

/** Relative error allowed for in every probability of a mass: quadrature, logarithms and their sums. */
export const massError = 4e-13;

interface Tilted {
  /** Tilt of e^{θ·loss}, and log E e^{θ·loss} of the sum. */
  readonly theta: number;
  readonly log: number;
  readonly mean: number;
  readonly step: number;
  readonly offset: number;
  /** Probability that any loss is unbounded. */
  readonly infinity: number;
  /** All but `cut` of the tilted sum is above `low`, and below `high`. */
  readonly cut: number;
  readonly low: number;
  readonly high: number;
  /** Relative error of the sum's every probability. */
  readonly relative: number;
  product(n: number): Product;
}

/**
 * δ(e^ε) = Σ p(l)·(1 − e^{ε−l}) over the losses l > ε, with p(l) ∝ e^{−θl}·p̃(l), as a sum over the frequencies of p̃ with the
 * geometric series in closed form. p̃ is taken on n points, from `low` on; what is beyond them on one side falls on the other.
 */
export function tiltedSum(given: Tilted): Tail {
  const { theta, step, offset, infinity, cut, low } = given;
  const n = pointsOf(given);
  const bottom = Math.floor((low - offset) / step) - 1;
  const top = bottom + n;
  const lossAt = (j: number): number => offset + step * j;
  // Too fine to be computed: bounded, and not resolved.
  if (!(n <= mostPoints)) return { delta: () => ({ low: 0, high: 1 }), epsilon: () => undefined };
  const { cos, sin } = circle(n);
  const { length: size, r: rs, re, im, error: blur } = given.product(n);
  const rho = Math.exp(-theta * step);
  const decay = Math.exp(-step);
  // Each frequency's share, over (1 − a)(1 − a·e^{−step}) with a = ρ·e^{iφ}.
  const [res, ims] = [new Float64Array(size), new Float64Array(size)];
  let sumOfShares = 0;
  for (let i = 0; i < size; i++) {
    const r = rs[i]!;
    const [aRe, aIm] = oneMinus(theta * step, r / n);
    const [bRe, bIm] = oneMinus((theta + 1) * step, r / n);
    const [dRe, dIm] = [aRe * bRe - aIm * bIm, aRe * bIm + aIm * bRe];
    const scale = (r === 0 || r === n / 2 ? 1 : 2) / n / (dRe * dRe + dIm * dIm);
    res[i] = (re[i]! * dRe + im[i]! * dIm) * scale;
    ims[i] = (im[i]! * dRe - re[i]! * dIm) * scale;
    sumOfShares += Math.hypot(res[i]!, ims[i]!);
  }
  const x = rho * rho;
  const beside = -Math.expm1(-2 * theta * step);
  const weightNorm = Math.min(1 / Math.sqrt(beside), step * Math.sqrt((x * (1 + x)) / beside ** 3));
  /** The most that a loss above ε weighs: e^{−θx}·(1 − e^{−x}). */
  const most = Math.min(1, 1 / (Math.E * theta));

  interface Point extends Bracket {
    readonly blur: number;
  }
  const known = new Map<number, Point>();
  /** Bounds of δ at the j-th point of the lattice, bottom ≤ j < top. */
  const at = (j: number): Point => {
    const found = known.get(j);
    if (found !== undefined) return found;
    const length = top - j;
    const whole = rho * -Math.expm1(-step);
    const rest = Math.exp(-theta * step * length);
    const endRe = -Math.expm1(-step * length);
    const endTurned = rho * decay * -Math.expm1(-step * (length - 1));
    const mask = n - 1;
    let sum = 0;
    for (let i = 0; i < size; i++) {
      const p = Math.imul(rs[i]!, j + 1) & mask;
      sum += whole * (res[i]! * cos[p]! - ims[i]! * sin[p]!);
    }
    // Where the window goes on far above, nothing is left of the series' end.
    for (let i = 0; i < size && rest > 1e-20 * whole; i++) {
      const q = Math.imul(rs[i]!, top) & mask;
      const s = (q + rs[i]!) & mask;
      const termRe = endRe * cos[q]! - endTurned * cos[s]!;
      const termIm = endRe * sin[q]! - endTurned * sin[s]!;
      sum -= rest * (res[i]! * termRe - ims[i]! * termIm);
    }
    const error =
      weightNorm * blur +
      sumOfShares * (whole + rest * (endRe + endTurned)) * (32 + size) * 2 ** -53 +
      Math.abs(sum) * given.relative;
    // Above the window: missing. Fallen into it from either side: too much, which only the lower bound must not have.
    const span = step * length;
    const missing = cut * (theta * span >= 1 ? Math.exp(-theta * span) * Math.min(1, span) : most);
    const scale = Math.exp(given.log - theta * lossAt(j));
    const made = {
      low: Math.max(0, scale * (sum - error - 2 * cut * most)),
      high: Math.min(1, infinity + scale * (sum + error + missing)),
      blur: scale * (error + missing),
    };
    known.set(j, made);
    return made;
  };

  return {
    delta(epsilon) {
      const position = (epsilon - offset) / step;
      const j = Math.floor(position);
      if (j >= top - 1) return { low: 0, high: at(top - 1).high };
      if (j < bottom) return { low: at(bottom).low, high: 1 };
      // Between points of the lattice δ is linear in e^ε.
      const share = Math.expm1(step * (position - j)) / Math.expm1(step);
      const [first, second] = [at(j), at(j + 1)];
      return {
        low: first.low + (second.low - first.low) * share,
        high: first.high + (second.high - first.high) * share,
      };
    },
    epsilon(delta, bound) {
      const none = { epsilon: 0, blur: 0 };
      // δ(1) ≤ E e^{θ·loss}, whatever the lattice resolves.
      if (infinity + Math.exp(given.log + given.relative) <= delta) return none;
      const from = Math.max(bottom, Math.floor(-offset / step));
      if (from >= top - 1) return undefined;
      if (at(from).high <= delta) return lossAt(from) <= 0 ? none : undefined;
      if (!(at(top - 1).high <= delta)) return undefined;
      const middle = Math.round((given.mean - offset) / step);
      let below = crossing((j) => at(j).high, delta, { above: from, below: top - 1, guess: middle, slope: theta * step });
      if (bound === 'low') {
        // Far below, nothing is left of the lower bound: it is followed downwards from the upper one.
        let stride = 1;
        while (!(at(Math.max(from, below - stride)).low > delta)) {
          if (below - stride <= from) return lossAt(from) <= 0 ? none : undefined;
          stride *= 2;
        }
        const above = Math.max(from, below - stride);
        below = crossing((j) => at(j).low, delta, { above, below, guess: below - 1, slope: theta * step });
      }
      const above = below - 1;
      const [first, second] = [at(above)[bound], at(below)[bound]];
      const share = first > second ? Math.min(1, Math.max(0, (first - delta) / (first - second))) : 1;
      const epsilon = Math.max(0, lossAt(above) + Math.log1p(share * Math.expm1(step)));
      return { epsilon, blur: at(below).blur / delta };
    },
  };
}

/** How many points a tilted sum needs: a power of 2 with some room. */
export const pointsOf = ({ low, high, step }: Pick<Tilted, 'low' | 'high' | 'step'>): number =>
  Math.max(16, 2 ** Math.ceil(Math.log2((high - low) / step + 4)));

/** The j with f(j) ≤ bound < f(j − 1), between `above`, where f is larger, and `below`, where it is not. */
function crossing(
  f: (j: number) => number, bound: number,
  start: { readonly above: number; readonly below: number; readonly guess: number; readonly slope: number },
): number {
  let { above, below, guess, slope } = start;
  let last: readonly [number, number] | undefined;
  for (let pass = 1; below - above > 1; pass++) {
    const within = pass % 4 === 0 || !Number.isFinite(guess) ? (above + below) / 2 : guess;
    const j = Math.min(below - 1, Math.max(above + 1, Math.round(within)));
    const value = f(j);
    if (value <= bound) below = j;
    else above = j;
    // log f is nearly a line; a little past the crossing, so that both its ends are soon known.
    const log = Math.log(value / bound);
    if (last !== undefined && last[0] !== j) slope = (last[1] - log) / (j - last[0]);
    last = [j, log];
    guess = j + log / slope + (value <= bound ? -0.5 : 0.5);
  }
  return below;
}

/** One draw needs no sum. */
export function oneLoss({ log, infinity, step }: LossMass, losses: Float64Array): Tail {
  const order = [...losses.keys()].sort((a, b) => losses[b]! - losses[a]!);
  const at = (epsilon: number): Bracket => {
    let sum = 0;
    for (const k of order) {
      if (losses[k]! <= epsilon) break;
      sum += Math.exp(log[k]!) * -Math.expm1(epsilon - losses[k]!);
    }
    return { low: sum * (1 - 10 * massError), high: Math.min(1, infinity + sum * (1 + 10 * massError)) };
  };
  return {
    delta: at,
    epsilon(delta, bound) {
      if (at(0)[bound] <= delta) return { epsilon: 0, blur: 0 };
      if (bound === 'high' && infinity > delta) return undefined;
      let [above, below] = [0, losses[order[0]!]!];
      while (below - above > 1e-12 * below && below - above > 1e-9 * step) {
        const middle = (above + below) / 2;
        if (at(middle)[bound] <= delta) below = middle;
        else above = middle;
      }
      return { epsilon: bound === 'high' ? below : above, blur: 0 };
    },
  };
}

/** 1 − e^{−x + 2πit} as [real, imaginary], without cancellation for small x and t. */
function oneMinus(x: number, turns: number): readonly [number, number] {
  const rho = Math.exp(-x);
  const sine = Math.sin(Math.PI * turns);
  return [-Math.expm1(-x) + 2 * rho * sine * sine, -rho * Math.sin(2 * Math.PI * turns)];
}
