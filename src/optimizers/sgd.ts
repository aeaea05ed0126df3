import { GhostgradError } from '../errors.ts';
import { type Optimizer, elementwise } from './optimizer.ts';
import { decay, flag, nonNegative, positive, readOptions } from './options.ts';

export interface SgdOptions {
  readonly learningRate: number;
  /** Share of the last direction that is kept; default 0. */
  readonly momentum?: number;
  /** Looks one momentum step ahead; needs momentum. Default false. */
  readonly nesterov?: boolean;
  /** λ of an L2 penalty λ/2·‖w‖², added to the gradient after privatisation; default 0. */
  readonly weightDecay?: number;
}

const fields = { learningRate: positive(), momentum: decay(0), nesterov: flag(false), weightDecay: nonNegative(0) };

/**
 * Stochastic gradient descent with heavy-ball or Nesterov momentum and no dampening:
 * g ← g + λw, v ← μv + g, w ← w − η·v (heavy ball) or w ← w − η·(g + μv) (Nesterov).
 * Formulas: Sutskever et al., ICML 2013, in the form where η multiplies v.
 */
export function sgd(options: SgdOptions): Optimizer {
  const read = readOptions('optimizer sgd', fields, options);
  const { momentum, nesterov, weightDecay } = read;
  if (nesterov && momentum === 0) {
    throw new GhostgradError({
      what: 'invalid option', where: 'optimizer sgd: nesterov', found: 'nesterov without momentum',
      expected: 'momentum above 0', fix: 'set momentum, e.g. 0.9, or drop nesterov',
    });
  }
  const plain = momentum === 0;
  return elementwise({
    name: 'sgd',
    options: read,
    slots: plain ? [] : ['momentum'],
    sweep: (rate) => (w, gradient, [v]) => {
      if (v === undefined) {
        for (let i = 0; i < w.length; i++) w[i]! -= rate * (gradient[i]! + weightDecay * w[i]!);
        return;
      }
      for (let i = 0; i < w.length; i++) {
        const g = gradient[i]! + weightDecay * w[i]!;
        const direction = momentum * v[i]! + g;
        v[i] = direction;
        w[i]! -= rate * (nesterov ? g + momentum * direction : direction);
      }
    },
  });
}
