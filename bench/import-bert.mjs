// How long a BERT-shaped model takes to import and to compile into a private step, and how much memory beyond its weights.
//   npm run build && node bench/import-bert.mjs [layers] [width] [batch] [tokens] [rounds]
// Writes a file as PyTorch's exporter would (weights drawn at random), then runs `ghostgrad explain` on it in fresh
// processes; what the same command takes for a model of one layer is the cost of the process itself.
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { encodeModel } from '../dist/graph/index.js';

const [layers, width, batch, tokens, rounds] = [12, 768, 16, 128, 5].map((n, i) => Number(process.argv[2 + i] ?? n));
const [vocabulary, positions, heads] = [30522, 512, width / 64];

const int = (value) => ({ type: 'int', value });
const ints = (value) => ({ type: 'ints', value });
const integers = (values, shape = [values.length]) => ({ dtype: 'int64', shape, data: BigInt64Array.from(values, BigInt) });
const number = (value) => ({ dtype: 'float32', shape: [], data: Float32Array.of(value) });

function bert(depth, wide, words, manyHeads) {
  const [initializers, literals, nodes] = [new Map(), new Set(), []];
  let seed = 1;
  const random = () => { seed = (seed * 1103515245 + 12345) % 2 ** 31; return (seed / 2 ** 31 - 0.5) * 0.04; };
  const weight = (name, shape) => {
    initializers.set(name, { dtype: 'float32', shape, data: Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, random) });
    return name;
  };
  const literal = (value) => {
    const name = `constant_${initializers.size}`;
    initializers.set(name, value);
    literals.add(name);
    return name;
  };
  const op = (kind, inputs, attributes = {}, output = `${kind}_${nodes.length}`) => {
    nodes.push({ op: kind, domain: '', name: output, inputs, outputs: [output], attributes });
    return output;
  };
  const linear = (x, name, from, to) => op('Add', [weight(`${name}.bias`, [to]), op('MatMul', [x, weight(`${name}.weight`, [from, to])])]);
  const normalised = (x, name) => op('LayerNormalization', [x, weight(`${name}.weight`, [wide]), weight(`${name}.bias`, [wide])], { axis: int(-1) });
  const size = (shape, axis) => op('Unsqueeze', [op('Gather', [shape, literal(integers([axis], []))], { axis: int(0) }), literal(integers([0]))]);
  const shaped = (x, rest) => {
    const shape = op('Shape', [x]);
    return op('Reshape', [x, op('Concat', [size(shape, 0), size(shape, 1), ...rest.map((n) => literal(integers([n])))], { axis: int(0) })]);
  };

  const places = literal(integers(Array.from({ length: positions }, (_, i) => i), [1, positions]));
  const at = op('Slice', [places, literal(integers([0])), size(op('Shape', ['input_ids']), 1), literal(integers([1]))]);
  let x = op('Add', [op('Gather', [weight('word.weight', [words, wide]), 'input_ids']), op('Gather', [weight('position.weight', [positions, wide]), at])]);
  x = normalised(x, 'norm');
  const masked = op('Sub', [literal(number(1)), op('Cast', [op('Unsqueeze', ['attention_mask', literal(integers([1, 2]))])], { to: int(1) })]);
  const mask = op('Mul', [masked, literal(number(-1e9))]);
  for (let i = 0; i < depth; i++) {
    const apart = (name, order) => op('Transpose', [
      shaped(linear(x, `layer.${i}.${name}`, wide, wide), [manyHeads, wide / manyHeads]),
    ], { perm: ints(order) });
    const [q, k, v] = [apart('query', [0, 2, 1, 3]), apart('key', [0, 2, 3, 1]), apart('value', [0, 2, 1, 3])];
    const scores = op('Add', [op('Div', [op('MatMul', [q, k]), literal(number(Math.sqrt(wide / manyHeads)))]), mask]);
    const mixed = op('MatMul', [op('Softmax', [scores], { axis: int(-1) }), v]);
    const together = shaped(op('Transpose', [mixed], { perm: ints([0, 2, 1, 3]) }), [wide]);
    x = normalised(op('Add', [linear(together, `layer.${i}.output`, wide, wide), x]), `layer.${i}.norm1`);
    const up = linear(x, `layer.${i}.up`, wide, 4 * wide);
    const error = op('Add', [op('Erf', [op('Div', [up, literal(number(Math.SQRT2))])]), literal(number(1))]);
    const gelu = op('Mul', [op('Mul', [up, error]), literal(number(0.5))]);
    x = normalised(op('Add', [linear(gelu, `layer.${i}.down`, 4 * wide, wide), x]), `layer.${i}.norm2`);
  }
  const first = op('Gather', [x, literal(integers([0], []))], { axis: int(1) });
  op('Gemm', [first, weight('classifier.weight', [2, wide]), weight('classifier.bias', [2])], { transB: int(1) }, 'logits');
  return encodeModel({
    name: 'bert', opset: 17, metadata: {}, nodes, initializers, literals,
    inputs: ['input_ids', 'attention_mask'].map((name) => ({ name, dtype: 'int64', shape: ['batch', 'sequence'] })),
    outputs: [{ name: 'logits', dtype: 'float32', shape: ['batch', 2] }],
  });
}

/** Seconds and peak resident MiB (the kernel's high-water mark) of one `explain` in a process of its own. */
function explain(path) {
  const program = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
  const started = performance.now();
  const child = spawn(process.execPath, [program, 'explain', path, '--json', '--batch-size', String(batch), '--shape', `sequence=${tokens}`]);
  let [peakMiB, output] = [0, ''];
  const watch = setInterval(() => {
    try {
      peakMiB = Math.max(peakMiB, Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1] ?? 0) / 1024);
    } catch { /* it has ended */ }
  }, 5);
  child.stdout.on('data', (chunk) => { output += chunk; });
  child.stderr.pipe(process.stderr);
  return new Promise((resolve) => {
    child.on('close', () => {
      clearInterval(watch);
      resolve({ seconds: (performance.now() - started) / 1000, peakMiB, told: JSON.parse(output) });
    });
  });
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const folder = mkdtempSync(join(tmpdir(), 'bert-'));
try {
  const results = {};
  for (const [name, model] of [['one small layer', bert(1, 64, 100, 1)], ['whole', bert(layers, width, vocabulary, heads)]]) {
    const path = join(folder, `${name}.onnx`);
    writeFileSync(path, model);
    const runs = [];
    for (let i = 0; i < rounds; i++) runs.push(await explain(path));
    results[name] = { seconds: median(runs.map((r) => r.seconds)), peakMiB: median(runs.map((r) => r.peakMiB)), fileMiB: statSync(path).size / 2 ** 20, told: runs[0].told };
  }
  const { 'one small layer': small, whole } = results;
  console.log(JSON.stringify({
    parameters: whole.told.parameters, batchIndependent: whole.told.batchIndependent,
    seconds: whole.seconds, secondsOfTheProcess: small.seconds, weightsMiB: whole.fileMiB,
    beyondWeightsMiB: whole.peakMiB - whole.fileMiB, beyondWeightsAndProcessMiB: whole.peakMiB - whole.fileMiB - small.peakMiB,
  }, null, 2));
} finally {
  rmSync(folder, { recursive: true });
}
