import { type Node, floatsAttribute, stringsAttribute } from '../graph/ir.ts';
import { type GraphBuilder, type Value, add, mul, scale } from './builder.ts';
import { badOperands } from './operands.ts';
import { scalarLike } from './rules.ts';

/** A nonlinearity between the gates of a recurrent layer. */
export type Activation = (b: GraphBuilder, x: Value) => Value;

/** One that ONNX names for recurrent layers. */
interface Named {
  /** Default of alpha, and of beta; absent where the function has no such constant. */
  readonly alpha?: number;
  readonly beta?: number;
  readonly apply: (b: GraphBuilder, x: Value, alpha: number, beta: number) => Value;
}

const plain = (op: string): Named => ({ apply: (b, x) => b.op(op, [x]) });

const withAlpha = (op: string, fallback: number): Named => ({
  alpha: fallback, apply: (b, x, alpha) => b.op(op, [x], { alpha: { type: 'float', value: alpha } }),
});

/** Defaults are those of ONNX Runtime's kernels, which compute the layer wherever it is not expanded. */
const named: Readonly<Record<string, Named>> = {
  Relu: plain('Relu'), Tanh: plain('Tanh'), Sigmoid: plain('Sigmoid'),
  Softsign: plain('Softsign'), Softplus: plain('Softplus'),
  LeakyRelu: withAlpha('LeakyRelu', 0.01),
  ThresholdedRelu: withAlpha('ThresholdedRelu', 0),
  Elu: withAlpha('Elu', 1),
  Affine: {
    alpha: 0, beta: 0, apply: (b, x, alpha, beta) => add(b, scale(b, x, alpha), scalarLike(b, beta, x)),
  },
  ScaledTanh: {
    alpha: 0, beta: 0, apply: (b, x, alpha, beta) => mul(b, scalarLike(b, alpha, x), b.op('Tanh', [scale(b, x, beta)])),
  },
  HardSigmoid: {
    alpha: 0.2, beta: 0.5, apply: (b, x, alpha, beta) =>
      b.op('HardSigmoid', [x], { alpha: { type: 'float', value: alpha }, beta: { type: 'float', value: beta } }),
  },
};

/** How the constants of the functions are read from the lists `activation_alpha` and `activation_beta`. */
export type ConstantRule =
  /** One after the other, by the functions that have such a constant; defaults when the list has run out. */
  | 'in turn'
  /** One for each function, whether it has such a constant or not; 0 without a list. So ONNX Runtime's RNN has it. */
  | 'by place';

/**
 * The nonlinearities of a recurrent node, those of one direction after those of the other.
 *
 * @throws GhostgradError for an unknown function, or another number of them than the node needs
 */
export function activationsOf(node: Node, defaults: readonly string[], rule: ConstantRule): Activation[] {
  const listed = stringsAttribute(node, 'activations', defaults);
  // RNN's default names a function for each of two directions, whether it has them or not.
  const names = rule === 'by place' ? listed.slice(0, defaults.length) : listed;
  if (names.length !== defaults.length) {
    throw badOperands({ node }, `${names.length} activations`, `${defaults.length}`);
  }
  const takers = { alpha: taker(node, 'alpha', rule), beta: taker(node, 'beta', rule) };
  return names.map((name, place) => {
    const found = lookUp(node, name, rule);
    const [alpha, beta] = (['alpha', 'beta'] as const).map((which) => {
      const fallback = found[which];
      return fallback === undefined ? 0 : takers[which](place, fallback);
    }) as [number, number];
    return (b, x) => found.apply(b, x, alpha, beta);
  });
}

function lookUp(node: Node, name: string, rule: ConstantRule): Named {
  // The kernels of LSTM and GRU take names in any case; that of RNN takes an unknown one for Tanh.
  const key = Object.keys(named).find((k) => k === name || (rule === 'in turn' && k.toLowerCase() === name.toLowerCase()));
  const found = key === undefined ? undefined : named[key];
  if (found === undefined) throw badOperands({ node }, `activation ${name}`, `one of ${Object.keys(named).join(', ')}`);
  return found;
}

/** Gives each function that asks its constant. */
function taker(node: Node, which: 'alpha' | 'beta', rule: ConstantRule): (place: number, fallback: number) => number {
  const list = floatsAttribute(node, `activation_${which}`, undefined);
  let next = 0;
  return (place, fallback) => {
    if (rule === 'in turn') return list?.[next++] ?? fallback;
    const found = list === undefined ? 0 : list[place];
    if (found === undefined) {
      throw badOperands({ node }, `${list?.length} values of activation_${which}`, 'one for each activation');
    }
    return found;
  };
}
