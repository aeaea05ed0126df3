// A sentence encoder fine-tuned privately as a whole, head first (Kumar et al. 2022): a head on the frozen encoder by full-batch
// steps, and then all but the token embeddings from there on. The two releases' ε and δ add up.
//   npm run build
//   node bench/fine-tune-encoder.mjs --model encoder.onnx --tokenizer tokenizer.json --features features/sst2 \
//     --train train.tsv --test test.tsv --epochs 3     (or --steps 4: full batches)
// FEATURES-train.safetensors is the encoder's, by `ghostgrad embed`. One JSON line for each run; seeds void the guarantee.
import { parseArgs } from 'node:util';
import { onnxruntimeEngine, prepare, readModel } from '../dist/index.js';
import { withHead } from '../dist/models/head.js';
import { datasetOf, headOn, sets } from './features.mjs';

const { values: options } = parseArgs({
  options: {
    'model': { type: 'string' }, 'tokenizer': { type: 'string' }, 'features': { type: 'string' }, 'train': { type: 'string' },
    'test': { type: 'string' }, 'epochs': { type: 'string', default: '3' }, 'steps': { type: 'string' }, 'batch-size': { type: 'string', default: '512' },
    'rate': { type: 'string', default: '0.1' }, 'norm': { type: 'string', default: '0.1' }, 'tokens': { type: 'string', default: '32' },
    'head-epsilon': { type: 'string', default: '2' }, 'epsilon': { type: 'string', default: '8' }, 'seeds': { type: 'string', default: '1' },
  },
});
const [headEpsilon, epsilon] = [Number(options['head-epsilon']), Number(options.epsilon)];
const delta = 5e-6;
const fullBatch = options.steps !== undefined;
const engine = onnxruntimeEngine({ thread: 'caller' });
const sentences = (path) => ({ path, text: 'text', label: 'label', tokenizer: options.tokenizer, maxLength: Number(options.tokens) });

async function trained(input) {
  const run = await prepare(input, { engine });
  const began = performance.now();
  for await (const { step, steps } of run.steps()) {
    if (step === 1 || step % 10 === 0) console.error(`step ${step} of ${steps}, ${((performance.now() - began) / 1000).toFixed(0)} s`);
  }
  return { ...await run.finish(), model: run.model() };
}

const features = await sets.sst2(options.features);
const { width } = features.train;
for (const seed of options.seeds.split(',').map(Number)) {
  const head = await trained({
    model: headOn(width, { classes: 2, init: 'zero' }), data: { train: datasetOf(features.train, 'train') },
    privacy: { epsilon: headEpsilon, delta, sampling: 'full-batch' },
    training: { steps: 30, optimizer: { name: 'adam', learningRate: 0.1 }, seed },
    performance: { microBatch: 2048, threads: 1 },
  });
  const whole = withHead(readModel(options.model), { classes: 2, init: 'zero' }, [width]);
  const model = {
    ...whole,
    initializers: new Map([...whole.initializers].map(([name, value]) => [name, name.startsWith('head.') ? head.model.initializers.get(name) : value])),
  };
  const all = await trained({
    model, data: { train: sentences(options.train), test: sentences(options.test) },
    // The noise on the token embeddings would fall on words that no sentence of a batch has.
    trainable: ['layer*', 'dense*', 'head*', '*MatMul*'],
    privacy: { epsilon: epsilon - headEpsilon, delta, ...(fullBatch && { sampling: 'full-batch' }) }, clipping: { norm: Number(options.norm) },
    training: {
      ...(fullBatch ? { fullBatch, steps: Number(options.steps) } : { batchSize: Number(options['batch-size']), epochs: Number(options.epochs) }), seed,
      optimizer: { name: 'sgd', learningRate: Number(options.rate), momentum: 0.9 },
    },
    // Measuring how many examples to compute at once would be much of so short a run.
    performance: { microBatch: 64 },
  });
  console.log(JSON.stringify({
    seed, ...Object.fromEntries(['epochs', 'steps', 'batch-size', 'rate', 'norm', 'tokens', 'test'].map((name) => [name, options[name]?.split('/').at(-1)])),
    epsilon: head.epsilon + all.epsilon, delta: 2 * delta, accuracy: all.test.accuracy, steps: all.steps, seconds: all.seconds,
  }));
}
process.exit(0);
