import { circle, realTransform, transformError } from './fft.ts';
import type { LossMass } from './loss-grid.ts';

/**
 * Sums of independent privacy losses: `counts[i]` draws of the i-th mass, all on lattices of one step. Their sum's
 * distribution is the product of Fourier transforms, each to a power. It is not computed as it stands, where tails below
 * the rounding of float64 are lost, but tilted by e^{θ·loss}/E e^{θ·loss}, with θ such that what is asked for is in the
 * middle of it: every error is then relative to the tail that is asked for, however small. δ(e^ε) = Σ p(l)·(1 − e^{ε−l})
 * over the losses l > ε is a sum over frequencies with the geometric series in closed form, of which few count after
 * thousands of draws.
 */
export interface LossSum {
  /** Bounds of δ(e^ε) after `counts` draws; `high` counts what was cut off and rounded against us, `low` for us. */
  delta(counts: readonly number[], epsilon: number): Bracket;
  /** The least ε ≥ 0 with δ(e^ε) ≤ delta by the bound that is asked for; Infinity where there is none. */
  epsilon(counts: readonly number[], delta: number, bound: keyof Bracket): number;
  /** Points of the lattice that a sum's tilted distribution for this δ needs. */
  size(counts: readonly number[], delta: number): number;
}

export interface Bracket {
  readonly low: number;
  readonly high: number;
}

/** A mass tilted by e^{θ·loss}, as frequencies r = 0 … n/2 of its transform. */
interface Spectrum {
  readonly logAbs: Float64Array;
  /** Without the turn by the point `at`. */
  readonly arg: Float64Array;
  readonly at: number;
  /** L2 norm of what was transformed, which its rounding error is relative to. */
  readonly norm: number;
}

/** log E e^{θ·loss} of a sum, and mean and variance of it tilted. */
interface Cumulants {
  readonly log: number;
  readonly mean: number;
  readonly variance: number;
}

/** The most points of a transform. */
export const mostPoints = 2 ** 22;

/** Relative error allowed for in every probability of a mass: quadrature, logarithms, tilting and their sums. */
const massError = 4e-13;
/** Tilts θ = 2^{e/4} are shared between sums. */
const thetaOf = (e: number): number => 2 ** (e / 4);

