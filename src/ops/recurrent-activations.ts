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

/**
 * The nonlinearities of a recurrent node, those of one direction after those of the other. Their constants stand in the
 * lists `activation_alpha` and `activation_beta`, in the order of the functions that have such a constant; where a list
 * has run out, the default holds.
 *
 * @throws GhostgradError for an unknown function, or another number of them than the node needs
 */
export function activationsOf(node: Node, defaults: readonly string[]): Activation[] {
  const listed = stringsAttribute(node, 'activations', defaults);
  // RNN's default in ONNX names two functions, for a layer of one direction too.
  const names = defaults.length === 1 && listed.length === 2 ? listed.slice(0, 1) : listed;
  if (names.length !== defaults.length) {
    throw badOperands({ node }, `${names.length} activations`, `${defaults.length}`);
  }
  const [alphas, betas] = ['alpha', 'beta'].map((which) => floatsAttribute(node, `activation_${which}`, []).values());
  return names.map((name) => {
    const key = Object.keys(named).find((k) => k.toLowerCase() === name.toLowerCase());
    const found = key === undefined ? undefined : named[key];
    if (found === undefined) throw badOperands({ node }, `activation ${name}`, `one of ${Object.keys(named).join(', ')}`);
    const alpha = found.alpha === undefined ? 0 : alphas!.next().value ?? found.alpha;
    const beta = found.beta === undefined ? 0 : betas!.next().value ?? found.beta;
    return (b, x) => found.apply(b, x, alpha, beta);
  });
}
