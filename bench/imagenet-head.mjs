// A linear head at the scale of ImageNet: 1,281,167 rows of 768 features into 1000 classes, one private step over all of them.
//   npm run build && node bench/imagenet-head.mjs [--rows N] [--dir FOLDER] [--dtype float32|float16] [--loss NAME]
//     [--micro-batch N|auto] [--cold] [--threads N] [--json]
// The features are made up: a mean for each class and noise around it, written once into FOLDER (default: the system's folder
// for temporary files; 3.9 GB) and read from there while the step runs, in a process of its own. --cold empties the
// system's cache of files first, which only root can. The rate of a 2048³ matrix product is taken before and after.
import { fork } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, closeSync, renameSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { env, stdout } from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const dist = (name) => new URL(`../dist/${name}`, import.meta.url).href;
const { values: given } = parseArgs({
  options: {
    rows: { type: 'string', default: '1281167' }, dir: { type: 'string', default: tmpdir() }, dtype: { type: 'string', default: 'float32' },
    loss: { type: 'string', default: 'cross-entropy' }, 'micro-batch': { type: 'string', default: 'auto' }, threads: { type: 'string' },
    cold: { type: 'boolean', default: false }, json: { type: 'boolean', default: false }, child: { type: 'boolean', default: false },
  },
});
const [features, classes, heldOut] = [768, 1000, 20_000];
const rows = Number(given.rows);

/** xorshift32: a stream of whole numbers below 2^32. */
function words(seed) {
  let s = seed | 0 || 1;
  return () => {
    s ^= s << 13;
    s ^= s >>> 17;
    s ^= s << 5;
    return s >>> 0;
  };
}

function normals(count, next) {
  const uniform = () => (next() + 0.5) / 2 ** 32;
  return Float32Array.from({ length: count }, () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
}

/** Bits of the nearest half of a number of ordinary size. */
function halfOf(x) {
  const m = Math.abs(x);
  if (m < 2 ** -14) return (x < 0 ? 0x8000 : 0) | Math.round(m * 2 ** 24);
  const exponent = Math.floor(Math.log2(m));
  return (x < 0 ? 0x8000 : 0) + ((exponent + 15) << 10) + Math.round((m / 2 ** exponent - 1) * 1024);
}

/**
 * x = (0.15 · the class's mean + noise) · √768, both of about length 1. Each row's noise is a stretch of one list of normal
 * numbers, from a place of its own: drawing a billion would take longer than training on them.
 */
function write(path, count, seed) {
  const half = given.dtype === 'float16';
  const means = normals(classes * features, words(17));
  const pool = normals(1 << 22, words(18));
  const next = words(seed);
  const bytes = half ? 2 : 4;
  const [xBytes, yBytes] = [count * features * bytes, count * 8];
  const json = JSON.stringify({
    x: { dtype: half ? 'F16' : 'F32', shape: [count, features], data_offsets: [0, xBytes] },
    y: { dtype: 'I64', shape: [count], data_offsets: [xBytes, xBytes + yBytes] },
  });
  const header = Buffer.alloc(8 + Math.ceil(json.length / 8) * 8, ' ');
  header.writeBigUInt64LE(BigInt(header.length - 8));
  header.write(json, 8);
  const file = openSync(`${path}.part`, 'w');
  writeSync(file, header);
  const labels = new BigInt64Array(count);
  const block = new Float32Array(1024 * features);
  for (let start = 0; start < count; start += 1024) {
    const some = Math.min(1024, count - start);
    for (let i = 0; i < some; i++) {
      const label = next() % classes;
      labels[start + i] = BigInt(label);
      const [mean, from] = [label * features, next() % (pool.length - features)];
      for (let j = 0; j < features; j++) block[i * features + j] = 0.15 * means[mean + j] + pool[from + j];
    }
    const stored = half ? Uint16Array.from(block.subarray(0, some * features), halfOf) : block;
    for (let done = 0; done < some * features * bytes;) done += writeSync(file, stored.subarray(0, some * features), { offset: done });
  }
  for (let done = 0; done < yBytes;) done += writeSync(file, labels, { offset: done });
  closeSync(file);
  renameSync(`${path}.part`, path);
}

const fileOf = (count, seed) => join(given.dir, `ghostgrad-head-${given.dtype}-${count}-${seed}.safetensors`);
const made = (count, seed) => {
  const path = fileOf(count, seed);
  if (!existsSync(path)) write(path, count, seed);
  return path;
};

/** In the child: the run, by what the command line calls. */
async function run() {
  const { prepare, buildModel } = await import(dist('index.js'));
  const linear = buildModel({ name: 'mlp', input: [features], hidden: [], classes });
  const zeros = ([name, t]) => [name, { ...t, data: new Float32Array(t.data.length) }];
  const output = join(mkdtempSync(join(tmpdir(), 'ghostgrad-')), 'run');
  const source = (path) => ({ path, features: 'x', label: 'y' });
  const begun = performance.now();
  const seconds = (since) => (performance.now() - since) / 1000;
  try {
    const prepared = await prepare({
      model: { ...linear, initializers: new Map([...linear.initializers].map(zeros)) },
      data: { train: source(fileOf(rows, 1)), test: source(fileOf(heldOut, 2)) },
      loss: given.loss,
      privacy: { epsilon: 8, delta: 1e-6, sampling: 'full-batch' },
      training: { batchSize: rows, steps: 1, optimizer: { name: 'lamb', learningRate: 1 } },
      performance: {
        ...(given['micro-batch'] !== 'auto' && { microBatch: Number(given['micro-batch']) }),
        ...(given.threads !== undefined && { threads: Number(given.threads) }),
      },
      output,
    });
    const prepareSeconds = seconds(begun);
    const started = performance.now();
    for await (const _ of prepared.steps());
    const stepSeconds = seconds(started);
    const { test, epsilon, noiseMultiplier, peakRssMiB } = await prepared.finish();
    return {
      microBatch: prepared.microBatch, prepareSeconds, stepSeconds, wholeSeconds: seconds(begun), peakRssMiB, epsilon, noiseMultiplier,
      accuracy: test.accuracy,
    };
  } finally {
    rmSync(output, { recursive: true, force: true });
  }
}

async function measured() {
  const { allocatorSettings } = await import(dist('runtime/allocator.js'));
  const child = fork(fileURLToPath(import.meta.url), [...process.argv.slice(2), '--child'], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'], env: { ...env, ...allocatorSettings },
  });
  return new Promise((resolve, reject) => {
    child.once('message', resolve);
    child.once('exit', (code) => reject(new Error(`the run ended with code ${code}`)));
  });
}