/** `least` δ that will be asked for: this much less may be cut off of a tilted distribution. */
export function lossSum(masses: readonly LossMass[], least: number): LossSum {
  const cut = Math.min(1e-10, 1e-4 * least);
  const step = masses[0]!.step;
  const losses = masses.map(({ index, offset }) => Float64Array.from(index, (k) => offset + step * k));
  const moments = masses.map(() => new Map<number, Cumulants>());
  const spectra = masses.map(() => new Map<string, Spectrum>());
  let lastTilt = 0;

  const cumulantsOf = (i: number, theta: number): Cumulants => {
    const known = moments[i]!.get(theta);
    if (known !== undefined) return known;
    const found = cumulants(masses[i]!.log, losses[i]!, theta);
    moments[i]!.set(theta, found);
    return found;
  };
  const total = (counts: readonly number[], theta: number): Cumulants =>
    counts.reduce(
      (sum, count, i) => {
        const { log, mean, variance } = cumulantsOf(i, theta);
        return { log: sum.log + count * log, mean: sum.mean + count * mean, variance: sum.variance + count * variance };
      },
      { log: 0, mean: 0, variance: 0 },
    );

  /** The first tilt on the scale at which `reached`, which it stays. */
  const tilt = (counts: readonly number[], reached: (c: Cumulants, theta: number) => boolean): number => {
    const deviation = Math.sqrt(total(counts, 0).variance) || step;
    const [least, most] = [Math.floor(4 * Math.log2(0.01 / deviation)), Math.ceil(4 * Math.log2(60 / step))];
    const at = (e: number): boolean => reached(total(counts, thetaOf(e)), thetaOf(e));
    let e = Math.min(most, Math.max(least, lastTilt));
    if (at(e)) while (e > least && at(e - 1)) e -= 1;
    else while (e < most && !at(e)) e += 1;
    return (lastTilt = e);
  };
  const sizeAt = (counts: readonly number[], e: number): number => {
    const theta = thetaOf(e);
    const { low, high } = window(total(counts, theta), theta, { step, cut }, (t) => total(counts, t).log);
    return (high - low) / step;
  };

  /** Where Chernoff's bound of ε, (log E e^{θ·loss} − log δ)/θ, is least: where a tilt's entropy reaches −log δ. */
  const tiltFor = (counts: readonly number[], delta: number): number => {
    const entropy = ({ log, mean }: Cumulants, theta: number): number => theta * mean - log;
    const e = tilt(counts, (c, theta) => entropy(c, theta) >= -Math.log(delta));
    const before = thetaOf(e - 1);
    if (entropy(total(counts, before), before) >= -0.3 * Math.log(delta)) return e;
    // Heavy-tailed losses leap: from one tilt to the next, their middle goes to the far end of what is possible. The
    // narrowest of the tilts before that serves best.
    const sizes = Array.from({ length: 10 }, (_, i) => sizeAt(counts, e - 1 - i));
    return e - 1 - sizes.indexOf(Math.min(...sizes));
  };

  const spectrumOf = (i: number, theta: number, n: number): Spectrum => {
    const key = `${theta}/${n}`;
    const known = spectra[i]!.get(key);
    if (known !== undefined) return known;
    const found = spectrum(masses[i]!, losses[i]!, theta, cumulantsOf(i, theta).log, n);
    spectra[i]!.set(key, found);
    return found;
  };

  const tilted = (counts: readonly number[], e: number): Tilted => {
    const theta = thetaOf(e);
    const here = total(counts, theta);
    const offset = counts.reduce((sum, count, i) => sum + count * masses[i]!.offset, 0);
    const infinity = 1 - counts.reduce((rest, count, i) => rest * (1 - masses[i]!.infinity) ** count, 1);
    return tiltedSum({
      theta, step, offset, counts,
      infinity: counts.every((count, i) => count * masses[i]!.infinity < 1e-3)
        ? counts.reduce((sum, count, i) => sum + count * masses[i]!.infinity, 0)
        : infinity,
      cumulants: here,
      cut,
      window: window(here, theta, { step, cut }, (t) => total(counts, t).log),
      spectrum: (i, n) => spectrumOf(i, theta, n),
    });
  };

  const singleDraw = (counts: readonly number[]): Tilted | undefined => {
    if (counts.reduce((sum, count) => sum + count, 0) !== 1) return undefined;
    const i = counts.indexOf(1);
    return oneLoss(masses[i]!, losses[i]!);
  };

  return {
    delta(counts, epsilon) {
      const single = singleDraw(counts);
      if (single !== undefined) return single.delta(epsilon);
      const e = tilt(counts, ({ mean }) => mean >= epsilon);
      return tilted(counts, e).delta(epsilon);
    },
    epsilon(counts, delta, bound) {
      const single = singleDraw(counts);
      if (single !== undefined) return single.epsilon(delta, bound) ?? (bound === 'high' ? Infinity : 0);
      // Where losses are heavy-tailed, the next tilts may serve where this one does not.
      const first = tiltFor(counts, delta);
      for (const change of [0, 1, -1, 2, -2, 3, -3, -4, -5, -6, -8, -10, -12]) {
        const found = tilted(counts, first + change).epsilon(delta, bound);
        if (found !== undefined) return found;
      }
      return bound === 'high' ? Infinity : 0;
    },
    size: (counts, delta) => sizeAt(counts, tiltFor(counts, delta)),
  };
}

