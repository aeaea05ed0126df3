import type { LossMass } from './loss-grid.ts';
import { type Product, type Spectrum, type Weights, product, spectrum } from './loss-spectrum.ts';
import { type Bracket, type Crossing, type Tail, massError, mostPoints, oneLoss, pointsOf, tiltedSum } from './loss-tilted.ts';

/**
 * Sums of independent privacy losses: `counts[i]` draws of the i-th mass, all on lattices of one step. Their sum's
 * distribution is the product of Fourier transforms, each to a power. It is not computed as it stands, where tails below
 * the rounding of float64 are lost, but tilted by e^{θ·loss}/E e^{θ·loss}, with θ such that what is asked for is in the
 * middle of it: every error is then relative to the tail that is asked for, however small.
 */
export interface LossSum {
  /** Bounds of δ(e^ε) after `counts` draws; `high` counts what was cut off and rounded against us, `low` for us. */
  delta(counts: readonly number[], epsilon: number): Bracket;
  /** The least ε ≥ 0 with δ(e^ε) ≤ delta by the bound that is asked for; Infinity where there is none, or none was found. */
  epsilon(counts: readonly number[], delta: number, bound: keyof Bracket): number;
  /** Points of the lattice that a sum's tilted distribution for this δ needs. */
  size(counts: readonly number[], delta: number): number;
}

/** log E e^{θ·loss} of a sum, and mean and variance of it tilted; `relative` error of a probability of one draw's. */
interface Cumulants {
  readonly log: number;
  readonly mean: number;
  readonly variance: number;
  readonly relative: number;
}

/** Tilts are on one scale, so that sums share them. */
const perOctave = 8;
const powers = Float64Array.from({ length: perOctave }, (_, i) => 2 ** (i / perOctave));
const thetaOf = (e: number): number => 2 ** Math.floor(e / perOctave) * powers[e & (perOctave - 1)]!;
/** Which other tilts are tried to bound a window: this many steps of the scale away. */
const strides = [1, 2, 3, 4, 6, 8, 11, 16, 24, 40, 64, 96];
/** An ε whose allowance for rounding moves it by less than this, relative, is taken. */
const smallBlur = 1e-5;

