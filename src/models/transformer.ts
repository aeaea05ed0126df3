import { GhostgradError } from '../errors.ts';
import { type Attributes, type ValueInfo, float, int, ints, string } from '../graph/ir.ts';
import { float32 } from '../tensor/tensor.ts';
import { type Draw, one, truncatedNormal, zero } from './initialisers.ts';
import type { GraphWriter } from './writer.ts';

/** The initial deviation of weights that the papers of all transformers here name. */
const deviation = 0.02;

export const gelu: Attributes = {};
/** The approximation by tanh that GPT-2 was trained with. */
export const tanhGelu: Attributes = { approximate: string('tanh') };

/** Sizes of a linear layer and how its weight is drawn; by default from a truncated normal of deviation 0.02. */
export interface Linear {
  readonly inputs: number;
  readonly outputs: number;
  readonly bias?: boolean;
  readonly draw?: Draw;
}

/** Affine map over the last axis. Its weight is [inputs, outputs], the way MatMul takes it. */
export function linear(g: GraphWriter, x: string, name: string, { inputs, outputs, bias = true, draw = truncatedNormal(deviation) }: Linear): string {
  const product = g.node('MatMul', name, [x, g.parameter(`${name}.weight`, [inputs, outputs], draw)]);
  return bias ? biased(g, product, `${name}.bias`, outputs) : product;
}

/** x + bias along the last axis. */
export const biased = (g: GraphWriter, x: string, name: string, width: number): string =>
  g.node('Add', `${name}.add`, [x, g.parameter(name, [width], zero)]);

export const add = (g: GraphWriter, name: string, x: string, y: string): string => g.node('Add', name, [x, y]);

export const layerNorm = (g: GraphWriter, x: string, name: string, width: number, epsilon: number): string =>
  g.node('LayerNormalization', name, [x, g.parameter(`${name}.weight`, [width], one), g.parameter(`${name}.bias`, [width], zero)], {
    axis: int(-1), epsilon: float(epsilon),
  });

/** The logits of one vector an example: [batch, inputs] → [batch, classes], in the layout of PyTorch's linear layers. */
export const classifier = (g: GraphWriter, x: string, name: string, inputs: number, classes: number): string =>
  g.node('Gemm', name, [x, g.parameter(`${name}.weight`, [classes, inputs], truncatedNormal(deviation)), g.parameter(`${name}.bias`, [classes], zero)], {
    transB: int(1),
  });

/** Two linear layers with a GELU between them. */
export function mlp(
  g: GraphWriter, x: string, [up, activation, down]: readonly [string, string, string], width: number, hidden: number,
  { kind = gelu, draw, drawLast = draw }: { readonly kind?: Attributes; readonly draw?: Draw; readonly drawLast?: Draw | undefined } = {},
): string {
  const wide = linear(g, x, up, { inputs: width, outputs: hidden, ...(draw && { draw }) });
  return linear(g, g.node('Gelu', activation, [wide], kind), down, { inputs: hidden, outputs: width, ...(drawLast && { draw: drawLast }) });
}

/** Queries, keys and values of one projection, [batch, T, 3·width] → three of [batch, T, width]. */
export const splitThree = (g: GraphWriter, x: string, name: string): readonly string[] =>
  g.nodes('Split', name, [x], 3, { axis: int(-1), num_outputs: int(3) });

export interface Attention {
  readonly q: string;
  readonly k: string;
  readonly v: string;
  readonly width: number;
  readonly heads: number;
  /** Numbers that are added to the scores, broadcast to [batch, heads, T, T]. */
  readonly bias?: string | undefined;
}

/** softmax(q·kᵀ/√d + bias)·v for each head: [batch, T, width] of each to [batch, T, width]. */
export function attention(g: GraphWriter, name: string, { q, k, v, width, heads, bias }: Attention): string {
  if (width % heads !== 0) {
    throw new GhostgradError({
      what: 'the heads do not share the width evenly', where: `model ${g.model}`, found: `${heads} heads for a width of ${width}`,
      expected: 'a number of heads that divides the width', fix: 'change width or heads',
    });
  }
  const size = width / heads;
  const apart = (x: string, part: string, order: readonly number[]): string =>
    g.node('Transpose', `${name}.${part}`, [g.node('Reshape', `${name}.${part}.split`, [x, g.ints(0, 0, heads, size)])], { perm: ints(order) });
  const scaled = g.node('Mul', `${name}.scale`, [apart(q, 'queries', [0, 2, 1, 3]), g.constant(float32([1 / Math.sqrt(size)], []))]);
  const scores = g.node('MatMul', `${name}.scores`, [scaled, apart(k, 'keys', [0, 2, 3, 1])]);
  const weights = g.node('Softmax', `${name}.softmax`, [bias === undefined ? scores : add(g, `${name}.bias`, scores, bias)], { axis: int(-1) });
  const mixed = g.node('MatMul', `${name}.mix`, [weights, apart(v, 'values', [0, 2, 1, 3])]);
  const together = g.node('Transpose', `${name}.merge`, [mixed], { perm: ints([0, 2, 1, 3]) });
  return g.node('Reshape', `${name}.join`, [together, g.ints(0, 0, width)]);
}

/** An input of token ids, or a mask over them: int64 [batch, sequence]. */
export const tokens = (name: string, sequence: number | undefined): ValueInfo =>
  ({ name, dtype: 'int64', shape: ['batch', sequence ?? 'sequence'] });

/** The first rows of the table of positions, as many as `length` says: [T, width]. */
export const positions = (g: GraphWriter, length: string, name: string, count: number, width: number, draw: Draw): string =>
  g.node('Slice', `${name}.slice`, [g.parameter(name, [count, width], draw), g.ints(0), length, g.ints(0)]);

/** The number of tokens as a vector of one number, [1]. */
export const length = (g: GraphWriter, ids: string): string =>
  g.node('Shape', `${ids}.length`, [ids], { start: int(1), end: int(2) });

/** The first of T vectors: [batch, T, width] → [batch, width]. */
export const firstToken = (g: GraphWriter, x: string, name: string): string =>
  g.node('Gather', name, [x, g.constant({ dtype: 'int64', shape: [], data: BigInt64Array.of(0n) })], { axis: int(1) });

/** What is added to a score that must not count. */
export const closed = (g: GraphWriter): string => g.constant(float32([-3.4028234663852886e38], []));