function cumulants(log: Float64Array, loss: Float64Array, theta: number): Cumulants {
  let largest = -Infinity;
  for (let k = 0; k < log.length; k++) largest = Math.max(largest, log[k]! + theta * loss[k]!);
  let [sum, first] = [0, 0];
  const weights = new Float64Array(log.length);
  for (let k = 0; k < log.length; k++) {
    const weight = Math.exp(log[k]! + theta * loss[k]! - largest);
    weights[k] = weight;
    sum += weight;
    first += weight * loss[k]!;
  }
  const mean = first / sum;
  let second = 0;
  for (let k = 0; k < log.length; k++) second += weights[k]! * (loss[k]! - mean) ** 2;
  return { log: largest + Math.log(sum), mean, variance: second / sum };
}

/**
 * The largest probability is set apart: what is transformed is the rest, and its error is relative to that, which is
 * little where most draws have one loss.
 */
function spectrum(mass: LossMass, loss: Float64Array, theta: number, logTotal: number, n: number): Spectrum {
  const x = new Float64Array(n);
  for (let k = 0; k < loss.length; k++)
    x[mod(mass.index[k]!, n)]! += Math.exp(mass.log[k]! + theta * loss[k]! - logTotal);
  const largest = x.reduce((best, value, k) => (value > x[best]! ? k : best), 0);
  x[largest] = 0;
  const [rest, square] = [x.reduce((sum, value) => sum + value, 0), x.reduce((sum, value) => sum + value * value, 0)];
  const { re, im } = realTransform(x);
  const { cos, sin } = circle(n);
  const logAbs = new Float64Array(re.length);
  const arg = new Float64Array(re.length);
  for (let r = 0; r < re.length; r++) {
    // Turned so that the largest is at 0, f = 1 + u + iv.
    const k = (r * largest) % n;
    const u = re[r]! * cos[k]! - im[r]! * sin[k]! - rest;
    const v = re[r]! * sin[k]! + im[r]! * cos[k]!;
    logAbs[r] = 0.5 * Math.log1p(Math.max(-1, 2 * u + u * u + v * v));
    arg[r] = Math.atan2(v, 1 + u);
  }
  return { logAbs, arg, at: largest, norm: Math.sqrt(square) + rest / Math.sqrt(n) };
}

/**
 * Losses between which all but `cut` of the tilted sum lies on either side, by Chernoff: P(S ≥ t) ≤
 * E e^{(θ+η)S} / E e^{θS} · e^{−ηt} for each η > 0, and likewise below.
 */
function window(
  { log, mean, variance }: Cumulants, theta: number, { step, cut }: { readonly step: number; readonly cut: number },
  logAt: (theta: number) => number,
): { readonly low: number; readonly high: number } {
  const deviation = Math.max(Math.sqrt(variance), step);
  let [low, high] = [-Infinity, Infinity];
  for (let eta = 0.1; eta < 16; eta *= 1.5) {
    const shift = eta / deviation;
    high = Math.min(high, (logAt(theta + shift) - log - Math.log(cut)) / shift);
    low = Math.max(low, -(logAt(theta - shift) - log - Math.log(cut)) / shift);
  }
  return { low: Math.min(low, mean - step), high: Math.max(high, mean + step) };
}

interface Tilted {
  delta(epsilon: number): Bracket;
  /** Undefined where it cannot be resolved on these points. */
  epsilon(delta: number, bound: keyof Bracket): number | undefined;
}

