import { GhostgradError } from '../errors.ts';
import { type FloatTensor, type Tensor, float32, zeros } from '../tensor/tensor.ts';
import type { Optimizer, Parameters, StateTensor } from './optimizer.ts';

/**
 * Which parameters a model is released with, instead of those of the last step: their exponential moving average, or their
 * mean over the last steps. Averages of privatised parameters are post-processing, and cost no privacy.
 */
export type AverageSpec =
  /** The share d of the average that is kept at every step. */
  | { readonly ema: number }
  /** The number of steps. */
  | { readonly last: number };

/** Running sums of parameters in float64, under the slots of an optimizer's state. */
interface Average {
  readonly slots: readonly string[];
  readonly begin: (parameter: FloatTensor) => Tensor<'float64'>;
  /** @param step 1 at the first update */
  readonly add: (step: number) => (sums: readonly Float64Array[], weights: Float32Array) => void;
  readonly value: (step: number) => (sums: readonly Float64Array[], i: number) => number;
}

/**
 * a ← d_t·a + (1 − d_t)·w with d_t = min(d, (1 + t)/(10 + t)), t counting from 0 at the first update, and a = w before it.
 * Where few steps are taken the average reaches back over a tenth of them and not to where they began (as De et al. 2022,
 * Unlocking High-Accuracy Differentially Private Image Classification through Scale, average).
 */
const exponential = (decay: number): Average => ({
  slots: ['average'],
  begin: ({ shape, data }) => ({ dtype: 'float64', shape, data: Float64Array.from(data) }),
  add: (step) => {
    const share = 1 - Math.min(decay, step / (9 + step));
    return ([average], weights) => {
      for (let i = 0; i < weights.length; i++) average![i]! += share * (weights[i]! - average![i]!);
    };
  },
  value: () => ([average], i) => average![i]!,
});

/**
 * The mean after the last `last` of `steps` steps. Steps are summed up in blocks of `last`, counted back from the end, and the
 * block before is kept: a run that stops within a block yields the mean over both, of no fewer than `last` steps (or all) and
 * fewer than twice as many. Exactly the last `last` would take as many copies of the parameters.
 */
const ofTheLast = (last: number, steps: number): Average => {
  const short = steps % last;
  const blockAt = (step: number): number => (step <= short ? step : (step - short - 1) % last + 1);
  return {
    slots: ['block', 'blockBefore'],
    begin: ({ shape }) => zeros('float64', shape),
    add: (step) => {
      const isFirst = blockAt(step) === 1;
      return ([block, before], weights) => {
        if (isFirst) {
          before!.set(block!);
          block!.fill(0);
        }
        for (let i = 0; i < weights.length; i++) block![i]! += weights[i]!;
      };
    },
    value: (step) => {
      const size = blockAt(step);
      if (size === last || size === step) return ([block], i) => block![i]! / size;
      const both = size + (step - size === short ? short : last);
      return ([block, before], i) => (block![i]! + before![i]!) / both;
    },
  };
};

/** An optimizer that takes the same steps, and releases averaged parameters; the average is part of its state. */
export function averaged(optimizer: Optimizer, spec: AverageSpec, steps: number): Optimizer {
  const { slots, begin, add, value } = 'ema' in spec ? exponential(spec.ema) : ofTheLast(spec.last, steps);
  const sumsOf = (tensors: ReadonlyMap<string, StateTensor>, parameter: string): readonly Float64Array[] => slots.map((slot) => {
    const sum = tensors.get(`${slot}/${parameter}`);
    if (sum?.dtype === 'float64') return sum.data;
    throw new GhostgradError({ what: 'the state holds no average', where: `parameter "${parameter}"`, expected: 'that of a run that averages' });
  });
  return {
    ...optimizer,
    init: (parameters) => {
      const { step, tensors } = optimizer.init(parameters);
      const sums = slots.flatMap((slot) => [...parameters].map(([name, parameter]) => [`${slot}/${name}`, begin(parameter)] as const));
      return { step, tensors: new Map<string, StateTensor>([...tensors, ...sums]) };
    },
    update: (parameters, gradient, state, learningRate) => {
      const next = optimizer.update(parameters, gradient, state, learningRate);
      const addTo = add(next.step);
      for (const [name, { data }] of parameters) addTo(sumsOf(next.tensors, name), data);
      return next;
    },
    released: (parameters: Parameters, { step, tensors }) => {
      if (step === 0) return parameters;
      const at = value(step);
      return new Map([...parameters].map(([name, { shape, data }]) => {
        const sums = sumsOf(tensors, name);
        return [name, float32(data.map((_, i) => at(sums, i)), shape)] as const;
      }));
    },
  };
}
