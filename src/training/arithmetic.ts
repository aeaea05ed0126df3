import { type Mode, isTwoPass } from '../clipping/plan.ts';
import type { StepLayer } from '../clipping/step-graph.ts';

type Sized = Pick<StepLayer, 'contraction' | 'plan' | 'sites'>;

const gradientSize = ({ contraction: { d, p, groups } }: Sized): number => (d / groups) * p;
/** Operations of one product: forward, input gradient or summed weight gradient, for one example. */
const product = (layer: Sized): number => 2 * (layer.contraction.T - (layer.contraction.read ?? 0)) * gradientSize(layer);

/** Operations of a parameter's norm for one example. */
export function normArithmetic(layer: Sized): number {
  const { contraction: { T, d, p, groups, gramDepth, gramProducts = T * T * (gramDepth + p) }, plan: { norm } } = layer;
  if (norm === 'ghost') return T === 1 ? 2 * (d + p) : 2 * (gramProducts + T * T * groups);
  return norm === 'instantiate' ? product(layer) + 2 * gradientSize(layer) : 0;
}

/**
 * Multiplications and additions of Gram matrices, for one example, that `layers` would form again if each formed its own:
 * queries, keys and values read the same input.
 */
function sharedArithmetic(layers: readonly Sized[]): number {
  const seen = new Set<string>();
  return layers.reduce((sum, { contraction: { T, gramDepth, gramProducts, p }, plan, sites }) => {
    const [site, ...others] = sites;
    if (plan.norm !== 'ghost' || T === 1 || gramProducts !== undefined || others.length > 0 || site?.use.kind !== 'outer') return sum;
    const key = `${site.use.input} ${p}`;
    if (seen.has(key)) return sum + 2 * T * T * gramDepth;
    seen.add(key);
    return sum;
  }, 0);
}

/** Operations of a parameter's summed gradient for one example. A gradient that the norm formed is not formed again. */
export function sumArithmetic(layer: Sized, mode: Mode): number {
  if (layer.plan.sum === 'product') return product(layer);
  const isFormed = layer.plan.norm === 'instantiate' && !isTwoPass(mode);
  return (isFormed ? 0 : product(layer)) + 2 * gradientSize(layer);
}

/**
 * What norms, sums and a second backward pass take by the complexity model (`costsOf`), memory traffic included, in
 * operations for the whole batch: what the plans of one step differ by.
 */
export function clippingCost(layers: readonly StepLayer[], batch: number, mode: Mode): number {
  return layers.reduce((sum, layer) => {
    const { plan: { norm, sum: how, costs }, sites } = layer;
    const isFormed = norm === 'instantiate' && !isTwoPass(mode);
    const summed = how === 'product' ? costs.product : costs.weighted + (isFormed ? 0 : costs.instantiate);
    const again = isTwoPass(mode) && sites.some(({ passesOn }) => passesOn) ? product(layer) : 0;
    return sum + batch * ((norm === null ? 0 : costs[norm]) + summed + again);
  }, 0);
}

/**
 * Arithmetic of the non-private step (forward, input gradients, weight gradients: a product of 2·T·d·p each) and what
 * privacy adds to it: norms, sums that cost more than a product, a second backward pass. An instantiated gradient that
 * also serves the sum saves the weighted product.
 */
export function stepArithmetic(layers: readonly StepLayer[], batch: number, mode: Mode): { extra: number; nonPrivate: number } {
  let extra = 0;
  let nonPrivate = 0;
  for (const layer of layers) {
    const { sites } = layer;
    const passesOn = sites.some((site) => site.passesOn);
    const isProduct = sites.some(({ use }) => use.kind === 'outer' || use.kind === 'convolution');
    if (isProduct) nonPrivate += batch * product(layer) * (passesOn ? 3 : 2);
    if (mode === 'non-private') continue;
    const again = isProduct && passesOn && isTwoPass(mode) ? product(layer) : 0;
    extra += batch * (normArithmetic(layer) + sumArithmetic(layer, mode) - product(layer) + again);
  }
  if (mode !== 'non-private') extra -= batch * sharedArithmetic(layers);
  return { extra, nonPrivate };
}
