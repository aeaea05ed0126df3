import type { Value } from '../ops/builder.ts';
import type { Contraction } from './contraction.ts';
import { type LayerPlan, costsOf } from './plan.ts';

interface Planned {
  readonly does: Contraction;
  readonly contraction: Contraction['size'];
  readonly plan: LayerPlan;
}

/**
 * Layers whose output gradients are those of a layer with a ghost norm, which forms their Gram matrices anyway, take
 * their norms from those: a bias needs no pass over its output gradients before the one that sums them.
 */
export function withSharedGrams<T extends Planned>(layers: readonly T[]): readonly T[] {
  const formed = new Map<Value, NonNullable<Contraction['outputGram']>>(layers.flatMap(({ does, plan }) => (
    plan.norm === 'ghost' && does.outputGradient !== undefined && does.outputGram !== undefined
      ? [[does.outputGradient, does.outputGram]] : []
  )));
  return layers.map((layer) => {
    const { does, plan } = layer;
    const gram = does.ghost === undefined ? formed.get(does.outputGradient ?? '') : undefined;
    if (gram === undefined || does.fromGram === undefined) return layer;
    const shared = does.fromGram(gram);
    return {
      ...layer, does: { ...does, ...shared }, contraction: shared.size,
      plan: {
        ...plan, norm: 'ghost', sum: 'product', costs: costsOf(shared.size),
        reason: 'the Gram matrices of its output gradients are formed for another parameter',
      },
    };
  });
}
