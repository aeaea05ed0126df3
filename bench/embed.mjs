// What `embed` adds to bare inference, and what computing features once gains a run.
//   npm run build && node bench/embed.mjs MODEL.onnx --data SPEC [--rows N] [--output NAME] [--batch-size B] [--rounds R]
//   npm run build && node bench/embed.mjs MODEL.onnx --data SPEC --train [--epochs 20] [--classes 2] [--sample N]
// Bare inference is ONNX Runtime's own session of the same file, with its default settings and as many threads, on feeds that
// were read before; `embed` is all of it: proof, digests, reading, computing, writing, syncing. They take turns; the ratio is
// of medians. With --train, the same seeded recipe (a private head) runs with `features: on` and `off`.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { InferenceSession, Tensor } from 'onnxruntime-node';
import { parse } from 'yaml';
import { embed, loadData, readModel, train } from '../dist/index.js';
import { allocatorSettings } from '../dist/runtime/allocator.js';

// As the command line runs: with memory of freed tensors used again, for bare inference too.
if (process.env.MALLOC_ARENA_MAX === undefined) {
  const { status } = spawnSync(process.execPath, process.argv.slice(1), { env: { ...process.env, ...allocatorSettings }, stdio: 'inherit' });
  process.exit(status ?? 1);
}

const { values: settings, positionals: [path] } = parseArgs({
  allowPositionals: true,
  options: {
    data: { type: 'string' }, rows: { type: 'string' }, output: { type: 'string' }, 'batch-size': { type: 'string' },
    rounds: { type: 'string', default: '3' }, train: { type: 'boolean', default: false }, epochs: { type: 'string', default: '20' },
    classes: { type: 'string', default: '2' }, sample: { type: 'string', default: '256' }, threads: { type: 'string' },
  },
});
const threads = Number(settings.threads ?? availableParallelism());
const { output } = settings;
const whole = await loadData(parse(settings.data));
const data = settings.rows === undefined ? whole : firstRows(whole, Number(settings.rows));
const model = readModel(path);
const folder = mkdtempSync(join(tmpdir(), 'embed-'));
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const round = (x) => Number(x.toPrecision(4));

console.log(JSON.stringify(settings.train ? await compareRuns() : await compareInference()));
rmSync(folder, { recursive: true });

async function compareInference() {
  const batch = Number(settings['batch-size'] ?? 64);
  const session = await InferenceSession.create(readFileSync(path), { intraOpNumThreads: threads });
  const feeds = batches(batch, session.inputNames);
  const outputs = output === undefined ? undefined : [output];
  const bare = [];
  const embedded = [];
  await session.run(feeds[0], outputs);
  for (let i = 0; i < Number(settings.rounds); i++) {
    const start = performance.now();
    for (const each of feeds) await session.run(each, outputs);
    bare.push((performance.now() - start) / 1000);
    const out = join(folder, `${i}.safetensors`);
    const { seconds } = await embed(model, data, out, {
      output, threads, ...(settings['batch-size'] !== undefined && { batchSize: batch }),
    });
    embedded.push(seconds);
    rmSync(out);
  }
  const [b, e] = [median(bare), median(embedded)];
  return { rows: data.size, threads, batch, bare: { seconds: round(b), perSecond: round(data.size / b) }, embed: { seconds: round(e), perSecond: round(data.size / e) }, ratio: round(b / e) };
}

function batches(size, names) {
  const [only] = data.features.keys();
  const column = (name) => data.features.get(name) ?? data.features.get(only);
  return Array.from({ length: Math.ceil(data.size / size) }, (_, i) => {
    const indices = Uint32Array.from({ length: Math.min(size, data.size - i * size) }, (__, k) => i * size + k);
    return Object.fromEntries(names.map((name) => {
      const { dtype, shape, gather } = column(name);
      const values = new (dtype === 'int64' ? BigInt64Array : Float32Array)(shape.reduce((a, b) => a * b, indices.length));
      gather(indices, values);
      return [name, new Tensor(dtype, values, [indices.length, ...shape])];
    }));
  });
}

async function compareRuns() {
  const seconds = {};
  for (const features of ['on', 'off']) {
    const start = performance.now();
    const { steps, test } = await train({
      model, data: { train: data, test: data }, head: { classes: Number(settings.classes), init: 'zero', ...(output && { output }) }, trainable: 'head',
      privacy: { epsilon: 3, delta: 1e-5 }, clipping: { norm: 1 },
      training: { batchSize: Number(settings.sample), epochs: Number(settings.epochs), seed: 1, optimizer: { name: 'sgd', learningRate: 4 } },
      performance: { features, threads },
    });
    seconds[features] = { seconds: round((performance.now() - start) / 1000), steps, accuracy: round(test.accuracy), loss: round(test.loss) };
  }
  return { rows: data.size, threads, ...seconds, ratio: round(seconds.off.seconds / seconds.on.seconds) };
}

/** The first rows of a data set. */
function firstRows(set, rows) {
  const cut = (column) => ({ ...column, size: rows });
  return {
    ...set, size: rows, labels: cut(set.labels), features: new Map([...set.features].map(([name, column]) => [name, cut(column)])),
  };
}
