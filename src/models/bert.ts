import { z } from 'zod';
import { dataTypeOf } from '../graph/onnx.ts';
import { type Graph, int } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { float32 } from '../tensor/tensor.ts';
import { truncatedNormal } from './initialisers.ts';
import { width } from './options.ts';
import { add, attention, classifier, closed, firstToken, layerNorm, length, linear, mlp, positions, tokens } from './transformer.ts';
import { type GraphWriter, graphWriter } from './writer.ts';

const schema = z.strictObject({
  vocabulary: width.default(30522),
  /** Tokens of an example; left open where not given. */
  sequence: width.optional(),
  /** Tokens that there are position embeddings for. */
  positions: width.default(512),
  classes: width.default(2),
  /** Width of the residual stream. */
  width: width.default(768),
  depth: width.default(12),
  heads: width.default(12),
  /** Width of the hidden layer of a block, as a multiple of the stream's. */
  ratio: width.default(4),
});

export type BertOptions = z.input<typeof schema>;

const epsilon = 1e-12;

/**
 * BERT for classification (Devlin et al. 2019): input_ids and attention_mask (1: a token, 0: padding), int64 [batch,
 * sequence] → logits [batch, classes], by way of the pooler. All tokens are of segment 0. Parameters are named as Hugging
 * Face does (`bert.encoder.layer.0.attention.self.query.weight`); weights of linear layers but for the classifier's are
 * [inputs, outputs]. All weights are drawn from a truncated normal of deviation 0.02.
 */
export function bert(options: BertOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, options, 'model bert-base');
  const { width: wide, heads, ratio } = read;
  const g = graphWriter('bert-base', draws);
  const bias = paddingBias(g);
  let x = embedded(g, read);
  for (let i = 0; i < read.depth; i++) {
    const at = `bert.encoder.layer.${i}`;
    const [q = '', k = '', v = ''] = ['query', 'key', 'value'].map((part) =>
      linear(g, x, `${at}.attention.self.${part}`, { inputs: wide, outputs: wide }));
    const mixed = attention(g, `${at}.attention`, { q, k, v, width: wide, heads, bias });
    const attended = linear(g, mixed, `${at}.attention.output.dense`, { inputs: wide, outputs: wide });
    x = layerNorm(g, add(g, `${at}.add1`, attended, x), `${at}.attention.output.LayerNorm`, wide, epsilon);
    const hidden = mlp(g, x, [`${at}.intermediate.dense`, `${at}.intermediate.act`, `${at}.output.dense`], wide, ratio * wide);
    x = layerNorm(g, add(g, `${at}.add2`, hidden, x), `${at}.output.LayerNorm`, wide, epsilon);
  }
  const pooled = g.node('Tanh', 'bert.pooler.activation', [
    linear(g, firstToken(g, x, 'bert.pooler.first'), 'bert.pooler.dense', { inputs: wide, outputs: wide }),
  ]);
  const inputs = [tokens('input_ids', read.sequence), tokens('attention_mask', read.sequence)];
  return g.build(inputs, classifier(g, pooled, 'classifier', wide, read.classes), [read.classes]);
}

/** The sum of a token's, its segment's and its position's vector, normalised. */
function embedded(g: GraphWriter, { vocabulary, positions: count, width: wide }: z.output<typeof schema>): string {
  const at = 'bert.embeddings';
  const draw = truncatedNormal(0.02);
  const words = g.node('Gather', `${at}.word`, [g.parameter(`${at}.word_embeddings.weight`, [vocabulary, wide], draw), 'input_ids']);
  const segments = g.parameter(`${at}.token_type_embeddings.weight`, [2, wide], draw);
  const segment = g.node('Slice', `${at}.token_type`, [segments, g.ints(0), g.ints(1), g.ints(0)]);
  const typed = add(g, `${at}.add1`, words, segment);
  const placed = add(g, `${at}.add2`, typed, positions(g, length(g, 'input_ids'), `${at}.position_embeddings.weight`, count, wide, draw));
  return layerNorm(g, placed, `${at}.LayerNorm`, wide, epsilon);
}

/** 0 for keys that are tokens, the lowest number for padding: [batch, 1, 1, sequence]. */
function paddingBias(g: GraphWriter): string {
  const mask = g.node('Cast', 'attention_mask.cast', ['attention_mask'], { to: int(dataTypeOf.float32) });
  const padding = g.node('Sub', 'attention_mask.invert', [g.constant(float32([1], [])), mask]);
  const scores = g.node('Mul', 'attention_mask.bias', [padding, closed(g)]);
  return g.node('Unsqueeze', 'attention_mask.unsqueeze', [scores, g.ints(1, 2)]);
}
