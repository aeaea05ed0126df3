import { type Optimizer, elementwise } from './optimizer.ts';
import { type Read, decay, flag, nonNegative, positive, readOptions } from './options.ts';

export interface NoiseCorrectionOptions {
  /** Whether the known variance of the noise is taken out of the second moment; without privacy there is none. Default false. */
  readonly noiseCorrection?: boolean;
  /** What is left of a second moment at least, as a share of the variance of its noise; default 0.03. */
  readonly noiseFloor?: number;
}

export const noiseFields = { noiseCorrection: flag(false), noiseFloor: positive(0.03) };

export interface AdamOptions extends NoiseCorrectionOptions {
  /** Default 0.001. */
  readonly learningRate?: number;
  /** Decay of the running mean of gradients; default 0.9. */
  readonly beta1?: number;
  /** Decay of the running mean of squared gradients; default 0.999. */
  readonly beta2?: number;
  /** Added to the root of the second moment; default 1e-8. */
  readonly epsilon?: number;
  /** Adam: λ of an L2 penalty, added to the gradient (default 0). AdamW: shrinks weights by ηλ (default 0.01). */
  readonly weightDecay?: number;
}

const fields = {
  learningRate: positive(1e-3),
  beta1: decay(0.9),
  beta2: decay(0.999),
  epsilon: positive(1e-8),
  weightDecay: nonNegative(0),
  ...noiseFields,
};

/**
 * Adam with bias-corrected moments (Kingma & Ba, ICLR 2015, algorithm 1); weight decay is an L2 penalty.
 *
 * With `noiseCorrection` the step is m̂/√max(v̂ − Φ, γ) where the noise of the gradients has variance Φ (DP-AdamBC, Tang,
 * Shpilevskiy & Lécuyer, AAAI 2024): E[v̂] = E[g²] + Φ, so that where the noise outweighs the gradients, uncorrected Adam
 * divides everything by the same √Φ. Here Φ is the running mean of σ_t² that v̂ is of g_t², hence right also where noise
 * changes from step to step; and γ = `noiseFloor`·Φ (the paper has a γ′ that is tuned for each task): about the standard
 * deviation √(2(1 − β₂)/(1 + β₂))·Φ of v̂ by noise alone, below which nothing can be told from 0.
 */
export const adam = (options: AdamOptions = {}): Optimizer =>
  family('adam', readOptions('optimizer adam', fields, options), false);

/** Adam with weight decay apart from the gradient: w ← w − ηλw before each step (Loshchilov & Hutter, ICLR 2019). */
export const adamw = (options: AdamOptions = {}): Optimizer =>
  family('adamw', readOptions('optimizer adamw', { ...fields, weightDecay: nonNegative(0.01) }, options), true);

function family(name: string, options: Read<typeof fields>, decoupled: boolean): Optimizer {
  const { beta1, beta2, epsilon, weightDecay, noiseCorrection, noiseFloor } = options;
  return elementwise({
    name,
    options,
    slots: ['mean', 'square'],
    noiseDecay: noiseCorrection ? beta2 : undefined,
    sweep: (rate, step) => {
      const shrink = decoupled ? 1 - rate * weightDecay : 1;
      const penalty = decoupled ? 0 : weightDecay;
      const stride = rate / (1 - beta1 ** step);
      const correction = 1 / (1 - beta2 ** step);
      return (w, gradient, [mean, square], noise) => {
        if (mean === undefined || square === undefined) throw new Error('Adam needs both of its moments');
        const [known, least] = [correction * noise, noiseFloor * correction * noise];
        for (let i = 0; i < w.length; i++) {
          const g = gradient[i]! + penalty * w[i]!;
          const m = beta1 * mean[i]! + (1 - beta1) * g;
          const v = beta2 * square[i]! + (1 - beta2) * g * g;
          mean[i] = m;
          square[i] = v;
          w[i] = w[i]! * shrink - stride * m / (Math.sqrt(Math.max(v * correction - known, least)) + epsilon);
        }
      };
    },
  });
}
