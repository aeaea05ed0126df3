import { GhostgradError } from '../errors.ts';
import type { AdaptiveThresholds } from './quantiles.ts';
import type { MeasuresPlan } from './measures.ts';
import type { Sampling } from './sampling.ts';

/**
 * **Gradual release** (Koufogiannis, Han & Pappas 2016): of one clipped sum, noised for the largest ε, and again for each
 * smaller one by adding more noise to the release before. All of them together are post-processing of the first, so they
 * spend the largest ε; and each by itself is the sum with as much Gaussian noise as its own ε asks for.
 */

/** The release of the largest ε, as a further one has to know it. */
export interface FirstRelease {
  /** σ of the noise that is on every release; the grid of discrete noise follows from it. */
  readonly noiseMultiplier: number;
  /** ε of all releases together. */
  readonly epsilon: number;
}

/** The most models that one sum may be released for. */
export const mostReleases = 32;

/**
 * Throws GhostgradError where a plan of several ε is more than one full-batch step on fixed terms, and for ε that are not
 * below `epsilon`, or named twice.
 */
export function checkGradual(further: readonly number[], { epsilon, sampling, steps, adaptive, metrics }: {
  readonly epsilon?: number | undefined;
  readonly sampling: Sampling;
  readonly steps: number;
  readonly adaptive?: AdaptiveThresholds | undefined;
  readonly metrics?: MeasuresPlan | undefined;
}): void {
  const refuse = (what: string, found: string, expected: string, fix: string): never => {
    throw new GhostgradError({ what: `several ε: ${what}`, where: 'privacy.epsilon', found, expected, fix });
  };
  const one = 'give one epsilon';
  if (steps !== 1) {
    refuse('a second step would start from other parameters for each ε, and so from another sum', `${steps} steps`, 'steps: 1', `training.steps: 1, or ${one}`);
  }
  if (sampling !== 'full-batch')
    refuse('one step takes all of the data', `sampling ${sampling}`, 'full-batch', `training.fullBatch: true, or ${one}`);
  if (adaptive !== undefined)
    refuse('thresholds cannot adapt in one step', 'adaptive thresholds', 'fixed ones', `clipping.threshold: fixed, or ${one}`);
  if (metrics !== undefined) {
    refuse('metrics of one step tell of the model before it, which learned nothing', 'privacy.metrics', 'none', `remove privacy.metrics, or ${one}`);
  }
  const all = epsilon === undefined ? further : [epsilon, ...further];
  if (epsilon === undefined) refuse('they follow from ε, not from noise', 'noiseMultiplier', 'epsilon', 'remove noiseMultiplier');
  if (all.length > mostReleases) refuse('too many models of one sum', `${all.length}`, `at most ${mostReleases}`, 'leave some out');
  const twice = all.find((value, k) => all.indexOf(value) !== k);
  if (twice !== undefined) refuse('each names a model of its own', `${twice} twice`, 'each once', 'remove one');
  if (all.some((value) => value > all[0]!)) refuse('the largest one comes first', all.join(', '), 'falling ε', 'sort them');
}
