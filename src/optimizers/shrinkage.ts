import { type UsableGradient, noiseOf, valuesOf } from './gradient.ts';
import type { Optimizer } from './optimizer.ts';

/**
 * What each parameter's noised gradient is multiplied by: max(0, 1 − (d − 2)·σ²/‖g‖²), for d numbers with noise of standard
 * deviation σ. For d ≥ 3 and Gaussian noise the product is nearer to the gradient before its noise, in mean square, than g is,
 * whatever that gradient be (James & Stein 1961, positive part; as post-processing of private sums Balle & Wang, ICML 2018).
 * 1 where there is no noise, and for d < 3.
 */
export function shrinkageOf(gradient: Float32Array, deviation: number): number {
  const d = gradient.length;
  if (d < 3 || deviation === 0) return 1;
  let square = 0;
  for (let i = 0; i < d; i++) square += gradient[i]! ** 2;
  return Math.max(0, 1 - (d - 2) * deviation ** 2 / square);
}

/** An optimizer that follows shrunk gradients ({@link shrinkageOf}), whose arrays it overwrites. Costs no privacy. */
export const shrunk = (optimizer: Optimizer): Optimizer => ({
  ...optimizer,
  update: (parameters, gradient, state, learningRate) => {
    shrink(gradient);
    return optimizer.update(parameters, gradient, state, learningRate);
  },
});

function shrink(usable: UsableGradient): void {
  const deviations = noiseOf(usable);
  for (const [name, gradient] of valuesOf(usable)) {
    const factor = shrinkageOf(gradient, deviations.get(name) ?? 0);
    if (factor !== 1) for (let i = 0; i < gradient.length; i++) gradient[i]! *= factor;
  }
}
