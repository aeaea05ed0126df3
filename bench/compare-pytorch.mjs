// Times a model's training step here and in PyTorch without privacy, taking turns in one run.
//   npm run build && node bench/compare-pytorch.mjs vgg11 32 [--sequence 128] [--rounds 10] [--processes 5]
//     [--threads 2] [--python /usr/bin/python3] [--peers opacus,fastDP]
// Needs PyTorch for that python, e.g. Debian's python3-torch with libopenblas0-pthread for /usr/bin/python3. Peers that are
// not installed there, or do not take the model, are left out with their message on stderr.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { pauseMs, warmUpRounds } from '../dist/bench/measure.js';
import { startChild } from '../dist/bench/process.js';
import { median } from '../dist/bench/statistics.js';

const { values, positionals: [model = 'vgg11', batch = '32'] } = parseArgs({
  allowPositionals: true,
  options: {
    sequence: { type: 'string' }, rounds: { type: 'string', default: '10' }, processes: { type: 'string', default: '5' },
    threads: { type: 'string', default: '2' }, python: { type: 'string', default: '/usr/bin/python3' }, peers: { type: 'string', default: '' },
  },
});
const [rounds, processes, threads] = [values.rounds, values.processes, values.threads].map(Number);
const sequence = values.sequence === undefined ? undefined : Number(values.sequence);
const isConvolutional = /^(vgg|resnet|wrn|cnn)/.test(model);

async function startPython(layout, trainer = 'plain') {
  const script = fileURLToPath(new URL('./pytorch.py', import.meta.url));
  const options = ['--threads', String(threads), '--layout', layout, '--trainer', trainer, ...(sequence === undefined ? [] : ['--sequence', String(sequence)])];
  const child = spawn(values.python, [script, model, batch, ...options], { stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error(`${values.python} ${script} ended without an answer`);
    return JSON.parse(value);
  };
  const { version, failed } = await next();
  if (failed !== undefined) throw new Error(failed);
  return {
    version,
    run: async () => {
      child.stdin.write('run\n');
      return next();
    },
    stop: () => child.stdin.end(),
  };
}

const ours = (mode) => () => startChild({ kind: 'step', model, sequence, batchSize: Number(batch), mode, threads });
const layouts = isConvolutional ? ['nchw', 'channels-last'] : ['nchw'];
const torchName = (layout) => (isConvolutional ? `PyTorch ${layout}` : 'PyTorch');
const contestants = {
  'ghostgrad non-private': ours('non-private'),
  'ghostgrad book-keeping': ours('book-keeping'),
  ...Object.fromEntries(layouts.map((layout) => [torchName(layout), () => startPython(layout)])),
};
for (const peer of values.peers.split(',').filter((name) => name !== '')) {
  try {
    const child = await startPython('nchw', peer);
    await child.run();
    child.stop();
    contestants[peer] = () => startPython('nchw', peer);
  } catch (error) {
    console.error(`left out: ${error.message}`);
  }
}

const peaks = {};
for (const [name, start] of Object.entries(contestants)) {
  peaks[name] = [];
  for (let i = 0; i < processes; i++) {
    const child = await start();
    peaks[name].push((await child.run()).peakMiB);
    child.stop();
  }
}

const running = {};
for (const [name, start] of Object.entries(contestants)) running[name] = await start();
const times = Object.fromEntries(Object.keys(contestants).map((name) => [name, []]));
for (let round = -warmUpRounds; round < rounds; round++) {
  for (const [name, child] of Object.entries(running)) {
    await setTimeout(pauseMs);
    const { ms } = await child.run();
    if (round >= 0) times[name].push(ms);
  }
}
const plain = layouts.map(torchName);
const torchVersion = running[plain[0]].version;
Object.values(running).forEach((child) => child.stop());

const best = plain.reduce((a, b) => (median(times[b]) < median(times[a]) ? b : a));
const leastMemory = Math.min(...plain.map((name) => median(peaks[name])));
console.log(JSON.stringify({
  model, ...(sequence !== undefined && { sequence }), batchSize: Number(batch), threads, torchVersion, bestPyTorch: best,
  results: Object.fromEntries(Object.keys(contestants).map((name) => [name, {
    medianMs: median(times[name]), minMs: Math.min(...times[name]), peakMiB: median(peaks[name]),
    timeToBestPyTorch: median(times[name].map((ms, i) => ms / times[best][i])),
    memoryToPyTorch: median(peaks[name]) / leastMemory,
  }])),
}, null, 2));
process.exit(0);
