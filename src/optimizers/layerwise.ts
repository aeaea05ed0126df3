import { type NoiseCorrectionOptions, noiseFields } from './adam.ts';
import { type Optimizer, elementwise } from './optimizer.ts';
import { decay, flag, nonNegative, positive, readOptions } from './options.ts';

// Optimizers whose rate adapts to each parameter as a whole: a step is as long, next to the weights that it changes, in every
// layer. Their ratios are computed from privatised gradients and public weights, hence cost no privacy.

export interface LambOptions extends NoiseCorrectionOptions {
  /** Default 0.001. */
  readonly learningRate?: number;
  /** Decay of the running mean of gradients; default 0.9. */
  readonly beta1?: number;
  /** Decay of the running mean of squared gradients; default 0.999. */
  readonly beta2?: number;
  /** Added to the root of the second moment; default 1e-6. */
  readonly epsilon?: number;
  /** λ of the decay that is added to the direction before its length is taken; default 0. */
  readonly weightDecay?: number;
  /** Whether the moments are corrected for having begun at 0; default true. */
  readonly biasCorrection?: boolean;
  /** The length that weights count with at least; default 0. Makes heads learn that begin near zero, and their biases no faster. */
  readonly leastNorm?: number;
}

const lambFields = {
  learningRate: positive(1e-3), beta1: decay(0.9), beta2: decay(0.999), epsilon: positive(1e-6), weightDecay: nonNegative(0),
  biasCorrection: flag(true), leastNorm: nonNegative(0), ...noiseFields,
};

/**
 * LAMB: Adam's direction u = m̂/(√v̂ + ε) + λw, its length brought to that of the weights: w ← w − η·‖w‖/‖u‖·u, for each
 * parameter by itself, and w ← w − η·u where ‖w‖ or ‖u‖ is 0 (You et al., ICLR 2020, algorithm 2, φ the identity). Weights
 * drawn near zero take small steps at first; zero ones take Adam's. With `leastNorm`, φ(‖w‖) = max(‖w‖, leastNorm) takes the
 * place of ‖w‖ (ibid., §3, φ bounded from below), for zero weights too. `noiseCorrection` is that of {@link adam}.
 */
export function lamb(options: LambOptions = {}): Optimizer {
  const read = readOptions('optimizer lamb', lambFields, options);
  const { beta1, beta2, epsilon, weightDecay, biasCorrection, leastNorm, noiseCorrection, noiseFloor } = read;
  return elementwise({
    name: 'lamb',
    options: read,
    slots: ['mean', 'square'],
    noiseDecay: noiseCorrection ? beta2 : undefined,
    sweep: (rate, step) => {
      const first = biasCorrection ? 1 / (1 - beta1 ** step) : 1;
      const second = biasCorrection ? 1 / (1 - beta2 ** step) : 1;
      return (w, gradient, [mean, square], noise) => {
        if (mean === undefined || square === undefined) throw new Error('LAMB needs both of its moments');
        const [known, least] = [second * noise, noiseFloor * second * noise];
        const direction = (i: number): number =>
          first * mean[i]! / (Math.sqrt(Math.max(second * square[i]! - known, least)) + epsilon) + weightDecay * w[i]!;
        let [lengthOfWeights, lengthOfStep] = [0, 0];
        for (let i = 0; i < w.length; i++) {
          const g = gradient[i]!;
          mean[i] = beta1 * mean[i]! + (1 - beta1) * g;
          square[i] = beta2 * square[i]! + (1 - beta2) * g * g;
          lengthOfWeights += w[i]! ** 2;
          lengthOfStep += direction(i) ** 2;
        }
        const stride = rate * ratio(Math.max(leastNorm, Math.sqrt(lengthOfWeights)), Math.sqrt(lengthOfStep));
        for (let i = 0; i < w.length; i++) w[i]! -= stride * direction(i);
      };
    },
  });
}

/** 1 where one of the two is 0. */
const ratio = (weights: number, step: number): number => (weights > 0 && step > 0 ? weights / step : 1);

export interface LarsOptions {
  readonly learningRate: number;
  /** Share of the last step that is kept; default 0.9. */
  readonly momentum?: number;
  /** λ of an L2 penalty λ/2·‖w‖²; default 0. */
  readonly weightDecay?: number;
  /** How long a step is, next to the weights; default 0.001. */
  readonly trustCoefficient?: number;
}

const larsFields = {
  learningRate: positive(), momentum: decay(0.9), weightDecay: nonNegative(0), trustCoefficient: positive(1e-3),
};

/**
 * LARS: v ← μv + η·κ·‖w‖/(‖g‖ + λ‖w‖)·(g + λw), w ← w − v, for each parameter by itself, with 1 in place of
 * κ·‖w‖/(‖g‖ + λ‖w‖) where ‖w‖ or ‖g‖ is 0 (You, Gitman & Ginsburg 2017, algorithm 1).
 */
export function lars(options: LarsOptions): Optimizer {
  const read = readOptions('optimizer lars', larsFields, options);
  const { momentum, weightDecay, trustCoefficient } = read;
  return elementwise({
    name: 'lars',
    options: read,
    slots: ['momentum'],
    sweep: (rate) => (w, gradient, [v]) => {
      if (v === undefined) throw new Error('LARS needs its momentum');
      const [weights, slope] = [norm(w), norm(gradient)];
      const stride = rate * (weights > 0 && slope > 0 ? trustCoefficient * weights / (slope + weightDecay * weights) : 1);
      for (let i = 0; i < w.length; i++) {
        v[i] = momentum * v[i]! + stride * (gradient[i]! + weightDecay * w[i]!);
        w[i]! -= v[i]!;
      }
    },
  });
}

function norm(x: Float32Array): number {
  let square = 0;
  for (let i = 0; i < x.length; i++) square += x[i]! ** 2;
  return Math.sqrt(square);
}