/** A tilted sum on n points, from `window.low` on; what is beyond them on one side falls on the other. */
function tiltedSum(given: {
  readonly theta: number;
  readonly step: number;
  readonly offset: number;
  readonly counts: readonly number[];
  readonly infinity: number;
  readonly cut: number;
  readonly cumulants: Cumulants;
  readonly window: { readonly low: number; readonly high: number };
  spectrum(i: number, n: number): Spectrum;
}): Tilted {
  const { theta, step, offset, counts, infinity, cut, cumulants: here, window: { low, high } } = given;
  const n = Math.max(16, 2 ** Math.ceil(Math.log2((high - low) / step + 4)));
  const bottom = Math.floor((low - offset) / step) - 1;
  const top = bottom + n;
  const lossAt = (j: number): number => offset + step * j;
  if (n > mostPoints) {
    // Too fine to be computed: bounded, and not resolved.
    return { delta: () => ({ low: 0, high: 1 }), epsilon: (_, bound) => (bound === 'high' ? Infinity : 0) };
  }
  const { cos, sin } = circle(n);
  const frequencies = product(counts.map((count, i) => ({ count, ...given.spectrum(i, n) })), n);
  const draws = counts.reduce((sum, count) => sum + count, 0);
  const rho = Math.exp(-theta * step);
  const decay = Math.exp(-step);
  // Each frequency's share, over (1 − a)(1 − a·e^{−step}) with a = ρ·e^{iφ}.
  const { length: size, r: rs, re: res, im: ims } = frequencies;
  let sumOfShares = 0;
  for (let i = 0; i < size; i++) {
    const r = rs[i]!;
    const [aRe, aIm] = oneMinus(theta * step, r / n);
    const [bRe, bIm] = oneMinus((theta + 1) * step, r / n);
    const [dRe, dIm] = [aRe * bRe - aIm * bIm, aRe * bIm + aIm * bRe];
    const scale = (r === 0 || r === n / 2 ? 1 : 2) / n / (dRe * dRe + dIm * dIm);
    const [re, im] = [res[i]!, ims[i]!];
    res[i] = (re * dRe + im * dIm) * scale;
    ims[i] = (im * dRe - re * dIm) * scale;
    sumOfShares += Math.hypot(res[i]!, ims[i]!);
  }
  const x = rho * rho;
  const weightNorm = Math.min(1 / Math.sqrt(-Math.expm1(-2 * theta * step)), step * Math.sqrt((x * (1 + x)) / (-Math.expm1(-2 * theta * step)) ** 3));
  /** The most that a loss above ε weighs: e^{−θx}·(1 − e^{−x}). */
  const most = Math.min(1, 1 / (Math.E * theta));

  /** Bounds of δ at the j-th point of the lattice, bottom ≤ j < top. */
  const at = (j: number): Bracket => {
    const length = top - j;
    const whole = rho * -Math.expm1(-step);
    const rest = rho ** length;
    const endRe = -Math.expm1(-step * length);
    const endTurned = rho * decay * -Math.expm1(-step * (length - 1));
    const [next, last] = [mod(j + 1, n), mod(top, n)];
    let sum = 0;
    for (let i = 0; i < size; i++) {
      const r = rs[i]!;
      const p = (r * next) % n;
      const q = (r * last) % n;
      const s = (q + r) % n;
      const termRe = whole * cos[p]! - rest * (endRe * cos[q]! - endTurned * cos[s]!);
      const termIm = whole * sin[p]! - rest * (endRe * sin[q]! - endTurned * sin[s]!);
      sum += res[i]! * termRe - ims[i]! * termIm;
    }
    const error =
      weightNorm * frequencies.error +
      sumOfShares * (whole + rest * (endRe + endTurned)) * 32 * 2 ** -53 +
      sum * draws * massError;
    // Above the window: missing. Fallen into it from either side: too much, which only the lower bound must not have.
    const span = step * length;
    const missing = cut * (theta * span >= 1 ? Math.exp(-theta * span) * Math.min(1, span) : most);
    const scale = Math.exp(here.log - theta * lossAt(j));
    return {
      low: Math.max(0, scale * (sum - error - 2 * cut * most)),
      high: Math.min(1, infinity + scale * (sum + error + missing)),
    };
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
      if (infinity > delta) return Infinity;
      const from = Math.max(bottom, Math.floor(-offset / step));
      const crossing = (bound: keyof Bracket, above: number, below: number): number => {
        while (below - above > 1) {
          const middle = (above + below) >> 1;
          if (at(middle)[bound] <= delta) below = middle;
          else above = middle;
        }
        return below;
      };
      if (from >= top - 1) return lossAt(top - 1) <= 0 ? 0 : undefined;
      if (at(from).high <= delta) return lossAt(from) <= 0 ? 0 : undefined;
      if (!(at(top - 1).high <= delta)) return undefined;
      let below = crossing('high', from, top - 1);
      if (bound === 'low') {
        // Far below, nothing is left of the lower bound: it is followed downwards from the upper one.
        let stride = 1;
        while (!(at(Math.max(from, below - stride)).low > delta)) {
          if (below - stride <= from) return lossAt(from) <= 0 ? 0 : undefined;
          stride *= 2;
        }
        below = crossing('low', Math.max(from, below - stride), below);
      }
      const above = below - 1;
      const [first, second] = [at(above)[bound], at(below)[bound]];
      const share = first > second ? Math.min(1, Math.max(0, (first - delta) / (first - second))) : 1;
      return Math.max(0, lossAt(above) + Math.log1p(share * Math.expm1(step)));
    },
  };
}

