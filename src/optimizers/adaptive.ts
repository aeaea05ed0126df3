import { type Optimizer, elementwise } from './optimizer.ts';
import { decay, nonNegative, positive, readOptions } from './options.ts';

export interface AdagradOptions {
  /** Default 0.01. */
  readonly learningRate?: number;
  /** Added to the root of the sum of squares; default 1e-10. */
  readonly epsilon?: number;
  /** λ of an L2 penalty λ/2·‖w‖²; default 0. */
  readonly weightDecay?: number;
}

/** Adagrad: s ← s + g², w ← w − η·g/(√s + ε) (Duchi, Hazan & Singer, JMLR 2011, diagonal form). */
export function adagrad(options: AdagradOptions = {}): Optimizer {
  const read = readOptions('optimizer adagrad', {
    learningRate: positive(0.01), epsilon: positive(1e-10), weightDecay: nonNegative(0),
  }, options);
  const { epsilon, weightDecay } = read;
  return elementwise({
    name: 'adagrad',
    options: read,
    slots: ['square'],
    sweep: (rate) => (w, gradient, [square]) => {
      if (square === undefined) throw new Error('Adagrad needs its sum of squares');
      for (let i = 0; i < w.length; i++) {
        const g = gradient[i]! + weightDecay * w[i]!;
        const s = square[i]! + g * g;
        square[i] = s;
        w[i]! -= rate * g / (Math.sqrt(s) + epsilon);
      }
    },
  });
}

export interface RmspropOptions {
  /** Default 0.01. */
  readonly learningRate?: number;
  /** Decay of the running mean of squared gradients; default 0.99. */
  readonly decay?: number;
  /** Share of the last direction that is kept; default 0. */
  readonly momentum?: number;
  /** Added to the root of the mean square; default 1e-8. */
  readonly epsilon?: number;
  /** λ of an L2 penalty λ/2·‖w‖²; default 0. */
  readonly weightDecay?: number;
}

/** RMSprop: s ← ρs + (1 − ρ)g², v ← μv + g/(√s + ε), w ← w − η·v (Tieleman & Hinton 2012, lecture 6.5, with momentum). */
export function rmsprop(options: RmspropOptions = {}): Optimizer {
  const read = readOptions('optimizer rmsprop', {
    learningRate: positive(0.01), decay: decay(0.99), momentum: decay(0), epsilon: positive(1e-8), weightDecay: nonNegative(0),
  }, options);
  const { decay: kept, momentum, epsilon, weightDecay } = read;
  return elementwise({
    name: 'rmsprop',
    options: read,
    slots: momentum === 0 ? ['square'] : ['square', 'momentum'],
    sweep: (rate) => (w, gradient, [square, v]) => {
      if (square === undefined) throw new Error('RMSprop needs its mean square');
      for (let i = 0; i < w.length; i++) {
        const g = gradient[i]! + weightDecay * w[i]!;
        const s = kept * square[i]! + (1 - kept) * g * g;
        square[i] = s;
        const direction = momentum * (v?.[i] ?? 0) + g / (Math.sqrt(s) + epsilon);
        if (v !== undefined) v[i] = direction;
        w[i]! -= rate * direction;
      }
    },
  });
}

export interface LionOptions {
  /** Default 0.0001: every weight moves by it at every step. */
  readonly learningRate?: number;
  /** Share of the running mean in the direction; default 0.9. */
  readonly beta1?: number;
  /** Decay of the running mean of gradients; default 0.99. */
  readonly beta2?: number;
  /** Shrinks weights by ηλ; default 0. */
  readonly weightDecay?: number;
}

/** Lion: w ← w − η·(sign(β₁m + (1 − β₁)g) + λw), then m ← β₂m + (1 − β₂)g (Chen et al., NeurIPS 2023, program 1). */
export function lion(options: LionOptions = {}): Optimizer {
  const read = readOptions('optimizer lion', {
    learningRate: positive(1e-4), beta1: decay(0.9), beta2: decay(0.99), weightDecay: nonNegative(0),
  }, options);
  const { beta1, beta2, weightDecay } = read;
  return elementwise({
    name: 'lion',
    options: read,
    slots: ['mean'],
    sweep: (rate) => (w, gradient, [mean]) => {
      if (mean === undefined) throw new Error('Lion needs its mean');
      for (let i = 0; i < w.length; i++) {
        const [g, m] = [gradient[i]!, mean[i]!];
        w[i]! -= rate * (Math.sign(beta1 * m + (1 - beta1) * g) + weightDecay * w[i]!);
        mean[i] = beta2 * m + (1 - beta2) * g;
      }
    },
  });
}
