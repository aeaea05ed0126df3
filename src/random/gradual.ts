import { GhostgradError } from '../errors.ts';
import { addDraws, pointsOf, smoothing, varianceOf } from './discrete-gaussian.ts';
import { addGaussian } from './gaussian.ts';
import { type NoiseLaw, type NoiseTarget, type StreamOf, chunksIn } from './noise.ts';

/**
 * Noise that is added release by release, each on top of what is there: of real numbers the standard deviations, or on a
 * grid, whole numbers of its points, each a sum of `factor` times a draw of `levels` levels.
 */
export type GradualNoise =
  | { readonly deviations: readonly number[] }
  | { readonly grid: number; readonly draws: readonly (readonly ScaledDraw[])[] };

interface ScaledDraw {
  readonly levels: number;
  readonly factor: number;
}

/** Between draws of more levels, variance need not be counted in single steps of the grid to be counted finely. */
const strideOf = (levels: number): number => 36 ** Math.max(0, levels - 3);

/** Deviations on a grid, in points: all that is added up then stays where float64 has every whole number. */
const farthest = 2 ** 42;

/**
 * Noise of `law`, and on top of it, release by release, what makes it as private as a continuous Gaussian whose deviation is
 * `ratios` times that of `law`; on a grid a little more, by less than 1/1297 of the variance of two levels (docs/noise.md has
 * the proof).
 *
 * On a grid, with V = c·u the variance by then and u = v·stride², a draw times a·stride adds a²·u. The sum keeps to a discrete
 * Gaussian where v·V/(V + a²·u) is no less than v/(1 + 36²), that is where a² ≤ 36²·c: what is more waits until less was added.
 *
 * @param ratios each at least 1 and at least the one before it
 * @throws GhostgradError where float64 could not hold the sums
 */
export function gradualNoise(law: NoiseLaw, ratios: readonly number[]): GradualNoise {
  const before = (k: number): number => ratios[k - 1] ?? 1;
  if (!('grid' in law))
    return { deviations: [1, ...ratios.map((ratio, k) => Math.sqrt(ratio ** 2 - before(k) ** 2))].map((x) => x * law.deviation) };
  const { grid, levels } = law;
  const stride = strideOf(levels);
  const unit = varianceOf(1) * stride ** 2;
  const first = varianceOf(levels);
  if (!(Math.sqrt(first) * (ratios.at(-1) ?? 1) <= farthest)) throw tooLarge(ratios.at(-1) ?? 1);
  /** Units to be added to the first variance, that of rounding a continuous Gaussian included. */
  const units = ratios.map((ratio) => Math.max(0, Math.ceil(((first - smoothing) * ratio ** 2 + smoothing - first) / unit)));
  return {
    grid,
    draws: [[{ levels, factor: 1 }], ...units.map((n, k) => {
      const added = units[k - 1] ?? 0;
      return squares(n - added, first / unit + added).map((a) => ({ levels: 1, factor: a * stride }));
    })],
  };
}

const tooLarge = (ratio: number): GhostgradError => new GhostgradError({
  what: 'noise of so many points is beyond what a grid of whole numbers holds', where: 'privacy.epsilon',
  found: `${ratio.toPrecision(3)} times the noise of the largest ε`, fix: 'ε closer to one another, or noise: float',
});

/** Whole numbers whose squares add up to `n`; each square is at most 36² times `c` and the squares before it. */
function squares(n: number, c: number): number[] {
  if (n <= 0) return [];
  const a = Math.min(Math.floor(Math.sqrt(n)), Math.floor(36 * Math.sqrt(c)));
  return [a, ...squares(n - a * a, c + a * a)];
}

/**
 * The noised values·scale, release by release. The first is what `addNoise` makes of the target, to the last bit; each
 * further one is the one before it with more noise. The target stays as it is.
 *
 * @param noise made of the target's law
 * @param streamOf of a key that serves nothing else under the target's label
 * @throws GhostgradError when a value is not finite
 */
export function noisedGradually(
  { label, values, remainder }: Omit<NoiseTarget, 'law'>, noise: GradualNoise, scale: number, streamOf: StreamOf,
): readonly Float32Array[] {
  const isGrid = 'grid' in noise;
  const sums = isGrid ? pointsOf(values, remainder, noise.grid) : Float64Array.from(values, (x, i) => x + (remainder?.[i] ?? 0));
  const unit = isGrid ? noise.grid * scale : scale;
  const releases: readonly ((part: Float64Array, source: ReturnType<StreamOf>) => void)[] = isGrid
    ? noise.draws.map((draws) => (part, source) => { for (const { levels, factor } of draws) addDraws(part, levels, source, factor); })
    : noise.deviations.map((deviation) => (part, source) => { addGaussian(part, undefined, deviation, source); });
  const released = releases.map((add, k) => {
    // A stream of its own for every release: no number of a key serves twice.
    const name = k === 0 ? label : `further ${k}:${label}`;
    for (const { start, end, index } of chunksIn(values.length)) add(sums.subarray(start, end), streamOf(name, index));
    return Float32Array.from(sums, (x) => x * unit);
  });
  sums.fill(0);
  return released;
}
