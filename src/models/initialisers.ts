import type { InitialDraws } from '../random/initial.ts';
import { type FloatTensor, type Shape, zeros } from '../tensor/tensor.ts';

/** How many inputs reach an output of a layer, and how many outputs an input reaches. */
export interface Fans {
  readonly in: number;
  readonly out: number;
}

type Draw = (draws: InitialDraws, name: string, shape: Shape, fans: Fans) => FloatTensor;

interface Initialiser {
  readonly weight: Draw;
  readonly bias: Draw;
}

const uniform = (bound: (fans: Fans) => number): Draw =>
  (draws, name, shape, fans) => draws.uniform(name, shape, bound(fans));
const normal = (deviation: (fans: Fans) => number): Draw =>
  (draws, name, shape, fans) => draws.normal(name, shape, deviation(fans));
const zero: Draw = (_draws, _name, shape) => zeros('float32', shape);

const perInput = uniform((fans) => 1 / Math.sqrt(fans.in));

/**
 * `kaiming-uniform`: U(±1/√in) for weights and biases, the default of PyTorch's layers (He's rule for a leaky ReLU of
 * slope √5). `xavier-*`: variance 2/(in + out) (Glorot & Bengio 2010). `he-*`: variance 2/in, which keeps the scale of
 * activations through ReLU layers (He et al. 2015). Biases are zero where not said otherwise.
 */
const table = {
  'kaiming-uniform': { weight: perInput, bias: perInput },
  'xavier-uniform': { weight: uniform((fans) => Math.sqrt(6 / (fans.in + fans.out))), bias: zero },
  'xavier-normal': { weight: normal((fans) => Math.sqrt(2 / (fans.in + fans.out))), bias: zero },
  'he-uniform': { weight: uniform((fans) => Math.sqrt(6 / fans.in)), bias: zero },
  'he-normal': { weight: normal((fans) => Math.sqrt(2 / fans.in)), bias: zero },
  zeros: { weight: zero, bias: zero },
} satisfies Readonly<Record<string, Initialiser>>;

export type InitialiserName = keyof typeof table;
export const initialiserNames = Object.keys(table) as readonly InitialiserName[];
export const initialiser = (name: InitialiserName): Initialiser => table[name];
