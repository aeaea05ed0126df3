// Lets a causal language model in an ONNX file write on: greedily, or by sampling.
//   node examples/generate.mjs model.onnx tokenizer.json --prompt 'There is a' [--tokens 60] [--temperature 0.8 --top-k 40 --seed 1]
//     [--bos '<s>'] [--eos '</s>']
// Of what the model takes, it gets input_ids, attention_mask and position_ids. What a model writes after private training is
// as private as the model itself: it follows from it alone.
import { parseArgs } from 'node:util';
import ort from 'onnxruntime-node';
import { readTokenizer } from 'ghostgrad/data';

const { values: options, positionals: [path, tokenizerPath] } = parseArgs({
  allowPositionals: true,
  options: {
    prompt: { type: 'string', multiple: true, default: [''] },
    tokens: { type: 'string', default: '60' },
    temperature: { type: 'string', default: '0' },
    'top-k': { type: 'string', default: '0' },
    seed: { type: 'string', default: '1' },
    bos: { type: 'string' },
    eos: { type: 'string', default: '</s>' },
  },
});
if (tokenizerPath === undefined) {
  console.error('usage: node examples/generate.mjs MODEL.onnx TOKENIZER.json --prompt TEXT');
  process.exit(1);
}

const tokenizer = await readTokenizer(tokenizerPath);
const session = await ort.InferenceSession.create(path);

/** mulberry32: numbers in [0, 1) that a seed repeats. */
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The logits of what follows `ids`. */
async function next(ids) {
  const row = (values) => new ort.Tensor('int64', BigInt64Array.from(values, BigInt), [1, ids.length]);
  const feeds = { input_ids: row(ids), attention_mask: row(ids.map(() => 1)), position_ids: row(ids.map((_, i) => i)) };
  const { inputNames: [only, ...others] } = session;
  const fed = others.length === 0 ? { [only]: feeds.input_ids } : Object.fromEntries(session.inputNames.map((name) => [name, feeds[name]]));
  const logits = (await session.run(fed))[session.outputNames[0]];
  return logits.data.subarray(logits.data.length - logits.dims.at(-1));
}

/** The likeliest token, or one drawn by softmax(logits / temperature) among the `topK` likeliest (0: all). */
function choose(logits, { temperature, topK, draw }) {
  const ranked = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a]);
  if (!(temperature > 0)) return ranked[0];
  const kept = topK > 0 ? ranked.slice(0, topK) : ranked;
  const weights = kept.map((id) => Math.exp((logits[id] - logits[ranked[0]]) / temperature));
  let left = draw() * weights.reduce((sum, w) => sum + w, 0);
  return kept.find((_, i) => (left -= weights[i]) < 0) ?? kept[0];
}

const named = (token) => (token === undefined ? undefined : tokenizer.idOf(token));
const end = named(options.eos);
const sampling = { temperature: Number(options.temperature), topK: Number(options['top-k']), draw: random(Number(options.seed)) };
for (const prompt of options.prompt) {
  const bos = named(options.bos);
  const ids = [...(bos === undefined ? tokenizer.special.before : [bos]), ...(prompt === '' ? [] : tokenizer.plain(prompt))];
  if (ids.length === 0) throw new Error('a model needs something to go on from: give --prompt or --bos');
  for (let written = 0; written < Number(options.tokens); written++) {
    const id = choose(await next(ids), sampling);
    if (id === end) break;
    ids.push(id);
  }
  console.log(tokenizer.decode(ids));
}
