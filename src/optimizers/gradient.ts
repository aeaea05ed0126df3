import { type Privatised, assertPrivatised } from '../privacy/sum.ts';

/** The mean gradient of each parameter, in the parameter's layout. */
export type Gradients = ReadonlyMap<string, Float32Array>;

declare const plainBrand: unique symbol;

/** A mean gradient without privacy. Only {@link plainGradient} makes one. */
export interface PlainGradient {
  readonly [plainBrand]: true;
  readonly gradients: Gradients;
}

/** What an optimizer may follow. A clipped sum before its noise is not among it. */
export type UsableGradient = Privatised | PlainGradient;

const plain = new WeakSet<object>();

/**
 * Declares a gradient usable without noise. **Only the non-private step of training may call it**, in a run whose
 * recipe says `privacy: none` (a test looks at who does).
 */
export function plainGradient(gradients: Gradients): PlainGradient {
  const result = Object.freeze({ gradients }) as PlainGradient;
  plain.add(result);
  return result;
}

/** The arrays of a gradient. Throws GhostgradError unless `privatise` or {@link plainGradient} made it. */
export function valuesOf(gradient: UsableGradient): Gradients {
  if (!plain.has(gradient)) assertPrivatised(gradient as Privatised);
  return gradient.gradients;
}

const noNoise: ReadonlyMap<string, number> = new Map();

/** Standard deviation of the noise on every number of a parameter's gradient; none for one without privacy. */
export const noiseOf = (gradient: UsableGradient): ReadonlyMap<string, number> =>
  ('deviations' in gradient ? gradient.deviations : noNoise);
