import type { InitialDraws } from '../random/initial.ts';
import { type FloatTensor, type Shape, zeros } from '../tensor/tensor.ts';

/** How many inputs reach an output of a layer, and how many outputs an input reaches. */
export interface Fans {
  readonly in: number;
  readonly out: number;
}

/** How the values of a parameter are drawn. */
export type Draw = (draws: InitialDraws, name: string, shape: Shape) => FloatTensor;

interface Initialiser {
  readonly weight: (fans: Fans) => Draw;
  readonly bias: (fans: Fans) => Draw;
}

const uniform = (bound: number): Draw => (draws, name, shape) => draws.uniform(name, shape, bound);
export const normal = (deviation: number): Draw => (draws, name, shape) => draws.normal(name, shape, deviation);
/** Cut off at two deviations. */
export const truncatedNormal = (deviation: number): Draw =>
  (draws, name, shape) => draws.truncatedNormal(name, shape, deviation);
export const zero: Draw = (_draws, _name, shape) => zeros('float32', shape);
/** The same value everywhere. */
export const filled = (value: number): Draw => (_draws, _name, shape) => {
  const t = zeros('float32', shape);
  t.data.fill(value);
  return t;
};
export const one = filled(1);

const perInput = (fans: Fans): Draw => uniform(1 / Math.sqrt(fans.in));
const zeroes = (): Draw => zero;

/**
 * `kaiming-uniform`: U(±1/√in) for weights and biases, the default of PyTorch's layers (He's rule for a leaky ReLU of
 * slope √5). `xavier-*`: variance 2/(in + out) (Glorot & Bengio 2010). `he-*`: variance 2/in, which keeps the scale of
 * activations through ReLU layers (He et al. 2015). Biases are zero where not said otherwise.
 */
const table = {
  'kaiming-uniform': { weight: perInput, bias: perInput },
  'xavier-uniform': { weight: (fans) => uniform(Math.sqrt(6 / (fans.in + fans.out))), bias: zeroes },
  'xavier-normal': { weight: (fans) => normal(Math.sqrt(2 / (fans.in + fans.out))), bias: zeroes },
  'he-uniform': { weight: (fans) => uniform(Math.sqrt(6 / fans.in)), bias: zeroes },
  'he-normal': { weight: (fans) => normal(Math.sqrt(2 / fans.in)), bias: zeroes },
  zeros: { weight: zeroes, bias: zeroes },
} satisfies Readonly<Record<string, Initialiser>>;

export type InitialiserName = keyof typeof table;
export const initialiserNames = Object.keys(table) as readonly InitialiserName[];
export const initialiser = (name: InitialiserName): Initialiser => table[name];
