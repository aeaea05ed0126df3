import { z } from 'zod';
import { type Graph, int, ints } from '../graph/ir.ts';
import { parseWith } from '../parse.ts';
import { type InitialDraws, initialDraws } from '../random/initial.ts';
import { initialiser, normal } from './initialisers.ts';
import { initialisation, width } from './options.ts';
import { tokens } from './transformer.ts';
import { graphWriter } from './writer.ts';

const schema = z.strictObject({
  vocabulary: width.default(10000),
  /** Tokens of an example; left open where not given. */
  sequence: width.optional(),
  classes: width.default(2),
  /** Width of a token's vector. */
  embedding: width.default(256),
  hidden: width.default(256),
  layers: width.default(2),
  init: initialisation.default('kaiming-uniform'),
});

export type LstmOptions = z.input<typeof schema>;

/**
 * LSTM layers over token vectors, and a linear layer on the last state: input_ids, int64 [batch, sequence] → logits
 * [batch, classes]. Parameters `embedding.weight`, `lstm.weight_ih_l0`, `lstm.weight_hh_l0`, `lstm.bias_l0`, …, `fc.weight`,
 * in ONNX's layouts: gates in the order input, output, forget, cell, and the two biases of a layer side by side. Token vectors start from N(0, 1), the
 * rest as `init` says for layers of `hidden` inputs.
 */
export function lstm(options: LstmOptions = {}, draws: InitialDraws = initialDraws()): Graph {
  const read = parseWith(schema, options, 'model lstm');
  const { embedding, hidden, classes } = read;
  const g = graphWriter('lstm', draws);
  const fans = { in: hidden, out: hidden };
  const rule = initialiser(read.init);
  const table = g.parameter('embedding.weight', [read.vocabulary, embedding], normal(1));
  const words = g.node('Gather', 'embedding', [table, 'input_ids']);
  let x = g.node('Transpose', 'embedding.transpose', [words], { perm: ints([1, 0, 2]) });
  let state = '';
  for (let i = 0; i < read.layers; i++) {
    const inputs = i === 0 ? embedding : hidden;
    const [y = '', last = ''] = g.nodes('LSTM', `lstm.${i}`, [
      x,
      g.parameter(`lstm.weight_ih_l${i}`, [1, 4 * hidden, inputs], rule.weight(fans)),
      g.parameter(`lstm.weight_hh_l${i}`, [1, 4 * hidden, hidden], rule.weight(fans)),
      g.parameter(`lstm.bias_l${i}`, [1, 8 * hidden], rule.bias(fans)),
    ], 2, { hidden_size: int(hidden) });
    if (i < read.layers - 1) x = g.node('Squeeze', `lstm.${i}.squeeze`, [y, g.ints(1)]);
    state = last;
  }
  const vector = g.node('Squeeze', 'lstm.last', [state, g.ints(0)]);
  const logits = g.node('Gemm', 'fc', [
    vector, g.parameter('fc.weight', [classes, hidden], rule.weight(fans)), g.parameter('fc.bias', [classes], rule.bias(fans)),
  ], { transB: int(1) });
  return g.build([tokens('input_ids', read.sequence)], logits, [classes]);
}
