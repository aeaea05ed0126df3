import { z } from 'zod';
import { type Graph, ints } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { float32, int64 } from '../tensor/tensor.ts';
import { normal } from './initialisers.ts';
import { width } from './options.ts';
import {
  add, attention, closed, layerNorm, length, linear, mlp, positions, splitThree, tanhGelu, tokens,
} from './transformer.ts';
import { type GraphWriter, graphWriter } from './writer.ts';

const schema = z.strictObject({
  vocabulary: width.default(50257),
  /** Tokens of an example; left open where not given. */
  sequence: width.optional(),
  /** Tokens that there are position embeddings for. */
  positions: width.default(1024),
  /** Width of the residual stream. */
  width: width.default(768),
  depth: width.default(12),
  heads: width.default(12),
  /** Width of the hidden layer of a block, as a multiple of the stream's. */
  ratio: width.default(4),
});

export type Gpt2Options = z.input<typeof schema>;

const epsilon = 1e-5;

/**
 * GPT-2 (Radford et al. 2019): input_ids, int64 [batch, sequence] → logits [batch, sequence, vocabulary] of the tokens
 * that follow; the head is the table of tokens. Parameters have the names and layouts of Hugging Face
 * (`transformer.h.0.attn.c_attn.weight`, [inputs, outputs]). Weights are drawn from a normal of deviation 0.02, divided by
 * √(2·depth) where they write to the residual stream.
 */
export function gpt2(options: Gpt2Options = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, options, 'model gpt2-small');
  const { width: wide, heads, ratio, depth } = read;
  const g = graphWriter('gpt2-small', draws);
  const draw = normal(0.02);
  const drawLast = normal(0.02 / Math.sqrt(2 * depth));
  const count = length(g, 'input_ids');
  const bias = causalBias(g, count);
  const table = g.parameter('transformer.wte.weight', [read.vocabulary, wide], draw);
  const words = g.node('Gather', 'transformer.wte', [table, 'input_ids']);
  let x = add(g, 'transformer.add', words, positions(g, count, 'transformer.wpe.weight', read.positions, wide, draw));
  for (let i = 0; i < depth; i++) {
    const at = `transformer.h.${i}`;
    const qkv = linear(g, layerNorm(g, x, `${at}.ln_1`, wide, epsilon), `${at}.attn.c_attn`, { inputs: wide, outputs: 3 * wide, draw });
    const [q = '', k = '', v = ''] = splitThree(g, qkv, `${at}.attn.split`);
    const mixed = attention(g, `${at}.attn`, { q, k, v, width: wide, heads, bias });
    x = add(g, `${at}.add1`, x, linear(g, mixed, `${at}.attn.c_proj`, { inputs: wide, outputs: wide, draw: drawLast }));
    const normed = layerNorm(g, x, `${at}.ln_2`, wide, epsilon);
    const names = [`${at}.mlp.c_fc`, `${at}.mlp.act`, `${at}.mlp.c_proj`] as const;
    x = add(g, `${at}.add2`, x, mlp(g, normed, names, wide, ratio * wide, { kind: tanhGelu, draw, drawLast }));
  }
  const head = g.node('Transpose', 'lm_head.weight', [table], { perm: ints([1, 0]) });
  const logits = g.node('MatMul', 'lm_head', [layerNorm(g, x, 'transformer.ln_f', wide, epsilon), head]);
  return g.build([tokens('input_ids', read.sequence)], logits, [read.sequence ?? 'sequence', read.vocabulary]);
}

/** 0 for keys up to the query's own place, the lowest number after it: [sequence, sequence]. */
function causalBias(g: GraphWriter, length: string): string {
  const count = g.node('Squeeze', 'causal.count', [length]);
  const [zero, one] = [0, 1].map((n) => g.constant(int64([n], [])));
  const places = g.node('Range', 'causal.places', [zero ?? '', count, one ?? '']);
  const queries = g.node('Unsqueeze', 'causal.queries', [places, g.ints(1)]);
  const open = g.node('LessOrEqual', 'causal.open', [places, queries]);
  return g.node('Where', 'causal.bias', [open, g.constant(float32([0], [])), closed(g)]);
}
