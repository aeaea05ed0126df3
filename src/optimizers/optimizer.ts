import { GhostgradError } from '../errors.ts';
import { type FloatTensor, type Tensor, zeros } from '../tensor/tensor.ts';
import { type Gradients, type UsableGradient, noiseOf, valuesOf } from './gradient.ts';

/** Trainable parameters by name. */
export type Parameters = ReadonlyMap<string, FloatTensor>;

/** What is remembered of one parameter. */
export type StateTensor = FloatTensor | Tensor<'float64'>;

/** All that an optimizer remembers; `tensors` are named `slot/parameter` and go into a checkpoint as they are. */
export interface OptimizerState {
  /** Updates applied so far. */
  readonly step: number;
  readonly tensors: ReadonlyMap<string, StateTensor>;
}

/**
 * An update rule. Both the parameters' and the state's arrays are changed **in place** (the training loop owns
 * them, and a copy of every weight per step would cost as much as the update); the state returned shares them and
 * replaces the one passed, which must not be used again.
 */
export interface Optimizer {
  readonly name: string;
  /** The rate that a schedule's multipliers scale. */
  readonly learningRate: number;
  /** Every option with its default filled in, as a run's recipe records it. */
  readonly options: Readonly<Record<string, number | boolean>>;
  /** The state before the first step: zeros in the shapes of the parameters. */
  readonly init: (parameters: Parameters) => OptimizerState;
  /**
   * One step down a gradient, which must be one that {@link UsableGradient} allows.
   *
   * @param learningRate the rate of this very step, schedule included
   * @throws GhostgradError when gradient, parameters and state do not belong together
   */
  readonly update: (
    parameters: Parameters, gradient: UsableGradient, state: OptimizerState, learningRate: number,
  ) => OptimizerState;
  /** The parameters of the model that training yields: those of the last step, unless they are averaged. */
  readonly released: (parameters: Parameters, state: OptimizerState) => Parameters;
}

/**
 * Changes one parameter's array (and its slots, in the order of the rule's slot names) given its gradient.
 *
 * @param noise the running mean of the variance of the gradients' noise, where the optimizer keeps one; else 0
 */
export type Sweep = (weights: Float32Array, gradient: Float32Array, slots: readonly Float32Array[], noise: number) => void;

/** An optimizer whose parameters do not interact: `sweep` makes the loop over one array for a given step. */
export function elementwise(
  { name, options, slots, noiseDecay, sweep }: {
    readonly name: string;
    readonly options: Readonly<Record<string, number | boolean>> & { readonly learningRate: number };
    readonly slots: readonly string[];
    /** β of a running mean s ← βs + (1 − β)σ² of the variance of each parameter's noise, from 0; by default none is kept. */
    readonly noiseDecay?: number | undefined;
    /** @param step 1 at the first update */
    readonly sweep: (learningRate: number, step: number) => Sweep;
  },
): Optimizer {
  return {
    name,
    learningRate: options.learningRate,
    options,
    init: (parameters) => ({
      step: 0,
      tensors: new Map<string, StateTensor>([
        ...slots.flatMap((slot) =>
          [...parameters].map(([parameter, { shape }]) => [`${slot}/${parameter}`, zeros('float32', shape)] as const)),
        ...(noiseDecay === undefined ? [] : [...parameters.keys()].map((parameter) => [`noise/${parameter}`, zeros('float64', [1])] as const)),
      ]),
    }),
    update: (parameters, usable, state, learningRate) => {
      const step = state.step + 1;
      const work = matched(name, parameters, valuesOf(usable), state, slots);
      const apply = sweep(learningRate, step);
      const deviations = noiseOf(usable);
      for (const { parameter, weights, gradient, memory } of work) {
        const noise = noiseDecay === undefined ? 0 : meanNoise(state, parameter, noiseDecay, (deviations.get(parameter) ?? 0) ** 2);
        apply(weights, gradient, memory, noise);
      }
      return { step, tensors: state.tensors };
    },
    released: (parameters) => parameters,
  };
}

function meanNoise({ tensors }: OptimizerState, parameter: string, decay: number, variance: number): number {
  const { data: mean } = tensors.get(`noise/${parameter}`)!;
  return (mean[0] = decay * mean[0]! + (1 - decay) * variance);
}

/** Every parameter with its gradient and its slots, all checked before anything is changed. */
function matched(
  optimizer: string, parameters: Parameters, gradients: Gradients, state: OptimizerState, slots: readonly string[],
): readonly { parameter: string; weights: Float32Array; gradient: Float32Array; memory: readonly Float32Array[] }[] {
  const stray = [...gradients.keys()].find((name) => !parameters.has(name));
  if (stray !== undefined) throw misfit(optimizer, stray, 'a gradient without a parameter');
  return [...parameters].map(([name, { data: weights }]) => {
    const gradient = gradients.get(name);
    if (gradient === undefined) throw misfit(optimizer, name, 'no gradient');
    const memory = slots.map((slot) => {
      const tensor = state.tensors.get(`${slot}/${name}`);
      if (tensor?.dtype !== 'float32') throw misfit(optimizer, name, `no ${slot} in the optimizer's state`);
      return tensor.data;
    });
    const odd = [gradient, ...memory].find((array) => array.length !== weights.length);
    if (odd !== undefined) {
      throw misfit(optimizer, name, `${odd.length} elements`, `${weights.length} elements, as in the parameter`);
    }
    return { parameter: name, weights, gradient, memory };
  });
}

const misfit = (
  optimizer: string, parameter: string, found: string, expected = 'one gradient and one state per parameter',
): GhostgradError =>
  new GhostgradError({ what: `${optimizer} cannot update`, where: `parameter "${parameter}"`, found, expected });