/** `least` δ that will be asked for: this much less may be cut off of a tilted distribution. */
export function lossSum(masses: readonly LossMass[], least: number): LossSum {
  const cut = Math.min(1e-10, 1e-4 * least);
  const step = masses[0]!.step;
  const tilts = masses.map(tilter);
  let lastTilt = 0;

  const total = (counts: readonly number[], theta: number): Cumulants => {
    let sum = { log: 0, mean: 0, variance: 0, relative: 0 };
    for (let i = 0; i < counts.length; i++) {
      const count = counts[i]!;
      if (count === 0) continue;
      const { log, mean, variance, relative } = tilts[i]!.cumulants(theta);
      sum = {
        log: sum.log + count * log, mean: sum.mean + count * mean, variance: sum.variance + count * variance,
        relative: sum.relative + count * relative,
      };
    }
    return sum;
  };

  /** The first tilt on the scale at which `reached`, which it stays. */
  const tilt = (counts: readonly number[], reached: (c: Cumulants, theta: number) => boolean): number => {
    const deviation = Math.sqrt(total(counts, 0).variance) || step;
    const first = Math.floor(perOctave * Math.log2(0.01 / deviation));
    const last = Math.ceil(perOctave * Math.log2(60 / step));
    const at = (e: number): boolean => reached(total(counts, thetaOf(e)), thetaOf(e));
    let e = Math.min(last, Math.max(first, lastTilt));
    if (at(e)) while (e > first && at(e - 1)) e -= 1;
    else while (e < last && !at(e)) e += 1;
    return (lastTilt = e);
  };

  /**
   * Losses between which all but `cut` of the tilted sum lies on either side, by Chernoff: P(S ≥ t) ≤
   * E e^{(θ+η)S} / E e^{θS} · e^{−ηt} for each η > 0, and likewise below.
   */
  const windowAt = (counts: readonly number[], e: number): { readonly low: number; readonly high: number } => {
    const theta = thetaOf(e);
    const { log, mean, variance } = total(counts, theta);
    const bound = (other: number): number => (total(counts, other).log - log - Math.log(cut)) / (other - theta);
    let [low, high] = [bound(0), Infinity];
    for (const stride of strides) {
      high = Math.min(high, bound(thetaOf(e + stride)));
      low = Math.max(low, bound(thetaOf(e - stride)));
    }
    // Where the tilt is little for how the sum spreads, the tilt to the other side says more.
    const spread = Math.ceil(perOctave * Math.log2(1 / Math.max(Math.sqrt(variance), step)));
    for (let i = 0; i <= 4; i++) low = Math.max(low, bound(-thetaOf(spread + i * perOctave)));
    for (let i = 1; i <= 4; i++) if (spread + i * perOctave > e) high = Math.min(high, bound(thetaOf(spread + i * perOctave)));
    return { low: Math.min(low, mean - step), high: Math.max(high, mean + step) };
  };
  const pointsAt = (counts: readonly number[], e: number): number => pointsOf({ ...windowAt(counts, e), step });

  /** What counted for the fewest draws so far, of the tilts asked for last. */
  const counted = new Map<string, { readonly counts: readonly number[]; readonly r: Int32Array }>();
  const productAt = (counts: readonly number[], theta: number, n: number): Product => {
    const key = `${theta}/${n}`;
    const before = counted.get(key);
    const fewer = before?.counts.every((count, i) => count <= counts[i]!) === true ? before : undefined;
    const made = product(counts.map((count, i) => ({ count, spectrum: tilts[i]!.spectrum(theta, n) })), n, fewer?.r);
    counted.delete(key);
    if (counted.size >= keptSpectra) counted.delete(counted.keys().next().value!);
    counted.set(key, { counts, r: made.r });
    return made;
  };

  const tailAt = (counts: readonly number[], e: number): Tail => {
    const theta = thetaOf(e);
    const { log, mean, relative } = total(counts, theta);
    const offset = counts.reduce((sum, count, i) => sum + count * masses[i]!.offset, 0);
    return tiltedSum({
      theta, log, mean, step, offset, cut, ...windowAt(counts, e),
      infinity: unbounded(masses, counts),
      relative: relative + 8 * 2 ** -53 * (Math.abs(log) + Math.abs(theta * mean)),
      product: (n) => productAt(counts, theta, n),
    });
  };

  const singleDraw = (counts: readonly number[]): Tail | undefined => {
    if (counts.reduce((sum, count) => sum + count, 0) !== 1) return undefined;
    const i = counts.indexOf(1);
    return oneLoss(masses[i]!, tilts[i]!.losses);
  };

  /**
   * Tilts to be tried, best first: from `e` on down. Heavy-tailed losses leap, from one tilt to the next, from the middle of
   * what is likely to the far end of what is possible: then the tilts before that serve, the largest best, as far as few
   * points hold them.
   */
  function* tiltsFrom(counts: readonly number[], e: number): Generator<number> {
    const fewest = pointsAt(counts, e - 12);
    let any = false;
    for (const change of [0, -1, 1, -2, -3, -4, -6, -8, -10, -12, -16, -20, -24]) {
      if (pointsAt(counts, e + change) > Math.min(mostPoints, Math.max(2 ** 12, 8 * fewest))) continue;
      any = true;
      yield e + change;
    }
    if (!any) yield e - 32;
  }

  /** Where Chernoff's bound of ε, (log E e^{θ·loss} − log δ)/θ, is least: where a tilt's entropy reaches −log δ. */
  const tiltFor = (counts: readonly number[], delta: number): number =>
    tilt(counts, ({ log, mean }, theta) => theta * mean - log >= -Math.log(delta));

  return {
    delta(counts, epsilon) {
      const single = singleDraw(counts);
      if (single !== undefined) return single.delta(epsilon);
      let [low, high] = [0, 1];
      for (const e of tiltsFrom(counts, tilt(counts, ({ mean }) => mean >= epsilon))) {
        const found = tailAt(counts, e).delta(epsilon);
        [low, high] = [Math.max(low, found.low), Math.min(high, found.high)];
        if (high - low < smallBlur * high) break;
      }
      return { low, high };
    },
    epsilon(counts, delta, bound) {
      if (unbounded(masses, counts) > delta) return Infinity;
      const none = bound === 'high' ? Infinity : 0;
      const single = singleDraw(counts);
      if (single !== undefined) return single.epsilon(delta, bound)?.epsilon ?? none;
      let best: number | undefined;
      const better = ({ epsilon }: Crossing): boolean =>
        best === undefined || (bound === 'high' ? epsilon < best : epsilon > best);
      for (const e of tiltsFrom(counts, tiltFor(counts, delta))) {
        const found = tailAt(counts, e).epsilon(delta, bound);
        if (found === undefined) continue;
        // δ falls by about e^{−θ·change} where ε grows.
        const moved = found.blur / (thetaOf(e) * found.epsilon);
        if (better(found)) best = found.epsilon;
        if (found.epsilon === 0 || moved < smallBlur) break;
      }
      return best ?? none;
    },
    size(counts, delta) {
      for (const e of tiltsFrom(counts, tiltFor(counts, delta))) return pointsAt(counts, e);
      return Infinity;
    },
  };
}

