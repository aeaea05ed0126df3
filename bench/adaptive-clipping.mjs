// Flat clipping with a fixed threshold against adaptive per-layer clipping, at equal ε, epochs and batch size.
//   npm run build
//   node bench/adaptive-clipping.mjs fashion-mnist --epochs 15
//   node bench/adaptive-clipping.mjs sst2 --epochs 3 --model use-lite.onnx --tokenizer tokenizer.json --train train.tsv --test dev.tsv
// Fashion-MNIST: Debian's dataset-fashion-mnist. SST-2: a sentence encoder with inputs input_ids and attention_mask and
// one embedding for each sentence, its tokenizer.json, and .tsv files with columns text and label. Seeds make runs
// comparable, and void their guarantee.
import { parseArgs } from 'node:util';
import { onnxruntimeEngine, readModel, train } from '../dist/index.js';

const { values: options, positionals: [task = 'fashion-mnist'] } = parseArgs({
  allowPositionals: true,
  options: {
    'epochs': { type: 'string', default: '10' },
    'seeds': { type: 'string', default: '1,2,3' },
    'styles': { type: 'string', default: 'flat,adaptive' },
    'tokens': { type: 'string', default: '32' },
    'epsilon': { type: 'string' },
    'set': { type: 'string', multiple: true, default: [] },
    'model': { type: 'string' }, 'tokenizer': { type: 'string' }, 'train': { type: 'string' }, 'test': { type: 'string' },
  },
});

const styles = {
  'flat': {},
  'adaptive': { style: 'per-layer', threshold: { adaptive: { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01, rescaleTo: 0.1 } } },
};

/**
 * The encoder with a linear head on its embedding, drawn near zero from a fixed seed: the same start for every run. An
 * embedding of unit length would need large weights for confident logits; a constant factor spares the optimizer that.
 */
function withHead(model, classes, factor = 400) {
  const [{ name, shape }] = model.outputs;
  const width = shape.at(-1);
  let state = 1;
  const uniform = () => { state = (Math.imul(state, 1664525) + 1013904223) >>> 0; return state / 2 ** 31 - 1; };
  const weight = Float32Array.from({ length: classes * width }, () => 1e-2 * uniform() / Math.sqrt(width));
  const node = {
    op: 'Gemm', domain: '', name: 'head', inputs: [name, 'head.weight', 'head.bias'], outputs: ['logits'],
    attributes: { transB: { type: 'int', value: 1 }, alpha: { type: 'float', value: factor } },
  };
  return {
    ...model, nodes: [...model.nodes, node], outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', classes] }],
    initializers: new Map([
      ...model.initializers, ['head.weight', { dtype: 'float32', shape: [classes, width], data: weight }],
      ['head.bias', { dtype: 'float32', shape: [classes], data: new Float32Array(classes) }],
    ]),
  };
}

const sentences = (path) => ({
  path, text: 'text', label: 'label', tokenizer: options.tokenizer, maxLength: Number(options.tokens),
});

const tasks = {
  'fashion-mnist': async () => ({
    model: 'cnn-tanh', data: { train: 'fashion-mnist:train', test: 'fashion-mnist:test' },
    privacy: { epsilon: 3, delta: 1e-5 }, clipping: { norm: 0.1 },
    training: { batchSize: 512, optimizer: { name: 'sgd', learningRate: 2, momentum: 0.9 } },
  }),
  'sst2': async () => ({
    model: withHead(readModel(options.model), 2), data: {
      train: sentences(options.train), test: sentences(options.test),
    },
    // All but the token embeddings, whose noise would fall on words that no sentence of a batch has.
    trainable: ['layer*', 'dense*', 'head*', '*MatMul*'],
    privacy: { epsilon: 8, delta: 1e-5 }, clipping: { norm: 0.1 },
    training: { batchSize: 128, optimizer: { name: 'sgd', learningRate: 0.1, momentum: 0.9 } },
  }),
};

/** `path=value` of --set, the value as JSON where it is some. */
function assign(recipe, setting) {
  const at = setting.indexOf('=');
  const [path, text] = [setting.slice(0, at).split('.'), setting.slice(at + 1)];
  const value = /^[\d[{"-]|^(true|false|null)$/.test(text) ? JSON.parse(text) : text;
  const put = (object, [key, ...rest]) => ({ ...object, [key]: rest.length === 0 ? value : put(object?.[key] ?? {}, rest) });
  return put(recipe, path);
}

const base = await tasks[task]();
const results = [];
for (const seed of options.seeds.split(',').map(Number)) {
  for (const style of options.styles.split(',')) {
    const recipe = {
      ...base,
      privacy: { ...base.privacy, ...(options.epsilon && { epsilon: Number(options.epsilon) }) },
      clipping: { ...base.clipping, ...styles[style] },
      training: { ...base.training, epochs: Number(options.epochs), seed },
    };
    // A setting may be for one style: adaptive:training.optimizer.learningRate=0.5
    const settings = options.set.flatMap((s) => {
      const [only] = s.split(':');
      return only in styles ? (only === style ? [s.slice(only.length + 1)] : []) : [s];
    });
    const { test, seconds, epsilon, steps } = await train(settings.reduce(assign, recipe), { engine: onnxruntimeEngine({ thread: 'caller' }) });
    results.push({ style, seed, accuracy: test.accuracy, seconds, epsilon, steps });
    console.error(JSON.stringify(results.at(-1)));
  }
}
const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;
console.log(JSON.stringify({
  task, epochs: Number(options.epochs), settings: options.set,
  means: Object.fromEntries(options.styles.split(',').map((style) => {
    const own = results.filter((r) => r.style === style);
    return [style, { accuracy: mean(own.map((r) => r.accuracy)), seconds: mean(own.map((r) => r.seconds)) }];
  })),
  results,
}, null, 2));
process.exit(0);
