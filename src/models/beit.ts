import { z } from 'zod';
import { type Graph, int, ints } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { int64 } from '../tensor/tensor.ts';
import { filled, truncatedNormal, zero } from './initialisers.ts';
import { width } from './options.ts';
import { add, attention, biased, classifier, layerNorm, linear, mlp, splitThree } from './transformer.ts';
import { imageInput, imageTransformer, withClassToken } from './vit.ts';
import { type GraphWriter, graphWriter } from './writer.ts';

const schema = z.strictObject({
  ...imageTransformer,
  size: width.default(224),
  patch: width.default(16),
  width: width.default(768),
  heads: width.default(12),
  /** What the layer scales start from. */
  layerScale: z.number().positive().default(0.1),
});

export type BeitOptions = z.input<typeof schema>;

const epsilon = 1e-6;

/**
 * BEiT (Bao et al. 2022) as it is fine-tuned: no absolute positions, a relative position bias for each layer, layer
 * scale, no bias on keys, and the mean of the patches' vectors in front of the head. input [batch, channels, size, size]
 * → logits [batch, classes]. Parameters are named as timm does; weights of linear layers but for the head's are [inputs, outputs].
 * Weights are drawn from a truncated normal of deviation 0.02, those that write to the residual stream divided by
 * √(2·layer); position biases start at 0.
 */
export function beit(options: BeitOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, options, 'model beit-base-224');
  const { width: wide, heads, ratio } = read;
  const g = graphWriter('beit-base-224', draws);
  let x = withClassToken(g, read).value;
  for (let i = 0; i < read.depth; i++) {
    const at = `blocks.${i}`;
    const drawLast = truncatedNormal(0.02 / Math.sqrt(2 * (i + 1)));
    const scaled = (name: string, y: string): string =>
      g.node('Mul', `${at}.${name}.mul`, [y, g.parameter(`${at}.${name}`, [wide], filled(read.layerScale))]);
    const qkv = linear(g, layerNorm(g, x, `${at}.norm1`, wide, epsilon), `${at}.attn.qkv`, { inputs: wide, outputs: 3 * wide, bias: false });
    const [q = '', k = '', v = ''] = splitThree(g, qkv, `${at}.attn.split`);
    const mixed = attention(g, `${at}.attn`, {
      q: biased(g, q, `${at}.attn.q_bias`, wide), k, v: biased(g, v, `${at}.attn.v_bias`, wide), width: wide, heads,
      bias: relativeBias(g, `${at}.attn.relative_position_bias`, heads, read.size / read.patch),
    });
    x = add(g, `${at}.add1`, x, scaled('gamma_1', linear(g, mixed, `${at}.attn.proj`, { inputs: wide, outputs: wide, draw: drawLast })));
    const normed = layerNorm(g, x, `${at}.norm2`, wide, epsilon);
    const hidden = mlp(g, normed, [`${at}.mlp.fc1`, `${at}.mlp.act`, `${at}.mlp.fc2`], wide, ratio * wide, { drawLast });
    x = add(g, `${at}.add2`, x, scaled('gamma_2', hidden));
  }
  const patches = g.node('Slice', 'patches', [x, g.ints(1), g.ints((read.size / read.patch) ** 2 + 1), g.ints(1)]);
  const mean = g.node('ReduceMean', 'mean', [patches, g.ints(1)], { keepdims: int(0) });
  const logits = classifier(g, layerNorm(g, mean, 'fc_norm', wide, epsilon), 'head', wide, read.classes);
  return g.build([imageInput(read)], logits, [read.classes]);
}

/** A bias for each head and pair of tokens, [heads, T, T], by how far apart their patches lie. */
function relativeBias(g: GraphWriter, name: string, heads: number, side: number): string {
  const distances = (2 * side - 1) ** 2 + 3;
  const table = g.parameter(`${name}_table`, [distances, heads], zero);
  const rows = g.node('Gather', `${name}.gather`, [table, g.constant(relativePositions(side))]);
  return g.node('Transpose', `${name}.transpose`, [rows], { perm: ints([2, 0, 1]) });
}

/**
 * For each pair of tokens the row of the table, [T, T] with T = side² + 1: one for each offset of two patches; then the
 * class token to a patch, a patch to the class token, and the class token to itself.
 */
export function relativePositions(side: number) {
  const span = 2 * side - 1;
  const last = span ** 2;
  const tokens = Array.from({ length: side ** 2 + 1 }, (_, i) => i - 1);
  const [row, column] = [(patch: number) => Math.floor(patch / side), (patch: number) => patch % side];
  const between = (a: number, b: number): number =>
    a < 0 ? (b < 0 ? last + 2 : last)
    : b < 0 ? last + 1 : (row(a) - row(b) + side - 1) * span + column(a) - column(b) + side - 1;
  return int64(tokens.flatMap((a) => tokens.map((b) => between(a, b))), [tokens.length, tokens.length]);
}