/** P(any loss is unbounded), rounded up. */
const unbounded = (masses: readonly LossMass[], counts: readonly number[]): number =>
  Math.min(1, counts.reduce((sum, count, i) => sum + count * masses[i]!.infinity, 0) * (1 + 1e-9));

interface Tilter {
  readonly losses: Float64Array;
  cumulants(theta: number): Cumulants;
  spectrum(theta: number, n: number): Spectrum;
}

/** So many spectra of one mass are kept: questions follow one another closely. */
const keptSpectra = 6;

/** One mass under any tilt. */
function tilter(mass: LossMass): Tilter {
  const { log, index, offset, step } = mass;
  const losses = Float64Array.from(index, (k) => offset + step * k);
  const known = new Map<number, Cumulants>();
  const spectra = new Map<string, Spectrum>();
  const cumulants = (theta: number): Cumulants => {
    const found = known.get(theta);
    if (found !== undefined) return found;
    const made = cumulantsOf(log, losses, theta);
    known.set(theta, made);
    return made;
  };
  return {
    losses,
    cumulants,
    spectrum: (theta, n) => {
      const key = `${theta}/${n}`;
      const found = spectra.get(key);
      if (found !== undefined) return found;
      const { log: total } = cumulants(theta);
      const weights: Weights = { index, x: log.map((value, k) => Math.exp(value + theta * losses[k]! - total)) };
      const made = spectrum(weights, n);
      if (spectra.size >= keptSpectra) spectra.delete(spectra.keys().next().value!);
      spectra.set(key, made);
      return made;
    },
  };
}

function cumulantsOf(log: Float64Array, loss: Float64Array, theta: number): Cumulants {
  let largest = -Infinity;
  for (let k = 0; k < log.length; k++) largest = Math.max(largest, log[k]! + theta * loss[k]!);
  let [sum, lost, first, size] = [0, 0, 0, 0];
  const weights = new Float64Array(log.length);
  for (let k = 0; k < log.length; k++) {
    const exponent = log[k]! + theta * loss[k]! - largest;
    const weight = Math.exp(exponent);
    weights[k] = weight;
    // A compensated sum: it is the scale of every draw.
    const add = weight - lost;
    const next = sum + add;
    lost = next - sum - add;
    sum = next;
    first += weight * loss[k]!;
    if (exponent > -60) size = Math.max(size, Math.abs(log[k]!) + Math.abs(theta * loss[k]!));
  }
  const mean = first / sum;
  let second = 0;
  for (let k = 0; k < log.length; k++) second += weights[k]! * (loss[k]! - mean) ** 2;
  const total = largest + Math.log(sum);
  return {
    log: total, mean, variance: second / sum,
    relative: massError + 8 * 2 ** -53 * (size + Math.abs(total)),
  };
}