async function main() {
  made(rows, 1);
  made(heldOut, 2);
  const { measureTime } = await import(dist('bench/measure.js'));
  const { defaultThreads } = await import(dist('runtime/threads.js'));
  const threads = given.threads === undefined ? defaultThreads() : Number(given.threads);
  const gemm = async () => {
    const { gemm: { facts, ms } } = await measureTime({ gemm: { kind: 'gemm', size: 2048, threads } }, 6);
    return facts.flops / Math.min(...ms) / 1e6;
  };
  const before = await gemm();
  if (given.cold) writeFileSync('/proc/sys/vm/drop_caches', '3');
  const result = await measured();
  const gemmGflops = Math.max(before, await gemm());
  // Forward and the weighted sum of weight gradients; a head's input needs none.
  const modelGflops = (4 * rows * features * classes) / result.stepSeconds / 1e9;
  const answer = { rows, dtype: given.dtype, loss: given.loss, cold: given.cold, threads, gemmGflops, modelGflops, rate: modelGflops / gemmGflops, ...result };
  stdout.write(given.json ? `${JSON.stringify(answer)}\n` : [
    `${rows} rows of ${given.dtype}[${features}], ${classes} classes, ${given.loss}, micro-batches of ${result.microBatch.size} (${result.microBatch.reason})`,
    `step ${result.stepSeconds.toFixed(2)} s at ${modelGflops.toFixed(1)} GFLOP/s, ${answer.rate.toFixed(3)} of the matrix product's ${gemmGflops.toFixed(1)}`,
    `whole run ${result.wholeSeconds.toFixed(2)} s (before the step: ${result.prepareSeconds.toFixed(2)} s), peak memory ${Math.round(result.peakRssMiB)} MiB`,
    `epsilon ${result.epsilon.toFixed(3)}, noise multiplier ${result.noiseMultiplier.toFixed(3)}, accuracy on ${heldOut} others: ${(100 * result.accuracy).toFixed(2)} %`, '',
  ].join('\n'));
}

if (given.child) process.send(await run(), () => process.exit(0));
else await main();
