// Times a model's training step here and in PyTorch without privacy, taking turns in one run.
//   npm run build && node bench/compare-pytorch.mjs vgg11 32 [rounds] [python]
// Needs PyTorch for that python, e.g. Debian's python3-torch with libopenblas0-pthread for /usr/bin/python3.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { startChild } from '../dist/bench/process.js';
import { median } from '../dist/bench/statistics.js';

const [model = 'vgg11', batch = '32', rounds = '10', python = '/usr/bin/python3'] = process.argv.slice(2);
const threads = 2;
const freshProcesses = 5;

async function startPython(layout) {
  const script = fileURLToPath(new URL('./pytorch.py', import.meta.url));
  const child = spawn(python, [script, model, batch, String(threads), layout], { stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => JSON.parse((await lines.next()).value);
  const { version } = await next();
  return {
    version,
    run: async () => {
      child.stdin.write('run\n');
      return next();
    },
    stop: () => child.stdin.end(),
  };
}

const contestants = {
  'ghostgrad non-private': () => startChild({ kind: 'step', model, batchSize: Number(batch), mode: 'non-private', threads }),
  'ghostgrad book-keeping': () => startChild({ kind: 'step', model, batchSize: Number(batch), mode: 'book-keeping', threads }),
  'PyTorch nchw': () => startPython('nchw'),
  'PyTorch channels-last': () => startPython('channels-last'),
};

const peaks = {};
for (const [name, start] of Object.entries(contestants)) {
  peaks[name] = [];
  for (let i = 0; i < freshProcesses; i++) {
    const child = await start();
    peaks[name].push((await child.run()).peakMiB);
    child.stop();
  }
}

const running = {};
for (const [name, start] of Object.entries(contestants)) running[name] = await start();
const times = Object.fromEntries(Object.keys(contestants).map((name) => [name, []]));
for (let round = -1; round < Number(rounds); round++) {
  for (const [name, child] of Object.entries(running)) {
    const { ms } = await child.run();
    if (round >= 0) times[name].push(ms);
  }
}
const torchVersion = running['PyTorch nchw'].version;
Object.values(running).forEach((child) => child.stop());

const best = median(times['PyTorch nchw']) <= median(times['PyTorch channels-last']) ? 'PyTorch nchw' : 'PyTorch channels-last';
console.log(JSON.stringify({
  model, batchSize: Number(batch), threads, torchVersion, bestPyTorch: best,
  results: Object.fromEntries(Object.keys(contestants).map((name) => [name, {
    medianMs: median(times[name]), minMs: Math.min(...times[name]), peakMiB: median(peaks[name]),
    timeToBestPyTorch: median(times[name].map((ms, i) => ms / times[best][i])),
    memoryToPyTorch: median(peaks[name]) / Math.min(median(peaks['PyTorch nchw']), median(peaks['PyTorch channels-last'])),
  }])),
}, null, 2));
process.exit(0);