/** One draw needs no sum. */
function oneLoss({ log, infinity, step }: LossMass, losses: Float64Array): Tilted {
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
      if (at(0)[bound] <= delta) return 0;
      if (bound === 'high' && infinity > delta) return Infinity;
      let [above, below] = [0, losses[order[0]!]!];
      while (below - above > 1e-12 * below && below - above > 1e-9 * step) {
        const middle = (above + below) / 2;
        if (at(middle)[bound] <= delta) below = middle;
        else above = middle;
      }
      return bound === 'high' ? below : above;
    },
  };
}

/**
 * Π f_i^{count_i} at the frequencies r where it counts, and a bound of its error as an L2 norm over the points (not the
 * frequencies): each transform's own error, `count` times, and rounding of the power's modulus and angle.
 */
function product(
  parts: readonly (Spectrum & { readonly count: number })[], n: number,
): {
  readonly length: number;
  readonly r: Float64Array;
  readonly re: Float64Array;
  readonly im: Float64Array;
  readonly error: number;
} {
  const kept = new Float64Array(n / 2 + 1);
  let length = 0;
  for (let r = 0; r <= n / 2; r++) {
    let logAbs = 0;
    for (const part of parts) if (part.count > 0) logAbs += part.count * part.logAbs[r]!;
    // Below e^−100 of the first, all of them together are far below its rounding.
    if (logAbs > -100) kept[length++] = r;
  }
  const r = kept.slice(0, length);
  const [re, im] = [new Float64Array(length), new Float64Array(length)];
  const shift = parts.reduce((sum, { count, at }) => (sum + (count % n) * at) % n, 0);
  let [square, turns] = [0, 0];
  for (let i = 0; i < length; i++) {
    let [logAbs, arg] = [0, -2 * Math.PI * (((r[i]! * shift) % n) / n)];
    for (const part of parts) {
      if (part.count === 0) continue;
      logAbs += part.count * part.logAbs[r[i]!]!;
      arg += part.count * part.arg[r[i]!]!;
    }
    const abs = Math.exp(logAbs);
    square += 2 * abs * abs;
    turns = Math.max(turns, Math.abs(arg));
    re[i] = abs * Math.cos(arg);
    im[i] = abs * Math.sin(arg);
  }
  const transforms = parts.reduce((sum, { count, norm }) => sum + count * norm, 0) * transformError(n);
  // Logarithms down to −100 and angles of some turns are exact to a few units in their last place.
  return { length, r, re, im, error: transforms + 4 * (100 + turns) * 2 ** -53 * Math.sqrt(square / n) };
}

/** 1 − e^{−x + 2πit} as [real, imaginary], without cancellation for small x and t. */
function oneMinus(x: number, turns: number): readonly [number, number] {
  const rho = Math.exp(-x);
  const sine = Math.sin(Math.PI * turns);
  return [-Math.expm1(-x) + 2 * rho * sine * sine, -rho * Math.sin(2 * Math.PI * turns)];
}

const mod = (k: number, n: number): number => ((k % n) + n) % n;
