import { z } from 'zod';
import { type Graph, int, ints } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { GhostgradError } from '../errors.ts';
import { truncatedNormal, zero } from './initialisers.ts';
import { width } from './options.ts';
import { add, attention, classifier, firstToken, layerNorm, linear, mlp, splitThree } from './transformer.ts';
import { type GraphWriter, graphWriter } from './writer.ts';

/** Options that all transformers for images have. */
export const imageTransformer = {
  channels: width.default(3),
  /** Height and width of the image. */
  size: width,
  /** Height and width of a patch; must divide the size. */
  patch: width,
  classes: width.default(10),
  /** Width of the residual stream. */
  width,
  depth: width.default(12),
  heads: width,
  /** Width of the hidden layer of a block, as a multiple of the stream's. */
  ratio: width.default(4),
} as const;

const schema = z.strictObject(imageTransformer);

export type VitOptions = Partial<z.input<typeof schema>>;

/** Widths of Touvron et al. (2021), for images of 32 × 32 in patches of 4 × 4, or of 224 × 224 in patches of 16 × 16. */
const variants = {
  'vit-tiny': { size: 32, patch: 4, width: 192, heads: 3 },
  'vit-small': { size: 32, patch: 4, width: 384, heads: 6 },
  'vit-tiny-224': { size: 224, patch: 16, width: 192, heads: 3 },
  'vit-small-224': { size: 224, patch: 16, width: 384, heads: 6 },
} as const;

export type VitName = keyof typeof variants;

const epsilon = 1e-6;

/**
 * Vision transformer (Dosovitskiy et al. 2021): input [batch, channels, size, size] → logits [batch, classes] from the
 * class token. Parameters are named as timm does (`blocks.0.attn.qkv.weight`); weights of linear layers but for the head's are
 * [inputs, outputs]. All weights are drawn from a truncated normal of deviation 0.02.
 */
export function vit(name: VitName, options: VitOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, { ...variants[name], ...options }, `model ${name}`);
  const { width: wide, heads, ratio } = read;
  const g = graphWriter(name, draws);
  const patches = withClassToken(g, read);
  let x = add(g, 'pos_embed.add', patches.value, g.parameter('pos_embed', [1, patches.count, wide], truncatedNormal(0.02)));
  for (let i = 0; i < read.depth; i++) {
    const at = `blocks.${i}`;
    const qkv = linear(g, layerNorm(g, x, `${at}.norm1`, wide, epsilon), `${at}.attn.qkv`, { inputs: wide, outputs: 3 * wide });
    const [q = '', k = '', v = ''] = splitThree(g, qkv, `${at}.attn.split`);
    const mixed = attention(g, `${at}.attn`, { q, k, v, width: wide, heads });
    x = add(g, `${at}.add1`, x, linear(g, mixed, `${at}.attn.proj`, { inputs: wide, outputs: wide }));
    const normed = layerNorm(g, x, `${at}.norm2`, wide, epsilon);
    x = add(g, `${at}.add2`, x, mlp(g, normed, [`${at}.mlp.fc1`, `${at}.mlp.act`, `${at}.mlp.fc2`], wide, ratio * wide));
  }
  const token = layerNorm(g, firstToken(g, x, 'token'), 'norm', wide, epsilon);
  return g.build([imageInput(read)], classifier(g, token, 'head', wide, read.classes), [read.classes]);
}

type Image = Pick<z.output<typeof schema>, 'channels' | 'size' | 'patch' | 'width'>;

export const imageInput = ({ channels, size }: Pick<Image, 'channels' | 'size'>) =>
  ({ name: 'input', dtype: 'float32', shape: ['batch', channels, size, size] } as const);

/** The class token in front of the patches, each by a linear map: [batch, count, width]. */
export function withClassToken(g: GraphWriter, { channels, size, patch, width: wide }: Image): { readonly value: string; readonly count: number } {
  if (size % patch !== 0) {
    throw new GhostgradError({
      what: 'the image does not divide into patches', where: `model ${g.model}`, found: `size ${size}, patch ${patch}`,
      expected: 'a size that is a multiple of the patch', fix: 'change size or patch',
    });
  }
  const draw = truncatedNormal(0.02);
  const weight = g.parameter('patch_embed.proj.weight', [wide, channels, patch, patch], draw);
  const embedded = g.node('Conv', 'patch_embed.proj', ['input', weight, g.parameter('patch_embed.proj.bias', [wide], zero)], {
    kernel_shape: ints([patch, patch]), strides: ints([patch, patch]),
  });
  const rows = g.node('Reshape', 'patch_embed.flatten', [embedded, g.ints(0, wide, -1)]);
  const patches = g.node('Transpose', 'patch_embed.transpose', [rows], { perm: ints([0, 2, 1]) });
  const batch = g.node('Shape', 'batch', ['input'], { start: int(0), end: int(1) });
  const target = g.node('Concat', 'cls_token.shape', [batch, g.ints(1, 1)], { axis: int(0) });
  const token = g.node('Expand', 'cls_token.expand', [g.parameter('cls_token', [1, 1, wide], draw), target]);
  return { value: g.node('Concat', 'tokens', [token, patches], { axis: int(1) }), count: (size / patch) ** 2 + 1 };
}
